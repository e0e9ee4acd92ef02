"""Rounds of the pipeline with faults at each of their effects, over a real log, a real catalog and the tasks' own code.
The cases follow from the list of effects (pipeline/driver/effects.py): one without a case fails here. Those of a
retention are in test_retention_faults.py.

After each: everything that was published is a row exactly once, every file that a table names is there, and no floor
went beyond the rows (`FaultWorld`). The same on real processes: tests/process/test_pipeline_faults.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.driver.effects import CARE_EFFECTS, Effect, Fault
from icestream.pipeline.driver.topic_table_set import Halt
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.faulty_catalog import FaultyCatalog
from tests.support.foreign_engine import FOREIGN, OWN, ExpectedReaction, ForeignEngine
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver, StopPoint

pytestmark = pytest.mark.asyncio
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])

ROUNDS = 3
MQTT = {"mqtt_columns": "on"}  # of topic 2, so that something is learned


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path)
    fault_world.policies[2] = MQTT
    yield fault_world
    await fault_world.close()


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """With our own catalog, and with one that knows nothing of topics."""
    fault_world = await FaultWorld.open(tmp_path, is_foreign=request.param)
    fault_world.policies[2] = MQTT
    yield fault_world
    await fault_world.close()


# Files of another catalog's tables are not ours to remove.
EVERY = [
    pytest.param(is_foreign, effect, id=f"{'foreign' if is_foreign else 'own'}-{effect}")
    for is_foreign in (False, True)
    for effect in Effect
    if not (is_foreign and effect is Effect.CLEAN_UP) and effect not in CARE_EFFECTS
]


async def rounds(world: FaultWorld, driver: InterruptibleDriver) -> None:
    """Every effect happens in them, and most of them more than once."""
    for number in range(ROUNDS):
        await world.publish_some()
        if number == 1:
            world.policies[1] = {"partitioning": "day"}
        await world.drain(driver)


# --- kill -9 ----------------------------------------------------------------------------------------------------------


async def test_the_rounds_here_have_every_effect(world: FaultWorld) -> None:
    driver = world.driver()
    await rounds(world, driver)
    assert {effect for effect, count in driver.effects.counts.items() if not count} == CARE_EFFECTS
    await world.check()


@SIDES
@pytest.mark.parametrize(("either", "effect"), EVERY, indirect=["either"])
async def test_a_killed_driver_is_followed_by_one_that_finishes(
    either: FaultWorld, effect: Effect, is_before: bool
) -> None:
    """At the second time: something is in the tables already. Our own catalog makes all tables at once."""
    is_first = effect is Effect.EVOLVE_TABLE or (effect is Effect.MAKE_TABLE and not either.is_foreign)
    number = 1 if is_first else 2
    first = either.driver(Fault(is_before, effect, number))
    with pytest.raises(DriverKilled):
        await rounds(either, first)
    await first.end()
    await either.publish_some()
    await either.drain(either.driver())
    await either.check()


@SIDES
async def test_drivers_that_are_killed_one_after_the_other(either: FaultWorld, is_before: bool) -> None:
    """Each driver gets a little further than the previous one; the last one finishes."""
    await either.publish_some()
    for effect in [
        planned_effect
        for planned_effect in Effect
        if planned_effect is not Effect.EVOLVE_TABLE and planned_effect not in CARE_EFFECTS
    ]:
        driver = either.driver(Fault(is_before, effect, 1))
        try:
            await either.drain(driver)
        except DriverKilled:
            await either.publish_some()
        await driver.end()
    await either.drain(either.driver())
    await either.check()


# --- SIGSTOP: two drivers at once (hazard 1) --------------------------------------------------------------------------

# By which call an effect reaches the world, for one that stands still there while another takes over.
CALLS = {
    Effect.ASK: StopPoint(True, "backlog"),
    Effect.TAKE_LEASE: StopPoint(True, "put_lease"),
    Effect.MAKE_TABLE: StopPoint(True, "open"),
    Effect.EVOLVE_TABLE: StopPoint(True, "commit"),
    Effect.HOLD_FILES: StopPoint(True, "hold"),
    Effect.WRITE: StopPoint(True, "run"),
    Effect.COMMIT: StopPoint(True, "commit_all"),
    Effect.LOOK_AGAIN: StopPoint(True, "exists"),
    Effect.NOTE: StopPoint(True, "record"),
    Effect.ADVANCE: StopPoint(True, "advance"),
    Effect.LEARN: StopPoint(True, "txn"),
    Effect.RELEASE_FILES: StopPoint(True, "hold", 2),
    Effect.CLEAN_UP: StopPoint(True, "files_below"),
}


async def test_every_effect_has_a_call() -> None:
    assert {*CALLS} == {*Effect} - CARE_EFFECTS


@SIDES
@pytest.mark.parametrize(("either", "effect"), EVERY, indirect=["either"])
async def test_a_stopped_driver_is_replaced_without_loss(either: FaultWorld, effect: Effect, is_before: bool) -> None:
    if effect is Effect.EVOLVE_TABLE:
        await either.publish_some()
        maker = either.driver()
        await either.drain(maker)
        await maker.lease.release()
        either.policies = {1: {"partitioning": "day"}}
    call = CALLS[effect]
    if either.is_foreign and effect is Effect.COMMIT:
        call = StopPoint(True, "commit")
    if not either.is_foreign and effect is Effect.MAKE_TABLE:
        call = StopPoint(True, "create_all")
    await either.publish_some()
    old = either.driver(stop=call._replace(is_before=is_before), owner="old")
    stopped = asyncio.create_task(either.drain(old))
    async with asyncio.timeout(HANGS_SECONDS):
        await old.life.stands_still.wait()
    await either.publish_some()
    await either.end_lease()
    new = either.driver(owner="new")
    await either.drain(new)
    await either.check()
    await either.publish_some()
    await new.lease.release()
    old.life.goes_on.set()
    await stopped
    await either.check()


# --- a catalog that fails, and other engines that change tables -------------------------------------------------------


FAULTS = ("unavailable", "applied, unavailable", "lost", "unknown", "late", "twice", "twice, late", "read back")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_catalog_that_fails(either: FaultWorld, fault: str) -> None:
    await either.publish_some()
    driver = either.driver(wrap=lambda inner: FaultyCatalog(inner, "", "", fault, fault, one_by_one=True))
    await either.drain(driver)
    for _ in range(2):
        await either.publish_some()
        await either.drain(driver)
    await either.check()


@pytest.mark.parametrize("fault", FAULTS[2:])
async def test_a_catalog_that_fails_and_a_driver_that_is_killed_by_its_answer(either: FaultWorld, fault: str) -> None:
    """A delayed commit lands while the next driver is already running."""
    catalogs: list[FaultyCatalog] = []

    def wrap(inner: TableCatalog) -> FaultyCatalog:
        if not catalogs:
            catalogs.append(FaultyCatalog(inner, "", fault, fault, fault, one_by_one=True))
        return catalogs[0]

    first = either.driver(Fault(False, Effect.COMMIT, 2), wrap=wrap)
    with pytest.raises(DriverKilled):
        await rounds(either, first)
    await first.end()
    await either.publish_some()
    await either.drain(either.driver(wrap=wrap))
    await either.check()


# --- other engines change tables between two attempts (hazard 21) -----------------------------------------------------


async def meddled(world: FaultWorld, deed: str, answer: ExpectedReaction) -> Halt | None:
    """A driver whose third round meets a table that was changed while its files were written. Why it stopped then."""
    world.policies.clear()  # the engine counts commits: none is to evolve a table
    engines: list[ForeignEngine] = []

    def wrap(inner: TableCatalog) -> ForeignEngine:
        engines.append(ForeignEngine(inner, world, deed, 5 if world.is_foreign else 3))
        return engines[-1]

    driver = world.driver(wrap=wrap)
    may_stop = {1} if answer is ExpectedReaction.STOPS else set[int]()
    for _ in range(4):
        await world.publish_some()
        await world.drain(driver, may_stop)
    assert engines[0].is_done
    assert engines[0].was_refused == (answer is ExpectedReaction.REFUSED)
    await world.check(may_stop)
    assert driver.topics.halted.keys() == may_stop
    await driver.lease.release()
    return driver.topics.halted.get(1)


@pytest.mark.parametrize(("deed", "answer"), OWN.items())
async def test_tables_changed_between_two_attempts_lose_nothing(
    world: FaultWorld, deed: str, answer: ExpectedReaction
) -> None:
    """Rows that a rollback took out of main stay out until an operator decides; all others are there once."""
    halt = await meddled(world, deed, answer)
    if halt is None:
        return
    assert all(command in halt.stopped.hint for command in ("adopt", "bind", "recreate")), halt
    keys = [key for key in world.published if key.topic_id == 1]
    shards = {
        key.shard: ShardLog(world.log.shard(*key).epoch, world.log.shard(*key).floor, world.log.shard(*key).synced)
        for key in keys
    }
    world.names[1] = Identifier(("default",), "again")
    await world.making.topics.recreate(TopicLog("/default/t1", 1, shards), world.names[1], [Consent.GAP])
    for key in keys:  # what was in the other table is missing here, and said to be
        world.forgone[key] = set(range(shards[key.shard].earliest))
    await world.drain(world.driver())
    await world.check()


@pytest.mark.parametrize(("deed", "answer"), FOREIGN.items())
async def test_foreign_tables_changed_by_others_stop_or_continue(
    tmp_path: Path, deed: str, answer: ExpectedReaction
) -> None:
    """Nothing of a topic that stopped leaves the log."""
    world = await FaultWorld.open(tmp_path, is_foreign=True)
    halt = await meddled(world, deed, answer)
    if halt is not None:
        assert "recreate" in halt.stopped.hint, halt
        for key in (key for key in world.published if key.topic_id == 1):
            assert world.log.reader.earliest(key) <= world.log.shard(*key).floor < world.log.shard(*key).synced
    await world.close()
