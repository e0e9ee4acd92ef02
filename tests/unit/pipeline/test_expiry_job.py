"""Expiry by itself: idle tables, and the bound on the bytes of tags; in our own catalog and another one."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog.catalog_keys import foreign_table_key, topic_key
from icestream.catalogs.mirror import decode_foreign_table
from icestream.catalogs.table_catalog import CommitDone, LoadedTable, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.pipeline.commit.snapshot_expiry import DAY_TAG, TagRetention
from icestream.pipeline.driver.job import ORDER, JobRegistry
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.expiry.expiry_job import ExpiryJob
from icestream.pipeline.expiry.table_expiry import ExpiryPlan, TableExpiry
from icestream.pipeline.expiry.topic_table_list import TopicTableList
from tests.support.fault_world import FaultWorld, name_of
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import InterruptibleDriver

pytestmark = pytest.mark.asyncio
DAY_S = 86_400


@pytest_asyncio.fixture(params=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path, is_foreign=request.param == "foreign")
    yield world
    await world.close()


def add_expiry(
    world: FaultWorld, life: InterruptibleDriver, tags: TagRetention | None = None, bytes_max: int = 0
) -> ExpiryJob:
    parts: Any = life.watched
    expiry = TableExpiry(parts.catalog, world.avro, world.clock, tags or TagRetention(0, 0), bytes_max)
    table_list = TopicTableList(world.store, is_embedded=not world.is_foreign)
    job = ExpiryJob(expiry, table_list, life.lease, life.topics, parts.catalog, life.jobs, life.effects, world.clock)
    life.jobs.add(job)
    return job


async def look(world: FaultWorld, life: InterruptibleDriver, job: ExpiryJob, seconds: int = 3_700) -> None:
    """Passes time, and has the driver take its turns until nothing is under way."""
    await life.lease.release()
    world.clock.advance(seconds)
    for _ in range(3):  # the list of tables, those that are due, their commits
        await life.driver.turn()
        while job.is_busy:
            if job._look is not None:
                await job._look
            await life.driver.turn()


async def snapshots(world: FaultWorld, topic_id: int) -> list[dict[str, Any]]:
    metadata = (await world.catalog.load(name_of(topic_id))).metadata
    return [dict(snapshot) for snapshot in metadata["snapshots"]]


async def tags(world: FaultWorld, topic_id: int) -> list[str]:
    metadata = (await world.catalog.load(name_of(topic_id))).metadata
    return sorted(name for name in metadata["refs"] if name != "main")


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 3) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


async def test_snapshots_of_an_idle_table_expire_by_themselves(world: FaultWorld) -> None:
    """Also of a table that the driver has not written: it is another one by then."""
    first = world.driver()
    await ingest(world, first)
    await first.lease.release()
    await first.end()
    life = world.driver()
    job = add_expiry(world, life)
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [3, 3]
    await look(world, life, job)
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [1, 1]
    if life.cleaner is not None:  # its files go, too
        await world.clean(life)
        await life.lease.release()
        world.clock.advance(3_700)
        await world.clean(life)
        assert await world.present(1) == await world.needed(1)
    await ingest(world, life, 1)
    await world.check()


async def test_a_table_with_nothing_to_expire_gets_no_commit(world: FaultWorld) -> None:
    life = world.driver()
    await ingest(world, life, 1)
    job = add_expiry(world, life)
    await look(world, life, job)
    before = (await world.catalog.load(name_of(1))).metadata_location
    await look(world, life, job)
    assert (await world.catalog.load(name_of(1))).metadata_location == before


async def test_expiry_that_is_overtaken_changes_nothing_and_is_tried_again(world: FaultWorld) -> None:
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    await life.lease.release()
    world.clock.advance(3_700)
    await life.driver.turn()
    assert job._look is not None
    await job._look
    await life.driver.turn()
    await life.driver.turn()
    assert job._look is not None
    await job._look
    await world.publish_some()  # committed in the same turn as the expiry, and before it
    await world.drain(life)
    assert len(await snapshots(world, 1)) >= 1
    await look(world, life, job)
    assert len(await snapshots(world, 1)) == 1
    await world.check()


async def test_a_round_that_fails_discards_no_look(world: FaultWorld) -> None:
    """The next one would be an hour later."""
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    await life.lease.release()
    world.clock.advance(3_700)
    await life.driver.turn()
    await job._look  # type: ignore[misc]  # the list of tables
    for _ in range(2):
        await life.driver.turn()
    await job._look  # type: ignore[misc]
    await world.publish_some()
    ingest_job = next(job for job in life.jobs if job.name == "ingest")
    run = ingest_job.run

    async def fails(*_: Any) -> Any:
        raise errors.EngineFailed("Spark died")

    ingest_job.run = fails  # type: ignore[method-assign]
    with pytest.raises(errors.EngineFailed):
        await life.driver.turn()
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [1, 1]
    ingest_job.run = run  # type: ignore[method-assign]
    await world.drain(life)
    await world.check()


async def test_the_last_snapshot_with_offsets_stays_behind_one_of_another_engine(world: FaultWorld) -> None:
    """Hazard 95: without it the offset at which ingest continues is lost."""
    life = world.driver()
    await ingest(world, life)
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()
    job = add_expiry(world, life)
    await look(world, life, job)
    left = await snapshots(world, 1)
    assert len(left) == 2
    assert "icestream.topic-id" in left[0]["summary"]
    await ingest(world, life, 1)
    await world.check()


async def test_tags_beyond_their_bytes_go_the_oldest_first(world: FaultWorld) -> None:
    """Those of users and backups stay."""
    world.history = TagRetention(0, 30 * DAY_S * 1000)
    life = world.driver()
    for day in range(6):
        await ingest(world, life, 1)
        if day == 1:
            await set_tag(world, "mine")
        world.clock.advance(DAY_S)
    await ingest(world, life, 1)
    day_tags = [name for name in await tags(world, 1) if name.startswith(DAY_TAG)]
    assert len(day_tags) == 6
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()  # what tags keep is in no current file any more
    for bytes_max, left in ((10**12, 6), (await kept_bytes(world) - 1, 1)):
        # The newest tag names what all older ones do: without it they would keep as much. One is at the snapshot that
        # the user's tag keeps.
        job = add_expiry(world, life, world.history, bytes_max)
        await look(world, life, job)
        assert len([name for name in await tags(world, 1) if name.startswith(DAY_TAG)]) == left
    assert "mine" in await tags(world, 1)
    await world.check()


async def test_a_tag_that_is_set_between_look_and_commit_stays(world: FaultWorld) -> None:
    """A tag does not move main: the commit of the expiry cannot know of it, and leaves its snapshot alone."""
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    oldest = (await snapshots(world, 1))[0]["snapshot-id"]
    commit = job._expiry.commit

    async def overtaken(identifier: Identifier, *planned: Any) -> Any:
        if identifier == name_of(1):
            await set_tag(world, "audit", oldest)
        return await commit(identifier, *planned)

    job._expiry.commit = overtaken  # type: ignore[method-assign]
    await look(world, life, job)
    assert await tags(world, 1) == ["audit"]
    assert (await snapshots(world, 1))[0]["snapshot-id"] == oldest
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [2, 1]
    await ingest(world, life, 1)
    await world.check()


async def test_a_tag_that_an_engine_sets_between_rounds_stays(world: FaultWorld) -> None:
    """The driver never hears of it: it applies its own commits to the table in memory."""
    life = world.driver()
    await ingest(world, life)
    oldest = (await snapshots(world, 1))[0]["snapshot-id"]
    world.clock.advance(3_700)
    await set_tag(world, "audit", oldest)
    await ingest(world, life, 1)
    assert await tags(world, 1) == ["audit"]
    left = [snapshot["snapshot-id"] for snapshot in await snapshots(world, 1)]
    assert left[0] == oldest
    assert len(left) < 4, "the others expired"
    world.clock.advance(3_700)
    await ingest(world, life, 1)
    assert await tags(world, 1) == ["audit"]
    await world.check()


async def detach(world: FaultWorld) -> None:
    key = foreign_table_key(1) if world.is_foreign else topic_key(1)
    entry = await world.store.get(key)
    assert entry is not None
    if world.is_foreign:
        mirror = msgspec.structs.replace(decode_foreign_table(key, entry), is_detached=True)
        await world.store.put(key, msgspec.json.encode(mirror))
    else:
        await world.store.delete(key)


async def test_a_detached_table_keeps_its_snapshots(world: FaultWorld) -> None:
    """It was a topic's when it was listed."""
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    await look(world, life, job, 700)  # listed; nothing is old yet
    assert len(await snapshots(world, 1)) == 3
    await detach(world)
    await look(world, life, job)
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [3, 1]


