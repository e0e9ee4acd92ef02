"""A job that rewrites files, in a real driver over a real log and catalog, with faults at each of its effects.

After each: every message is a row exactly once, every file that any snapshot names is there, `verify --deep` is content
(`FaultWorld.check`); and what was ingested meanwhile is in the table, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalogs.table_catalog import CommitOutcome, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.commit import rewrite_draft
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.driver.effects import CARE_EFFECTS, Effect, Fault
from icestream.pipeline.tables.topic_table import StopReason
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver, StopPoint
from tests.support.merge_job import MergeJob, add_merge

pytestmark = pytest.mark.asyncio
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
# Effects of ingest and of the clean-up, which have tests of their own (test_faults.py).
NOT_OF_A_REWRITE = {
    Effect.MAKE_TABLE,
    Effect.EVOLVE_TABLE,
    Effect.HOLD_FILES,
    Effect.ADVANCE,
    Effect.LEARN,
    Effect.RELEASE_FILES,
    Effect.CLEAN_UP,
    *CARE_EFFECTS,
}
EFFECTS = [effect for effect in Effect if effect not in NOT_OF_A_REWRITE]
# By which call each of them reaches the world.
CALLS = {
    Effect.ASK: "backlog",
    Effect.TAKE_LEASE: "put_lease",
    Effect.WRITE: "open",
    Effect.COMMIT: "commit",
    Effect.LOOK_AGAIN: "exists",
    Effect.NOTE: "record",
}


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Three rounds of two topics are in their tables."""
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param)
    await ingest(fault_world, 3)
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, rounds: int = 1) -> None:
    life = world.driver(owner="ingest")
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)
    await life.lease.release()


async def files_of(world: FaultWorld) -> int:
    """The live files of topic 1."""
    return len([path for path in await current_paths(world) if path.endswith(".parquet")])


async def current_paths(world: FaultWorld) -> set[str]:
    metadata = (await world.catalog.load(Identifier(("default",), "t1"))).metadata
    lists = {snapshot["snapshot-id"]: snapshot["manifest-list"] for snapshot in metadata["snapshots"]}
    return await world.paths(lists[metadata["current-snapshot-id"]])


async def merge(world: FaultWorld, life: InterruptibleDriver | None = None) -> MergeJob:
    """Runs turns of a driver until two files are merged."""
    life = life or world.driver(owner="merge")
    job = add_merge(world, life)
    async with asyncio.timeout(HANGS_SECONDS):
        while not job.is_done:
            await life.driver.turn()
    await life.lease.release()
    return job


# --- without a fault --------------------------------------------------------------------------------------------------


async def test_two_files_become_one_and_every_offset_stays(world: FaultWorld) -> None:
    before = await files_of(world)
    life = world.driver()
    job = await merge(world, life)
    assert [type(result) for result in job.results] == [CommittedSnapshot]
    assert await files_of(world) == before - 1
    assert {effect for effect, count in life.effects.counts.items() if count} == {*EFFECTS, Effect.MAKE_TABLE}
    await world.check()


async def test_ingest_and_rewrites_take_turns_in_one_driver(world: FaultWorld) -> None:
    """Over merges of manifests too: each rewrite changes a manifest in the middle of a table's list."""
    life = world.driver()
    for _ in range(9):
        job = add_merge(world, life)  # instead of the one before
        await world.publish_some()
        await world.drain(life)
        assert job.is_done
    assert await files_of(world) == 3
    await world.check()


async def test_the_replaced_files_go_when_no_snapshot_names_them_any_more(tmp_path: Path) -> None:
    world = await FaultWorld.open(tmp_path)
    await ingest(world, 3)
    before = {path for path in await current_paths(world) if path.endswith(".parquet")}
    life = world.driver()
    await merge(world, life)
    replaced = before - await current_paths(world)
    assert len(replaced) == 2
    for _ in range(3):  # the snapshots from before the rewrite expire with later rounds
        world.clock.advance(3_600)
        await world.publish_some()
        await world.drain(life)
        await world.clean(life)
    assert not replaced & await world.present(1)
    assert await world.needed(1) <= await world.present(1)
    await world.check()
    await world.close()


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@SIDES
@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_driver_that_is_killed_in_a_rewrite_is_followed_by_one_that_finishes(
    world: FaultWorld, effect: Effect, is_before: bool
) -> None:
    first = world.driver(Fault(is_before, effect))
    with pytest.raises(DriverKilled):
        await merge(world, first)
    await first.end()
    await world.publish_some()
    second = world.driver()
    add_merge(world, second)
    await world.drain(second)
    await world.check()


