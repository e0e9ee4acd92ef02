"""`icestream lake maintain` with jobs other than compaction: over a real log, in our own catalog and another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import decode_relation
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.model.backlog_messages import RetainedTopic
from icestream.model.pipeline_file_name import data_name
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.maintenance_request import (
    CLEAN_UP,
    COMPACT,
    EXPIRE,
    RETENTION,
    MaintenanceProgress,
    MaintenanceRequest,
    RequestedTable,
)
from icestream.pipeline.driver.requested_care import RequestedCareJob
from icestream.pipeline.expiry.table_expiry import TableExpiry
from icestream.pipeline.file_cleanup.folder_survey import FolderSurvey
from icestream.pipeline.retention.table_retention_job import TableRetentionJob
from tests.support.engine_append import appended_file
from tests.support.fault_world import FaultWorld, name_of
from tests.support.interruptible_driver import InterruptibleDriver

pytestmark = pytest.mark.asyncio
OTHER = Identifier(("default",), "other")
DELAY_MS = 3_600_000


@pytest_asyncio.fixture(params=["own", "foreign"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path, is_foreign=request.param == "foreign")
    yield world
    await world.close()


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path)
    yield world
    await world.close()


@pytest_asyncio.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path, is_foreign=True)
    yield world
    await world.close()


class Operator:
    """Asks a driver for maintenance, as the command does."""

    def __init__(self, world: FaultWorld, harness: InterruptibleDriver) -> None:
        self._harness = harness
        self.handed_over: list[MaintenanceRequest] = []
        survey = FolderSurvey(world.store, world.catalog, world.avro, world.clock, DELAY_MS)
        retention = [job for job in harness.jobs if isinstance(job, TableRetentionJob)]
        cleaner = harness.cleaner
        self._job = RequestedCareJob(
            harness.lease,
            harness.topics,
            survey,
            TableExpiry(world.catalog, world.avro, world.clock, TagRetention(0, 0)),
            retention[0] if retention else None,
            None if cleaner is None else cleaner.clean_now,
            lambda request, progress: self.handed_over.append(request),
            harness.jobs,
            harness.report,
        )
        harness.jobs.add(self._job)

    async def ask(self, *jobs: str, is_dry_run: bool = False) -> MaintenanceProgress:
        request = MaintenanceRequest("a", [RequestedTable(1, "/default/t1")], is_dry_run, [*jobs])
        self._job.request(request)
        await self._harness.driver.turn()
        progress = self._harness.report.maintenance
        assert progress is not None
        return progress


async def rounds(world: FaultWorld, harness: InterruptibleDriver, count: int) -> None:
    for _ in range(count):
        await world.publish(1, 3)
        await world.drain(harness)


async def pass_time(world: FaultWorld, harness: InterruptibleDriver, seconds: int) -> None:
    await harness.lease.release()
    world.clock.advance(seconds)


async def test_snapshots_of_an_idle_table_expire_on_request(either: FaultWorld) -> None:
    harness = either.driver()
    await rounds(either, harness, 5)
    await pass_time(either, harness, 31 * 60)
    operator = Operator(either, harness)
    planned = await operator.ask(EXPIRE, is_dry_run=True)
    assert [(group.job, group.detail) for group in planned.plan] == [(EXPIRE, "4 snapshots, 0 tags")]
    assert len((await either.catalog.load(name_of(1))).metadata["snapshots"]) == 5
    done = await operator.ask(EXPIRE)
    assert done.is_done
    assert len((await either.catalog.load(name_of(1))).metadata["snapshots"]) == 1
    assert (await operator.ask(EXPIRE)).plan == []
    if harness.cleaner is not None:
        await either.clean(harness)
        await pass_time(either, harness, 3_700)
        await either.clean(harness)
        assert await either.present(1) == await either.needed(1)
    await rounds(either, harness, 1)
    await either.check()


async def test_in_another_catalog_files_go_on_the_second_request_alone(elsewhere: FaultWorld) -> None:
    world = elsewhere
    harness = world.driver()
    await rounds(world, harness, 3)
    await pass_time(world, harness, 10)
    second = world.driver(owner="second")
    await rounds(world, second, 1)
    location = (await world.catalog.load(name_of(1))).metadata["location"]
    left = [f"{location}/data/{name}" for name in ("part-0.parquet", data_name(harness.lease.epoch, "a" * 32))]
    current = f"{location}/data/{data_name(second.lease.epoch, 'b' * 32)}"
    notes = f"{location}/data/notes.txt"
    for file in (*left, current, notes):
        await world.files.create(file, [b"rows"])
    operator = Operator(world, second)
    planned = await operator.ask(CLEAN_UP, is_dry_run=True)
    assert [(group.files, group.bytes) for group in planned.plan] == [(3, 12)]
    (asked,) = (await operator.ask(CLEAN_UP)).plan
    assert (asked.files, asked.detail) == (0, "removed; 2 wait for a request after the delay")
    (asked,) = (await operator.ask(CLEAN_UP)).plan
    assert asked.files == 0, "the delay is not over"
    for _ in range(3):  # no schedule removes them
        await pass_time(world, second, 25 * 3_600)
        await rounds(world, second, 1)
    present = await world.present(1)
    assert {*left, current, notes} <= present
    (asked,) = (await operator.ask(CLEAN_UP)).plan
    assert (asked.files, asked.bytes) == (2, 8)
    assert present - await world.present(1) == {*left}
    # What expired since the first request waits for another one; and the epoch has ended.
    await pass_time(world, second, 3_700)
    assert (await operator.ask(CLEAN_UP)).plan[0].detail == "removed"
    assert await world.present(1) == await world.needed(1) | {notes}
    await world.check()


async def test_in_another_catalog_a_file_that_another_table_names_stays(elsewhere: FaultWorld) -> None:
    world = elsewhere
    harness = world.driver()
    await rounds(world, harness, 1)
    location = (await world.catalog.load(name_of(1))).metadata["location"]
    file = f"{location}/data/shared.parquet"
    await world.files.create(file, [b"rows"])
    await world.making.tables.create(OTHER, {"schema": topic_schema.new_schema()})
    table = (await world.making.tables.load(OTHER)).table
    await world.making.commits.commit(OTHER, CommitRequest([], await appended_file(world, table, file)))
    operator = Operator(world, harness)
    assert [group.files for group in (await operator.ask(CLEAN_UP, is_dry_run=True)).plan] == [0]
    for _ in range(2):
        await operator.ask(CLEAN_UP)
        await pass_time(world, harness, 3_700)
    assert file in await world.present(1)
    entry = await world.store.get(catalog_keys.relation_key(OTHER))
    assert entry is not None
    await world.files.remove(decode_relation("", entry).location)
    refused = await operator.ask(CLEAN_UP)
    assert refused.is_done
    assert "other" in refused.reason or "missing" in refused.reason.lower()
    assert file in await world.present(1)


async def test_a_dry_run_of_the_retention_removes_nothing(world: FaultWorld) -> None:
    harness = world.driver()
    await rounds(world, harness, 4)
    world.retained = [RetainedTopic(1, "/default/t1", messages_max=4)]
    for job in harness.jobs:
        if isinstance(job, TableRetentionJob):  # looked at a moment ago
            job._look_again(1, 3_600)
    operator = Operator(world, harness)
    before = await world.needed(1)
    (planned,) = (await operator.ask(RETENTION, is_dry_run=True)).plan
    assert (planned.job, planned.files, planned.rows) == (RETENTION, 2, 6)
    await harness.driver.turn()
    assert await world.needed(1) == before
    await operator.ask(RETENTION)
    await harness.driver.turn()
    assert await world.first(1) == {0: 6}
    await world.check()


async def test_compaction_comes_last(world: FaultWorld) -> None:
    harness = world.driver()
    await rounds(world, harness, 1)
    operator = Operator(world, harness)
    progress = await operator.ask(CLEAN_UP, COMPACT)
    assert [request.id for request in operator.handed_over] == ["a"]
    assert not progress.is_done
    assert [group.job for group in progress.plan] == [CLEAN_UP]


@pytest.mark.parametrize("error", [errors.EngineFailed("Spark died"), errors.LeaseLost("taken")])
async def test_a_request_is_not_lost_with_a_round_that_fails(either: FaultWorld, error: errors.IcestreamError) -> None:
    """A lost lease ends the turn of all jobs: the request is carried out in the next one."""
    life = either.driver()
    await rounds(either, life, 3)
    await pass_time(either, life, 3_700)
    operator = Operator(either, life)
    await either.publish(1, 3)
    ingest = next(job for job in life.jobs if job.name == "ingest")
    run = ingest.run

    async def fails(*_: Any) -> Any:
        raise error

    ingest.run = fails  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        await operator.ask(EXPIRE)
    ingest.run = run  # type: ignore[method-assign]
    if isinstance(error, errors.LeaseLost):
        await life.driver.turn()
    progress = life.report.maintenance
    assert progress is not None
    assert progress.is_done
    assert not progress.reason
    await rounds(either, life, 1)
    await either.check()


async def test_an_error_ends_a_request_with_its_reason(world: FaultWorld) -> None:
    harness = world.driver()
    await rounds(world, harness, 1)
    operator = Operator(world, harness)
    await world.making.tables.drop(name_of(1), is_forced=True)
    progress = await operator.ask(EXPIRE)
    assert progress.is_done
    assert "t1" in progress.reason
