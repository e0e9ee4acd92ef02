"""What all consumers of a topic have acked, for topics that keep what is not consumed (hazard 87, docs/adr/0104).

    consumer      a subscription, by the cursor that is stored; a durable MQTT session until it expires, by what it is
                  owed and what is in flight to it
    end           of a shard: the lowest first unacked offset of its consumers
    generation    the revision of a key in the metadata store, written before a consumer is created or moved back. The
                  commit of a removal compares it, so a consumer never misses what was planned to go without it

Ends are read between structural changes: what a generation stands for is in memory then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from icestream.broker.broker_topic import BrokerTopic
from icestream.catalog import catalog_keys
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey


def keeps_unconsumed(topic: BrokerTopic) -> bool:
    """True if acks decide what the topic keeps."""
    policies = topic.policies
    return bool(policies.retention_until_consumed_ms or policies.retention_until_consumed_bytes)


async def advance_generation(store: MetadataStore, topics: Iterable[BrokerTopic]) -> None:
    """Has planned removals of these topics planned again: one of their consumers is about to be created or moved."""
    for topic in topics:
        if keeps_unconsumed(topic):
            await store.put(catalog_keys.consumers_key(topic.record.id), b"")


async def read_generation(store: MetadataStore, topic_id: int) -> int:
    entry = await store.get(catalog_keys.consumers_key(topic_id))
    return 0 if entry is None else entry.mod_revision


def consumed_ends(topic: BrokerTopic, first_unacked: Callable[[ShardKey], int | None]) -> dict[int, int]:
    """The end of each shard; a shard without a consumer has none.

    `first_unacked`: the first offset that a durable MQTT session is owed in a shard; None: none reads it.
    """
    ends: dict[int, int] = {}
    deliveries = [item for subscription in topic.subscriptions.values() for item in subscription.deliveries]
    positions = [(delivery.stream.key.shard, delivery.cursor().offset) for delivery in deliveries]
    for shard in range(topic.record.shards):
        owed = first_unacked(ShardKey(topic.record.id, shard))
        if owed is not None:
            positions.append((shard, owed))
    for shard, position in positions:
        ends[shard] = min(position, ends.get(shard, position))
    return ends