async def test_a_table_that_is_detached_after_the_look_keeps_its_snapshots(world: FaultWorld) -> None:
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    await look(world, life, job, 700)
    plan, detached = job._expiry.plan, (await world.catalog.load(name_of(1))).uuid

    async def overtaken(table: TableMetadata, history_ms: int) -> ExpiryPlan:
        if table.uuid == detached:
            await detach(world)
        return await plan(table, history_ms)

    job._expiry.plan = overtaken  # type: ignore[method-assign]
    await look(world, life, job)
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [3, 1]


async def test_a_table_of_another_uuid_under_the_name_is_left_alone(world: FaultWorld) -> None:
    """It is a user's, who made it after the topic's was dropped."""
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    await look(world, life, job, 700)
    load, planned = job._catalog.load, []

    async def replaced(identifier: Identifier) -> LoadedTable:
        loaded = await load(identifier)
        if identifier != name_of(1):
            return loaded
        return dataclasses.replace(loaded, metadata={**loaded.metadata, "table-uuid": str(uuid.uuid4())})

    plan = job._expiry.plan

    async def noted(table: TableMetadata, history_ms: int) -> ExpiryPlan:
        planned.append(table.uuid)
        return await plan(table, history_ms)

    job._catalog, job._expiry.plan = LoadingCatalog(job._catalog, replaced), noted  # type: ignore[assignment, method-assign]
    await look(world, life, job)
    assert set(planned) == {(await world.catalog.load(name_of(2))).uuid}


