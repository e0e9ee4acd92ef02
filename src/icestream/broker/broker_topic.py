"""One topic that this broker serves: its record, its shards, its producers and its subscriptions.

The bounds of its policies are checked here, before anything is written or connected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream import errors
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.rate_limit import TokenBucket
from icestream.broker.records import TopicRecord
from icestream.model import shard as shards
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues


@dataclass(slots=True, eq=False)
class BrokerProducer:
    """A producer that has opened a topic. An older one of the same name is fenced by its epoch (hazard 7)."""

    topic: BrokerTopic
    name: str
    id: int
    epoch: int
    since_epoch: int = 0  # the first epoch of the same instance of the client's producer
    peer: str = ""  # the client's address, if the front end has it
    closed: errors.IcestreamError | None = None  # why it may not send any more
    is_numbered: bool | None = None  # None until its first batch
    columns: int = 0  # bits of the columns that its front end may set besides those of a client
    _windows: dict[int, ProducerWindow] = field(default_factory=dict)

    def window(self, shard: int) -> ProducerWindow:
        """Its in-flight window in a shard. Raises InvalidInput if the topic has no such shard."""
        # Created on first use: a producer of a topic with thousands of shards may write to few of them.
        window = self._windows.get(shard)
        if window is None:
            window = self._windows[shard] = ProducerWindow(self.topic.shard_key(shard))
        return window

    def is_full(self, shard: int) -> bool:
        """True if it should wait for replies before it sends more to the shard."""
        # Batches without numbers are never recognised as duplicates, so the bound of hazard 7 does not concern them.
        window = self._windows.get(shard)
        return window is not None and bool(self.is_numbered) and window.is_full

    def close(self, reason: errors.IcestreamError) -> None:
        """Refuses its next batch, and all later ones, with this error."""
        self.closed = reason
        for window in self._windows.values():
            window.is_closed = True


class BrokerTopic:
    """A topic in the memory of the node that serves it."""

    def __init__(self, name: TopicName, record: TopicRecord, policies: PolicyValues) -> None:
        """`policies`: the effective ones, those of the topic over those of its namespace."""
        self.name = name
        self.record = record
        self.policies = policies
        self.producers: set[BrokerProducer] = set()
        self.subscriptions: dict[str, BrokerSubscription] = {}
        self.published_messages = 0
        self.published_bytes = 0
        self.publish_rate = TokenBucket(policies.max_publish_rate or 0)
        self.decides_about_batches = _decides_about_batches(policies)

    @property
    def identity(self) -> shards.TopicIdentity:
        """The topic as the log identifies it."""
        return shards.TopicIdentity(self.record.id, str(self.name), self.record.incarnation)

    def shard_key(self, shard: int) -> shards.ShardKey:
        """Raises InvalidInput if the topic has no such shard."""
        if not 0 <= shard < self.record.shards:
            raise errors.InvalidInput(
                f"topic {self.name} has no shard {shard}", hint=f"its shards are 0 to {self.record.shards - 1}"
            )
        return shards.ShardKey(self.record.id, shard)

    def set_policies(self, record: TopicRecord, policies: PolicyValues) -> None:
        """Applies changed policies from now on. Connected clients stay connected, also beyond a lowered maximum."""
        # Lowered bounds apply to new clients only: which of the connected ones to drop would be a guess.
        self.record, self.policies = record, policies
        self.publish_rate.set_rate(policies.max_publish_rate or 0)
        self.decides_about_batches = _decides_about_batches(policies)
        for subscription in self.subscriptions.values():
            subscription.set_rate(policies.max_dispatch_rate or 0)

    # --- admission: each raises PolicyReached ---

    def admit_producer(self, name: str) -> None:
        """Checks `max_producers`. A producer that opens again counts once: it replaces the former one of its name."""
        others = sum(producer.name != name for producer in self.producers)
        self._check_bound("producers", others, self.policies.max_producers)

    def admit_subscription(self) -> None:
        """Checks `max_subscriptions` before a subscription is created."""
        self._check_bound("subscriptions", len(self.subscriptions), self.policies.max_subscriptions)

    def admit_consumer(self, subscription_name: str) -> None:
        """Checks both bounds of consumers. The subscription need not exist yet: it may be created with the consumer."""
        count = sum(len(subscription.consumers) for subscription in self.subscriptions.values())
        self._check_bound("consumers", count, self.policies.max_consumers_per_topic)
        subscription = self.subscriptions.get(subscription_name)
        count = len(subscription.consumers) if subscription is not None else 0
        bound = self.policies.max_consumers_per_subscription
        self._check_bound(f"consumers of subscription {subscription_name}", count, bound)

    def _check_bound(self, counted: str, count: int, bound: int | None) -> None:
        if bound and count >= bound:
            raise errors.PolicyReached(
                f"topic {self.name} has {count} {counted}, its policy allows {bound}",
                hint="raise the policy of the topic or of its namespace, or close one",
            )

    # --- end ---

    def close(self, reason: str) -> None:
        """Closes its subscriptions when the broker shuts down; their cursors are still written."""
        for subscription in self.subscriptions.values():
            subscription.close(reason)

    def delete(self, reason: str) -> None:
        """Closes its subscriptions and producers for good: they do not apply to a new topic of the same name."""
        for subscription in self.subscriptions.values():
            subscription.delete(reason)
        self.subscriptions.clear()
        for producer in self.producers:
            producer.close(errors.UnknownTopic(reason, hint="open the producer again"))
        self.producers.clear()


def _decides_about_batches(policies: PolicyValues) -> bool:
    """True if a policy looks at single batches: a publish rate or a maximum size.

    A policy that may refuse or delay a batch must be named here and in `Publisher._decides_about`: groups of batches
    are stored without a look at each of them as long as both say that no policy needs one.
    """
    return bool(policies.max_publish_rate or policies.max_message_bytes)
