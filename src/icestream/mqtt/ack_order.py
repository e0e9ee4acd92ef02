"""AckOrder: the acks of received publishes, which leave in the order of receipt (hazard 66, MQTT-4.6.0-2).

    expect(owed) ... settled(owed, ack) ... take() returns it when all before it have left

Shards finish in any order. An ack that is refused where the protocol has no negative ack (3.1.1) ends the connection
when its turn comes, and nothing behind it leaves. A driver whose acks leave elsewhere, in one order with others, has a
subclass: then `take` returns only what ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import takewhile


class OwedAck:
    """The ack of a received publish. `ack`: its bytes when it is settled; `is_refusal`: it ends the connection."""

    __slots__ = ("ack", "cost", "is_refusal", "packet_id", "qos", "reason_code")

    def __init__(self, packet_id: int, qos: int, cost: int) -> None:
        """`cost`: what the message counts for in the bound of those that are not settled."""
        self.packet_id = packet_id
        self.qos = qos
        self.cost = cost
        self.reason_code = 0
        self.ack: bytes | None = None
        self.is_refusal = False


class AckOrder:
    """The acks that one connection owes."""

    def __init__(self) -> None:
        self._owed: deque[OwedAck] = deque()
        self._qos1_count = 0

    @property
    def is_empty(self) -> bool:
        """True if all that are owed have left."""
        return not self._owed

    @property
    def qos1_count(self) -> int:
        """Publishes of QoS 1 whose acks have not left."""
        return self._qos1_count

    def expect(self, owed: OwedAck) -> None:
        """A publish was received. The same entry may be expected again: it is answered as often."""
        self._owed.append(owed)
        self._qos1_count += owed.qos == 1

    def settled(self, owed: OwedAck) -> None:
        """Its outcome is known: `ack` or `is_refusal` is set."""

    def take(self) -> Iterator[OwedAck]:
        """The acks that may leave now, in their order."""
        owed = self._owed
        while owed and (owed[0].ack is not None or owed[0].is_refusal):
            self._qos1_count -= owed[0].qos == 1
            yield owed.popleft()

    def clear(self) -> None:
        """Nothing that is owed leaves any more."""
        self._owed.clear()

    def cut(self, undecided: Collection[OwedAck]) -> None:
        """These entries, and all behind the first of them, leave no more."""
        self._owed = deque(takewhile(lambda owed: owed not in undecided, self._owed))

    def close(self) -> None:
        """The connection closes when all that are owed now have left."""
