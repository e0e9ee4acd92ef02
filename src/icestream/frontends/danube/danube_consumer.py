"""One consumer of Danube: what the broker delivers to it, and the stream that takes it to its client.

subscribed   it has its place in the subscription, and no stream yet. Reliable: nothing is decided for it.
             Non-reliable: a bounded number of messages waits for the stream
streaming    messages go out; it holds at most its window unacked (window.py). While its subscription is stalled and
             nothing goes out, the stream ends now and then with the reason (stall_watch.py)
ended        it has left its subscription; what it held goes to others, or to itself when it comes again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.broker.consumer import Consumer
from icestream.broker.stall import RESUMED, STALLED
from icestream.broker.subscription import Subscription
from icestream.broker.topic import Topic
from icestream.frontends.danube.handlers import OutStream
from icestream.frontends.danube.messages import messages_of, subscription_field
from icestream.frontends.danube.partition_names import PartitionRef, wire_name
from icestream.frontends.danube.stall_watch import StallWatch
from icestream.frontends.danube.window import AckWindow
from icestream.model.shard import Gap
from icestream.model.subscription import Dispatch
from icestream.observability.log import get_logger
from icestream.wal.tail import SectionRead

_log = get_logger("danube")
_TOP_UP: Final = limits.CREDIT_MAX // 2
TAKEN_OVER: Final = "connected again"
TOO_LARGE: Final = "too large for a client of Danube"


class DanubeConsumer:
    """The broker's ConsumerSink."""

    def __init__(
        self,
        place: PartitionRef,
        subscription: str,
        peer: str,
        address: str,
        message_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.topic: Topic = place.topic
        self.shard = place.shard
        self.peer = peer
        self.since_ms = now_ms()
        self._now_ms = now_ms
        self._suffix = subscription_field(subscription)
        self._wire_name = wire_name(place.topic, place.shard)
        self._address = address
        self._message_bytes_max = message_bytes_max + limits.DANUBE_DELIVERY_BYTES_EXTRA
        self._loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self._consumer: Consumer | None = None
        self._stream: OutStream | None = None
        self._early: list[bytes] = []  # what waits for the stream
        self._early_bytes = 0
        self._spent = 0
        self.window = AckWindow(self.since_ms)
        self.ended: asyncio.Future[str] = self._loop.create_future()  # why; or an error that the stream ends with
        where = f"subscription {subscription} of {self._wire_name}"
        self._stall_watch = StallWatch(where, self._is_holding, self._fail)

    @property
    def id(self) -> int:
        assert self._consumer is not None
        return self._consumer.id

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None

    @property
    def is_stalled(self) -> bool:
        """The broker has told it that messages are not delivered."""
        return self._stall_watch.is_stalled

    # --- life ---

    def joined(self, subscription: Subscription, consumer: Consumer) -> None:
        self._subscription, self._consumer = subscription, consumer
        consumer.credit.held_max = self.window.size
        if self.topic.record.dispatch is Dispatch.NON_RELIABLE:
            subscription.give_credit(consumer, limits.DANUBE_WAITING_MESSAGES_MAX)

    def begin(self, stream: OutStream) -> None:
        assert self._subscription is not None
        assert self._consumer is not None
        self._stream = stream
        stream.on_drained = self._consumer.drained
        early, self._early, self._early_bytes = self._early, [], 0
        if early:
            stream.push(early)
        self._subscription.give_credit(self._consumer, limits.CREDIT_MAX)
        self._consumer.drained()
        self._stall_watch.begin()

    def leave(self) -> None:
        if self._subscription is not None and self._consumer is not None:
            self._subscription.leave(self._consumer)
        self._end("it left")

    def _end(self, reason: str) -> None:
        self._stall_watch.close()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _fail(self, error: errors.IcestreamError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _is_holding(self) -> bool:
        if self._subscription is None or self._consumer is None:
            return False
        return self._subscription.delivery(self.shard).is_holding(self._consumer)

    # --- from the broker ---

    @property
    def is_full(self) -> bool:
        if self._stream is not None:
            return self._stream.is_full
        return (
            len(self._early) >= limits.DANUBE_WAITING_MESSAGES_MAX
            or self._early_bytes >= limits.DANUBE_WAITING_BYTES_MAX
        )

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        found: list[bytes] = []
        for offset, message in messages_of(section, first_row, rows, self._wire_name, self._address):
            if len(message) + len(self._suffix) > self._message_bytes_max:
                self._loop.call_soon(self._give_back, offset, generation, len(message))
            else:
                found.append(message + self._suffix)
        if self._stream is not None:
            self._stream.push(found)
        else:
            self._early += found
            self._early_bytes += sum(map(len, found))
        self._spent += rows
        self._stall_watch.delivered()
        if self._spent >= _TOP_UP:
            self._loop.call_soon(self._top_up)

    def _give_back(self, offset: int, generation: int, size: int) -> None:
        """A message that no client of Danube takes: it fails, and its subscription's policy says what becomes of it."""
        _log.warning("a message is too large for a Danube client", topic=self._wire_name, offset=offset, bytes=size)
        if self._subscription is not None:
            self._subscription.delivery(self.shard).nack([(offset, offset + 1)], generation, 0, self.id, TOO_LARGE)

    def _top_up(self) -> None:
        spent, self._spent = self._spent, 0
        if self._subscription is not None and self._consumer is not None:
            self._subscription.give_credit(self._consumer, spent)

    def gap(self, shard: int, generation: int, gap: Gap) -> None:
        """Danube has no word for it: the next message has the next offset."""

    def event(self, event: str, details: dict[str, object]) -> None:
        if event == "closed":
            self._end(str(details.get("reason", "")))
        elif event == STALLED:
            self._stall_watch.stalled(details)
        elif event == RESUMED:
            self._stall_watch.resumed(details)

    # --- from the client ---

    def acked(self, count: int) -> None:
        """It has acked messages, or given them back."""
        if self._consumer is not None and self.window.acked(count, self._now_ms()):
            self._consumer.credit.held_max = self.window.size
            if self._subscription is not None and not self.ended.done():
                self._subscription.delivery(self.shard).go_on()


def no_such_consumer(consumer_id: int) -> errors.UnknownSubscription:
    return errors.UnknownSubscription(f"consumer {consumer_id} is not known here", hint="subscribe again")
