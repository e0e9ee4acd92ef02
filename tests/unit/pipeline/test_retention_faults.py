"""The retention job with faults at each of its effects, over a real log and a real catalog (hazards 85, 86). The cases
follow from the effects that a turn of it has.

After each: what is kept is a row exactly once, what is not is named by `verify` as retention, every file that a table
names is there, and the first kept offsets are those of a retention without a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalogs.table_catalog import CommitOutcome, CommitRefused, TableCatalog, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.model.backlog_messages import RetainedTopic
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.file_cleanup.folder_survey import FolderSurvey
from icestream.pipeline.retention.table_retention_job import TableRetentionJob
from tests.support.catalog_servers import catalog_of
from tests.support.fault_world import HANGS_SECONDS, FaultWorld, name_of
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver, StopPoint

pytestmark = pytest.mark.asyncio
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])

HOUR_MS = 3_600_000
KEPT = RetainedTopic(1, "/default/t1", messages_max=14, age_ms=24 * HOUR_MS)
# Of 9 rows of shard 0 and 5 of shard 1 in each of three rounds, the last 14.
FIRST = {0: 18, 1: 10}
EFFECTS = [
    Effect.ASK,
    Effect.TAKE_LEASE,
    Effect.NOTE_TIMES,
    Effect.COMMIT_CARE,
    Effect.COMMIT,
    Effect.LOOK_AGAIN,
    Effect.NOTE,
]


@pytest_asyncio.fixture(params=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Three rounds are in the tables of our own catalog, or of another one; topic 1 keeps the last 14 messages from now
    on."""
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param == "foreign")
    driver = fault_world.driver()
    for _ in range(3):
        await fault_world.publish_some()
        await fault_world.drain(driver)
    await driver.end()
    fault_world.retained = [KEPT]
    yield fault_world
    await fault_world.close()


async def look(world: FaultWorld, driver: InterruptibleDriver) -> None:
    """A turn of the driver in which the retention looks at its topics; there is nothing to ingest."""
    world.clock.advance(61)
    await driver.driver.turn()


async def remove_unneeded(world: FaultWorld, driver: InterruptibleDriver) -> None:
    """What the clean-up does, or in another catalog an operator with two requests."""
    if not world.is_foreign:
        await world.clean(driver)
        return
    await driver.lease.release()
    await world.publish_some()
    await world.drain(driver)  # under a new epoch: files of the last one can be in no commit any more
    survey = FolderSurvey(world.store, world.catalog, world.avro, world.clock, delay_ms=HOUR_MS)
    for _ in range(2):
        await survey.remove(tables.load((await world.catalog.load(name_of(1))).metadata))
        world.clock.advance(3601)


async def test_a_turn_has_exactly_these_effects(world: FaultWorld) -> None:
    driver = world.driver()
    await look(world, driver)
    assert [effect for effect in Effect if driver.effects.counts[effect]] == sorted(EFFECTS, key=[*Effect].index)
    assert await world.first(1) == FIRST
    await world.check()


@pytest.mark.parametrize("unreachable", [1, 2])
async def test_a_table_that_cannot_be_reached_keeps_no_other_one_from_its_retention(
    world: FaultWorld, unreachable: int
) -> None:
    """Whichever of the two is looked at first. The job is backed off for it."""
    world.retained = [KEPT, RetainedTopic(2, "/default/t2", messages_max=3)]
    driver = world.driver()
    (job,) = [job for job in driver.jobs if isinstance(job, TableRetentionJob)]
    plan_table = job._plan_table

    async def fails(topic: RetainedTopic, *arguments: Any, **options: Any) -> Any:
        if topic.topic_id == unreachable:
            raise errors.StorageUnavailable("no route")
        return await plan_table(topic, *arguments, **options)

    job._plan_table = fails  # type: ignore[method-assign]
    await look(world, driver)
    assert [bool(await world.first(topic_id)) for topic_id in (1, 2)] == [unreachable != 1, unreachable != 2]
    (failure,) = driver.jobs.guard.documents()
    assert (failure["job"], failure["topic"], failure["error"]) == ("retention", "", "no route")
    job._plan_table = plan_table  # type: ignore[method-assign]
    await look(world, driver)
    assert all([await world.first(topic_id) for topic_id in (1, 2)])
    await world.check()


