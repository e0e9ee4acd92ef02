"""Which topics are this node's, and where the others are.

A topic is served by the node that made it, whose log has its messages: `owner` in its record, the id of that node. Ids
are made of chance and never come back (cluster/members.py), so a node that takes the place of another one does not take
its topics for its own: it does not have their messages. A node that joined anew with its messages is the exception:
what was its predecessor's is its own (cluster/rejoin.py). Records of before there were owners are the founder's.

Reads here go to the state of this node, at once and however old: an owner never changes.
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors, limits
from icestream.broker import records
from icestream.cluster.members import NODES, REMOVED_NODES, NodeRecord, decode_record, successor_of
from icestream.model.topic_name import TopicName


def _nothing(key: str) -> bytes | None:
    return None


class TopicOwners:
    """Without arguments: a node that has none and never will, as one in memory."""

    def __init__(
        self,
        own: str = "",
        founder: str = "",
        peek: Callable[[str], bytes | None] = _nothing,
        is_reached: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`own`, `founder`: ids of nodes. `peek`: what the state of this node has under a key. `is_reached`: whether
        another node, by its id, answers this one."""
        self._is_reached = is_reached
        self.own = own
        self._founder = founder
        self._peek = peek

    @property
    def there_may_be_some(self) -> bool:
        return bool(self.own)

    def is_own(self, owner: str) -> bool:
        return not self.own or self.present_owner(owner) == self.own

    def present_owner(self, owner: str) -> str:
        """The node that has the messages of an owner now: itself, or its successor where it joined anew."""
        present = owner or self._founder
        for _ in range(limits.NODE_SUCCESSORS_MAX):
            value = self._peek(REMOVED_NODES + present)
            successor = successor_of(value) if value else ""
            if not successor:
                break
            present = successor
        return present

    def is_orphaned(self, owner: str) -> bool:
        """Its node was removed from the cluster for good, and none has its messages."""
        present = self.present_owner(owner)
        return self.node(owner) is None and self._peek(REMOVED_NODES + present) is not None

    def is_unclaimed(self, owner: str) -> bool:
        """This node's, and nobody has written that down."""
        return bool(self.own) and not owner and self.is_own(owner)

    def find(self, name: TopicName) -> records.TopicRecord | None:
        """A topic of whomever, as far as this node knows."""
        key = records.topic_key(name)
        value = self._peek(key)
        return records.decode(records.TopicRecord, key, value) if value is not None else None

    def namespace(self, name: str) -> records.NamespaceRecord | None:
        key = records.namespace_key(name)
        value = self._peek(key)
        return records.decode(records.NamespaceRecord, key, value) if value is not None else None

    def node(self, owner: str) -> NodeRecord | None:
        value = self._peek(NODES + self.present_owner(owner))
        return decode_record(value) if value is not None else None

    def elsewhere(self, name: TopicName, record: records.TopicRecord) -> errors.TopicElsewhere:
        """What whoever asks this node for it is told."""
        node = self.node(record.owner)
        if node is None:
            return errors.TopicElsewhere(
                f"topic {name} is served by node {record.node}, which is not in the cluster any more",
                hint=f"`icestream topic takeover {name}` lets another node serve it with what its table holds, "
                f"`icestream topic delete {name}` deletes it; what only that node's log had is lost",
            )
        places = {"node": node.name, "native": node.native, "danube": node.danube, "http": node.http}
        known = {way: place for way, place in places.items() if place}
        if not self._is_reached(int(self.present_owner(record.owner), 16)):
            known.pop("http", None)  # a redirect would lead nowhere. Clients of the other protocols keep trying
            return errors.TopicElsewhere(
                f"topic {name} is served by node {node.name}, which is down, or cannot be reached from here",
                hint=f"start {node.name}, or look at its network: its clients go on when it is back",
                details=known,
            )
        return errors.TopicElsewhere(
            f"topic {name} is served by node {node.name}",
            hint=f"ask that node: {known.get('native') or node.address}",
            details=known,
        )