# --- SIGSTOP: a late rewrite (hazard 75) ------------------------------------------------------------------------------


@SIDES
@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_stopped_rewrite_leaves_a_valid_table_after_a_takeover(
    world: FaultWorld, effect: Effect, is_before: bool
) -> None:
    """The next driver ingests, merges the same files, and removes what the late one has written. Whatever the late one
    does then, the table names no file that is gone, and no row twice."""
    late = world.driver(stop=StopPoint(is_before, CALLS[effect]), owner="late")
    job = add_merge(world, late)
    stopped = asyncio.create_task(late.driver.turn())
    async with asyncio.timeout(HANGS_SECONDS):
        await late.life.stands_still.wait()
    await world.end_lease()
    await world.publish_some()
    new = world.driver(owner="new")
    await world.drain(new)
    await merge(world, new)
    await ingest(world)
    if new.cleaner is not None:
        await world.clean(new)
    late.life.goes_on.set()
    with contextlib.suppress(errors.IcestreamError):
        await stopped
    await world.check()
    if effect is Effect.COMMIT and is_before:
        assert isinstance(stopped.exception(), errors.LeaseLost)
        assert job.results == []


# --- catalogs that fail -----------------------------------------------------------------------------------------------


class LosesAnswers:
    """The answer to the first commit is lost. `is_landed`: the commit itself is not."""

    def __init__(self, inner: TableCatalog, is_landed: bool) -> None:
        self._inner = inner
        self._is_landed = is_landed
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        if self.lost:
            return await self._inner.commit(identifier, change)
        self.lost += 1
        if self._is_landed:
            await self._inner.commit(identifier, change)
        return CommitUnknown("the answer was lost")


@pytest.mark.parametrize("is_landed", [True, False], ids=["landed", "not landed"])
async def test_a_rewrite_whose_answer_is_lost_is_neither_lost_nor_made_twice(
    world: FaultWorld, is_landed: bool
) -> None:
    before = await files_of(world)
    life = world.driver(wrap=lambda inner: LosesAnswers(inner, is_landed))
    job = add_merge(world, life)
    await life.driver.turn()
    (result,) = job.results
    assert isinstance(result, NotCommitted)
    assert result.is_unresolved
    assert await files_of(world) == before - is_landed
    await world.publish_some()
    await world.drain(life)
    await world.check()
    assert not life.topics.halted, "ingest goes on whatever becomes of a rewrite"


# --- other engines change the table meanwhile -------------------------------------------------------------------------


class Overtaking:
    """Lets another commit land right before the first one that goes through it."""

    def __init__(self, inner: TableCatalog, act: Any) -> None:
        self._inner = inner
        self._act = act
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        self.count += 1
        if self.count == 1:
            await self._act()
        return await self._inner.commit(identifier, change)


async def test_an_append_that_overtakes_a_rewrite_does_not_conflict_with_it(world: FaultWorld) -> None:
    """Another engine adds a snapshot; the rewrite is built again on it, with the same file."""

    async def append() -> None:
        await ForeignEngine(world.catalog, world, "append", 1).meddle()

    wrapped: list[Overtaking] = []

    def wrap(inner: TableCatalog) -> Overtaking:
        wrapped.append(Overtaking(inner, append))
        return wrapped[-1]

    before = await files_of(world)
    job = await merge(world, world.driver(wrap=wrap))
    assert [type(result) for result in job.results] == [CommittedSnapshot]
    assert wrapped[0].count == 2
    assert await files_of(world) == before - 1
    await world.check()


