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
from tests.support.topic_lake import TABLE, TOPIC_ID, TopicLake, rows

pytestmark = pytest.mark.asyncio


async def lake_with(folder: Path, rounds: int) -> tuple[TopicLake, list[int]]:
    lake = TopicLake(folder)
    await lake.bind()
    made = []
    for number in range(rounds):
        entries = [await lake.write(rows(number * 10, number * 10 + 10))]
        made.append(await lake.round((0, number * 10, number * 10 + 10), entries=entries))
    return lake, made


async def known(lake: TopicLake) -> dict[int, dict[int, int]]:
    return {one.snapshot_id: dict(one.committed) for one in await SnapshotMap(lake.store).marks(TOPIC_ID)}


async def test_what_goes_is_marked_with_its_time_and_what_stays_is_not(tmp_path: Path) -> None:
    lake, (first, second, _) = await lake_with(tmp_path, 3)
    found = (await lake.table()).snapshots.find(second)
    assert found is not None
    assert await SnapshotMap(lake.store).marks(TOPIC_ID) == []
    await lake.expire(second, first)
    marks = await SnapshotMap(lake.store).marks(TOPIC_ID)
    assert [one.snapshot_id for one in marks] == [first, second], "the oldest first"
    assert marks[1] == SnapshotMark(second, found["timestamp-ms"], {0: 20})


async def test_a_compaction_that_goes_holds_what_the_round_before_it_did(tmp_path: Path) -> None:
    lake, (first, _) = await lake_with(tmp_path, 2)
    compacted = await lake.replace(lake.live)
    await lake.round((0, 20, 30), entries=[await lake.write(rows(20, 30))])
    await lake.expire(first, compacted)
    assert await known(lake) == {first: {0: 10}, compacted: {0: 20}}
    assert (await lake.ask(ScanKind.SNAPSHOT, compacted)).offset == 20


async def test_a_commit_that_fails_leaves_no_mark(tmp_path: Path) -> None:
    lake, (first, *_) = await lake_with(tmp_path, 2)
    gone = {"action": "remove-snapshots", "snapshot-ids": [first]}
    with pytest.raises(errors.CommitConflict):
        await lake.catalog.commits.commit(
            TABLE, CommitRequest([{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5}], [gone])
        )
    assert await known(lake) == {}


async def test_two_processes_that_let_snapshots_go_lose_no_mark(tmp_path: Path) -> None:
    """Each remembers the open block of its own last commit."""
    lake, made = await lake_with(tmp_path, 9)
    other = Catalog(lake.store, lake.files, lake.clock, SeededRandomness(9), f"file:{tmp_path}")
    for number, snapshot_id in enumerate(made[:-1]):
        gone = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
        await (other if number % 3 else lake.catalog).commits.commit(TABLE, CommitRequest([], [gone]))
    assert await known(lake) == {one: {0: 10 * number + 10} for number, one in enumerate(made[:-1])}


class AskedStore(MemoryStore):
    asked: list[str]

    async def get(self, key: str):  # type: ignore[no-untyped-def]
        self.asked.append(key)
        return await super().get(key)


async def test_a_commit_behind_one_of_ours_asks_for_no_block(tmp_path: Path) -> None:
    store = AskedStore(SimulatedClock())
    store.asked = []
    marks = SnapshotMap(store)
    for number in range(200):
        added = await marks.plan(7, [SnapshotMark(number, number, {0: number})])
        done = await store.txn(added.comparisons, added.operations)
        assert done.held
        marks.remember(7, added, done.revision)
    assert store.asked == [catalog_keys.open_marks_key(7)], "once, and never again"
    assert [one.snapshot_id for one in await marks.marks(7)] == list(range(200))


async def test_the_map_is_bounded_and_keeps_the_newest() -> None:
    store = MemoryStore(SimulatedClock())
    marks = SnapshotMap(store)
    count = limits.SNAPSHOT_MARKS_PER_BLOCK * (limits.SNAPSHOT_BLOCKS_MAX + 20)
    for begin in range(0, count, 50):
        added = await marks.plan(7, [SnapshotMark(one, one, {0: one}) for one in range(begin, min(begin + 50, count))])
        marks.remember(7, added, (await store.txn(added.comparisons, added.operations)).revision)
    assert await marks.find(7, count - 9) == SnapshotMark(count - 9, count - 9, {0: count - 9})
    assert await marks.find(7, 9) is None
    found = [one.snapshot_id for one in await marks.marks(7)]
    assert found == list(range(count - limits.SNAPSHOT_MARKS_PER_BLOCK * limits.SNAPSHOT_BLOCKS_MAX, count))
    entries = await store.list_all(catalog_keys.MARKS)
    assert len(entries) == limits.SNAPSHOT_BLOCKS_MAX + 1
    assert sum(len(key) + len(entry.value) for key, entry in entries) < 70_000


async def test_as_many_tables_as_the_pipeline_commits_at_once_let_go_in_one_transaction() -> None:
    """Also where the block of each is full at that very commit."""
    marks = SnapshotMap(MemoryStore(SimulatedClock()))
    full = [SnapshotMark(2**62 + one, 10**12 + one, {0: 500 * one}) for one in range(limits.SNAPSHOT_MARKS_PER_BLOCK)]
    compare: list[cmd.Compare] = [cmd.HasValue(catalog_keys.LEASE, b"x" * 100)]
    then: list[cmd.Operation] = []
    for topic_id in range(limits.COMMIT_TABLES_MAX):
        added = await marks.plan(topic_id, full)
        assert len(added.operations) == 2
        key = f"{catalog_keys.RELATIONS}default/:topic-{topic_id}"
        compare += [cmd.AtRevision(key, 1), *added.comparisons]
        then += [cmd.Put(key, bytes(2_500)), *added.operations]
    assert refusal(cmd.Txn(compare, then)) is None


async def test_a_block_that_is_damaged_costs_its_marks_and_nothing_else(tmp_path: Path) -> None:
    lake, (first, second, third, _) = await lake_with(tmp_path, 4)
    await lake.expire(first)
    await lake.store.put(catalog_keys.open_marks_key(TOPIC_ID), b"\xff\x00")
    assert await known(lake) == {}
    await lake.expire(second)
    await lake.expire(third)
    assert await known(lake) == {second: {0: 20}, third: {0: 30}}


async def test_the_map_goes_with_the_table(tmp_path: Path) -> None:
    lake, (first, _) = await lake_with(tmp_path, 2)
    await lake.expire(first)
    await lake.catalog.topics.detach(TABLE)
    assert await lake.store.list_all(catalog_keys.MARKS) == []
