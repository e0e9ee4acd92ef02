"""Hazard 98: a deleted topic comes back with its offsets, cursors and table, and with nothing of another topic.

Hazard 78, its part: no offset is given out twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.topic_tombstones import ReturnedTopic
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RetainedRecord
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.iceberg.identifier import Identifier
from icestream.metadata.command import Compare, Operation
from icestream.model.shard import ShardKey
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from tests.support.broker_machine import quiet, subscribe
from tests.support.deletion_world import COMMITTING, TABLE, TOPIC, DeletionWorld
from tests.support.topic_tables import ENVELOPE

pytestmark = pytest.mark.asyncio


class UndeleteWorld(DeletionWorld):
    async def filled(self, *committed: bytes) -> None:
        """The topic with a subscription that has acked the first message, and these messages in its table."""
        await self.broker.create_topic(TOPIC)
        await self.publish(*committed)
        reader = await subscribe(self.broker, "s", topic=TOPIC)
        await quiet()
        reader.ack(0)
        await quiet()
        reader.leave()
        await self.drain()

    async def delete(self, **how: Any) -> None:
        await self.broker.delete_topic(TOPIC, **how)
        await self.drain()

    async def adopt(self, returned: ReturnedTopic, *consents: Consent, log_start: int | None = None) -> None:
        """As `icestream topic undelete` does it: register what was dropped, then adopt. `log_start`: of a log that has
        freed what is below."""
        former = returned.table
        assert former is not None
        table, topic_id = Identifier(tuple(former.namespace), former.name), returned.record.id
        if await self.catalog.relations.entry(table) is None:
            await self.catalog.tables.register(table, former.location)
        stream = self.broker.storage.shard_stream(ShardKey(topic_id, 0))
        earliest = stream.log_start() if log_start is None else log_start
        log = TopicLog(str(TOPIC), topic_id, {0: ShardLog(stream.epoch, earliest, max(earliest, stream.synced))})
        adopted = await self.catalog.topics.adopt(table, log, consents)
        # As lake/topic_log.py: the log keeps what the table lacks.
        await self.ingest.reopen([(topic_id, shard.shard, shard.goes_on_at) for shard in adopted.preview.shards])


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[UndeleteWorld]:
    (tmp_path / "log").mkdir()
    undelete_world = UndeleteWorld(tmp_path)
    await undelete_world.start()
    yield undelete_world
    await undelete_world.close()


async def test_a_topic_comes_back_with_its_first_kept_offset(world: UndeleteWorld) -> None:
    """Hazard 86: what a retention removed stays removed, and is not forgotten when the grace of the deletion ends."""
    await world.filled(b"0", b"1")
    topic_id = world.broker.topics.get(TOPIC).record.id
    key = catalog_keys.retained_key(topic_id)
    await world.store.put(key, catalog_records.encode(RetainedRecord({0: 1}, 0)))
    await world.delete()
    deleted = await world.store.get(key)
    assert deleted is not None
    assert deleted.deadline_ms > 0
    await world.broker.undelete_topic(TOPIC)
    kept = await world.store.get(key)
    assert kept is not None
    assert (kept.value, kept.deadline_ms) == (deleted.value, 0)
    await quiet()
    assert world.broker.storage.shard_stream(ShardKey(topic_id, 0)).log_start() >= 1


@pytest.mark.parametrize("end", [DeletedTablePolicy.KEEP, DeletedTablePolicy.DROP])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["same", "restarted"])
async def test_a_topic_comes_back_with_offsets_cursors_and_table(
    world: UndeleteWorld, end: DeletedTablePolicy, is_restarted: bool
) -> None:
    await world.filled(b"0", b"1")
    topic_id = world.broker.topics.get(TOPIC).record.id
    await world.publish(b"2")
    await world.delete(table=end)
    if is_restarted:
        await world.broker.shutdown()
        await world.start()
    assert [tombstone.topic.id for tombstone in await world.broker.deleted_topics()] == [topic_id]
    returned = await world.broker.undelete_topic(TOPIC)
    assert (returned.record.id, returned.subscriptions) == (topic_id, 1)
    assert await world.broker.deleted_topics() == []
    subscription = world.broker.topics.get(TOPIC).subscriptions["s"]
    assert subscription.delivery(0).cursor().offset == 1, "the ack before the deletion counts"
    await world.adopt(returned)
    await world.publish(b"3")
    await world.drain()
    assert await world.rows() == [b"0", b"1", b"2", b"3"]
    assert (await world.catalog.commits.load(TABLE)).record.binding.committed() == {0: 4}  # type: ignore[union-attr]


@pytest.mark.parametrize("is_in_log", [True, False], ids=["in the log", "freed"])
async def test_discarded_messages_come_back_from_the_log_or_are_a_gap(world: UndeleteWorld, is_in_log: bool) -> None:
    """Their offsets are not given out again."""
    await world.filled(b"0", b"1")
    await world.publish(b"2", b"3")
    await world.delete(rest=DeletedRestPolicy.DISCARD)
    returned = await world.broker.undelete_topic(TOPIC)
    await world.publish(b"4")
    if is_in_log:
        await world.adopt(returned)
    else:
        with pytest.raises(errors.TopicTableConflict, match="accept-gap"):
            await world.adopt(returned, log_start=4)
        await world.adopt(returned, Consent.GAP, log_start=4)
    await world.drain()
    assert await world.rows() == [b"0", b"1", *([b"2", b"3"] if is_in_log else []), b"4"]
    assert world.broker.storage.shard_stream(ShardKey(returned.record.id, 0)).visible == 5


async def test_the_name_of_a_topic_that_exists_again_is_refused(world: UndeleteWorld) -> None:
    await world.filled(b"0")
    await world.delete()
    await world.broker.create_topic(TOPIC)
    before = await world.store.list_all("/")
    with pytest.raises(errors.AlreadyExists):
        await world.broker.undelete_topic(TOPIC)
    assert await world.store.list_all("/") == before
    await world.delete()
    first, second = await world.broker.deleted_topics()
    assert (await world.broker.undelete_topic(TOPIC, first.topic.id)).subscriptions == 1
    assert [tombstone.topic.id for tombstone in await world.broker.deleted_topics()] == [second.topic.id]


async def test_a_topic_whose_deletion_goes_on_is_refused_until_it_ends(world: UndeleteWorld) -> None:
    await world.filled(b"0")
    await world.publish(b"1")
    await world.broker.delete_topic(TOPIC)
    with pytest.raises(errors.NotReady):
        await world.broker.undelete_topic(TOPIC)
    await world.drain()
    assert (await world.broker.undelete_topic(TOPIC)).table is not None


async def test_purged_topics_and_those_without_grace_have_no_tombstone(world: UndeleteWorld) -> None:
    await world.filled(b"0")
    await world.delete(table=DeletedTablePolicy.PURGE)
    await world.broker.shutdown()
    await world.start(BrokerOptions(undelete_grace_ms=0))
    await world.broker.create_topic(TOPIC)
    await world.delete()
    for prefix in (records.TOMBSTONES, records.TOMBSTONE_NAMES, catalog_keys.FORMER):
        assert await world.store.list_all(prefix) == []
    with pytest.raises(errors.UnknownTopic, match="can come back"):
        await world.broker.undelete_topic(TOPIC)


async def test_tombstones_end_with_the_grace(world: UndeleteWorld) -> None:
    await world.filled(b"0")
    await world.delete()
    now_ms = world.clock.wall_us() // 1000
    ends = [
        entry.deadline_ms - now_ms
        for prefix in (records.TOMBSTONES, records.TOMBSTONE_NAMES, catalog_keys.FORMER)
        for _, entry in await world.store.list_all(prefix)
    ]
    assert len(ends) == 5, "tombstone, subscription, cursor, producer, former table"
    assert all(0 < end - COMMITTING.undelete_grace_ms + 60_000 < 120_000 for end in ends), ends


async def test_rows_that_an_engine_added_or_removed_meanwhile_are_judged(world: UndeleteWorld) -> None:
    await world.filled(b"0", b"1")
    await world.delete()
    returned = await world.broker.undelete_topic(TOPIC)
    await world.catalog.tables.drop(TABLE)
    await world.catalog.tables.create(TABLE, {"schema": ENVELOPE})  # of the same name, with other rows or none
    with pytest.raises(errors.TopicTableConflict, match="no rows"):
        await world.adopt(returned)
    await world.publish(b"2")
    assert (await world.ingest.backlog()).topics, "the log keeps the messages of a topic without a table"


async def test_a_crash_at_each_transaction_leaves_a_deleted_topic_or_one_that_is_back(tmp_path: Path) -> None:
    """Undelete again after the crash: everything is there, once."""
    crashes = 0
    for step in range(20):
        folder = tmp_path / str(step)
        (folder / "log").mkdir(parents=True)
        world = UndeleteWorld(folder)
        await world.start()
        try:
            await world.filled(b"0", b"1")
            await world.delete()
            is_crashed = await _crash_at(world, step)
            crashes += is_crashed
            await world.broker.shutdown()
            await world.start(COMMITTING)
            if world.broker.topics.find(TOPIC) is None:
                await world.broker.undelete_topic(TOPIC)
            subscription = world.broker.topics.get(TOPIC).subscriptions["s"]
            assert subscription.delivery(0).cursor().offset == 1
            assert await world.broker.deleted_topics() == []
            if not is_crashed:
                break
        finally:
            await world.close()
    assert crashes >= 2


async def _crash_at(world: UndeleteWorld, step: int) -> bool:
    """Undeletes, with a store that fails from this transaction on; returns whether it did."""
    applied, store = 0, world.store
    txn = store.txn

    async def failing(compare: Sequence[Compare], then: Sequence[Operation], *more: Any) -> Any:
        nonlocal applied
        if applied >= step:
            raise errors.NotReady("crashed")
        applied += 1
        return await txn(compare, then, *more)

    store.txn = failing  # type: ignore[method-assign]
    try:
        await world.broker.undelete_topic(TOPIC)
    except errors.NotReady:
        return True
    finally:
        store.txn = txn  # type: ignore[method-assign]
    return False