@SIDES
@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_killed_driver_is_followed_by_one_that_finishes(
    world: FaultWorld, effect: Effect, is_before: bool
) -> None:
    killed = world.driver(Fault(is_before, effect))
    with pytest.raises(DriverKilled):
        await look(world, killed)
    await killed.end()
    await world.check()
    await look(world, world.driver())
    assert await world.first(1) == FIRST
    await world.check()


@SIDES
async def test_a_stopped_driver_is_overtaken_and_removes_nothing_twice(world: FaultWorld, is_before: bool) -> None:
    """SIGSTOP around its commit; another takes over, retains and ingests; the first one goes on."""
    old = world.driver(stop=StopPoint(is_before, "commit"), owner="old")
    stopped = asyncio.ensure_future(look(world, old))
    async with asyncio.timeout(HANGS_SECONDS):
        await old.life.stands_still.wait()
    await world.end_lease()
    new = world.driver(owner="new")
    await look(world, new)
    await world.publish_some()
    await world.drain(new)
    old.life.goes_on.set()
    await asyncio.gather(stopped, return_exceptions=True)
    assert await world.first(1) == FIRST
    await world.check()


async def test_files_of_removed_rows_go_with_their_snapshots(world: FaultWorld) -> None:
    driver = world.driver()
    before = await world.present(1)
    await look(world, driver)
    assert before < await world.present(1)
    for _ in range(2):
        world.clock.advance(2 * 3600)
        await world.publish_some()
        await world.drain(driver)
        await remove_unneeded(world, driver)
    data_files = {path for path in before if path.endswith(".parquet")}
    present = await world.present(1)
    assert present == await world.needed(1)
    # Each of the first two rounds wrote two files.
    assert len(data_files - present) >= 2
    await world.check()


async def test_age_removes_what_was_committed_long_ago(world: FaultWorld) -> None:
    world.retained = [RetainedTopic(1, "/default/t1", age_ms=24 * HOUR_MS)]
    driver = world.driver()
    await look(world, driver)
    assert await world.first(1) == {}
    firsts = []
    for _ in range(26):
        world.clock.advance(3600)
        await driver.driver.turn()
        firsts.append(await world.first(1))
    assert firsts[22] == {}
    assert firsts[-1] != {}
    await world.check()


async def test_a_year_ahead_removes_nothing_until_the_clock_is_right(world: FaultWorld) -> None:
    world.retained = [RetainedTopic(1, "/default/t1", age_ms=24 * HOUR_MS)]
    driver = world.driver()
    await look(world, driver)
    world.clock.step(366 * 86_400)
    await look(world, driver)
    await driver.end()
    restarted = world.driver()
    await look(world, restarted)
    assert await world.first(1) == {}
    world.clock.step(-366 * 86_400)
    for _ in range(26):
        world.clock.advance(3600)
        await restarted.driver.turn()
    assert await world.first(1) != {}
    await world.check()


async def test_a_topic_without_retention_is_left_alone(world: FaultWorld) -> None:
    world.retained = []
    driver = world.driver()
    await look(world, driver)
    assert driver.effects.counts[Effect.TAKE_LEASE] == 0
    assert await world.store.get(catalog_keys.retention_key(1)) is None


async def test_a_table_that_cannot_be_read_delays_no_other_topic(world: FaultWorld) -> None:
    world.retained = [RetainedTopic(7, "/default/none", messages_max=1), KEPT]
    await world.store.put(catalog_keys.topic_key(7), b"{}")
    driver = world.driver()
    await look(world, driver)
    assert await world.first(1) == FIRST
    await world.store.delete(catalog_keys.topic_key(7))


