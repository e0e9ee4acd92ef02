"""Hazard 49: what becomes of the table of a topic that is deleted is part of the recorded decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.service import Broker
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_keys import FOREIGN_TABLES, foreign_table_key
from icestream.catalog.topic_rules.operation_preview import ShardLog, TopicLog
from icestream.catalogs.mirror import ForeignTableRecord
from icestream.iceberg.identifier import Identifier
from icestream.metadata.command import Operation, Put
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.observability.metrics import WAL_DELETED
from tests.support.broker_machine import TOPIC as A
from tests.support.broker_machine import BrokerMachine, publish
from tests.support.topic_tables import ENVELOPE
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio

TOPIC = TopicName("default", "orders")


class TwoCatalogWorld(CatalogWorld):
    """A broker and a catalog over one metadata store."""

    async def start(self) -> Broker:
        storage = MemoryStorage(self.store, self.clock, 10_000)
        broker = Broker(BrokerOptions(), self.store, storage, self.clock)
        await broker.start()
        return broker

    async def log_of(self, broker: Broker) -> TopicLog:
        topic = broker.topics.find(TOPIC) or await broker.create_topic(TOPIC)
        return TopicLog(str(TOPIC), topic.record.id, {0: ShardLog(0, 0, 10)})

    async def left(self) -> list[str]:
        words = ("topics", "bound", "parted", "deleted_topics")
        catalog_words = [key.split("/")[2] for key, _ in await self.store.list_all(catalog_keys.ROOT)]
        return [word for word in catalog_words if word in words]


async def test_hazard_49_the_record_of_a_foreign_table_is_removed_with_its_topic() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    topic_id = (await world.log_of(broker)).topic_id
    for number in (topic_id, topic_id + 1):
        await world.store.put(
            foreign_table_key(number), msgspec.json.encode(ForeignTableRecord(["a"], "b", "u", {0: 10}))
        )
    await broker.delete_topic(TOPIC)
    assert [key for key, _ in await world.store.list_all(FOREIGN_TABLES)] == [foreign_table_key(topic_id + 1)]


async def test_hazard_49_the_table_of_a_deleted_topic_becomes_an_ordinary_table() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    await world.catalog.topics.bind_empty(TABLE, await world.log_of(broker))
    assert (await broker.delete_topic(TOPIC)).table == [*NS, TABLE.name], "the answer names the table that stays"
    assert "deleted_topics" in await world.left(), "by the end of it"
    other = Identifier(NS, "other")
    await world.catalog.tables.rename(TABLE, other, is_forced=True)
    await world.clean_up()
    assert await world.left() == []
    assert "icestream.topic" not in (await world.catalog.tables.load(other)).table.properties
    await world.catalog.tables.drop(other)
    await broker.shutdown()


async def test_hazard_49_a_topic_that_is_created_again_gets_its_own_table() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    await world.with_table("second", schema=ENVELOPE)
    await world.catalog.topics.bind_empty(TABLE, await world.log_of(broker))
    await broker.delete_topic(TOPIC)
    again = await world.log_of(broker)
    await world.catalog.topics.bind_empty(Identifier(NS, "second"), again)
    await world.clean_up()
    assert sorted(await world.left()) == ["bound", "topics"]
    assert await world.catalog.topics.table_of(again.topic_id) == Identifier(NS, "second")
    await broker.shutdown()


async def test_hazard_49_a_topic_without_table_or_detached_leaves_no_records() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    await world.catalog.topics.bind_empty(TABLE, await world.log_of(broker))
    await world.catalog.topics.detach(TABLE)
    assert await world.left() == ["parted"]
    await broker.delete_topic(TOPIC)
    assert await world.left() == []
    await world.log_of(broker)
    await broker.delete_topic(TOPIC)
    assert await world.left() == []
    await broker.shutdown()


async def test_hazard_49_a_crash_while_detaching_is_repeated() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    log = await world.log_of(broker)
    await world.catalog.topics.bind_empty(TABLE, log)
    await broker.delete_topic(TOPIC)
    await world.catalog.topics.detach(TABLE)  # as far as the process came
    assert sorted(await world.left()) == ["deleted_topics", "parted"]
    assert [None async for _ in world.cleanup_of(world.another(5)).work()]
    assert await world.left() == []
    await broker.shutdown()


async def test_hazard_49_an_unreadable_table_is_not_retried_forever() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    await world.catalog.topics.bind_empty(TABLE, await world.log_of(broker))
    world.disk.remove((await world.catalog.tables.load(TABLE)).location.removeprefix("file:"))
    await broker.delete_topic(TOPIC)
    assert [None async for _ in world.cleanup_of(world.another(5)).work()]
    assert "deleted_topics" not in await world.left()
    await world.catalog.tables.drop(TABLE, is_forced=True)
    await broker.shutdown()


async def test_hazard_49_the_lake_process_wakes_for_it() -> None:
    world = TwoCatalogWorld()
    broker = await world.start()
    await world.with_table(schema=ENVELOPE)
    await world.catalog.topics.bind_empty(TABLE, await world.log_of(broker))
    task = asyncio.create_task(world.keeping.run())
    for _ in range(50):
        await asyncio.sleep(0)
    await broker.delete_topic(TOPIC)
    for _ in range(500):
        await asyncio.sleep(0)
        if await world.left() == []:
            break
    assert await world.left() == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await broker.shutdown()


async def test_hazard_49_the_snapshot_marks_of_a_deleted_topic_are_removed() -> None:
    """That includes topics whose table is in a foreign catalog, which our catalog does not know."""
    world = TwoCatalogWorld()
    broker = await world.start()
    log = await world.log_of(broker)
    await world.store.put(catalog_keys.open_marks_key(log.topic_id), b"marks")
    await world.store.put(catalog_keys.open_marks_key(log.topic_id + 1), b"another topic's")
    await broker.delete_topic(TOPIC)
    assert [key for key, _ in await world.store.list_all(catalog_keys.MARKS)] == [
        catalog_keys.open_marks_key(log.topic_id + 1)
    ]
    await broker.shutdown()


async def test_hazard_49_uncommitted_messages_are_dropped_and_named_in_the_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    assert machine.log is not None
    await broker.create_topic(A, shards=2)
    producer = await broker.open_producer(A, "p")
    for shard, count in ((0, 5), (1, 2)):
        for _ in range(count):
            await publish(broker, producer, b"x", shard=shard)
    topic_id = broker.topics.get(A).record.id
    await machine.log.advance_floor({ShardKey(topic_id, 0): 3, ShardKey(topic_id, 1): 2})
    decided: list[records.DeletedTopicRecord] = []
    txn = machine.store.txn

    async def seen(compare: Any, then: Sequence[Operation], *others: Any) -> Any:
        key = records.deleted_topic_key(topic_id)
        decided.extend(
            records.decode(records.DeletedTopicRecord, key, operation.value)
            for operation in then
            if isinstance(operation, Put) and operation.key == key
        )
        return await txn(compare, then, *others)

    monkeypatch.setattr(machine.store, "txn", seen)
    before = WAL_DELETED._value.get()
    await broker.delete_topic(A)
    assert [record.dropped for record in decided] == [[(0, 2)]]
    assert WAL_DELETED._value.get() - before == 2
    assert machine.log.shard(topic_id, 0).floor == 5
    await broker.shutdown()
