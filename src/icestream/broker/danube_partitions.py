"""Topics as Danube's clients name them: plain, or by their partitions `name-part-0`, `name-part-1`, …

Danube has no object for a partitioned topic: its clients create each partition by naming it, in any order and
concurrently. Here the partitions are the shards of one topic, which is created, or grows, when a partition is named
that does not exist yet. Messages of a new shard reach every subscription from the first one on. A topic is plain or
partitioned, reliable or not, as at its creation.

    name                 topic is absent              plain           partitioned
    name                 created as a plain topic     that topic      refused
    name-part-N          created with N + 1 shards    refused         that shard; a missing one is added if the topic
                                                                      was created by naming partitions
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors, limits
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.subscription_registry import SubscriptionRegistry
from icestream.broker.topic_registry import TopicRegistry
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues


class PartitionRequest(NamedTuple):
    """A topic as a client of Danube requests it. `shard` is None for a plain topic."""

    shard: int | None
    dispatch: DispatchMode


class DanubePartitions:
    """Creates and extends topics as Danube's clients name them."""

    def __init__(self, topics: TopicRegistry, subscriptions: SubscriptionRegistry) -> None:
        self._topics = topics
        self._subscriptions = subscriptions

    async def provide(self, name: TopicName, request: PartitionRequest, *, create: bool) -> BrokerTopic:
        """Returns the topic with the requested shard; creates or extends it if `create` is set.

        Runs as a structural change: no other change creates or extends a topic meanwhile. Raises InvalidInput,
        TopicMismatch, UnknownTopic.
        """
        shard = request.shard
        if shard is not None and shard >= limits.SHARDS_PER_TOPIC_MAX:
            raise errors.InvalidInput(
                f"partition {shard} of {name} exceeds the limit",
                hint=f"a topic has at most {limits.SHARDS_PER_TOPIC_MAX} partitions",
            )
        topic = self._topics.find(name)
        if topic is None and create:
            # Clients create partitions in any order: naming the last one first creates those before it as well.
            shards, is_partitioned = (shard or 0) + 1, shard is not None
            policies = PolicyValues()
            return await self._topics.create(name, shards, request.dispatch, policies, is_partitioned=is_partitioned)
        if topic is None:
            topic = await self._topics.locate(name)
        check_partition(topic, shard)
        # Danube's clients name the strategy with every producer; a different one is a mistake, not a change.
        if topic.record.dispatch is not request.dispatch:
            raise errors.TopicMismatch(
                f"topic {name} is {topic.record.dispatch.value}, not {request.dispatch.value}",
                hint="use the dispatch strategy of the topic, or another topic",
            )
        if shard is not None and shard >= topic.record.shards:
            if not (create and topic.record.is_partitioned):
                raise unknown_partition(topic, shard)
            await self._add_shards(topic, shard + 1)
        return topic

    async def _add_shards(self, topic: BrokerTopic, shards: int) -> None:
        """Extends a topic to this number of shards, with a delivery of each subscription for every new one."""
        # The cursors of the new shards are written first: after a crash in between they are merely unused, whereas a
        # shard without cursors would lose its first messages for every subscription.
        self._topics.declare(topic, shards)
        new_deliveries = await self._subscriptions.create_deliveries(topic, range(topic.record.shards, shards))
        await self._topics.add_shards(topic, shards)
        for subscription, deliveries in new_deliveries.items():
            subscription.add_deliveries(deliveries)


def check_partition(topic: BrokerTopic, shard: int | None) -> None:
    """Raises TopicMismatch if a partition of a plain topic is named, or a partitioned topic without a partition."""
    if topic.record.is_named_by_shard and shard is None:
        raise errors.TopicMismatch(
            f"topic {topic.name} has {topic.record.shards} partitions",
            hint=f"name one of them, for example {topic.name}-part-0",
        )
    if shard is not None and not topic.record.is_named_by_shard:
        raise errors.TopicMismatch(f"topic {topic.name} has no partitions", hint="use its name as it is")


def unknown_partition(topic: BrokerTopic, shard: int) -> errors.UnknownTopic:
    """The error for a partition that the topic does not have; a partition is a topic to Danube's clients."""
    return errors.UnknownTopic(
        f"topic {topic.name} has no partition {shard}", hint=f"its partitions are 0 to {topic.record.shards - 1}"
    )
