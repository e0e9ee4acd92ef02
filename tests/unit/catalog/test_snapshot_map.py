"""The durable map: what a snapshot held is known when it has gone, in one step with its going, and within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog import Catalog
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal
from icestream.metadata.store import MemoryStore
from icestream.model.scan_messages import ScanKind
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from tests.support.faulty_store import FaultyStore
from tests.support.topic_lake import TABLE, TOPIC_ID, TopicLake, rows

pytestmark = pytest.mark.asyncio


async def lake_with(folder: Path, rounds: int) -> tuple[TopicLake, list[int]]:
    lake = TopicLake(folder)
    await lake.bind()
    snapshot_ids = []
    for number in range(rounds):
        entries = [await lake.write(rows(number * 10, number * 10 + 10))]
        snapshot_ids.append(await lake.round((0, number * 10, number * 10 + 10), entries=entries))
    return lake, snapshot_ids


async def marked_offsets(lake: TopicLake) -> dict[int, dict[int, int]]:
    return {mark.snapshot_id: dict(mark.committed) for mark in await SnapshotMap(lake.store).marks(TOPIC_ID)}


async def test_expired_snapshots_are_marked_with_their_time_and_kept_ones_are_not(tmp_path: Path) -> None:
    lake, (first, second, _) = await lake_with(tmp_path, 3)
    snapshot = (await lake.table()).snapshots.find(second)
    assert snapshot is not None
    assert await SnapshotMap(lake.store).marks(TOPIC_ID) == []
    await lake.expire(second, first)
    marks = await SnapshotMap(lake.store).marks(TOPIC_ID)
    assert [mark.snapshot_id for mark in marks] == [first, second], "the oldest first"
    assert marks[1] == SnapshotMark(second, snapshot["timestamp-ms"], {0: 20})


async def test_an_expired_compaction_has_the_offsets_of_the_round_before_it(tmp_path: Path) -> None:
    lake, (first, _) = await lake_with(tmp_path, 2)
    compacted = await lake.replace(lake.live)
    await lake.round((0, 20, 30), entries=[await lake.write(rows(20, 30))])
    await lake.expire(first, compacted)
    assert await marked_offsets(lake) == {first: {0: 10}, compacted: {0: 20}}
    assert (await lake.ask(ScanKind.SNAPSHOT, compacted)).offset == 20


async def test_a_failed_commit_leaves_no_mark(tmp_path: Path) -> None:
    lake, (first, *_) = await lake_with(tmp_path, 2)
    gone = {"action": "remove-snapshots", "snapshot-ids": [first]}
    with pytest.raises(errors.CommitConflict):
        await lake.catalog.commits.commit(
            TABLE, CommitRequest([{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5}], [gone])
        )
    assert await marked_offsets(lake) == {}


async def test_two_processes_that_expire_snapshots_lose_no_mark(tmp_path: Path) -> None:
    """Each process caches the open block of its own last commit."""
    lake, snapshot_ids = await lake_with(tmp_path, 9)
    other = Catalog(lake.store, lake.files, lake.clock, SeededRandomness(9), f"file:{tmp_path}")
    for number, snapshot_id in enumerate(snapshot_ids[:-1]):
        gone = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
        await (other if number % 3 else lake.catalog).commits.commit(TABLE, CommitRequest([], [gone]))
    assert await marked_offsets(lake) == {
        snapshot_id: {0: 10 * number + 10} for number, snapshot_id in enumerate(snapshot_ids[:-1])
    }


async def test_a_commit_after_our_own_reads_no_block(tmp_path: Path) -> None:
    store = FaultyStore(SimulatedClock())
    marks = SnapshotMap(store)
    for number in range(200):
        added = await marks.plan(7, [SnapshotMark(number, number, {0: number})])
        done = await store.txn(added.comparisons, added.operations)
        assert done.held
        marks.remember(7, added, done.revision)
    assert store.reads == [catalog_keys.open_marks_key(7)], "once, and never again"
    assert [mark.snapshot_id for mark in await marks.marks(7)] == list(range(200))


async def test_the_map_is_bounded_and_keeps_the_newest() -> None:
    store = MemoryStore(SimulatedClock())
    marks = SnapshotMap(store)
    count = limits.SNAPSHOT_MARKS_PER_BLOCK * (limits.SNAPSHOT_BLOCKS_MAX + 20)
    for begin in range(0, count, 50):
        added = await marks.plan(
            7, [SnapshotMark(number, number, {0: number}) for number in range(begin, min(begin + 50, count))]
        )
        marks.remember(7, added, (await store.txn(added.comparisons, added.operations)).revision)
    assert await marks.find(7, count - 9) == SnapshotMark(count - 9, count - 9, {0: count - 9})
    assert await marks.find(7, 9) is None
    snapshot_ids = [mark.snapshot_id for mark in await marks.marks(7)]
    assert snapshot_ids == list(range(count - limits.SNAPSHOT_MARKS_PER_BLOCK * limits.SNAPSHOT_BLOCKS_MAX, count))
    entries = await store.list_all(catalog_keys.MARKS)
    assert len(entries) == limits.SNAPSHOT_BLOCKS_MAX + 1
    assert sum(len(key) + len(entry.value) for key, entry in entries) < 70_000


async def test_all_tables_of_a_pipeline_commit_expire_snapshots_in_one_transaction() -> None:
    """This holds also if the block of each table becomes full with that commit."""
    marks = SnapshotMap(MemoryStore(SimulatedClock()))
    full = [
        SnapshotMark(2**62 + number, 10**12 + number, {0: 500 * number})
        for number in range(limits.SNAPSHOT_MARKS_PER_BLOCK)
    ]
    compare: list[cmd.Compare] = [cmd.HasValue(catalog_keys.LEASE, b"x" * 100)]
    then: list[cmd.Operation] = []
    for topic_id in range(limits.COMMIT_TABLES_MAX):
        added = await marks.plan(topic_id, full)
        assert len(added.operations) == 2
        key = f"{catalog_keys.RELATIONS}default/:topic-{topic_id}"
        compare += [cmd.AtRevision(key, 1), *added.comparisons]
        then += [cmd.Put(key, bytes(2_500)), *added.operations]
    assert refusal(cmd.Txn(compare, then)) is None


async def test_a_damaged_block_loses_only_its_own_marks(tmp_path: Path) -> None:
    lake, (first, second, third, _) = await lake_with(tmp_path, 4)
    await lake.expire(first)
    await lake.store.put(catalog_keys.open_marks_key(TOPIC_ID), b"\xff\x00")
    assert await marked_offsets(lake) == {}
    await lake.expire(second)
    await lake.expire(third)
    assert await marked_offsets(lake) == {second: {0: 20}, third: {0: 30}}


async def test_the_map_is_deleted_with_the_table(tmp_path: Path) -> None:
    lake, (first, _) = await lake_with(tmp_path, 2)
    await lake.expire(first)
    await lake.catalog.topics.detach(TABLE)
    assert await lake.store.list_all(catalog_keys.MARKS) == []
