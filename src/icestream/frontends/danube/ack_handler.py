"""Ack and Nack: by topic, subscription and offset; no consumer is named.

    unknown topic or subscription                      INTERNAL, as Danube says it
    an offset that is settled, or was not delivered    OK, nothing happens
    a non-reliable topic                               OK, nothing happens

Whoever has several of them at once calls `settle` with all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.broker.shard_delivery import ShardDelivery
from icestream.broker.subscription import unknown_subscription
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
    """One message that a consumer is done with, or gives back."""

    topic_name: str
    subscription: str
    offset: int
    nack_delay_ms: int | None = None  # None: it is acked
    reason: str = ""


class AckHandler:
    def __init__(self, broker: Broker, consumers: ConsumerRegistry) -> None:
        self._broker = broker
        self._consumers = consumers

    async def ack(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.AckRequest, raw)
        _check(
            self.settle(
                [Acknowledgement(request.msg_id.topic_name, request.subscription_name, request.msg_id.topic_offset)]
            )
        )
        return pb.AckResponse(request_id=request.request_id).SerializeToString()

    def ack_batch(self, batch: RequestBatch) -> None:
        """Many acks at once. Those of one consumer, which are the rule, need no look at each."""
        topic_name, subscription = batch.constant_value(TOPIC_NAME), batch.constant_value(SUBSCRIPTION)
        if topic_name is None or subscription is None:
            self._ack_rows(batch)
            return
        try:
            self._ack_all(str(topic_name, "utf-8"), str(subscription, "utf-8"), batch.integers(OFFSET))
        except errors.IcestreamError as error:
            batch.fail_all(status_number(_failure(error)))
        else:
            batch.succeed_all()

    def _ack_all(self, topic_name: str, subscription: str, offsets: Sequence[int]) -> None:
        where, delivery = self._delivery(topic_name, subscription)
        delivery.ack(ranges_of(offsets), delivery.generation)
        self._consumers.acked(where, len(offsets))

    def _ack_rows(self, batch: RequestBatch) -> None:
        request = zip(batch.texts(TOPIC_NAME), batch.texts(SUBSCRIPTION), batch.integers(OFFSET), strict=True)
        for row, error in enumerate(self.settle([Acknowledgement(*one) for one in request])):
            if error is None:
                batch.succeed(row)
            else:
                batch.fail(row, status_number(_failure(error)))

    async def nack(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.NackRequest, raw)
        delay_ms = min(request.delay_ms, limits.FAILURE_POLICY_VALUE_MAX)  # the policy of the subscription bounds it
        where = request.msg_id
        given_back = Acknowledgement(
            where.topic_name, request.subscription_name, where.topic_offset, delay_ms, request.reason
        )
        _check(self.settle([given_back]))
        return pb.NackResponse(request_id=request.request_id).SerializeToString()

    def settle(self, batch: Iterable[Acknowledgement]) -> list[errors.IcestreamError | None]:
        """What is wrong with each. Acks of one shard and subscription count together."""
        outcomes: list[errors.IcestreamError | None] = []
        acks: dict[DeliveryKey, tuple[ShardDelivery, list[tuple[int, int]]]] = {}
        for one in batch:
            try:
                where, delivery = self._delivery(one.topic_name, one.subscription)
            except errors.IcestreamError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            ranges = ranges_of([one.offset])
            if one.nack_delay_ms is None:
                acks.setdefault(where, (delivery, []))[1].extend(ranges)
            else:
                delivery.nack(ranges, delivery.generation, one.nack_delay_ms, reason=one.reason)
                self._consumers.acked(where, 1)
        for where, (delivery, ranges) in acks.items():
            delivery.ack(ranges, delivery.generation)
            self._consumers.acked(where, len(ranges))
        return outcomes

    def _delivery(self, topic_name: str, subscription: str) -> tuple[DeliveryKey, ShardDelivery]:
        topic, part = resolve_partition(self._broker.topics, topic_name)
        found = topic.subscriptions.get(subscription)
        if found is None:
            raise unknown_subscription(topic.name, subscription)
        shard = part or 0
        return (topic.record.id, shard, subscription), found.delivery(shard)


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Clients ack in the order in which they get their messages: many offsets are few ranges."""
    found: list[tuple[int, int]] = []
    start = end = -1
    for offset in sorted(offsets):
        if offset > end:
            if start < end:
                found.append((start, end))
            start = offset
        end = offset + 1
    if start < end:
        found.append((start, end))
    return [(start, min(end, limits.OFFSET_MAX)) for start, end in found if start < limits.OFFSET_MAX]


def _check(outcomes: list[errors.IcestreamError | None]) -> None:
    (error,) = outcomes
    if error is not None:
        raise _failure(error)


def _failure(error: errors.IcestreamError) -> Exception:
    if isinstance(error, errors.UnknownTopic | errors.UnknownSubscription):
        return CallFailed("INTERNAL", error)
    return error
