"""Ack and Nack: by topic, subscription and offset; the request does not name a consumer.

    unknown topic or subscription                      INTERNAL, as in Danube
    an offset that is settled, or was not delivered    OK, without effect
    a non-reliable topic                               OK, without effect

Several acknowledgements at once: `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.broker_subscription import unknown_subscription
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.shard_delivery import ShardDelivery
from icestream.frontends.danube.consumer_registry import ConsumerRegistry, DeliveryKey
from icestream.frontends.danube.handlers import Call, CallFailed, decode, status_number
from icestream.frontends.danube.messages import INTEGER, TEXT
from icestream.frontends.danube.partition_names import resolve_partition
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.frontends.danube.wire import danube_pb2 as pb

# The columns of an ack in a batch.
ACK_COLUMNS: Final = ((0, 1, INTEGER), (2, 2, TEXT), (2, 5, INTEGER), (0, 3, TEXT))
TOPIC_NAME, OFFSET, SUBSCRIPTION = 1, 2, 3


class Acknowledgement(NamedTuple):
    """The ack or nack of one message."""

    topic_name: str
    subscription: str
    offset: int
    nack_delay_ms: int | None = None  # None: an ack
    reason: str = ""


class AckHandler:
    def __init__(self, broker: GuardedBroker, consumers: ConsumerRegistry) -> None:
        self._broker = broker
        self._consumers = consumers

    async def ack(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.AckRequest, raw)
        _raise_failure(
            self.settle(
                [Acknowledgement(request.msg_id.topic_name, request.subscription_name, request.msg_id.topic_offset)]
            )
        )
        return pb.AckResponse(request_id=request.request_id).SerializeToString()

    def ack_batch(self, batch: RequestBatch) -> None:
        """Settles many acks at once; acks of one subscription, the usual case, without a loop over the rows."""
        topic_name, subscription = batch.constant_value(TOPIC_NAME), batch.constant_value(SUBSCRIPTION)
        if topic_name is None or subscription is None:
            self._ack_rows(batch)
            return
        try:
            self._ack_all(str(topic_name, "utf-8"), str(subscription, "utf-8"), batch.integers(OFFSET))
        except errors.IcestreamError as error:
            batch.fail_all(status_number(_status_error(error)))
        else:
            batch.succeed_all()

    def _ack_all(self, topic_name: str, subscription: str, offsets: Sequence[int]) -> None:
        key, delivery = self._delivery(topic_name, subscription)
        delivery.ack(ranges_of(offsets), delivery.generation)
        self._consumers.acked(key, len(offsets))

    def _ack_rows(self, batch: RequestBatch) -> None:
        rows = zip(batch.texts(TOPIC_NAME), batch.texts(SUBSCRIPTION), batch.integers(OFFSET), strict=True)
        for row, error in enumerate(self.settle([Acknowledgement(*row_values) for row_values in rows])):
            if error is None:
                batch.succeed(row)
            else:
                batch.fail(row, status_number(_status_error(error)))

    async def nack(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.NackRequest, raw)
        delay_ms = min(request.delay_ms, limits.FAILURE_POLICY_VALUE_MAX)  # the policy of the subscription bounds it
        message_id = request.msg_id
        nack = Acknowledgement(
            message_id.topic_name, request.subscription_name, message_id.topic_offset, delay_ms, request.reason
        )
        _raise_failure(self.settle([nack]))
        return pb.NackResponse(request_id=request.request_id).SerializeToString()

    def settle(self, batch: Iterable[Acknowledgement]) -> list[errors.IcestreamError | None]:
        """Returns the error of each acknowledgement, None for success. Acks of a shard and subscription are merged."""
        outcomes: list[errors.IcestreamError | None] = []
        acks: dict[DeliveryKey, tuple[ShardDelivery, list[tuple[int, int]]]] = {}
        for acknowledgement in batch:
            try:
                key, delivery = self._delivery(acknowledgement.topic_name, acknowledgement.subscription)
            except errors.IcestreamError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            ranges = ranges_of([acknowledgement.offset])
            if acknowledgement.nack_delay_ms is None:
                acks.setdefault(key, (delivery, []))[1].extend(ranges)
            else:
                delivery.nack(ranges, delivery.generation, acknowledgement.nack_delay_ms, reason=acknowledgement.reason)
                self._consumers.acked(key, 1)
        for key, (delivery, ranges) in acks.items():
            delivery.ack(ranges, delivery.generation)
            self._consumers.acked(key, len(ranges))
        return outcomes

    def _delivery(self, topic_name: str, subscription: str) -> tuple[DeliveryKey, ShardDelivery]:
        topic, part = resolve_partition(self._broker, topic_name)
        entry = topic.subscriptions.get(subscription)
        if entry is None:
            raise unknown_subscription(topic.name, subscription)
        shard = part or 0
        return (topic.record.id, shard, subscription), entry.delivery(shard)


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Merges offsets to ranges [start, end): clients ack in delivery order, so many offsets are few ranges."""
    ranges: list[tuple[int, int]] = []
    start = end = -1
    for offset in sorted(offsets):
        if offset > end:
            if start < end:
                ranges.append((start, end))
            start = offset
        end = offset + 1
    if start < end:
        ranges.append((start, end))
    return [(start, min(end, limits.OFFSET_MAX)) for start, end in ranges if start < limits.OFFSET_MAX]


def _raise_failure(outcomes: list[errors.IcestreamError | None]) -> None:
    (error,) = outcomes
    if error is not None:
        raise _status_error(error)


def _status_error(error: errors.IcestreamError) -> Exception:
    if isinstance(error, errors.UnknownTopic | errors.UnknownSubscription):
        return CallFailed("INTERNAL", error)
    return error
