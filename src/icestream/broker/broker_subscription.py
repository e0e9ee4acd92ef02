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
from icestream.broker.broker_consumer import BrokerConsumer
from icestream.broker.records import SubscriptionRecord
from icestream.broker.shard_delivery import ShardDelivery
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName


def unknown_subscription(topic: TopicName, name: str) -> errors.UnknownSubscription:
    return errors.UnknownSubscription(
        f"topic {topic} has no subscription {name}", hint=f"`icestream sub list {topic}` shows its subscriptions"
    )


class BrokerSubscription:
    """A subscription in the memory of the node that serves its topic."""

    def __init__(self, name: str, record: SubscriptionRecord, deliveries: list[ShardDelivery]) -> None:
        self.name = name
        self.record = record
        self.deliveries = deliveries
        self.consumers: dict[str, BrokerConsumer] = {}  # by name, in order of arrival
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
        # Consumers of different shards do not compete: a Danube client has one consumer for each partition, and an
        # exclusive subscription means one of them in each.
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

    def join(self, consumer: BrokerConsumer) -> None:
        """Adds a consumer; closes the former one of its name. The caller has called `admit`."""
        former = self.consumers.get(consumer.name)
        if former is not None:
            # The old connection is usually dead without the broker knowing it yet. Refusing the new one instead would
            # keep a client out until the heartbeat of its old connection runs out.
            self.leave(former)
            former.sink.event("closed", {"reason": f"consumer {consumer.name} connected again"})
        # Behind all others, also if it replaces a former one: in a failover subscription the consumers that have waited
        # come first.
        self.consumers[consumer.name] = consumer
        consumer.on_credit = partial(self._use_credit, consumer)
        consumer.on_unreadable = partial(self._disconnect, consumer)
        for delivery in self._deliveries_of(consumer):
            delivery.join(consumer)
        self._notify_active()

    def leave(self, consumer: BrokerConsumer) -> None:
        """Removes a consumer; its messages in flight go to others. Does nothing if it was replaced or has left."""
        if not self._has(consumer):
            return
        del self.consumers[consumer.name]
        # Closed first: the dispatchers return its messages, and it must not send one of them meanwhile.
        consumer.close()
        for delivery in self._deliveries_of(consumer):
            delivery.leave(consumer)
        self._notify_active()

    def _deliveries_of(self, consumer: BrokerConsumer) -> list[ShardDelivery]:
        return self.deliveries if consumer.shard is None else [self.deliveries[consumer.shard]]

    def add_deliveries(self, deliveries: list[ShardDelivery]) -> None:
        """Starts the deliveries of new shards of the topic."""
        self.deliveries += deliveries
        for delivery in deliveries:
            for consumer in self.consumers.values():
                if consumer.shard is None:  # a consumer of one shard joined that shard alone
                    delivery.join(consumer)
            delivery.start()

    def disconnect(self, consumer_name: str, reason: str) -> None:
        """Closes the connected consumer of this name with a reason. Raises NotConnected."""
        consumer = self.consumers.get(consumer_name)
        if consumer is None:
            raise errors.NotConnected(
                f"subscription {self.name} has no connected consumer {consumer_name}",
                hint="`icestream sub describe` shows the connected consumers",
            )
        self._disconnect(consumer, reason)

    def expel(self, consumer: BrokerConsumer, error: errors.IcestreamError) -> None:
        """Closes a consumer with an error, whose code its client learns. Does nothing if it has left."""
        if self._has(consumer):
            self.leave(consumer)
            consumer.sink.event("closed", {"reason": error.message, "code": error.code, "hint": error.hint})

    def _disconnect(self, consumer: BrokerConsumer, reason: str) -> None:
        self.leave(consumer)
        consumer.sink.event("closed", {"reason": reason})

    def credit_of(self, consumer: BrokerConsumer) -> int:
        """The number of messages that a consumer still takes; 0 after it has left."""
        return consumer.credit_messages if self._has(consumer) else 0

    def _notify_active(self) -> None:
        """Failover: notifies the consumers that have become the active one of their shards."""
        if self.record.type is not SubscriptionType.FAILOVER:
            return
        first_by_shard: dict[int | None, BrokerConsumer] = {}
        for consumer in self.consumers.values():
            if None not in first_by_shard:  # a consumer of all shards precedes those behind it in every shard
                first_by_shard.setdefault(consumer.shard, consumer)
        for active in first_by_shard.values():
            if not active.is_active:
                active.is_active = True
                active.sink.event("active", {})

    def _has(self, consumer: BrokerConsumer) -> bool:
        return self.consumers.get(consumer.name) is consumer

    def give_credit(self, consumer: BrokerConsumer, count: int) -> None:
        """Raises the credit of a consumer and dispatches to it, unless it has left."""
        if self._has(consumer):
            consumer.give_credit(count)
            self._use_credit(consumer)

    def _use_credit(self, consumer: BrokerConsumer) -> None:
        """Offers a consumer's credit to its shards, starting with another one each time, until it is used up."""
        deliveries = self._deliveries_of(consumer)
        count = len(deliveries)
        self._first_shard = (self._first_shard + 1) % count
        for number in range(count):
            if consumer.credit.messages <= 0 or not self._has(consumer):  # a delivery may have disconnected it
                break
            deliveries[(self._first_shard + number) % count].resume()

    def delivery(self, shard: int) -> ShardDelivery:
        """The delivery of a shard. Raises InvalidInput if the topic has no such shard."""
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
            delivery.set_policy(record.failure)

    def set_unacked_max(self, messages: int) -> None:
        for delivery in self.deliveries:
            delivery.set_unacked_max(messages)

    def set_rate(self, messages_per_second: int) -> None:
        """Applies the rate of the topic, unless the subscription has a rate of its own; 0 for none."""
        for delivery in self.deliveries:
            delivery.set_rate(self.record.max_dispatch_rate or messages_per_second)

    @property
    def lag(self) -> int:
        """The number of unacked messages in all shards, delivered or not."""
        return sum(delivery.lag for delivery in self.deliveries)

    @property
    def is_closed(self) -> bool:
        return self.deliveries[0].is_closed

    def close(self, reason: str) -> None:
        """Closes the deliveries and disconnects all consumers with the reason."""
        # The deliveries first, so that messages of a leaving consumer are not dispatched to another one.
        for delivery in self.deliveries:
            delivery.close()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.close()
            consumer.sink.event("closed", {"reason": reason})

    def delete(self, reason: str) -> None:
        """Closes the subscription; its cursors are not written any more."""
        # Before `close`: a flush that runs meanwhile must not restore a cursor that was deleted.
        for delivery in self.deliveries:
            delivery.is_deleted = True
        self.close(reason)
