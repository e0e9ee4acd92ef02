"""Hazards 76, 82, 99: a file is condemned in the metadata store before it is removed. So no commit ever names a file
that goes, however slow its writer is, no other table loses a file, and no restart forgets one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from icestream import errors, limits
from icestream.catalog import condemned_files
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import decode_relation
from icestream.catalog.condemned_files import CondemnedRecord, CondemnedState, StoredRecord, take_off
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.model.pipeline_file_name import data_name
from icestream.pipeline.driver.driver_report import RoundReport
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.driver.job import Turn
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.watched_table import PendingRemoval, WatchedTable
from icestream.runtime.randomness import SystemRandomness
from tests.support.engine_append import appended_file
from tests.support.fault_world import FaultWorld, name_of
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import (
    DriverKilled,
    DriverProcess,
    InterruptibleCalls,
    InterruptibleDriver,
    StopPoint,
)

DAY = 25 * 3_600
OTHER = Identifier(("default",), "other")


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path)
    yield world
    await world.close()


async def rounds(world: FaultWorld, harness: InterruptibleDriver, count: int = 1) -> None:
    for _ in range(count):
        await world.publish(1, 3)
        await world.drain(harness)


async def pass_days(world: FaultWorld, harness: InterruptibleDriver, days: int = 1) -> None:
    """Each with a listing of the folders."""
    for _ in range(days):
        await harness.lease.release()
        world.clock.advance(DAY)
        await world.clean(harness)


class SlowWriter:
    """An engine that writes its data file long before it commits it, as ClickHouse does with a part."""

    def __init__(self, world: FaultWorld, catalog: Catalog | None = None) -> None:
        self._world = world
        self._catalog = catalog or world.making
        self._name = name_of(1)
        self.file = ""

    async def write(self) -> None:
        location = (await self._world.making.tables.load(name_of(1))).table.location
        self.file = f"{location}/data/part={uuid.uuid4().hex}/0.parquet"
        path = Path(self.file.removeprefix("file:"))
        path.parent.mkdir(parents=True)
        await self._world.files.create(self.file, [b"rows"])

    async def commit(self) -> None:
        table = (await self._world.making.tables.load(self._name)).table
        updates = await appended_file(self._world, table, self.file)
        await self._catalog.commits.commit(self._name, CommitRequest([], updates))

    async def is_named(self) -> bool:
        table = (await self._world.making.tables.load(self._name)).table
        return any([self.file in await self._world.paths(entry["manifest-list"]) for entry in table.snapshots])

    @property
    def exists(self) -> bool:
        return Path(self.file.removeprefix("file:")).exists()


# --- slow writers -----------------------------------------------------------------------------------------------------


def unneeded(state: str) -> float | None:
    return REGISTRY.get_sample_value("icestream_pipeline_unneeded_files", {"state": state})


@pytest.mark.asyncio
async def test_a_file_of_another_writer_goes_after_two_listings(world: FaultWorld) -> None:
    world.clean_up_delay_ms = 3_600_000
    harness, writer = world.driver(), SlowWriter(world)
    await rounds(world, harness)
    await writer.write()
    await pass_days(world, harness)
    assert writer.exists, "one listing proves nothing"
    await pass_days(world, harness)
    assert writer.exists, "condemned, and removed in a later pass"
    (stored_record,) = await condemned_files.read_all_records(world.store)
    assert stored_record.record.locations() == [writer.file]
    assert unneeded("condemned") == 1
    await pass_days(world, harness)
    assert not writer.exists
    assert unneeded("condemned") == 0
    with pytest.raises(errors.CommitConflict, match="was removed by the clean-up"):
        await writer.commit()
    await pass_days(world, harness, 40)  # what the refused commit left goes, too
    assert await condemned_files.read_all_records(world.store) == [], "remembered for 30 days"


PLACES = [
    StopPoint(is_before, call, number)
    for call, numbers in {"txn": range(1, 5), "files_below": (1, 2), "remove": (1,), "load": range(1, 4)}.items()
    for number in numbers
    for is_before in (True, False)
]


@pytest.mark.asyncio
@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_a_slow_writer_that_commits_at_any_step_loses_nothing(tmp_path: Path, place: StopPoint) -> None:
    """Its file is older than every age limit, and the clean-up stands still at this place."""
    world = await FaultWorld.open(tmp_path)
    try:
        writer = SlowWriter(world)
        first = world.driver()
        await rounds(world, first)
        await writer.write()
        await first.lease.release()
        await first.end()
        harness = world.driver(stop=None)
        await rounds(world, harness)
        harness.life._stop, harness.life._calls = place, type(harness.life._calls)()
        cleaning = asyncio.create_task(pass_days(world, harness, 3))
        stands_still = asyncio.create_task(harness.life.stands_still.wait())
        await asyncio.wait({cleaning, stands_still}, return_when=asyncio.FIRST_COMPLETED)
        assert not cleaning.done(), "the clean-up makes no such call"
        (refusal,) = await asyncio.gather(writer.commit(), return_exceptions=True)
        is_refused = refusal is not None
        assert refusal is None or "was removed by the clean-up" in str(refusal)
        harness.life.goes_on.set()
        await cleaning
        await pass_days(world, harness, 3)
        assert await writer.is_named() != is_refused
        assert writer.exists or is_refused, "a table names a file that was removed"
        assert await world.needed(1) <= await world.present(1)
    finally:
        await world.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("call", range(1, 4))
async def test_a_commit_that_stands_still_while_files_go_is_judged_again(world: FaultWorld, call: int) -> None:
    life = DriverProcess(StopPoint(True, "txn", call) if call < 3 else StopPoint(False, "get", 1))
    store: Any = InterruptibleCalls(world.store, life)
    catalog = Catalog(store, world.files, world.clock, SystemRandomness(), world.making.warehouse)
    harness, writer = world.driver(), SlowWriter(world, catalog)
    await rounds(world, harness)
    await writer.write()
    committing = asyncio.create_task(writer.commit())
    stands_still = asyncio.create_task(life.stands_still.wait())
    await asyncio.wait({committing, stands_still}, return_when=asyncio.FIRST_COMPLETED)
    await pass_days(world, harness, 3)
    if call == 1:
        assert not writer.exists, "nothing in the store says that it is about to be committed"
    life.goes_on.set()
    stands_still.cancel()
    (outcome,) = await asyncio.gather(committing, return_exceptions=True)
    assert writer.exists or isinstance(outcome, BaseException) or not await writer.is_named()


# --- tables that share files ------------------------------------------------------------------------------------------


async def shared(world: FaultWorld, harness: InterruptibleDriver) -> set[str]:
    """A second table names the data files of the first one, as Spark's `snapshot` and `add_files` make it; then they
    are replaced in the first one. Returns them."""
    await rounds(world, harness, 2)
    files = {path for path in await world.needed(1) if path.endswith(".parquet")}
    await world.making.tables.create(OTHER, {"schema": topic_schema.new_schema()})
    for file in files:
        table = (await world.making.tables.load(OTHER)).table
        await world.making.commits.commit(OTHER, CommitRequest([], await appended_file(world, table, file)))
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()
    return files


@pytest.mark.asyncio
async def test_a_file_that_another_table_names_stays(world: FaultWorld) -> None:
    harness = world.driver()
    files = await shared(world, harness)
    for _ in range(2):
        await pass_days(world, harness)
        await rounds(world, harness)
    assert not files & await world.needed(1)
    assert files <= await world.present(1)
    await world.making.tables.drop(OTHER)
    await harness.lease.release()
    second = world.driver(owner="second")  # it lists the folders of its own accord
    await rounds(world, second)
    await pass_days(world, second, 2)
    assert not files & await world.present(1)
    await world.check()


@pytest.mark.asyncio
async def test_a_table_that_cannot_be_read_stops_the_removal(world: FaultWorld) -> None:
    harness = world.driver()
    files = await shared(world, harness)
    entry = await world.store.get("/catalog/relations/default/:other")
    assert entry is not None
    location = decode_relation("", entry).location
    data = await world.files.read(location)
    await world.files.remove(location)
    for _ in range(2):
        await pass_days(world, harness)
        await rounds(world, harness)
    assert files <= await world.present(1)
    await world.files.create(location, [data])
    assert files <= await world.present(1)


@pytest.mark.asyncio
async def test_only_tables_of_other_writers_are_read_for_a_removal(world: FaultWorld) -> None:
    await rounds(world, world.driver())
    await world.end_lease()
    await world.making.tables.create(OTHER, {"schema": topic_schema.new_schema()})
    for name, is_pipeline_only in ((OTHER, True), (name_of(1), True)):
        harness = world.driver()
        await rounds(world, harness)
        entry = await world.store.get(f"/catalog/relations/default/:{name.name}")
        assert entry is not None
        assert decode_relation("", entry).is_pipeline_only is is_pipeline_only  # type: ignore[union-attr]
        await harness.lease.release()
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()
    await rounds(world, world.driver())
    entry = await world.store.get("/catalog/relations/default/:t1")
    assert entry is not None
    assert not decode_relation("", entry).is_pipeline_only, "it may name files of any table, whoever commits later"  # type: ignore[union-attr]


# --- restarts ---------------------------------------------------------------------------------------------------------

MANY = [pytest.param(40), pytest.param(100_000, marks=pytest.mark.chaos)]


@pytest.mark.asyncio
@pytest.mark.parametrize("count", MANY)
async def test_no_restart_forgets_a_file(world: FaultWorld, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 99: drivers are killed at each step while many files wait."""
    if count < 1_000:
        monkeypatch.setattr(limits, "CONDEMNED_RECORD_FILES", 7)
        monkeypatch.setattr(limits, "CLEAN_UP_WAITING_MAX", 10)
    harness = world.driver()
    await rounds(world, harness, 2)
    location = (await world.making.tables.load(name_of(1))).table.location
    folder = Path(location.removeprefix("file:")) / "data"
    for number in range(count):  # half of them ours, of an epoch that has ended
        name = data_name(0, f"{number:032x}") if number % 2 else f"part-{number}.parquet"
        (folder / name).write_bytes(b"x")
    calls = ("txn", "remove", "files_below", "load", "list_all")
    for number in range(1, 12):
        await world.end_lease()
        await harness.end()
        world.clock.advance(DAY)
        harness = world.driver(owner=f"driver {number}")
        await rounds(world, harness)
        await world.end_lease()
        harness.life._stop = StopPoint(number % 2 == 0, calls[number % len(calls)], number)
        harness.life._calls.clear()
        cleaning = asyncio.create_task(world.clean(harness))
        stands_still = asyncio.create_task(harness.life.stands_still.wait())
        await asyncio.wait({cleaning, stands_still}, return_when=asyncio.FIRST_COMPLETED)
        stands_still.cancel()
        harness.life.is_over = True
        harness.life.goes_on.set()
        await asyncio.gather(cleaning, stands_still, return_exceptions=True)
        assert await world.needed(1) <= await world.present(1)
    await world.end_lease()
    last = world.driver(owner="last")
    await rounds(world, last)
    await pass_days(world, last, 4 + count // 64_000)
    assert await world.present(1) == await world.needed(1)
    records = await condemned_files.read_all_records(world.store)
    assert {stored_record.record.state for stored_record in records} == {CondemnedState.REMOVED}
    await world.check()


@pytest.mark.asyncio
async def test_a_busy_driver_takes_a_new_epoch_for_what_an_attempt_left(world: FaultWorld) -> None:
    """Files of its own epoch could belong to a commit that is under way: an epoch that ends tells."""
    harness = world.driver()
    await rounds(world, harness, 2)
    epoch = harness.lease.epoch
    location = (await world.making.tables.load(name_of(1))).table.location
    left = Path(location.removeprefix("file:")) / "data" / data_name(epoch, "f" * 32)
    left.write_bytes(b"of a task that failed")
    for _ in range(2):  # a renewal in a test would wait for the real clock
        harness.lease._until_ns += DAY * 10**9
        world.clock.advance(DAY)
        assert harness.cleaner is not None
        await world.clean(harness)
    assert left.exists()
    assert any(job.wants_new_epoch for job in harness.jobs)
    await rounds(world, harness, 2)
    assert harness.lease.epoch > epoch
    await pass_days(world, harness, 2)
    assert not left.exists()
    await world.check()


@pytest.mark.asyncio
async def test_a_driver_killed_at_its_clean_up_leaves_nothing(world: FaultWorld) -> None:
    for is_before in (True, False):
        harness = world.driver(Fault(is_before, Effect.CLEAN_UP, 1))
        await world.publish(1, 3)
        with pytest.raises(DriverKilled):
            await world.drain(harness)
        await harness.end()
        await world.end_lease()
    last = world.driver()
    await rounds(world, last)
    await pass_days(world, last, 2)
    assert await world.present(1) == await world.needed(1)


# --- the records ------------------------------------------------------------------------------------------------------


def stored(state: CondemnedState, *names: str) -> StoredRecord:
    return StoredRecord(f"/condemned/files/u/{state}", 5, CondemnedRecord(state, 1, "s3://b/t", [*names]))


def test_a_commit_takes_its_files_off_in_every_form_of_their_paths() -> None:
    records = [stored(CondemnedState.CONDEMNED, "data/a b", "data/c"), stored(CondemnedState.REMOVING, "data/d")]
    changes = take_off(records, {"s3a://b/t/data/a%20b"})
    assert [operation.key for operation in changes.operations] == [  # type: ignore[union-attr]
        "/condemned/files/u/condemned",
        "/condemned/generation",
    ]
    (put, _) = changes.operations
    assert isinstance(put, cmd.Put)
    assert b'"data/c"' in put.value
    assert b"a b" not in put.value
    assert take_off(records, {"s3://b/t/data/e"}) == ([], [])
    with pytest.raises(errors.CommitConflict, match=r"s3://b/t/data/d was removed"):
        take_off(records, {"s3://b/t/data/d"})


def test_a_commit_that_cannot_be_read_may_add_any_file() -> None:
    condemned = stored(CondemnedState.CONDEMNED, "data/a")
    assert len(take_off([condemned], None).comparisons) == 1
    assert take_off([stored(CondemnedState.UNNAMED, "data/a")], None) == ([], [])
    with pytest.raises(errors.CommitConflict):
        take_off([condemned, stored(CondemnedState.REMOVING, "data/d")], None)


def test_files_that_do_not_fit_into_memory_are_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLEAN_UP_WAITING_MAX", 2)
    table = WatchedTable(1, OTHER, "u", list_folders_ns=10**18)
    table.add(PendingRemoval(number, f"s3://b/t/data/{number}") for number in range(5, 9))
    assert [pending.location[-1] for pending in table.pending] == ["5", "6"]
    assert table.list_folders_ns == 7


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("is_enabled", "changed", "is_due"), [(1, {}, 1), (0, {}, 0), (1, {"clean_up": 0}, 0), (0, {"clean_up": 1}, 1)]
)
async def test_the_clean_up_is_switched_while_the_broker_runs(
    world: FaultWorld, is_enabled: int, changed: dict[str, int], is_due: int
) -> None:
    harness = world.driver()
    await rounds(world, harness)
    assert harness.cleaner is not None
    job = FileCleanupJob(harness.cleaner, harness.lease, harness.effects, is_enabled=bool(is_enabled))
    backlog = msgspec.structs.replace(await world.ingest.backlog(), changed_settings=changed)
    turn = Turn(backlog, None, RoundReport(0, topics=1), world.clock, harness.jobs.guard)
    assert job.is_due(turn) == bool(is_due)
