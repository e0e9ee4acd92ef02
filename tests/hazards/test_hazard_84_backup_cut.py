"""Hazard 84: a cut is consistent whatever is published, acked, committed, created and deleted between its steps."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icestream.backup.backup_root import BackupRoot
from icestream.backup.tail_object import decode_tail
from icestream.broker import records
from icestream.broker.backup_service import clamp_cursor
from icestream.broker.records import CURSORS, CursorRecord
from icestream.metadata.snapshot import load_snapshot
from icestream.model.shard import ShardKey
from tests.support.backup_world import BackupWorld, backup_world

pytestmark = pytest.mark.asyncio
CURSOR = f"{CURSORS}s/default/orders"


class Meanwhile:
    """Does something by chance before each call of a run, as clients and the pipeline do."""

    def __init__(self, world: BackupWorld, topic_id: int, seed: int) -> None:
        self._world = world
        self._topic_id = topic_id
        self._random = random.Random(seed)
        self.acked_before = 0  # messages that were acked before the backup began
        self._extra = 0

    async def __call__(self, method: str, /, **arguments: Any) -> Any:
        if method == "backup_hold" and not self.acked_before:
            self.acked_before = self._world.number
        for _ in range(self._random.randint(0, 3)):
            await self._act()
        return await self._world.link.call(method, arguments)

    async def _act(self) -> None:
        world = self._world
        match self._random.randrange(5):
            case 0 | 1:
                await world.publish(self._random.randint(1, 4))
            case 2:
                offset = self._random.randint(0, world.number)
                acked = [1, 1] if offset + 2 <= world.number else []
                cursor = CursorRecord(1, offset, self._topic_id, 0, acked=acked)
                await world.node.store.put(CURSOR, records.encode(cursor))
            case 3 if world.number > world.committed:
                end = self._random.randint(world.committed + 1, world.number)
                await world.commit(end, is_floor_moved=self._random.random() < 0.5)
            case _:
                self._extra += 1
                await world.link.call("create_topic", {"topic": f"/default/extra{self._extra}"})


async def offsets_of(world: BackupWorld, root: BackupRoot, topic_id: int) -> tuple[list[int], int]:
    """The offsets of the topic that a backup has below its end, from table and tails, and the end."""
    (topic,) = [topic for topic in root.topics if topic.id == topic_id]
    (shard,) = topic.shards
    offsets: list[int] = []
    for row in await world.stored().rows_of(root.id):
        if row.role == "data" and row.topic_id == topic_id:
            data = await world.stored().content(row.reference, "data")
            offsets += pq.read_table(io.BytesIO(data)).column("offset").to_pylist()
    for tail in shard.tails:
        data = await world.stored().content(tail.object, "tail")
        for section in decode_tail("tail", data, ShardKey(topic_id, 0)):
            span = range(section.base_offset, section.base_offset + section.rows)
            offsets += [offset for offset in span if tail.start <= offset < tail.end]
    return offsets, shard.end


@pytest.mark.parametrize("seed", range(8))
async def test_hazard_84_everything_acked_is_there_once_and_no_cursor_passes_it(tmp_path: Path, seed: int) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await world.create_topic()
        await world.bind()
        await world.publish(5)
        meanwhile = Meanwhile(world, topic_id, seed)
        run = world.run()
        run._node._call = meanwhile
        root = await run.run()
        offsets, end = await offsets_of(world, root, topic_id)
        assert sorted(offsets) == list(range(end)), "each offset once, in the table or in a tail"
        assert meanwhile.acked_before <= end <= world.number
        state = load_snapshot(io.BytesIO(await world.stored().content(root.metadata, "metadata")).read)
        if CURSOR in state.entries:
            assert records.decode(CursorRecord, CURSOR, state.entries[CURSOR].value).end <= end
        for topic in root.topics:
            assert f"/topics{topic.name}" in state.entries or topic.name.startswith("/system/"), topic.name
        assert await world.verify(root.id) == []


@pytest.mark.parametrize("seed", range(40))
async def test_hazard_84_a_clamped_cursor_keeps_what_lies_below_the_end(seed: int) -> None:
    chance = random.Random(seed)
    offset = chance.randint(0, 20)
    acked = [chance.randint(1, 4) for _ in range(2 * chance.randint(0, 4))]
    attempts = [chance.randint(1, 4) for _ in range(3 * chance.randint(0, 3))]
    cursor = CursorRecord(1, offset, 7, 0, acked=acked, attempts=attempts, kept_below=chance.randint(0, 30))
    end = chance.randint(0, 40)
    clamped = clamp_cursor(cursor, end)

    def done(record: CursorRecord) -> set[int]:
        above = {number for start, stop in record.ranges for number in range(start, stop)}
        return set(range(record.offset)) | above

    assert done(clamped) == {number for number in done(cursor) if number < end}
    assert {(start, count) for start, _, count in clamped.failures} == {
        (start, count) for start, _, count in cursor.failures if start < end
    }
    assert max(clamped.end, clamped.kept_below, 0) <= end
