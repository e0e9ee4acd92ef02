"""One topic that this broker serves: its record, its shards, who produces to it and who is subscribed."""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream import errors
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.rate_limit import TokenBucket
from icestream.broker.records import TopicPolicies, TopicRecord
from icestream.broker.subscription import Subscription
from icestream.model import shard as shards
from icestream.model.topic_name import TopicName


@dataclass(slots=True, eq=False)
class Producer:
    """A producer that has opened a topic. An older one of the same name is fenced by its epoch (hazard 7)."""

    topic: Topic
    name: str
    id: int
    epoch: int
    since_epoch: int = 0  # of the same life of the producer
    peer: str = ""  # who it is, as far as the front end knows
    closed: errors.IcestreamError | None = None  # why it may not send any more
    is_numbered: bool | None = None  # None: it has sent nothing yet
    columns: int = 0  # bits of those that its front end may set beside a client's own
    _pipes: dict[int, ProducerWindow] = field(default_factory=dict)

    def pipe(self, shard: int) -> ProducerWindow:
        """What it has under way in a shard. Raises InvalidInput where the topic has no such shard."""
        found = self._pipes.get(shard)
        if found is None:
            found = self._pipes[shard] = ProducerWindow(self.topic.shard_key(shard))
        return found

    def is_full(self, shard: int) -> bool:
        """It should wait for answers before it sends more there."""
        found = self._pipes.get(shard)
        return found is not None and bool(self.is_numbered) and found.is_full

    def close(self, reason: errors.IcestreamError) -> None:
        """Whoever holds it is told with the next batch."""
        self.closed = reason


class Topic:
    def __init__(self, name: TopicName, record: TopicRecord, policies: TopicPolicies) -> None:
        self.name = name
        self.record = record
        self.policies = policies  # its own over its namespace's
        self.producers: set[Producer] = set()
        self.subscriptions: dict[str, Subscription] = {}
        self.published_messages = 0
        self.published_bytes = 0
        self.publish_rate = TokenBucket(policies.max_publish_rate or 0)

    @property
    def identity(self) -> shards.TopicIdentity:
        """The topic as the log knows it."""
        return shards.TopicIdentity(self.record.id, str(self.name), self.record.incarnation)

    def shard_key(self, shard: int) -> shards.ShardKey:
        if not 0 <= shard < self.record.shards:
            raise errors.InvalidInput(
                f"topic {self.name} has no shard {shard}", hint=f"its shards are 0 to {self.record.shards - 1}"
            )
        return shards.ShardKey(self.record.id, shard)

    def set_policies(self, record: TopicRecord, policies: TopicPolicies) -> None:
        """In force from now on; nobody who is connected is sent away."""
        self.record, self.policies = record, policies
        self.publish_rate.set_rate(policies.max_publish_rate or 0)
        for subscription in self.subscriptions.values():
            subscription.set_rate(policies.max_dispatch_rate or 0)

    # --- who comes in ---

    def admit_producer(self, name: str) -> None:
        """One that comes again takes the place of the one before."""
        others = sum(one.name != name for one in self.producers)
        _check("producers", self.name, others, self.policies.max_producers)

    def admit_subscription(self) -> None:
        _check("subscriptions", self.name, len(self.subscriptions), self.policies.max_subscriptions)

    def admit_consumer(self, subscription: str) -> None:
        """`subscription` may not be there yet."""
        count = sum(len(one.consumers) for one in self.subscriptions.values())
        _check("consumers", self.name, count, self.policies.max_consumers_per_topic)
        found = self.subscriptions.get(subscription)
        here, bound = len(found.consumers) if found is not None else 0, self.policies.max_consumers_per_subscription
        _check(f"consumers of subscription {subscription}", self.name, here, bound)

    def close(self, reason: str) -> None:
        for subscription in self.subscriptions.values():
            subscription.close(reason)

    def delete(self, reason: str) -> None:
        """Nobody sends to it or gets anything of it any more, also not after a topic of that name is created again."""
        for subscription in self.subscriptions.values():
            subscription.delete(reason)
        self.subscriptions.clear()
        for producer in self.producers:
            producer.close(errors.UnknownTopic(reason, hint="open the producer again"))
        self.producers.clear()


def _check(what: str, topic: TopicName, count: int, bound: int | None) -> None:
    if bound and count >= bound:
        raise errors.PolicyReached(
            f"topic {topic} has {count} {what}, its policy allows {bound}",
            hint="raise the policy of the topic or of its namespace, or close one",
        )
