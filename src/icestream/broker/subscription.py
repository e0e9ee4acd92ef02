"""One subscription of a topic: its consumers, and a delivery for each shard.

A consumer has one credit for all shards; a shard that has something to deliver takes from it. Which shard asks first
rotates, so that a busy one does not keep the others away. A consumer may also want the messages of one shard only, as
Danube's clients do with a partition: then the rules of its type hold for that shard. Its place among the consumers is
called after the shard too, because its client uses one name for all shards.

A consumer that comes again under its name replaces the one before: the old connection is told so and closed, and what
it had in flight goes out again. In a failover subscription it stands behind those who waited: it went and came.
"""

from __future__ import annotations

from functools import partial

from icestream import errors
from icestream.broker.consumer import Consumer
from icestream.broker.records import SubscriptionRecord
from icestream.broker.shard_delivery import ShardDelivery
from icestream.model.subscription import SubscriptionType
from icestream.model.topic_name import TopicName


def unknown_subscription(topic: TopicName, name: str) -> errors.UnknownSubscription:
    return errors.UnknownSubscription(
        f"topic {topic} has no subscription {name}", hint=f"`icestream sub list {topic}` shows those that it has"
    )


class Subscription:
    def __init__(self, name: str, record: SubscriptionRecord, deliveries: list[ShardDelivery]) -> None:
        self.name = name
        self.record = record
        self.deliveries = deliveries
        self.consumers: dict[str, Consumer] = {}  # by name, in order of arrival
        self._first = 0

    # --- consumers ---

    def admit(self, consumer_name: str, kind: SubscriptionType, shard: int | None = None) -> None:
        """Raises when it is of another type, or its type allows no further consumer. One that comes again is let in."""
        if kind is not self.record.type:
            raise errors.InvalidInput(
                f"subscription {self.name} is {self.record.type.value}, not {kind.value}",
                hint="use its type, or another subscription",
            )
        others = [
            name
            for name, one in self.consumers.items()
            if name != consumer_name and (shard is None or one.shard in (None, shard))
        ]
        if self.record.type is SubscriptionType.EXCLUSIVE and others:
            raise errors.SubscriptionTaken(
                f"subscription {self.name} is exclusive and belongs to consumer {others[0]}",
                hint="use another subscription, or the type failover, shared or key-shared",
            )

    def join(self, consumer: Consumer) -> None:
        old = self.consumers.get(consumer.name)
        if old is not None:
            self.leave(old)
            old.sink.event("closed", {"reason": f"consumer {consumer.name} connected again"})
        self.consumers[consumer.name] = consumer
        consumer.on_credit = partial(self._use_credit, consumer)
        consumer.on_unreadable = partial(self._end, consumer)
        for delivery in self._deliveries_of(consumer):
            delivery.join(consumer)
        self._tell_active()

    def leave(self, consumer: Consumer) -> None:
        if not self._has(consumer):
            return
        del self.consumers[consumer.name]
        consumer.close()
        for delivery in self._deliveries_of(consumer):
            delivery.leave(consumer)
        self._tell_active()

    def _deliveries_of(self, consumer: Consumer) -> list[ShardDelivery]:
        return self.deliveries if consumer.shard is None else [self.deliveries[consumer.shard]]

    def grow(self, deliveries: list[ShardDelivery]) -> None:
        """The topic has more shards: these are theirs."""
        self.deliveries += deliveries
        for delivery in deliveries:
            for consumer in self.consumers.values():
                if consumer.shard is None:
                    delivery.join(consumer)
            delivery.start()

    def disconnect(self, consumer_name: str, reason: str) -> None:
        consumer = self.consumers.get(consumer_name)
        if consumer is None:
            raise errors.NotConnected(
                f"subscription {self.name} has no consumer {consumer_name} that is connected",
                hint="`icestream sub describe` shows those that are",
            )
        self._end(consumer, reason)

    def _end(self, consumer: Consumer, reason: str) -> None:
        self.leave(consumer)
        consumer.sink.event("closed", {"reason": reason})

    def credit_of(self, consumer: Consumer) -> int:
        """Messages that it still takes."""
        return consumer.credit_messages if self._has(consumer) else 0

    def _tell_active(self) -> None:
        """Failover: the first in line is told that it is the one."""
        if self.record.type is not SubscriptionType.FAILOVER:
            return
        first: dict[int | None, Consumer] = {}
        for consumer in self.consumers.values():
            if None not in first:  # one that wants all shards stands before those behind it
                first.setdefault(consumer.shard, consumer)
        for active in first.values():
            if not active.is_active:
                active.is_active = True
                active.sink.event("active", {})

    def _has(self, consumer: Consumer) -> bool:
        return self.consumers.get(consumer.name) is consumer

    def give_credit(self, consumer: Consumer, count: int) -> None:
        if self._has(consumer):
            consumer.give_credit(count)
            self._use_credit(consumer)

    def _use_credit(self, consumer: Consumer) -> None:
        deliveries = self._deliveries_of(consumer)
        count_of = len(deliveries)
        self._first = (self._first + 1) % count_of
        for number in range(count_of):
            if consumer.credit.messages <= 0 or not self._has(consumer):
                break
            deliveries[(self._first + number) % count_of].go_on()

    def delivery(self, shard: int) -> ShardDelivery:
        if not 0 <= shard < len(self.deliveries):
            raise errors.InvalidInput(
                f"subscription {self.name} has no shard {shard}", hint=f"its shards are 0 to {len(self.deliveries) - 1}"
            )
        return self.deliveries[shard]

    @property
    def allows_cumulative_ack(self) -> bool:
        """Where one consumer gets everything in order; elsewhere it would ack what others have (hazard 17)."""
        return self.record.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

    # --- settings ---

    def set_record(self, record: SubscriptionRecord) -> None:
        """A changed policy counts at once, for what is under way too."""
        self.record = record
        for delivery in self.deliveries:
            delivery.set_policy(record.failure.policy())

    def set_unacked_max(self, messages: int) -> None:
        for delivery in self.deliveries:
            delivery.set_unacked_max(messages)

    def set_rate(self, messages_per_second: int) -> None:
        for delivery in self.deliveries:
            delivery.set_rate(self.record.max_dispatch_rate or messages_per_second)

    @property
    def lag(self) -> int:
        return sum(delivery.lag for delivery in self.deliveries)

    @property
    def is_closed(self) -> bool:
        return self.deliveries[0].is_closed

    def close(self, reason: str) -> None:
        """The deliveries first: what a consumer leaves behind goes to no other any more."""
        for delivery in self.deliveries:
            delivery.close()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.close()
            consumer.sink.event("closed", {"reason": reason})

    def delete(self, reason: str) -> None:
        """Its cursors are not written any more."""
        for delivery in self.deliveries:
            delivery.is_deleted = True
        self.close(reason)
