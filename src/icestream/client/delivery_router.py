"""DeliveryRouter: routes the messages, gaps and events of one connection to their consumers, by handle.

unknown   the reply to its `subscribe` may not have been handled yet: gaps and events are buffered for it; messages
          cannot arrive yet, because no credit was sent
joined    frames are passed on
left      it takes no more, but frames may still be on their way: they are ignored
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from icestream import errors, limits
from icestream.rpc import document, frame
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, FrameKind

_HANDLE_MAX: Final = 2**32 - 1


class DeliveryListener(Protocol):
    """The consumer behind a handle."""

    def on_delivery(self, delivery: frame.Delivery) -> None:
        """Takes the messages of a DELIVER or PICK. Raises DecodeError."""

    def on_gap(self, gap: frame.GapNotice) -> None:
        """Takes a GAP. Raises DecodeError."""

    def on_event(self, event: Document) -> None:
        """Takes an EVENT. Raises DecodeError."""


class DeliveryRouter:
    """The consumers of one connection, by their handles."""

    def __init__(self) -> None:
        self._consumers: dict[int, DeliveryListener | None] = {}  # by handle; None after it has left
        self._early_events: list[tuple[int, Frame]] = []  # of handles that are unknown
        self._early_gaps: deque[frame.GapNotice] = deque(maxlen=limits.CLIENT_GAPS_MAX)

    def join(self, handle: int, consumer: DeliveryListener) -> None:
        """Adds a consumer, and passes on the gaps and events that arrived before the reply to its `subscribe`."""
        self._consumers[handle] = consumer
        early_events, self._early_events = self._early_events, []
        for event_handle, event in early_events:
            if event_handle == handle:
                self.notify(event)
            else:
                self._early_events.append((event_handle, event))
        for _ in range(len(self._early_gaps)):
            gap = self._early_gaps.popleft()
            if gap.consumer == handle:
                consumer.on_gap(gap)
            else:
                self._early_gaps.append(gap)

    def leave(self, handle: int) -> None:
        """Ignores further frames for the consumer, until the broker confirms that it is closed (`remove`)."""
        if handle in self._consumers:
            self._consumers[handle] = None

    def remove(self, handle: int) -> None:
        """Forgets the consumer: no frame for it is on its way any more."""
        self._consumers.pop(handle, None)

    def deliver(self, delivery: frame.Delivery) -> None:
        """Passes on a DELIVER or PICK. Raises DecodeError for a handle that is unknown."""
        if delivery.consumer not in self._consumers:
            raise errors.DecodeError(f"messages for unknown consumer {delivery.consumer}")
        consumer = self._consumers[delivery.consumer]
        if consumer is not None:
            consumer.on_delivery(delivery)

    def notify(self, received: Frame) -> None:
        """Passes on a GAP or EVENT. Raises DecodeError."""
        gap = frame.decode_gap(received.body) if received.kind == FrameKind.GAP else None
        handle = received.number if gap is None else gap.consumer
        if handle not in self._consumers:
            self._buffer_early(handle, received, gap)
            return
        consumer = self._consumers[handle]
        if consumer is None:
            return
        if gap is not None:
            consumer.on_gap(gap)
        else:
            consumer.on_event(document.decode(received.body))

    def _buffer_early(self, handle: int, received: Frame, gap: frame.GapNotice | None) -> None:
        """Keeps a gap or event for a consumer whose `subscribe` has no reply yet. Raises DecodeError for too many."""
        # Each crash of a broker leaves a gap, so there may be any number of them: the newest are kept, as a
        # subscription does. Events are few, so too many of them are a protocol error.
        if gap is not None:
            self._early_gaps.append(gap)
        elif len(self._early_events) >= limits.CLIENT_EARLY_FRAMES_MAX or handle > _HANDLE_MAX:
            raise errors.DecodeError(f"too many events for unknown consumer {handle}")
        else:
            self._early_events.append((handle, received))
