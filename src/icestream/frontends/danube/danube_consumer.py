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
from icestream.broker.broker_consumer import BrokerConsumer
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.shard_delivery import ShardDelivery
from icestream.broker.stall import RESUMED, STALLED
from icestream.frontends.danube.handlers import OutStream
from icestream.frontends.danube.messages import messages_of, subscription_field
from icestream.frontends.danube.partition_names import PartitionRef, wire_name
from icestream.frontends.danube.stall_watch import StallWatch
from icestream.model.shard import DeclaredGap
from icestream.model.subscription_options import DispatchMode
from icestream.observability.log import get_logger
from icestream.wal.tail import SectionRead

_log = get_logger("danube")
DeliveryKey = tuple[int, int, str]  # topic id, shard, subscription
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
        """Counts acks; True if the window has changed."""
        # Measured over steps, not per ack: single acks come in bursts.
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
    """One consumer of a Danube client; implements the broker's ConsumerSink."""

    def __init__(
        self,
        client: GuardedBroker,
        partition: PartitionRef,
        subscription: str,
        peer: str,
        address: str,
        message_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.client = client  # whose session holds the right to consume
        self.topic: BrokerTopic = partition.topic
        self.shard = partition.shard
        self.subscription = subscription
        self.delivery_key: DeliveryKey = (partition.topic.record.id, partition.shard, subscription)
        self.peer = peer
        self.since_ms = now_ms()
        self._now_ms = now_ms
        self._suffix = subscription_field(subscription)  # the last field of each encoded message
        self.wire_name = wire_name(partition.topic, partition.shard)
        self._address = address
        self._message_bytes_max = message_bytes_max + limits.DANUBE_DELIVERY_BYTES_EXTRA
        self._loop = asyncio.get_running_loop()
        self._subscription: BrokerSubscription | None = None
        self._consumer: BrokerConsumer | None = None
        self._stream: OutStream | None = None
        self._queued: list[bytes] = []  # messages that wait for the stream
        self._queued_bytes = 0
        self._used_credit = 0  # messages that were delivered and for which no credit was given again
        self.window = AckWindow(self.since_ms)
        # The reason, or the error that the stream ends with.
        self.ended: asyncio.Future[str] = self._loop.create_future()
        subject = f"subscription {subscription} of {self.wire_name}"
        self._stall_watch = StallWatch(subject, self._has_unacked, self._fail)

    @property
    def id(self) -> int:
        """The consumer id in the protocol: that of the broker's consumer."""
        assert self._consumer is not None
        return self._consumer.id

    @property
    def delivery(self) -> ShardDelivery:
        """The deliveries of its shard in its subscription."""
        assert self._subscription is not None
        return self._subscription.delivery(self.shard)

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None

    @property
    def is_waiting(self) -> bool:
        """True if it has joined its subscription and has had no stream yet."""
        return self._stream is None and not self.ended.done()

    @property
    def is_stalled(self) -> bool:
        """True after a stall event of the broker, until the stall is over."""
        return self._stall_watch.is_stalled

    # --- lifecycle ---

    def joined(self, subscription: BrokerSubscription, consumer: BrokerConsumer) -> None:
        """Connects it to the broker's consumer. A non-reliable topic delivers at once, because what is not delivered
        now would be skipped."""
        self._subscription, self._consumer = subscription, consumer
        consumer.credit.unacked_max = self.window.size
        if self.topic.record.dispatch is DispatchMode.NON_RELIABLE:
            subscription.give_credit(consumer, limits.DANUBE_WAITING_MESSAGES_MAX)

    def begin(self, stream: OutStream) -> None:
        """Starts the stream: first what waits for it, then everything that the broker dispatches."""
        assert self._subscription is not None
        assert self._consumer is not None
        self._stream = stream
        stream.on_drained = self._consumer.drained
        queued, self._queued, self._queued_bytes = self._queued, [], 0
        if queued:
            stream.push(queued)
        # All of it: Danube's clients grant no credit. The AckWindow and the stream's own bound limit what is sent.
        self._subscription.give_credit(self._consumer, limits.CREDIT_MAX)
        self._consumer.drained()
        self._stall_watch.begin()

    def leave(self) -> None:
        """Leaves the subscription and ends the stream, if there is one. May be called again."""
        if self._subscription is not None and self._consumer is not None:
            self._subscription.leave(self._consumer)
        self._end("the consumer left")

    def _end(self, reason: str) -> None:
        self._stall_watch.close()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _fail(self, error: errors.IcestreamError) -> None:
        self._stall_watch.close()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # there may be no stream that would see it

    def _has_unacked(self) -> bool:
        """True if the client has messages that it has not acked."""
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
        """Encodes the messages and pushes them to the stream; without a stream they wait for it."""
        accepted: list[bytes] = []
        for offset, message in messages_of(section, first_row, rows, self.wire_name, self._address):
            if len(message) + len(self._suffix) > self._message_bytes_max:
                # In the next turn: the dispatcher is the caller of this one.
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
        _log.warning("message too large for Danube clients", topic=self.wire_name, offset=offset, bytes=size)
        if self._subscription is not None:
            self._subscription.delivery(self.shard).nack([(offset, offset + 1)], generation, 0, self.id, TOO_LARGE)

    def _top_up(self) -> None:
        """Gives the used credit again, in large steps: a call for each message would cost more than it delivers."""
        used_credit, self._used_credit = self._used_credit, 0
        if self._subscription is not None and self._consumer is not None:
            self._subscription.give_credit(self._consumer, used_credit)

    def gap(self, shard: int, generation: int, gap: DeclaredGap) -> None:
        """Ignored: Danube's protocol has no gaps; the next message has the next existing offset."""

    def event(self, event: str, details: dict[str, object]) -> None:
        """Handles an event of the broker; Danube's protocol has a message for none of them."""
        if event == "closed":
            reason, kind = str(details.get("reason", "")), errors.BY_CODE.get(str(details.get("code", "")))
            if kind is None:
                self._end(reason)
            else:  # its right has ended: the status of the stream says why
                self._fail(kind(reason, hint=str(details.get("hint", ""))))
        elif event == STALLED:
            self._stall_watch.stalled(details)
        elif event == RESUMED:
            self._stall_watch.resumed(details)

    # --- from the client ---

    def acked(self, count: int) -> None:
        """Counts messages that were acked or nacked, which may change the window."""
        if self._consumer is not None and self.window.acked(count, self._now_ms()):
            self._consumer.credit.unacked_max = self.window.size
            # The dispatcher does not watch the bound: a larger window takes effect with the next event otherwise.
            if self._subscription is not None and not self.ended.done():
                self._subscription.delivery(self.shard).resume()


def no_such_consumer(consumer_id: int) -> errors.UnknownSubscription:
    """The error for a consumer id that is not registered, or whose subscription is gone."""
    return errors.UnknownSubscription(f"unknown consumer id {consumer_id}", hint="subscribe again")
