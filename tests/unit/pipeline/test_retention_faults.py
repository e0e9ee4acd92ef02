"""The retention job with faults at each of its effects, over a real log and a real catalog (hazards 85, 86). The cases
follow from the effects that a turn of it has.

After each: what is kept is a row exactly once, what is not is named by `verify` as retention, every file that a table
names is there, and the first kept offsets are those of a retention without a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream.catalog import catalog_keys
from icestream.model.backlog_messages import RetainedTopic
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.effects import Effect, Fault
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


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Three rounds are in the tables; topic 1 keeps the last 14 messages from now on."""
    fault_world = await FaultWorld.open(tmp_path)
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


async def test_a_turn_has_exactly_these_effects(world: FaultWorld) -> None:
    driver = world.driver()
    await look(world, driver)
    assert [effect for effect in Effect if driver.effects.counts[effect]] == sorted(EFFECTS, key=[*Effect].index)
    assert await world.first(1) == FIRST
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
        await world.clean(driver)
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
