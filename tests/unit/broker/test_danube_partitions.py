"""Topics that are made by naming their partitions, as clients of Danube do: they grow, and keep what they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors
from icestream.broker import records
from icestream.broker.danube_partitions import PartitionRequest
from icestream.broker.service import Broker
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.subscription_options import DispatchMode, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from tests.support.node_settings import node_settings
from tests.support.recording_consumer import RecordingConsumer
from tests.support.until import until

pytestmark = pytest.mark.asyncio
NAME = TopicName("default", "t")
RELIABLE = DispatchMode.RELIABLE


def shard_offsets(sink: RecordingConsumer) -> list[tuple[int, int]]:
    return [(shard, offset) for shard, _, offset in sink.positions]


async def publish(broker: Broker, shard: int) -> None:
    producer = await broker.open_producer(NAME, "p", partition=PartitionRequest(shard, RELIABLE))
    await broker.publish(producer, shard, encode_block(1, {envelope.PAYLOAD: [b"m"]}))


async def join(
    broker: Broker, shard: int | None, kind: SubscriptionType = SubscriptionType.SHARED
) -> RecordingConsumer:
    sink = RecordingConsumer()
    subscription, consumer = await broker.subscribe(NAME, "s", kind, "c", sink, shard=shard)
    subscription.give_credit(consumer, 100)
    return sink


async def test_a_topic_grows_and_its_cursors_and_messages_are_there_after_a_restart(tmp_path: Path) -> None:
    settings = node_settings(tmp_path)
    node = await BrokerNode.start(settings)
    await publish(node.broker, 0)
    await join(node.broker, 0)
    await publish(node.broker, 3)
    await publish(node.broker, 0)
    await node.stop()
    node = await BrokerNode.start(settings)
    try:
        topic = node.broker.topics.get(NAME)
        assert (topic.record.shards, topic.record.is_partitioned) == (4, True)
        sinks = [await join(node.broker, shard) for shard in range(4)]
        await until(lambda: sum(len(sink.received) for sink in sinks) == 2)
        assert [shard_offsets(sink) for sink in sinks] == [[(0, 1)], [], [], [(3, 0)]]
        await node.broker.delete_topic(NAME)
        assert await node.store.list_all(records.CURSORS) == []
    finally:
        await node.stop()


async def test_a_reader_of_all_shards_gets_new_shards_too(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    try:
        await publish(node.broker, 0)
        sink = await join(node.broker, None)
        await publish(node.broker, 2)
        await until(lambda: sink.received)
        assert shard_offsets(sink) == [(2, 0)]
    finally:
        await node.stop()


async def test_only_a_topic_created_by_its_partitions_grows(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    try:
        await node.broker.create_topic(NAME, 2)
        await publish(node.broker, 1)
        with pytest.raises(errors.UnknownTopic, match="no partition 2"):
            await publish(node.broker, 2)
    finally:
        await node.stop()


async def test_exclusive_and_failover_apply_per_shard(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    try:
        await publish(node.broker, 1)
        failover = SubscriptionType.FAILOVER
        sinks = [await join(node.broker, shard, failover) for shard in (0, 1)]
        assert [sink.events for sink in sinks] == [["active"], ["active"]]
        other = RecordingConsumer()
        await node.broker.subscribe(NAME, "s", failover, "d", other, shard=1)
        assert other.events == []
        node.broker.disconnect_consumer(NAME, "s", "c/1")
        assert other.events == ["active"]
    finally:
        await node.stop()
