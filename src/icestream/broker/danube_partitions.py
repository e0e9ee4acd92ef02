"""A topic as clients of Danube name it: plain, or by its partitions `name-part-0`, `name-part-1`, …

Danube has no object for a partitioned topic: its clients make each partition by naming it, in any order and at the same
time. Here they are the shards of one topic, which is made, or grows, when a partition is named that is not there yet.
Messages of a shard that is new reach every subscription from the first one on. A topic is plain or has partitions, as
whoever made it said; so is its dispatch.

    name                 topic is absent           plain           has partitions
    name                 made plain                that one        refused
    name-part-N          made with N + 1 shards    refused         that shard; one that is not there is added
                                                                   where the topic was made by naming partitions
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors, limits
from icestream.broker.records import TopicPolicies
from icestream.broker.subscription_manager import SubscriptionManager
from icestream.broker.topic import Topic
from icestream.broker.topic_registry import TopicRegistry
from icestream.model.subscription import DispatchMode
from icestream.model.topic_name import TopicName


class PartitionRequest(NamedTuple):
    """What a client wants of a topic. `shard` is None for a plain one."""

    shard: int | None
    dispatch: DispatchMode


class DanubePartitions:
    def __init__(self, topics: TopicRegistry, subscribing: SubscriptionManager) -> None:
        self._topics = topics
        self._subscribing = subscribing

    async def provide(self, name: TopicName, part: PartitionRequest, *, create: bool) -> Topic:
        """The topic with that shard. One change at a time: nobody else makes or grows a topic meanwhile."""
        if part.shard is not None and part.shard >= limits.SHARDS_PER_TOPIC_MAX:
            raise errors.InvalidInput(
                f"partition {part.shard} of {name} is one too many", hint=f"{limits.SHARDS_PER_TOPIC_MAX} are possible"
            )
        topic = self._topics.find(name)
        if topic is None and create:
            shards, is_partitioned = (part.shard or 0) + 1, part.shard is not None
            return await self._topics.create(
                name, shards, part.dispatch, TopicPolicies(), is_partitioned=is_partitioned
            )
        if topic is None:
            topic = await self._topics.locate(name)
        check_partition(topic, part.shard)
        if topic.record.dispatch is not part.dispatch:
            raise errors.TopicMismatch(
                f"topic {name} is {topic.record.dispatch.value}, not {part.dispatch.value}",
                hint="use the dispatch strategy of the topic, or another topic",
            )
        if part.shard is not None and part.shard >= topic.record.shards:
            if not (create and topic.record.is_partitioned):
                raise unknown_partition(topic, part.shard)
            await self._grow(topic, part.shard + 1)
        return topic

    async def _grow(self, topic: Topic, shards: int) -> None:
        """The cursors of the new shards first: after a crash in between they lie there unused."""
        self._topics.declare(topic, shards)
        grown = await self._subscribing.grow(topic, range(topic.record.shards, shards))
        await self._topics.grow(topic, shards)
        for subscription, deliveries in grown.items():
            subscription.grow(deliveries)


def check_partition(topic: Topic, shard: int | None) -> None:
    """Raises when the topic is plain and a partition is named, or the other way round."""
    if topic.record.has_parts and shard is None:
        raise errors.TopicMismatch(
            f"topic {topic.name} has {topic.record.shards} partitions",
            hint=f"name one of them, for example {topic.name}-part-0",
        )
    if shard is not None and not topic.record.has_parts:
        raise errors.TopicMismatch(f"topic {topic.name} has no partitions", hint="use its name as it is")


def unknown_partition(topic: Topic, shard: int) -> errors.UnknownTopic:
    return errors.UnknownTopic(
        f"topic {topic.name} has no partition {shard}", hint=f"its partitions are 0 to {topic.record.shards - 1}"
    )
