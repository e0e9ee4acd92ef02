"""Danube's topic names: `/namespace/name` is a topic, `/namespace/name-part-3` is a partition (a shard) of a topic."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.danube_partitions import check_partition, unknown_partition
from icestream.broker.guarded_broker import GuardedBroker
from icestream.model.topic_name import TopicName, parse_shard
from icestream.security.action import Action

parse_partition = lru_cache(4096)(parse_shard)  # cached: every message and ack carries such a name


class PartitionRef(NamedTuple):
    """A shard as a client named it: `part` is None for the name of a topic."""

    topic: BrokerTopic
    part: int | None

    @property
    def shard(self) -> int:
        """The number of the shard; 0 for a topic that is not partitioned."""
        return self.part or 0


def resolve_partition(broker: GuardedBroker, name: str, subscription: str) -> PartitionRef:
    """The shard with this name, for a consumer of the subscription. Raises UnknownTopic for a topic or partition that
    does not exist, PermissionDenied."""
    topic_name, part = parse_partition(name)
    return partition_of(broker.topic_of_subscription(Action.CONSUME, topic_name, subscription), part)


def partition_of(topic: BrokerTopic, part: int | None) -> PartitionRef:
    """The shard of a topic with this number. Raises UnknownTopic for a partition that does not exist."""
    check_partition(topic, part)
    if part is not None and part >= topic.record.shards:
        raise unknown_partition(topic, part)
    return PartitionRef(topic, part)


def wire_name(topic: BrokerTopic, shard: int) -> str:
    """The name of a shard for Danube's clients."""
    record = topic.record
    return topic.name.shard_name(shard, record.shards, is_partitioned=record.is_partitioned)


def wire_names(broker: GuardedBroker, name: str) -> list[str]:
    """The partitions of a topic of any node, or the named partition alone; empty if it does not exist.

    Names match exactly.
    """
    # By the record, not by the served topic: clients ask any node for the partitions, then connect to the owner.
    topic_name, part = parse_partition(name)
    record = broker.find_topic_record(topic_name)
    if record is None or (part is not None and not record.is_named_by_shard):
        return []
    shards = range(record.shards) if part is None else [part] if part < record.shards else []
    return [topic_name.shard_name(shard, record.shards, is_partitioned=record.is_partitioned) for shard in shards]


def base_name(name: str) -> TopicName:
    """The topic to which the topic or partition name belongs."""
    return parse_partition(name)[0]
