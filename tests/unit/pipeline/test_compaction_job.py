"""Compaction in a real driver over a real log and catalog: small files become large ones, and every row stays.

`FaultWorld.check` reads every row with PyIceberg, opens every file that any snapshot names, and runs `verify --deep`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from icestream import errors
from icestream.iceberg import table_metadata
from icestream.iceberg.metadata_file import DATA_PATHS
from icestream.model.row_digest import FOOTER_KEY
from icestream.pipeline.compaction.compaction_job import CompactionOptions
from icestream.pipeline.compaction.compaction_plan import CompactionRule
from icestream.pipeline.compaction.group_rewrite import LAYOUT_KEY
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.driver.maintenance_request import MaintenanceRequest, RequestedTable
from icestream.readers.row_hashes import digest_of
from icestream.runtime.tasks import ThreadOffload
from tests.support.compaction import RULE, LocalGroupWriter, add_compaction, compact, data_files
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.foreign_engine import ForeignEngine
from tests.support.held_offload import HeldOffload
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
EFFECTS = (
    Effect.ASK,
    Effect.TAKE_LEASE,
    Effect.REWRITE,
    Effect.COMMIT,
    Effect.COMMIT_CARE,
    Effect.LOOK_AGAIN,
    Effect.NOTE,
)


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param)
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 4) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file:"))


# --- what it does -----------------------------------------------------------------------------------------------------


async def test_small_files_become_one_with_the_same_rows(world: FaultWorld) -> None:
    life = world.driver()
    await ingest(world, life)
    before = await data_files(world)
    assert len(before) >= 4
    job = add_compaction(life)
    await ingest(world, life, 1)
    await compact(life, job)
    (location,) = await data_files(world)
    (other,) = await data_files(world, 2)
    for file in (location, other):
        rows = pq.read_table(path_of(file))
        places = list(zip(rows["shard"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        assert places == sorted(places)
        footer = pq.read_metadata(path_of(file)).metadata
        assert footer[FOOTER_KEY].decode() == digest_of(rows).text
        assert footer[LAYOUT_KEY].decode() == "offset-1"
    await world.check()


async def test_a_row_group_has_rows_of_one_shard(world: FaultWorld) -> None:
    """Hazard 94: a reader of one shard decodes no rows of another."""
    life = world.driver()
    await ingest(world, life, 2)
    job = add_compaction(life)
    await ingest(world, life, 1)
    await compact(life, job)
    (location,) = await data_files(world)
    metadata = pq.read_metadata(path_of(location))
    groups = [metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)]
    assert [(group.min, group.max) for group in groups] == [(0, 0), (1, 1)]


async def test_a_table_that_is_compact_is_not_rewritten_again(world: FaultWorld) -> None:
    life = world.driver()
    writer = LocalGroupWriter()
    job = add_compaction(life, writer=writer)
    await ingest(world, life, 3)
    await compact(life, job)
    files, groups = await data_files(world), writer.groups
    await compact(life, job, 20)
    assert await data_files(world) == files
    assert writer.groups == groups


async def test_ingest_continues_while_files_are_rewritten(world: FaultWorld) -> None:
    """The rewrite is held open; three rounds commit meanwhile, and then it lands on the table as it is."""
    life, offload = world.driver(), HeldOffload()
    await ingest(world, life)
    offload.hold()
    job = add_compaction(life, offload=offload)
    await ingest(world, life, 1)
    while not job.is_busy:
        await life.driver.turn()
    planned = await data_files(world)
    await ingest(world, life, 3)
    assert job.is_busy
    assert len(await data_files(world)) > len(planned)
    offload.release()
    await compact(life, job, 2)
    assert planned.isdisjoint(await data_files(world))
    await world.check()


async def test_the_lease_is_kept_while_files_are_rewritten(world: FaultWorld) -> None:
    life, offload = world.driver(), HeldOffload()
    await ingest(world, life)
    offload.hold()
    job = add_compaction(life, offload=offload)
    await ingest(world, life, 1)
    while not job.is_busy:
        await life.driver.turn()
    epoch = life.lease.epoch
    await life.driver.turn()
    assert life.lease.is_held
    offload.release()
    while job.is_busy:
        await life.driver.turn()
    assert life.lease.epoch == epoch
    await life.driver.turn()
    await world.check()


async def test_tasks_run_in_a_thread_of_their_own(world: FaultWorld) -> None:
    offload = ThreadOffload("compaction")
    life = world.driver()
    await ingest(world, life, 2)
    job = add_compaction(life, offload=offload)
    await ingest(world, life, 1)
    async with asyncio.timeout(HANGS_SECONDS):
        while len(await data_files(world)) > 1:
            await life.driver.turn()
            await asyncio.sleep(0)
    await compact(life, job, 1)
    offload.close()
    await world.check()


async def test_files_of_an_older_release_are_compacted_too(world: FaultWorld) -> None:
    """Their footers have no digest: the rows are summed when they are read."""
    life = world.driver()
    await ingest(world, life, 3)
    for location in await data_files(world):
        rows = pq.read_table(path_of(location))
        path_of(location).unlink()
        pq.write_table(rows, path_of(location), store_schema=False)
    assert FOOTER_KEY not in (pq.read_metadata(path_of(min(await data_files(world)))).metadata or {})
    job = add_compaction(life)
    await ingest(world, life, 1)
    await compact(life, job)
    assert len(await data_files(world)) == 1
    rows = {shard: dict(messages) for shard, messages in (await world.rows(1)).items()}
    assert rows == {key.shard: published for key, published in world.published.items() if key.topic_id == 1}


async def test_a_request_compacts_a_table_that_this_driver_has_not_loaded(world: FaultWorld) -> None:
    """Its topic has no messages, and neither the policy nor the budget count."""
    world.policies[1] = {"compaction": "off"}
    first = world.driver()
    await ingest(world, first)
    await first.lease.release()
    await first.end()
    life = world.driver()
    options = CompactionOptions(False, interval_ms=10**9, bytes_per_hour=1)
    job = add_compaction(life, options=options)
    job.request(MaintenanceRequest("a", [RequestedTable(1, "/default/t1")], is_dry_run=True))
    await compact(life, job, 1)
    assert life.report.maintenance is not None
    assert [group.files for group in life.report.maintenance.plan] == [4]
    assert len(await data_files(world)) == 4
    job.request(MaintenanceRequest("b", [RequestedTable(1, "/default/t1")]))
    await compact(life, job, 1)
    progress = life.report.maintenance
    assert (progress.id, progress.is_done, progress.replaced_files, progress.added_files) == ("b", True, 4, 1)
    assert len(await data_files(world)) == 1
    assert len(await data_files(world, 2)) == 4
    await world.check()


async def test_a_request_for_an_unknown_table_ends_with_the_reason(world: FaultWorld) -> None:
    life = world.driver()
    job = add_compaction(life)
    job.request(MaintenanceRequest("a", [RequestedTable(99, "/default/nope")]))
    await compact(life, job, 1)
    assert life.report.maintenance is not None
    assert life.report.maintenance.is_done
    assert "/default/nope cannot be opened" in life.report.maintenance.reason


@pytest.mark.parametrize("error", [KeyError("no such thing"), errors.TableUnreadable("damaged")])
async def test_a_request_whose_commit_fails_ends_with_the_reason(world: FaultWorld, error: Exception) -> None:
    """It asks for no backoff: planned again it would rewrite the same files with every turn."""
    life, writer = world.driver(), LocalGroupWriter()
    await ingest(world, life)
    job = add_compaction(life, writer=writer, options=CompactionOptions(False))
    commit = job._commit.commit

    async def fails(*_: Any) -> Any:
        raise error

    job._commit.commit = fails  # type: ignore[method-assign]
    job.request(MaintenanceRequest("a", [RequestedTable(1, "/default/t1")]))
    for _ in range(8):
        await life.driver.turn()
    progress = life.report.maintenance
    assert progress is not None
    assert (progress.is_done, job.is_busy, writer.groups) == (True, False, 1)
    assert "the commit to the table of /default/t1 failed" in progress.reason
    job._commit.commit = commit  # type: ignore[method-assign]
    job.request(MaintenanceRequest("b", [RequestedTable(1, "/default/t1")]))
    await compact(life, job)
    assert len(await data_files(world)) == 1
    await world.check()


# --- when it does not -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "setting", "is_compacted"), [("off", True, False), ("on", False, True)])
async def test_the_policy_of_a_topic_is_above_the_setting(
    world: FaultWorld, policy: str, setting: bool, is_compacted: bool
) -> None:
    world.policies[1] = {"compaction": policy}
    life = world.driver()
    job = add_compaction(life, options=CompactionOptions(setting, RULE, interval_ms=0))
    await ingest(world, life)
    await compact(life, job)
    assert (len(await data_files(world)) < 4) is is_compacted
    assert (len(await data_files(world, 2)) < 4) is setting


async def test_without_budget_nothing_is_planned_until_it_is_paid_back(world: FaultWorld) -> None:
    life = world.driver()
    writer = LocalGroupWriter()
    options = CompactionOptions(rule=RULE, interval_ms=0, bytes_per_hour=1_000)
    job = add_compaction(life, writer=writer, options=options)
    await ingest(world, life)
    await compact(life, job)
    assert writer.groups <= 2
    await ingest(world, life)
    await compact(life, job)
    assert writer.groups <= 2
    world.clock.advance(10**6)
    await ingest(world, life, 1)
    await compact(life, job)
    assert writer.groups > 2


async def test_a_failing_spark_fails_no_round(world: FaultWorld) -> None:
    class Broken(LocalGroupWriter):
        def rewrite(self, group_jobs: Any) -> list[bytes]:
            raise errors.EngineFailed("Spark did not finish its job: planted")

    life = world.driver()
    job = add_compaction(life, writer=Broken())
    await ingest(world, life)
    await compact(life, job)
    assert not life.topics.halted
    await world.check()


# --- what others do meanwhile -----------------------------------------------------------------------------------------


async def test_a_foreign_compaction_drops_only_the_groups_that_it_hits(world: FaultWorld) -> None:
    life = world.driver()
    await ingest(world, life)
    before_other = await data_files(world, 2)

    offload = HeldOffload()
    offload.hold_results()
    job = add_compaction(life, offload=offload)
    await ingest(world, life, 1)
    while not job.is_busy:
        await life.driver.turn()
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()
    offload.release()
    await compact(life, job, 4)
    assert before_other.isdisjoint(await data_files(world, 2))
    assert not life.topics.halted
    await world.check()


async def test_a_file_that_does_not_have_its_rows_is_left_alone(world: FaultWorld) -> None:
    """Hazard 83: the rows of a file are not those that the log had. It is not made the truth by a rewrite."""
    life = world.driver()
    await ingest(world, life, 2)
    victim = path_of(min(await data_files(world)))
    rows = pq.read_table(victim)
    footer = pq.read_metadata(victim).metadata
    payloads = rows["payload"].to_pylist()
    payloads[0] = b"y" * len(payloads[0])
    changed = rows.set_column(rows.schema.get_field_index("payload"), rows.schema.field("payload"), [payloads])
    victim.unlink()
    with pq.ParquetWriter(victim, changed.schema, store_schema=False) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata({FOOTER_KEY: footer[FOOTER_KEY]})
    tasks = LocalGroupWriter()
    job = add_compaction(life, rule=CompactionRule(files_min=2, is_requested=True), writer=tasks)
    await ingest(world, life, 1)
    await compact(life, job)
    files = await data_files(world)
    assert str(victim) in {str(path_of(location)) for location in files}
    groups = tasks.groups
    await compact(life, job)
    assert tasks.groups == groups, "it is not tried again and again"


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@SIDES
@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_driver_that_is_killed_in_a_compaction_is_followed_by_one_that_finishes(
    world: FaultWorld, effect: Effect, is_before: bool
) -> None:
    first = world.driver()
    await ingest(world, first)
    await first.lease.release()
    await first.end()
    # The first effects are those of ingest, and its second question finds nothing and ends it.
    number = {Effect.ASK: 3, Effect.REWRITE: 1, Effect.COMMIT_CARE: 1}.get(effect, 2)
    killed = world.driver(Fault(is_before, effect, number))
    job = add_compaction(killed)

    async def live() -> None:
        await ingest(world, killed, 1)
        await compact(killed, job)

    with pytest.raises(DriverKilled):
        await live()
    await killed.end()
    await job.close()
    last = world.driver()
    job = add_compaction(last)
    await ingest(world, last, 1)
    await compact(last, job)
    assert len(await data_files(world)) <= 2
    await world.check()
    if last.cleaner is not None:
        world.clock.advance(3_600)
        await world.clean(last)
        await world.check()


# --- order of rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "layout"),
    [
        ({"clustering": "key"}, "columns-1:key"),
        ({"mqtt_columns": "on"}, "stream-1"),
        ({"mqtt_columns": "on", "clustering": "zorder(level_2,publish_time)"}, "zorder-1:level_2,publish_time"),
    ],
)
async def test_files_are_ordered_by_the_policy_of_their_topic(
    world: FaultWorld, policies: dict[str, str], layout: str
) -> None:
    world.policies[1] = policies
    life, writer = world.driver(), LocalGroupWriter()
    await ingest(world, life, 3)
    job = add_compaction(life, writer=writer)
    await ingest(world, life, 1)
    await compact(life, job)
    (location,) = await data_files(world)
    assert pq.read_metadata(path_of(location)).metadata[LAYOUT_KEY].decode() == layout
    assert ("level_2" in pq.read_schema(path_of(location)).names) is ("mqtt_columns" in policies)
    groups = writer.groups
    await compact(life, job)
    assert writer.groups == groups, "an ordered table is not rewritten again"
    await world.check()


async def test_hazard_109_a_file_outside_of_the_table_s_places_is_left_alone(world: FaultWorld) -> None:
    """A manifest that was replaced after its commit can name a file of another topic, with rows of the same columns."""
    life = world.driver()
    await ingest(world, life)
    job, table = add_compaction(life), life.topics.loaded(1)
    assert table is not None
    own = [file.location for file in (await job.table_files(table)).files]
    assert set(own) == await data_files(world)
    document = orjson.loads(table.table.encode())
    location = document["location"]
    document["location"] = location.replace("/t1-", "/t2-")
    table.table = table_metadata.load(document)
    assert (await job.table_files(table)).files == []
    table.table = table_metadata.load({**document, "properties": {DATA_PATHS[0]: location}})
    assert len((await job.table_files(table)).files) == len(own), "a place that its properties name"
