"""Names on the wire and what they mean here: `/namespace/name` is a topic, `/namespace/name-part-3` a shard of one."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from icestream.broker.danube_partitions import check_partition, unknown_partition
from icestream.broker.topic import Topic
from icestream.broker.topic_registry import TopicRegistry
from icestream.model.topic_name import TopicName, parse_shard

parse_partition = lru_cache(4096)(parse_shard)  # every message and ack has such a name


class PartitionRef(NamedTuple):
    """A shard, and how it was named: `part` is None for a plain topic."""

    topic: Topic
    part: int | None

    @property
    def shard(self) -> int:
        return self.part or 0


def resolve_partition(topics: TopicRegistry, name: str) -> PartitionRef:
    """Raises UnknownTopic for what is not there."""
    found, part = parse_partition(name)
    topic = topics.get(found)
    check_partition(topic, part)
    if part is not None and part >= topic.record.shards:
        raise unknown_partition(topic, part)
    return PartitionRef(topic, part)


def wire_name(topic: Topic, shard: int) -> str:
    record = topic.record
    return topic.name.shard_name(shard, record.shards, is_partitioned=record.is_partitioned)


def wire_names(topics: TopicRegistry, name: str) -> list[str]:
    """All shards of a topic, of whichever node, or the one that is named. None where there is no such topic: names
    match exactly."""
    found, part = parse_partition(name)
    topic = topics.find(found)
    record = topic.record if topic is not None else topics.neighbours.find(found)
    if record is None or (part is not None and not record.has_parts):
        return []
    shards = range(record.shards) if part is None else [part] if part < record.shards else []
    return [found.shard_name(shard, record.shards, is_partitioned=record.is_partitioned) for shard in shards]


def base_name(name: str) -> TopicName:
    """The topic, whichever shard of it is named."""
    return parse_partition(name)[0]
