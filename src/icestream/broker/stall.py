"""Stalls: lasting reasons why a shard is not delivered, reported to its consumers and to operators.

    blocked      a message failed more often than its policy allows, and the policy is `block`
    unreadable   stored messages cannot be read; the read is retried
    forbidden    a dead letter may not be written: the principal that named its topic lost the right (hazard 115)

Consumers get the event `stalled` {kind, shard, offset, reason, hint} when a stall begins, when a later offset or
another reason replaces it, and when they join while it lasts; `resumed` {kind, shard} when it ends. docs/protocol.md
describes both; clients ignore unknown events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from icestream import limits
from icestream.rpc.document import cut_text

STALLED, RESUMED = "stalled", "resumed"


class StallKind(Enum):
    """The reasons of stalls, by their names in the protocol."""

    BLOCKED = "blocked"
    UNREADABLE = "unreadable"
    FORBIDDEN = "forbidden"


class DeliveryStall(NamedTuple):
    """`offset`: the first message that is not delivered. `hint`: what ends the stall; may be empty."""

    kind: StallKind
    shard: int
    offset: int
    reason: str
    hint: str
    since_us: int  # wall clock

    def as_event(self) -> dict[str, object]:
        """The details of the event `stalled`."""
        return {
            "kind": self.kind.value,
            "shard": self.shard,
            "offset": self.offset,
            "reason": self.reason,
            "hint": self.hint,
        }


class EventSink(Protocol):
    """The part of a consumer's front end (broker_consumer.ConsumerSink) that takes events."""

    def event(self, event: str, details: dict[str, object]) -> None: ...


class DeliveryStalls:
    """The stalls of one shard of a subscription: at most one of each kind."""

    def __init__(self, shard: int, now_us: Callable[[], int], sinks: Callable[[], list[EventSink]]) -> None:
        """`sinks`: those of the present consumers of the shard."""
        self._shard = shard
        self._now_us = now_us
        self._sinks = sinks
        self._by_kind: dict[StallKind, DeliveryStall] = {}

    def __iter__(self) -> Iterator[DeliveryStall]:
        return iter(list(self._by_kind.values()))

    def __len__(self) -> int:
        return len(self._by_kind)

    def get(self, kind: StallKind) -> DeliveryStall | None:
        return self._by_kind.get(kind)

    def begin(self, kind: StallKind, offset: int, reason: str, hint: str = "") -> None:
        """Begins a stall, or updates the present one. Consumers are notified of a later offset or another reason only.

        An earlier offset with the same reason is not news, so that a batch whose messages fail from its end on causes
        one event.
        """
        # Cut here, where a stall begins: the reason may be a text of a consumer or of a catalog, of any length.
        reason = cut_text(reason, limits.ERROR_MESSAGE_BYTES_MAX)
        hint = cut_text(hint, limits.ERROR_HINT_BYTES_MAX)
        former = self._by_kind.get(kind)
        since_us = self._now_us() if former is None else former.since_us
        stall = self._by_kind[kind] = DeliveryStall(kind, self._shard, offset, reason, hint, since_us)
        if former is None or offset > former.offset or (offset == former.offset and reason != former.reason):
            for sink in self._sinks():
                sink.event(STALLED, stall.as_event())

    def end(self, kind: StallKind) -> None:
        """Ends a stall; does nothing without one."""
        if self._by_kind.pop(kind, None) is not None:
            for sink in self._sinks():
                sink.event(RESUMED, {"kind": kind.value, "shard": self._shard})

    def notify(self, sink: EventSink) -> None:
        """Notifies a consumer that joins of the present stalls."""
        for stall in self:
            sink.event(STALLED, stall.as_event())

    def clear(self) -> None:
        """Removes all stalls without events: the delivery is closed."""
        self._by_kind.clear()
