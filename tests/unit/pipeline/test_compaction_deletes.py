"""Hazard 77: compaction applies the deletes of engines, and brings no deleted row back.

`FaultWorld.check` compares the rows with those that were published and not deleted, and runs `verify --deep`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.pipeline.compaction.compaction_job import CompactionJob
from icestream.pipeline.compaction.group_messages import decode_job, encode
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.driver.maintenance_request import MaintenanceRequest, RequestedTable
from icestream.runtime.tasks import Offload
from tests.support.compaction import LocalGroupWriter, add_compaction, compact, data_files
from tests.support.deleting_engine import delete_by_position, delete_by_value, live_entries, table_of
from tests.support.fault_world import FaultWorld, name_of
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
FAULTS = (Effect.REWRITE, Effect.COMMIT, Effect.LOOK_AGAIN, Effect.NOTE)
Deed = Callable[[FaultWorld], Awaitable[None]]


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Three rounds of two topics are in their tables."""
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param)
    life = fault_world.driver()
    await ingest(fault_world, life, 3)
    await life.lease.release()
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 1) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


async def locations(world: FaultWorld) -> list[str]:
    """The data files of topic 1, the oldest first."""
    return sorted((entry.file_path for entry in await live_entries(world)), key=lambda path: min(offsets_of(path)))


def offsets_of(location: str) -> list[int]:
    return [int(offset) for offset in pq.read_table(location.removeprefix("file:"))["offset"].to_pylist()]


def damage(location: str) -> None:
    Path(location.removeprefix("file:")).write_bytes(b"PAR1 nonsense PAR1")


async def by_position(world: FaultWorld) -> None:
    oldest, *_ = await locations(world)
    await delete_by_position(world, {oldest: [0, 3]})


async def by_position_in_one_file(world: FaultWorld) -> None:
    oldest, other, *_ = await locations(world)
    await delete_by_position(world, {oldest: [1], other: [0, 2]}, is_one_file=True)


async def by_value(world: FaultWorld) -> None:
    await delete_by_value(world, 1, [0, 4, 99_999])


async def by_all_means(world: FaultWorld) -> None:
    await by_position(world)
    await by_value(world)
    await by_position_in_one_file(world)


DEEDS = pytest.mark.parametrize("deed", [by_position, by_position_in_one_file, by_value, by_all_means])


@DEEDS
async def test_deleted_rows_are_left_out_and_their_delete_files_go(world: FaultWorld, deed: Deed) -> None:
    await deed(world)
    assert await live_entries(world, content=1)
    life = world.driver()
    job = add_compaction(life)
    await ingest(world, life)
    await compact(life, job)
    assert len(await data_files(world)) == 1
    assert not await live_entries(world, content=1)
    summary = (await table_of(world)).snapshots[-1]["summary"]
    assert (summary["operation"], summary["total-delete-files"]) == ("replace", "0")
    assert int(summary["deleted-records"]) - int(summary["added-records"]) == sum(map(len, world.forgone.values()))
    await world.check()


async def test_a_rewritten_file_has_the_sequence_number_of_the_planned_snapshot(world: FaultWorld) -> None:
    await by_position(world)
    planned = (await table_of(world)).fields["last-sequence-number"]
    life = world.driver()
    job = add_compaction(life)
    await ingest(world, life)
    await compact(life, job)
    (entry,) = await live_entries(world)
    last = (await table_of(world)).fields["last-sequence-number"]
    assert entry.explicit_sequence_number == planned + 1, "that of the round"
    assert entry.sequence_number(last) < last


async def test_a_delete_file_that_another_file_needs_stays(world: FaultWorld) -> None:
    """One delete file for two files, of which one alone is rewritten."""
    oldest, other, *_ = await locations(world)
    await delete_by_position(world, {oldest: [1], other: [0, 2]}, is_one_file=True)
    life = world.driver()
    job = add_compaction(life, writer=FirstFiles())
    await ingest(world, life)
    await life.driver.turn()
    assert oldest not in await data_files(world)
    assert other in await data_files(world)
    assert len(await live_entries(world, content=1)) == 1
    await world.check()
    await job.close()


async def test_the_other_delete_files_of_a_manifest_stay_as_their_engine_made_them(world: FaultWorld) -> None:
    oldest, other, *_ = await locations(world)
    await delete_by_position(world, {oldest: [1, 2], other: [0]})
    before = {entry.referenced_data_file: entry for entry in await live_entries(world, content=1)}
    life = world.driver()
    job = add_compaction(life, writer=FirstFiles())
    await ingest(world, life)
    await life.driver.turn()
    (entry,) = await live_entries(world, content=1)
    assert entry.referenced_data_file == other
    assert entry._data_file == before[other]._data_file
    assert entry._data_file["engine_note"] == "from elsewhere"
    assert entry.explicit_sequence_number == (await table_of(world)).fields["last-sequence-number"] - 2
    await world.check()
    await job.close()