class LoadingCatalog:
    """A catalog whose tables are loaded in another way."""

    def __init__(self, catalog: Any, load: Callable[[Identifier], Awaitable[LoadedTable]]) -> None:
        self._catalog = catalog
        self.load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


async def test_a_table_that_cannot_be_reached_keeps_no_other_one_from_its_expiry(world: FaultWorld) -> None:
    """The job is backed off for it, after the others."""
    life = world.driver()
    await ingest(world, life)
    job = add_expiry(world, life)
    load = job._catalog.load

    async def unreachable(identifier: Identifier) -> LoadedTable:
        if identifier == name_of(1):
            raise errors.StorageUnavailable("no route")
        return await load(identifier)

    job._catalog = LoadingCatalog(job._catalog, unreachable)  # type: ignore[assignment]
    await look(world, life, job)
    assert [len(await snapshots(world, topic_id)) for topic_id in (1, 2)] == [3, 1]
    (failure,) = life.jobs.guard.documents()
    assert (failure["job"], failure["topic"], failure["error"]) == ("expiry", "", "no route")


async def kept_bytes(world: FaultWorld) -> int:
    table = tables.load((await world.catalog.load(name_of(1))).metadata)
    expiry = TableExpiry(world.catalog, world.avro, world.clock, world.history, 10**12)
    return (await expiry.tag_bytes(table, [])).kept_bytes


async def set_tag(world: FaultWorld, name: str, snapshot_id: int = 0) -> None:
    metadata = (await world.catalog.load(name_of(1))).metadata
    update = {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": "tag",
        "snapshot-id": snapshot_id or metadata["current-snapshot-id"],
    }
    assert isinstance(await world.catalog.commit(name_of(1), TableChange([], [update])), CommitDone)


@pytest.mark.parametrize("names", [("requested_care", "compaction", "ingest", "retention"), tuple(reversed(ORDER))])
async def test_jobs_run_in_the_order_of_their_right_to_a_turn(names: Sequence[str], world: FaultWorld) -> None:
    """Hazard 99: erasure, expiry, clean-up, retention, compaction; messages before all of them."""
    registry = JobRegistry(JobGuard(world.clock))
    for name in names:
        registry.add(type(name, (), {"name": name})())  # type: ignore[arg-type]
    assert [job.name for job in registry] == [name for name in ORDER if name in names]
    assert ORDER[0] == "ingest"
