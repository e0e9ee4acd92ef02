"""A consumer of Danube: the broker's sink for its deliveries, and the stream to its client.

subscribed   part of the subscription, without a stream. Reliable topic: nothing is dispatched to it yet.
             Non-reliable topic: a bounded number of messages waits for the stream
streaming    messages are sent; unacked messages are limited by its AckWindow. While its subscription is stalled and
             nothing is sent, the stream ends from time to time with the reason (stall_watch.py)
ended        it has left the subscription; its unacked messages are redelivered
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
from icestream.model.shard import Gap
from icestream.model.subscription import DispatchMode
from icestream.observability.log import get_logger
from icestream.wal.tail import SectionRead

_log = get_logger("danube")
_TOP_UP: Final = limits.CREDIT_MAX // 2
TAKEN_OVER: Final = "connected again"
TOO_LARGE: Final = "too large for a client of Danube"


class AckWindow:
    """How many unacked messages a consumer may have: as many as it acks in two seconds. Pure: the time is a parameter.

    Danube's clients grant no credit; they take every message and queue it. A message that waits in the client's queue
    longer than the ack timeout is redelivered and counts as failed. A fixed window is too large for a consumer that
    needs seconds for a message, and too small for one that acks thousands in a second. So the window follows the rate
    of acks, between Danube's own 10 and a bound.
    """

    __slots__ = ("_acks", "_since_ms", "size")

    def __init__(self, now_ms: int) -> None:
        self.size = limits.DANUBE_WINDOW_MIN
        self._acks = 0
        self._since_ms = now_ms

    def acked(self, count: int, now_ms: int) -> bool:
        """Counts acks; returns whether the window has changed."""
        self._acks += count
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms < limits.DANUBE_WINDOW_STEP_MS:
            return False
        target = self._acks * limits.DANUBE_WINDOW_MS // elapsed_ms
        size = max(limits.DANUBE_WINDOW_MIN, min(target, limits.DANUBE_WINDOW_MAX))
        self._acks, self._since_ms = 0, now_ms
        changed, self.size = size != self.size, size
        return changed


class DanubeConsumer:
    """Implements the broker's ConsumerSink."""

    def __init__(
        self,
        partition: PartitionRef,
        subscription: str,
        peer: str,
        address: str,
        message_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.topic: Topic = partition.topic
        self.shard = partition.shard
        self.peer = peer
        self.since_ms = now_ms()
        self._now_ms = now_ms
        self._suffix = subscription_field(subscription)
        self._wire_name = wire_name(partition.topic, partition.shard)
        self._address = address
        self._message_bytes_max = message_bytes_max + limits.DANUBE_DELIVERY_BYTES_EXTRA
        self._loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self._consumer: Consumer | None = None
        self._stream: OutStream | None = None
        self._queued: list[bytes] = []  # messages that wait for the stream
        self._queued_bytes = 0
        self._used_credit = 0
        self.window = AckWindow(self.since_ms)
        self.ended: asyncio.Future[str] = (
            self._loop.create_future()
        )  # the reason, or the error that the stream ends with
        subject = f"subscription {subscription} of {self._wire_name}"
        self._stall_watch = StallWatch(subject, self._has_unacked, self._fail)

    @property
    def id(self) -> int:
        assert self._consumer is not None
        return self._consumer.id

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None

    @property
    def is_stalled(self) -> bool:
        """True after a stall event of the broker, until the stall is over."""
        return self._stall_watch.is_stalled

    # --- lifecycle ---

    def joined(self, subscription: Subscription, consumer: Consumer) -> None:
        self._subscription, self._consumer = subscription, consumer
        consumer.credit.unacked_max = self.window.size
        if self.topic.record.dispatch is DispatchMode.NON_RELIABLE:
            subscription.give_credit(consumer, limits.DANUBE_WAITING_MESSAGES_MAX)

    def begin(self, stream: OutStream) -> None:
        assert self._subscription is not None
        assert self._consumer is not None
        self._stream = stream
        stream.on_drained = self._consumer.drained
        queued, self._queued, self._queued_bytes = self._queued, [], 0
        if queued:
            stream.push(queued)
        self._subscription.give_credit(self._consumer, limits.CREDIT_MAX)
        self._consumer.drained()
        self._stall_watch.begin()

    def leave(self) -> None:
        if self._subscription is not None and self._consumer is not None:
            self._subscription.leave(self._consumer)
        self._end("the consumer left")

    def _end(self, reason: str) -> None:
        self._stall_watch.close()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _fail(self, error: errors.IcestreamError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _has_unacked(self) -> bool:
        if self._subscription is None or self._consumer is None:
            return False
        return self._subscription.delivery(self.shard).has_unacked(self._consumer)

    # --- from the broker ---

    @property
    def is_full(self) -> bool:
        if self._stream is not None:
            return self._stream.is_full
        return (
            len(self._queued) >= limits.DANUBE_WAITING_MESSAGES_MAX
            or self._queued_bytes >= limits.DANUBE_WAITING_BYTES_MAX
        )

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        accepted: list[bytes] = []
        for offset, message in messages_of(section, first_row, rows, self._wire_name, self._address):
            if len(message) + len(self._suffix) > self._message_bytes_max:
                self._loop.call_soon(self._nack_too_large, offset, generation, len(message))
            else:
                accepted.append(message + self._suffix)
        if self._stream is not None:
            self._stream.push(accepted)
        else:
            self._queued += accepted
            self._queued_bytes += sum(map(len, accepted))
        self._used_credit += rows
        self._stall_watch.delivered()
        if self._used_credit >= _TOP_UP:
            self._loop.call_soon(self._top_up)

    def _nack_too_large(self, offset: int, generation: int, size: int) -> None:
        """Nacks a message that exceeds the clients' limit: the failure policy decides what happens."""
        _log.warning("message too large for Danube clients", topic=self._wire_name, offset=offset, bytes=size)
        if self._subscription is not None:
            self._subscription.delivery(self.shard).nack([(offset, offset + 1)], generation, 0, self.id, TOO_LARGE)

    def _top_up(self) -> None:
        used_credit, self._used_credit = self._used_credit, 0
        if self._subscription is not None and self._consumer is not None:
            self._subscription.give_credit(self._consumer, used_credit)

    def gap(self, shard: int, generation: int, gap: Gap) -> None:
        """Ignored: Danube's protocol has no gaps; the next message has the next existing offset."""

    def event(self, event: str, details: dict[str, object]) -> None:
        if event == "closed":
            self._end(str(details.get("reason", "")))
        elif event == STALLED:
            self._stall_watch.stalled(details)
        elif event == RESUMED:
            self._stall_watch.resumed(details)

    # --- from the client ---

    def acked(self, count: int) -> None:
        """Counts messages that were acked or nacked, which may change the window."""
        if self._consumer is not None and self.window.acked(count, self._now_ms()):
            self._consumer.credit.unacked_max = self.window.size
            if self._subscription is not None and not self.ended.done():
                self._subscription.delivery(self.shard).resume()


def no_such_consumer(consumer_id: int) -> errors.UnknownSubscription:
    return errors.UnknownSubscription(f"unknown consumer id {consumer_id}", hint="subscribe again")