class FirstFiles(LocalGroupWriter):
    """Tasks in whose memory only the first file of a group fits."""

    def rewrite(self, group_jobs: Sequence[bytes]) -> list[bytes]:
        jobs = [decode_job(data) for data in group_jobs]
        return super().rewrite([encode(msgspec.structs.replace(job, files=job.files[:1])) for job in jobs])


async def held_job(world: FaultWorld) -> tuple[InterruptibleDriver, CompactionJob, asyncio.Event]:
    """A compaction whose tasks are done, and which is not committed before the gate opens."""
    gate = asyncio.Event()
    life = world.driver()
    job = add_compaction(life, offload=held_by(gate))
    await ingest(world, life)
    while not job.is_busy:
        await life.driver.turn()
    return life, job, gate


def held_by(gate: asyncio.Event) -> Offload:
    class Held:
        async def run(self, work: Any) -> Any:
            result = work()
            await gate.wait()
            return result

    return Held()


async def test_deletes_by_value_that_come_meanwhile_apply_to_the_new_file(world: FaultWorld) -> None:
    """Their sequence number is above that of the new file: the rewrite lands, and brings no row back."""
    life, job, gate = await held_job(world)
    before = await data_files(world)
    await delete_by_value(world, 0, [2, 7])
    gate.set()
    async with asyncio.timeout(30):
        while before & await data_files(world):
            await life.driver.turn()
    await compact(life, job)
    assert not await live_entries(world, content=1)
    await world.check()


async def test_deletes_by_position_that_come_meanwhile_have_the_group_planned_again(world: FaultWorld) -> None:
    life, job, gate = await held_job(world)
    before = await locations(world)
    await delete_by_position(world, {before[0]: [2]})
    gate.set()
    await life.driver.turn()
    assert set(before) <= await data_files(world), "the rewrite without the delete is not committed"
    await compact(life, job)
    assert not set(before) & await data_files(world)
    assert not await live_entries(world, content=1)
    await world.check()


async def test_a_delete_that_is_rolled_back_meanwhile_has_the_group_planned_again(tmp_path: Path) -> None:
    """Its rows are in the table again; a rewrite that leaves them out would lose them."""
    world = await FaultWorld.open(tmp_path)
    first = world.driver()
    await ingest(world, first, 3)
    await first.lease.release()
    main = (await table_of(world)).current_snapshot_id
    await by_position(world)
    gate = asyncio.Event()
    life = world.driver()
    job = add_compaction(life, offload=held_by(gate))
    before = await data_files(world)
    job.request(MaintenanceRequest("a", [RequestedTable(1, "/default/t1")]))
    while life.effects.counts[Effect.REWRITE] == 0:
        await life.driver.turn()
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": main}
    await world.making.commits.commit(name_of(1), CommitRequest([], [back]))
    world.forgone.clear()
    gate.set()
    await compact(life, job)
    assert not before & await data_files(world)
    await world.check()
    await world.close()


async def test_a_file_whose_rows_are_all_deleted_goes(world: FaultWorld) -> None:
    files = await locations(world)
    await delete_by_position(world, {path: [*range(len(offsets_of(path)))] for path in files})
    life = world.driver()
    job = add_compaction(life)
    await ingest(world, life)
    await compact(life, job)
    assert not set(files) & await data_files(world)
    await world.check()


async def test_a_table_without_deletes_any_more_is_left_as_it_is(world: FaultWorld) -> None:
    """A rewrite for deletes is not followed by another one: no delete of then applies to the new file."""
    await by_all_means(world)
    life, writer = world.driver(), LocalGroupWriter()
    job = add_compaction(life, writer=writer)
    await ingest(world, life)
    await compact(life, job)
    groups, files = writer.groups, await data_files(world)
    await compact(life, job, 20)
    assert (writer.groups, await data_files(world)) == (groups, files)


async def test_a_delete_that_cannot_be_applied_leaves_the_files_alone(world: FaultWorld) -> None:
    await by_position(world)
    (delete,) = await live_entries(world, content=1)
    damage(delete.file_path)
    before = await locations(world)
    life, writer = world.driver(), LocalGroupWriter()
    job = add_compaction(life, writer=writer)
    await ingest(world, life)
    await compact(life, job)
    assert set(before) <= await data_files(world)
    groups = writer.groups
    await compact(life, job)
    assert writer.groups == groups, "it is not tried again and again"


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("effect", FAULTS)
async def test_a_driver_that_is_killed_while_it_applies_deletes_is_followed_by_one_that_finishes(
    world: FaultWorld, effect: Effect, is_before: bool
) -> None:
    await by_all_means(world)
    killed = world.driver(Fault(is_before, effect, 1 if effect is Effect.REWRITE else 2))
    job = add_compaction(killed)

    async def live() -> None:
        await ingest(world, killed)
        await compact(killed, job)

    with pytest.raises(DriverKilled):
        await live()
    await killed.end()
    await job.close()
    last = world.driver()
    job = add_compaction(last)
    await ingest(world, last)
    await compact(last, job)
    assert not await live_entries(world, content=1)
    assert len(await data_files(world)) <= 2
    await world.check()