async def test_tags_are_not_kept_longer_than_messages(tmp_path: Path) -> None:
    world = await FaultWorld.open(tmp_path)
    world.history = TagRetention(0, 30 * 24 * HOUR_MS)
    world.retained = [RetainedTopic(1, "/default/t1", age_ms=2 * 24 * HOUR_MS)]
    driver = world.driver()
    for _ in range(6):
        world.clock.advance(24 * 3600)
        await world.publish_some()
        await world.drain(driver)
        await look(world, driver)
    for topic_id, days in ((1, {1, 2}), (2, {5})):
        loaded = await world.catalog.load(name_of(topic_id))
        assert len([name for name in loaded.metadata["refs"] if name != "main"]) in days
    await world.check()
    await world.close()


# --- in other catalogs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["embedded-http", "sql"])
async def test_retention_over_the_protocol_of_another_catalog(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """REST, and a real SQL catalog. A new driver, which has opened no table, looks at an idle topic, too."""
    async with catalog_of(kind, request, tmp_path / "catalog") as catalog:
        world = await FaultWorld.open(tmp_path, is_foreign=True)
        world.catalog = catalog  # type: ignore[assignment]
        first = world.driver()
        for _ in range(3):
            await world.publish_some()
            await world.drain(first)
        await first.end()
        world.retained = [KEPT]
        driver = world.driver()
        await driver.driver.turn()  # at the time of the catalog
        assert await world.first(1) == FIRST
        await world.check()
        metadata = (await catalog.load(name_of(1))).metadata
        (current,) = (
            entry for entry in metadata["snapshots"] if entry["snapshot-id"] == metadata["current-snapshot-id"]
        )
        assert current["summary"]["operation"] == "delete"
        assert current["summary"]["icestream.first"] == '{"0":18,"1":10}'
        await world.close()


class RefusingCatalog:
    """A catalog that can be read, and takes no commit while it `is_away`."""

    def __init__(self, catalog: TableCatalog) -> None:
        self._catalog = catalog
        self.is_away = False
        self.on_commit: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        if self.is_away:
            assert self.on_commit is not None
            await self.on_commit()
            return CommitRefused("the catalog is being moved")
        return await self._catalog.commit(identifier, change)


async def test_in_another_catalog_offsets_are_announced_before_rows_go(tmp_path: Path) -> None:
    """The other way round a reader would miss rows without a reason (hazard 86)."""
    world = await FaultWorld.open(tmp_path, is_foreign=True)
    catalog = RefusingCatalog(world.catalog)
    driver = world.driver(wrap=lambda _: catalog)
    for _ in range(3):
        await world.publish_some()
        await world.drain(driver)
    seen: list[dict[int, int]] = []

    async def note() -> None:
        seen.append(await world.first(1))

    world.retained, catalog.is_away, catalog.on_commit = [KEPT], True, note
    await look(world, driver)
    assert set(map(str, seen)) == {str(FIRST)}
    assert await world.stored(1, 0) == set(range(27)), "the catalog took no commit"
    catalog.is_away = False
    world.clock.advance(700)
    await look(world, driver)
    assert await world.stored(1, 0) == set(range(18, 27))
    assert await world.first(1) == FIRST
    await world.check()
    await world.close()


async def test_in_another_catalog_a_new_consumer_keeps_its_messages(tmp_path: Path) -> None:
    """A subscription that is created between plan and commit (hazard 87)."""
    world = await FaultWorld.open(tmp_path, is_foreign=True)
    driver = world.driver()
    for _ in range(3):
        await world.publish_some()
        await world.drain(driver)
    world.retained = [RetainedTopic(1, "/default/t1", unconsumed_age_ms=24 * HOUR_MS)]
    world.acked = {1: {0: 18, 1: 10}}
    ledger: Any = driver.ledger
    announce = ledger._inner.announce

    async def overtaken(commit: TopicCommit) -> None:
        await world.store.put(catalog_keys.consumers_key(1), b"")
        await announce(commit)

    ledger._inner.announce = overtaken
    await look(world, driver)
    assert await world.first(1) == {}
    assert await world.stored(1, 0) == set(range(27))
    ledger._inner.announce = announce
    await look(world, driver)
    assert await world.first(1) == {0: 18, 1: 10}
    await world.check()
    await world.close()
