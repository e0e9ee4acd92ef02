"""The consumers of one connection: messages, gaps and events find theirs by its handle.

not known   its `subscribe` may not be answered yet: gaps and events are kept for it, messages cannot come yet
here        everything is handed over
left        it takes no more, and something may still be on its way to it: passed over
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol

from icestream import errors, limits
from icestream.rpc import document, frame
from icestream.rpc.frame import Frame, Kind

_HANDLE_MAX: Final = 2**32 - 1


class Consumes(Protocol):
    """Who gets the messages of a subscription."""

    def delivered(self, delivery: frame.Delivery) -> None: ...

    def gap_seen(self, gap: frame.GapSeen) -> None: ...

    def event(self, found: dict[str, Any]) -> None: ...


class Consumers:
    def __init__(self) -> None:
        self._consumers: dict[int, Consumes | None] = {}  # None: it has left
        self._early: list[tuple[int, Frame]] = []  # events of consumers that are not known yet
        self._early_gaps: deque[frame.GapSeen] = deque(maxlen=limits.CLIENT_GAPS_MAX)

    def join(self, handle: int, consumer: Consumes) -> None:
        """What came for it before the answer to its `subscribe` was looked at is handed over now."""
        self._consumers[handle] = consumer
        early, self._early = self._early, []
        for number, one in early:
            if number == handle:
                self.inform(one)
            else:
                self._early.append((number, one))
        for _ in range(len(self._early_gaps)):
            gap = self._early_gaps.popleft()
            if gap.consumer == handle:
                consumer.gap_seen(gap)
            else:
                self._early_gaps.append(gap)

    def leave(self, handle: int) -> None:
        """It takes no more; something may be on its way to it, until the broker says that it knows (`forget`)."""
        if handle in self._consumers:
            self._consumers[handle] = None

    def forget(self, handle: int) -> None:
        self._consumers.pop(handle, None)

    def deliver(self, delivery: frame.Delivery) -> None:
        if delivery.consumer not in self._consumers:
            raise errors.DecodeError(f"messages for consumer {delivery.consumer}, which is none")
        consumer = self._consumers[delivery.consumer]
        if consumer is not None:
            consumer.delivered(delivery)

    def inform(self, one: Frame) -> None:
        """A GAP or an EVENT."""
        gap = frame.decode_gap(one.body) if one.kind == Kind.GAP else None
        handle = one.number if gap is None else gap.consumer
        if handle not in self._consumers:
            self._keep(handle, one, gap)
            return
        consumer = self._consumers[handle]
        if consumer is None:
            return
        if gap is not None:
            consumer.gap_seen(gap)
        else:
            consumer.event(document.decode(one.body))

    def _keep(self, handle: int, one: Frame, gap: frame.GapSeen | None) -> None:
        """Until its consumer is there. Each crash of a broker leaves a gap, so there may be any number of them: the
        newest are kept, as a subscription does."""
        if gap is not None:
            self._early_gaps.append(gap)
        elif len(self._early) >= limits.CLIENT_EARLY_FRAMES_MAX or handle > _HANDLE_MAX:
            raise errors.DecodeError(f"too much for consumer {handle}, which is not there")
        else:
            self._early.append((handle, one))
