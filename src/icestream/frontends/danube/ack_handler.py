"""Ack and Nack: by topic, subscription and offset; the request does not name a consumer.

    unknown topic or subscription                      INTERNAL, as in Danube
    an offset that is settled, or was not delivered    OK, without effect
    a non-reliable topic                               OK, without effect

Several acknowledgements at once: `settle`.

Acks of the messages of a consumer use its right, so nothing is decided for them (hazard 124). Others, such as those of
a client that was disconnected meanwhile, need the right to consume the subscription (hazard 106).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.shard_delivery import ShardDelivery
from icestream.frontends.danube.consumer_registry import ConsumerRegistry
from icestream.frontends.danube.danube_consumer import DeliveryKey
from icestream.frontends.danube.handlers import Call, CallFailed, decode, status_number
from icestream.frontends.danube.messages import INTEGER, TEXT
from icestream.frontends.danube.partition_names import parse_partition, resolve_partition
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
    def __init__(self, consumers: ConsumerRegistry) -> None:
        self._consumers = consumers

    async def ack(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.AckRequest, raw)
        _raise_failure(
            self.settle(
                [Acknowledgement(request.msg_id.topic_name, request.subscription_name, request.msg_id.topic_offset)],
                call.client,
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
            self._ack_all(batch.client, str(topic_name, "utf-8"), str(subscription, "utf-8"), batch.integers(OFFSET))
        except errors.IcestreamError as error:
            batch.fail_all(status_number(_status_error(error)))
        else:
            batch.succeed_all()

    def _ack_all(self, client: GuardedBroker, topic_name: str, subscription: str, offsets: Sequence[int]) -> None:
        key, delivery = self._delivery(client, topic_name, subscription)
        delivery.ack(ranges_of(offsets), delivery.generation)
        self._consumers.acked(key, len(offsets))

    def _ack_rows(self, batch: RequestBatch) -> None:
        rows = zip(batch.texts(TOPIC_NAME), batch.texts(SUBSCRIPTION), batch.integers(OFFSET), strict=True)
        acknowledgements = [Acknowledgement(*row_values) for row_values in rows]
        for row, error in enumerate(self.settle(acknowledgements, batch.client)):
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
        _raise_failure(self.settle([nack], call.client))
        return pb.NackResponse(request_id=request.request_id).SerializeToString()

    def settle(self, batch: Iterable[Acknowledgement], client: GuardedBroker) -> list[errors.IcestreamError | None]:
        """Returns the error of each acknowledgement, None for success. Acks of a shard and subscription are merged."""
        outcomes: list[errors.IcestreamError | None] = []
        acks: dict[DeliveryKey, tuple[ShardDelivery, list[tuple[int, int]]]] = {}
        for acknowledgement in batch:
            try:
                key, delivery = self._delivery(client, acknowledgement.topic_name, acknowledgement.subscription)
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

    def _delivery(self, client: GuardedBroker, topic_name: str, subscription: str) -> tuple[DeliveryKey, ShardDelivery]:
        """Raises UnknownTopic, UnknownSubscription, PermissionDenied."""
        consumer = self._consumers.find(client, topic_name, subscription)
        if consumer is not None:
            return consumer.delivery_key, consumer.delivery
        # Not a message of its own consumers: the right is decided for each of these.
        name, _part = parse_partition(topic_name)
        consumed = client.consumed_subscription(name, subscription)
        partition = resolve_partition(client, topic_name, subscription)
        return (partition.topic.record.id, partition.shard, subscription), consumed.delivery(partition.shard)


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