async def test_a_foreign_compaction_of_the_replaced_files_refuses_the_rewrite(world: FaultWorld) -> None:
    async def compact() -> None:
        await ForeignEngine(world.catalog, world, "compaction", 1).meddle()

    life = world.driver(wrap=lambda inner: Overtaking(inner, compact))
    job = add_merge(world, life)
    await life.driver.turn()
    (result,) = job.results
    assert isinstance(result, NotCommitted)
    assert "not a live file of the table any more" in result.reason
    assert not life.topics.halted
    await world.check()


# --- tasks that make mistakes (hazard 83) -----------------------------------------------------------------------------


def drop_a_row(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def drop_a_row_in_the_middle(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 3), rows.slice(4)])


def double_a_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(2, 1)])


def drop_the_highest_offset_and_double_another(rows: pa.Table) -> pa.Table:
    """The number of rows is right; the bounds of the file are not."""
    offsets = rows["offset"].to_pylist()
    highest = offsets.index(max(offsets))
    return pa.concat_tables([rows.slice(0, highest), rows.slice(highest + 1), rows.slice(0, 1)])


def drop_a_row_and_double_another(rows: pa.Table) -> pa.Table:
    """Count and bounds are right: only the digest tells."""
    return pa.concat_tables([rows.slice(0, 3), rows.slice(4), rows.slice(2, 1)])


def swap_two_payloads(rows: pa.Table) -> pa.Table:
    payloads = rows["payload"].to_pylist()
    payloads[2], payloads[3] = payloads[3], payloads[2]
    return rows.set_column(rows.schema.get_field_index("payload"), rows.schema.field("payload"), [payloads])


def lose_a_column(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["key"])


MISTAKES = pytest.mark.parametrize(
    "mistake",
    [
        drop_a_row,
        drop_a_row_in_the_middle,
        double_a_row,
        drop_the_highest_offset_and_double_another,
        drop_a_row_and_double_another,
        swap_two_payloads,
        lose_a_column,
    ],
)


@MISTAKES
async def test_a_rewrite_that_changes_rows_is_refused(world: FaultWorld, mistake: Any) -> None:
    before = await current_paths(world)
    life = world.driver()
    job = add_merge(world, life, mistake)
    await life.driver.turn()
    (result,) = job.results
    assert isinstance(result, StopReason)
    assert await current_paths(world) == before
    assert not life.topics.halted
    await world.check()


@MISTAKES
async def test_our_own_catalog_refuses_what_the_committer_let_pass(
    tmp_path: Path, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pass_everything(*arguments: object) -> None: ...

    world = await FaultWorld.open(tmp_path)
    await ingest(world, 3)
    before = await current_paths(world)
    monkeypatch.setattr(rewrite_draft, "check_rewrite", pass_everything)
    life = world.driver()
    job = add_merge(world, life, mistake)
    await life.driver.turn()
    (result,) = job.results
    assert isinstance(result, StopReason)
    assert "a rewrite" in result.reason
    assert await current_paths(world) == before
    await world.check()
    await world.close()


# --- files that vanish ------------------------------------------------------------------------------------------------


class RemovesNewFiles:
    """Another engine takes the files of the first commit for orphans while it is in flight."""

    def __init__(self, inner: TableCatalog) -> None:
        self._inner = inner
        self.is_done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        requirements: list[Mapping[str, Any]] = [
            requirement for requirement in change.requirements if "added" in requirement
        ]
        for requirement in requirements if not self.is_done else []:
            self.is_done = True
            for location in requirement["added"]:
                os.unlink(location.removeprefix("file:"))  # noqa: PTH108  # blocking, as short as any other call here
        return await self._inner.commit(identifier, change)


async def test_a_rewrite_whose_file_vanished_is_undone_and_made_again(tmp_path: Path) -> None:
    world = await FaultWorld.open(tmp_path)
    await ingest(world, 3)
    life = world.driver(wrap=RemovesNewFiles)
    job = await merge(world, life)
    first, second = job.results
    assert isinstance(first, NotCommitted)
    assert "the table has the replaced files again" in first.reason
    assert isinstance(second, CommittedSnapshot)
    await world.publish_some()
    await world.drain(life)
    await world.check()
    await world.close()
