"""Topics whose log this node does not have: of other nodes, deleted, created meanwhile."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from icestream.backup import recorded_topics
from icestream.backup.backup_root import TopicCut
from icestream.broker import records
from icestream.broker.records import CursorRecord
from icestream.metadata.snapshot import load_snapshot
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName
from icestream.processes.restore_run import RestorePlan
from icestream.runtime.clock import SystemClock
from tests.support.backup_world import ORDERS, BackupWorld, backup_world
from tests.support.restore_world import RestoreWorld
from tests.support.topic_lake import TopicLake, row

pytestmark = pytest.mark.asyncio
FAR, FAR_ID = TopicName("default", "far"), 999
CURSOR = records.cursor_key(FAR, "s", 0, 1, is_partitioned=False)


async def put_far_topic(world: BackupWorld, committed: int) -> None:
    """A topic that node `other` serves, with a table of so many rows and a cursor beyond it."""
    store = world.node.store
    record = records.TopicRecord(FAR_ID, 1, DispatchMode.RELIABLE, 1, "other", owner="12")
    await store.put(records.topic_key(FAR), records.encode(record))
    await store.put(CURSOR, records.encode(CursorRecord(1, committed + 5, FAR_ID, 0)))
    folder = world.folder / "warehouse"
    world.lake = TopicLake(folder, store, SystemClock(), topic=str(FAR), topic_id=FAR_ID)
    if committed:
        await world.lake.bind(1)
        entry = await world.lake.write([row(offset) for offset in range(committed)])
        await world.lake.round((0, 0, committed), entries=[entry])


def far_cut(topics: list[TopicCut]) -> TopicCut:
    (topic,) = [topic for topic in topics if topic.name == str(FAR)]
    return topic


@pytest.mark.parametrize("committed", [0, 7])
async def test_a_topic_of_another_node_is_incomplete_and_has_what_its_table_has(tmp_path: Path, committed: int) -> None:
    async with backup_world(tmp_path) as world:
        await put_far_topic(world, committed)
        root = await world.back_up()
        assert root.state == "incomplete"
        (shard,) = root.incomplete
        assert (shard.topic, shard.shard, shard.node) == (str(FAR), 0, "other")
        cut = far_cut(root.topics)
        assert [(entry.committed, entry.end) for entry in cut.shards] == [(committed, committed)]
        data = await world.stored().content(root.metadata, "metadata")
        state = load_snapshot(io.BytesIO(data).read)
        cursor = records.decode(CursorRecord, CURSOR, state.entries[CURSOR].value)
        assert cursor.offset == committed, "no cursor passes what the backup has"
        assert [finding.severity for finding in await world.verify(root.id)] == ["warning"]
        if committed:
            await world.node.store.delete(records.topic_key(FAR))
            name = TopicName("default", "near")
            restore = RestoreWorld(world)
            (restored,) = await restore.run_of(RestorePlan([(cut, name)]), None).run(root)
            assert restored.messages == committed
            assert [offset for offset, _ in await restore.rows(name)] == [*range(committed)]


async def test_topics_that_are_not_chosen_are_left_out_and_not_incomplete(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await put_far_topic(world, 7)
        await world.call("create_topic", topic=str(ORDERS))
        root = await world.back_up(topics=[str(ORDERS)])
        assert (root.state, [topic.name for topic in root.topics]) == ("complete", [str(ORDERS)])
        assert (str(FAR), "not selected") in [(entry.topic, entry.reason) for entry in root.left_out]


async def test_a_deleted_topic_of_the_past_does_not_make_a_backup_incomplete(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.publish(5)
        await world.node.broker.delete_topic(ORDERS)
        await world.call("create_topic", topic="/default/kept")
        root = await world.back_up()
        assert (root.state, root.incomplete) == ("complete", [])
        assert [topic.name for topic in root.topics] == ["/default/kept"]
        assert await world.verify(root.id) == []


async def test_a_topic_that_is_created_after_the_ends_were_fixed_is_left_out_and_named(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        run = world.run()

        async def create_first(method: str, /, **arguments: Any) -> Any:
            if method == "backup_freeze":
                await world.link.call("create_topic", {"topic": "/default/late"})
            return await world.call(method, **arguments)

        run._node._call = create_first
        root = await run.run()
        assert root.state == "complete"
        assert ("/default/late", "created during the backup") in [
            (entry.topic, entry.reason) for entry in root.left_out
        ]


async def test_topics_are_read_where_the_broker_writes_them() -> None:
    assert recorded_topics.PREFIX == records.TOPICS
