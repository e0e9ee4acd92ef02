"""One subscription of a topic: its consumers, and a delivery for each shard.

A consumer has one credit for all shards; each shard with messages to deliver takes from it. The shard that goes first
rotates, so that a busy shard does not starve the others. A consumer may also take the messages of one shard only, as
Danube's clients do with a partition: then the rules of its type apply to that shard. It is registered under a name with
the shard, because its client uses one name for all shards.

A consumer that connects again under its name replaces the former one: the old connection is notified and closed, and
its in-flight messages are redelivered. In a failover subscription it goes to the end of the line, as a new one.
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
        f"topic {topic} has no subscription {name}", hint=f"`icestream sub list {topic}` shows its subscriptions"
    )


class Subscription:
    def __init__(self, name: str, record: SubscriptionRecord, deliveries: list[ShardDelivery]) -> None:
        self.name = name
        self.record = record
        self.deliveries = deliveries
        self.consumers: dict[str, Consumer] = {}  # by name, in order of arrival
        self._first_shard = 0  # whose delivery uses new credit first; rotates

    # --- consumers ---

    def admit(self, consumer_name: str, kind: SubscriptionType, shard: int | None = None) -> None:
        """Raises InvalidInput if the type differs, SubscriptionTaken if the type allows no further consumer.

        A consumer of a name that is connected is admitted: it replaces the former one.
        """
        if kind is not self.record.type:
            raise errors.InvalidInput(
                f"subscription {self.name} is {self.record.type.value}, not {kind.value}",
                hint="use its type, or another subscription",
            )
        others = [
            name
            for name, consumer in self.consumers.items()
            if name != consumer_name and (shard is None or consumer.shard in (None, shard))
        ]
        if self.record.type is SubscriptionType.EXCLUSIVE and others:
            raise errors.SubscriptionTaken(
                f"subscription {self.name} is exclusive and belongs to consumer {others[0]}",
                hint="use another subscription, or the type failover, shared or key-shared",
            )

    def join(self, consumer: Consumer) -> None:
        former = self.consumers.get(consumer.name)
        if former is not None:
            self.leave(former)
            former.sink.event("closed", {"reason": f"consumer {consumer.name} connected again"})
        self.consumers[consumer.name] = consumer
        consumer.on_credit = partial(self._use_credit, consumer)
        consumer.on_unreadable = partial(self._disconnect, consumer)
        for delivery in self._deliveries_of(consumer):
            delivery.join(consumer)
        self._notify_active()

    def leave(self, consumer: Consumer) -> None:
        if not self._has(consumer):
            return
        del self.consumers[consumer.name]
        consumer.close()
        for delivery in self._deliveries_of(consumer):
            delivery.leave(consumer)
        self._notify_active()

    def _deliveries_of(self, consumer: Consumer) -> list[ShardDelivery]:
        return self.deliveries if consumer.shard is None else [self.deliveries[consumer.shard]]

    def add_deliveries(self, deliveries: list[ShardDelivery]) -> None:
        """Starts the deliveries of new shards of the topic."""
        self.deliveries += deliveries
        for delivery in deliveries:
            for consumer in self.consumers.values():
                if consumer.shard is None:
                    delivery.join(consumer)
            delivery.start()

    def disconnect(self, consumer_name: str, reason: str) -> None:
        """Raises NotConnected."""
        consumer = self.consumers.get(consumer_name)
        if consumer is None:
            raise errors.NotConnected(
                f"subscription {self.name} has no connected consumer {consumer_name}",
                hint="`icestream sub describe` shows the connected consumers",
            )
        self._disconnect(consumer, reason)

    def _disconnect(self, consumer: Consumer, reason: str) -> None:
        self.leave(consumer)
        consumer.sink.event("closed", {"reason": reason})

    def credit_of(self, consumer: Consumer) -> int:
        """The number of messages that a consumer still takes; 0 after it has left."""
        return consumer.credit_messages if self._has(consumer) else 0

    def _notify_active(self) -> None:
        """Failover: notifies the consumers that have become the active one of their shards."""
        if self.record.type is not SubscriptionType.FAILOVER:
            return
        first_by_shard: dict[int | None, Consumer] = {}
        for consumer in self.consumers.values():
            if None not in first_by_shard:  # a consumer of all shards precedes those behind it in every shard
                first_by_shard.setdefault(consumer.shard, consumer)
        for active in first_by_shard.values():
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
        count = len(deliveries)
        self._first_shard = (self._first_shard + 1) % count
        for number in range(count):
            if consumer.credit.messages <= 0 or not self._has(consumer):
                break
            deliveries[(self._first_shard + number) % count].resume()

    def delivery(self, shard: int) -> ShardDelivery:
        if not 0 <= shard < len(self.deliveries):
            raise errors.InvalidInput(
                f"subscription {self.name} has no shard {shard}", hint=f"its shards are 0 to {len(self.deliveries) - 1}"
            )
        return self.deliveries[shard]

    @property
    def allows_cumulative_ack(self) -> bool:
        """True if one consumer gets everything in order; otherwise it would ack messages of others (hazard 17)."""
        return self.record.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

    # --- settings ---

    def set_record(self, record: SubscriptionRecord) -> None:
        """Applies a changed record at once, its policy also to messages in flight."""
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
        # The deliveries first, so that messages of a leaving consumer are not dispatched to another one.
        for delivery in self.deliveries:
            delivery.close()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.close()
            consumer.sink.event("closed", {"reason": reason})

    def delete(self, reason: str) -> None:
        """Closes the subscription; its cursors are not written any more."""
        for delivery in self.deliveries:
            delivery.is_deleted = True
        self.close(reason)
