"""Files of older partition specs are rewritten into the present one when an operator asks for it (ADR 127).

`FaultWorld.check` compares the rows with those that were published and not deleted, and runs `verify --deep`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from icestream import limits
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import DATA_CONTENT
from icestream.model.row_digest import FOOTER_KEY
from icestream.pipeline.compaction.compaction_job import CompactionJob
from icestream.pipeline.compaction.compaction_plan import CandidateFile, plan_repartition
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.driver.maintenance_request import MaintenanceProgress, MaintenanceRequest, RequestedTable
from icestream.readers.row_hashes import digest_of
from tests.support.compaction import add_compaction, compact, data_files
from tests.support.deleting_engine import delete_by_position, delete_by_value, live_entries, table_of
from tests.support.fault_world import FaultWorld
from tests.support.held_offload import HeldOffload
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
ROUNDS = 2
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param)
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 1) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


async def change_partitions(world: FaultWorld, after: str, before: str = "none") -> InterruptibleDriver:
    """The driver of a table with ROUNDS files of a former partition spec, and files of the present one."""
    world.policies[1] = {"partitioning": before, "compaction": "off"}
    first = world.driver()
    await ingest(world, first, ROUNDS)
    await first.lease.release()
    await first.end()
    world.policies[1] = {"partitioning": after, "compaction": "off"}
    life = world.driver()
    await ingest(world, life)
    return life


def ask(job: CompactionJob, *, is_dry_run: bool = False, repartitions: bool = True) -> None:
    tables = [RequestedTable(1, "/default/t1")]
    job.request(MaintenanceRequest("a", tables, is_dry_run, repartitions=repartitions))


def progress_of(life: InterruptibleDriver) -> MaintenanceProgress:
    assert life.report.maintenance is not None
    return life.report.maintenance


async def files_by_spec(world: FaultWorld) -> dict[int, set[str]]:
    table = await table_of(world)
    cache = ManifestCache(world.avro)
    files: dict[int, set[str]] = {}
    for manifest in await cache.current_manifests(table):
        if manifest.content == DATA_CONTENT:
            entries = await cache.live_entries(manifest)
            files.setdefault(manifest.spec_id, set()).update(entry.file_path for entry in entries)
    return {spec_id: locations for spec_id, locations in files.items() if locations}


async def check_present(world: FaultWorld) -> None:
    """All files are of the present spec, each with the digest of its rows, and every row is there."""
    (spec_id,) = files = await files_by_spec(world)
    assert spec_id == (await table_of(world)).fields["default-spec-id"]
    for location in files[spec_id]:
        path = location.removeprefix("file:")
        assert pq.read_metadata(path).metadata[FOOTER_KEY].decode() == digest_of(pq.read_table(path)).text
    await world.check()


# --- what it does -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"), [("none", "bucket[4]"), ("none", "day"), ("bucket[4]", "none"), ("bucket[4]", "bucket[3]")]
)
async def test_files_of_an_older_partition_spec_get_the_present_one(world: FaultWorld, before: str, after: str) -> None:
    life = await change_partitions(world, after, before)
    assert len(await files_by_spec(world)) == 2
    job = add_compaction(life)
    ask(job)
    await compact(life, job)
    assert progress_of(life).is_done
    assert not progress_of(life).reason
    await check_present(world)


async def test_without_being_asked_compaction_leaves_them(world: FaultWorld) -> None:
    life = await change_partitions(world, "bucket[4]")
    before = (await files_by_spec(world))[0]
    job = add_compaction(life)
    ask(job, repartitions=False)
    await compact(life, job)
    assert (await files_by_spec(world))[0] == before
    await world.check()


async def test_a_dry_run_names_the_files_and_changes_nothing(world: FaultWorld) -> None:
    life = await change_partitions(world, "bucket[4]")
    before = await data_files(world)
    job = add_compaction(life)
    ask(job, is_dry_run=True)
    await compact(life, job, 1)
    assert [(group.files, group.detail) for group in progress_of(life).plan] == [
        (ROUNDS, "into the present partitions")
    ]
    assert await data_files(world) == before


async def test_too_many_values_leave_the_files_as_they_are(world: FaultWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    life = await change_partitions(world, "key")
    before = (await files_by_spec(world))[0]
    job = add_compaction(life)
    monkeypatch.setattr(limits, "ROUND_PARTITIONS_MAX", 3)
    ask(job)
    await compact(life, job)
    assert "more than 3 partition values" in progress_of(life).reason
    assert progress_of(life).is_done
    assert before <= await data_files(world)
    await world.check()


# --- deletes and faults -----------------------------------------------------------------------------------------------


async def test_deletes_are_applied_in_passing(world: FaultWorld) -> None:
    life = await change_partitions(world, "bucket[4]")
    oldest = min((await files_by_spec(world))[0])
    await delete_by_position(world, {oldest: [0, 3]})
    job = add_compaction(life)
    ask(job)
    await compact(life, job)
    assert not await live_entries(world, content=1)
    await check_present(world)


async def test_a_delete_by_value_that_comes_meanwhile_has_the_files_planned_again(world: FaultWorld) -> None:
    """One that names a partition of the former spec would apply to no file of the present one."""
    life, offload = await change_partitions(world, "none", "bucket[4]"), HeldOffload()
    before = await data_files(world)
    offload.hold_results()
    job = add_compaction(life, offload=offload)
    ask(job)
    while life.effects.counts[Effect.REWRITE] == 0:
        await life.driver.turn()
    await delete_by_value(world, 0, [2, 7])
    offload.release()
    await life.driver.turn()
    assert before <= await data_files(world), "the rewrite without the delete is not committed"
    await compact(life, job)
    assert not before & await data_files(world)
    assert not await live_entries(world, content=1)
    await check_present(world)


@SIDES
@pytest.mark.parametrize("effect", [Effect.REWRITE, Effect.COMMIT])
async def test_a_driver_that_is_killed_leaves_every_row(world: FaultWorld, effect: Effect, is_before: bool) -> None:
    first = await change_partitions(world, "bucket[4]")
    await first.lease.release()
    await first.end()
    life = world.driver(Fault(is_before, effect))
    job = add_compaction(life)

    async def live() -> None:
        await world.publish_some()
        ask(job)
        await compact(life, job)

    with pytest.raises(DriverKilled):
        await live()
    second = world.driver()
    await ingest(world, second)
    job = add_compaction(second)
    ask(job)
    await compact(second, job)
    await check_present(world)


# --- the plan ---------------------------------------------------------------------------------------------------------


def file(number: int, size: int = 10, spec_id: int = 0, value: int = 0) -> CandidateFile:
    return CandidateFile(f"f{number}", 5, size, (value,), number, number, number, spec_id=spec_id)


async def test_a_group_has_files_of_one_former_partition() -> None:
    files = [file(0), file(1, spec_id=1), file(2), file(3, spec_id=1, value=7), file(4, spec_id=1)]
    groups = [[member.location for member in group.files] for group in plan_repartition(files, 100)]
    assert groups == [["f0", "f2"], ["f1", "f4"], ["f3"]]
    assert all(group.repartitions for group in plan_repartition(files, 100))


async def test_a_group_is_no_larger_than_a_file_unless_it_is_one() -> None:
    files = [file(0, 60), file(1, 60), file(2, 300), file(3, 40)]
    groups = [[member.location for member in group.files] for group in plan_repartition(files, 100)]
    assert groups == [["f0"], ["f1"], ["f2"], ["f3"]]


async def test_a_group_that_was_left_alone_is_not_planned_again() -> None:
    (group,) = plan_repartition([file(0), file(1)], 100)
    assert plan_repartition([file(0), file(1)], 100, {group.key}) == []
