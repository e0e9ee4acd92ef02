"""Hazard 86 in a broker: it follows first kept offsets by a watch, and every tier begins there: table, log, memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.broker.service import Broker
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RetainedRecord
from icestream.model.shard import GapState, ShardKey
from icestream.model.subscription_options import StartAt, SubscriptionStart
from tests.support.broker_machine import TOPIC, publish, quiet, subscribe
from tests.support.tiers import TieredMachine

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)


async def with_history(machine: TieredMachine) -> Broker:
    """60 messages, the first 40 in the table; the oldest of them in no log file."""
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(60):
        if number == 40:
            await machine.commit()
            await machine.forget()
        machine.clock.advance(1.0)
        await publish(broker, producer, b"%d " % number + bytes(4_000))
    return broker


async def retain(machine: TieredMachine, broker: Broker, first: int) -> None:
    """As the transaction of a retention; the broker has heard of it afterwards."""
    record = catalog_records.encode(RetainedRecord({0: first}, 0))
    await machine.store.put(catalog_keys.retained_key(KEY.topic_id), record)
    for _ in range(100):
        await quiet()
        if broker.storage.shard_stream(KEY).log_start() >= first:
            return
    raise AssertionError("the broker has not heard of the first kept offset")


@pytest.mark.parametrize("first", [6, 38, 50], ids=["in the table", "in the log", "in memory"])
async def test_every_tier_begins_at_the_first_kept_offset(tmp_path: Path, first: int) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    early = await subscribe(broker, "early", start=SubscriptionStart(StartAt.OFFSET, 2), credit=0)
    await retain(machine, broker, first)
    stream = broker.storage.shard_stream(KEY)
    assert await stream.history_start() == first
    assert await stream.offset_for_time(0) == first
    assert stream.read_hot(first - 1, 1_000_000) == []
    read = await stream.read(0, 1_000_000)
    assert [(gap.start, gap.end, gap.state, gap.reason) for gap in read.gaps] == [
        (0, first, GapState.DROPPED, "removed by the topic's retention")
    ]
    assert (read.sections, read.next_offset) == ([], first)
    assert await broker.history_starts(broker.topics.get(TOPIC)) == [first]
    early.credit(1_000)
    for _ in range(200):
        await quiet()
        if len(early.sink.received) == 60 - first:
            break
    assert early.sink.offsets == list(range(first, 60))
    assert [(gap.start, gap.end) for gap in early.sink.gaps] == [(2, first)]
    await broker.shutdown()


async def test_a_restarted_broker_knows_where_its_topics_begin(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    await retain(machine, broker, 45)
    await broker.shutdown()
    again = await machine.open_broker()
    await retain(machine, again, 45)
    assert await again.storage.shard_stream(KEY).history_start() == 45
    await again.shutdown()


async def test_a_deleted_record_keeps_nothing_back(tmp_path: Path) -> None:
    """Of a deleted topic."""
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    await retain(machine, broker, 45)
    await machine.store.delete(catalog_keys.retained_key(KEY.topic_id))
    for _ in range(100):
        await quiet()
        if broker.storage.shard_stream(KEY).log_start() < 45:
            break
    assert await broker.storage.shard_stream(KEY).history_start() == 0
    await broker.shutdown()
