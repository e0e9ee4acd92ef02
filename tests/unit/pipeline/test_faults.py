"""Rounds of the pipeline with faults at each of their effects, over a real log, a real catalog and the tasks' own code.
The cases follow from the list of effects (pipeline/driver/effects.py): one without a case fails here.

After each: everything that was published is a row exactly once, every file that a table names is there, and no floor
went beyond the rows (`FaultWorld`). The same on real processes: tests/process/test_pipeline_faults.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.driver.topic_table_set import Halt
from tests.support.driver_life import DriverLife, Stop, Struck
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.meddler import FOREIGN, OWN, Answer, Meddler

pytestmark = pytest.mark.asyncio
SIDES = pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])

ROUNDS = 3


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    found = await FaultWorld.open(tmp_path)
    yield found
    await found.close()


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """With our own catalog, and with one that knows nothing of topics."""
    found = await FaultWorld.open(tmp_path, is_foreign=request.param)
    yield found
    await found.close()


# Files of another catalog's tables are not ours to remove.
EVERY = [
    pytest.param(is_foreign, effect, id=f"{'foreign' if is_foreign else 'own'}-{effect}")
    for is_foreign in (False, True)
    for effect in Effect
    if not (is_foreign and effect is Effect.CLEAN_UP)
]


async def rounds(world: FaultWorld, one: DriverLife) -> None:
    """Every effect happens in them, and most of them more than once."""
    for number in range(ROUNDS):
        await world.publish_some()
        if number == 1:
            world.policies[1] = {"partitioning": "day"}
        await world.drain(one)


# --- kill -9 ----------------------------------------------------------------------------------------------------------


async def test_the_rounds_here_have_every_effect(world: FaultWorld) -> None:
    one = world.driver()
    await rounds(world, one)
    assert not {effect for effect, count in one.effects.counts.items() if not count}
    await world.check()


@SIDES
@pytest.mark.parametrize(("either", "effect"), EVERY, indirect=["either"])
async def test_a_driver_that_is_killed_is_followed_by_one_that_finishes(
    either: FaultWorld, effect: Effect, is_before: bool
) -> None:
    """At the second time: something is in the tables already. Our own catalog makes all tables at once."""
    is_first = effect is Effect.EVOLVE_TABLE or (effect is Effect.MAKE_TABLE and not either.is_foreign)
    number = 1 if is_first else 2
    first = either.driver(Fault(is_before, effect, number))
    with pytest.raises(Struck):
        await rounds(either, first)
    await first.end()
    await either.publish_some()
    await either.drain(either.driver())
    await either.check()


@SIDES
async def test_drivers_that_are_killed_one_after_the_other(either: FaultWorld, is_before: bool) -> None:
    """Each gets a little further than the one before; the last one finishes."""
    await either.publish_some()
    for effect in [one for one in Effect if one is not Effect.EVOLVE_TABLE]:
        one = either.driver(Fault(is_before, effect, 1))
        try:
            await either.drain(one)
        except Struck:
            await either.publish_some()
        await one.end()
    await either.drain(either.driver())
    await either.check()


# --- SIGSTOP: two drivers at once (hazard 1) --------------------------------------------------------------------------

# By which call an effect reaches the world, for one that stands still there while another takes over.
CALLS = {
    Effect.ASK: Stop(True, "backlog"),
    Effect.TAKE_LEASE: Stop(True, "put_lease"),
    Effect.MAKE_TABLE: Stop(True, "open"),
    Effect.EVOLVE_TABLE: Stop(True, "commit"),
    Effect.HOLD_FILES: Stop(True, "hold"),
    Effect.WRITE: Stop(True, "run"),
    Effect.COMMIT: Stop(True, "commit_all"),
    Effect.LOOK_AGAIN: Stop(True, "exists"),
    Effect.NOTE: Stop(True, "record"),
    Effect.ADVANCE: Stop(True, "advance"),
    Effect.RELEASE_FILES: Stop(True, "hold", 2),
    Effect.CLEAN_UP: Stop(True, "names"),
}


async def test_every_effect_has_a_call() -> None:
    assert {*CALLS} == {*Effect}


@SIDES
@pytest.mark.parametrize(("either", "effect"), EVERY, indirect=["either"])
async def test_a_driver_that_stands_still_while_another_takes_over(
    either: FaultWorld, effect: Effect, is_before: bool
) -> None:
    if effect is Effect.EVOLVE_TABLE:
        await either.publish_some()
        maker = either.driver()
        await either.drain(maker)
        await maker.lease.release()
        either.policies = {1: {"partitioning": "day"}}
    call = CALLS[effect]
    if either.is_foreign and effect is Effect.COMMIT:
        call = Stop(True, "commit")
    if not either.is_foreign and effect is Effect.MAKE_TABLE:
        call = Stop(True, "create_all")
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


# --- a catalog that fails, and others who change tables ---------------------------------------------------------------


class Moody:
    """Its next answers to the rounds' commits are chosen; what comes late comes with the commit behind it."""

    def __init__(self, inner: TableCatalog, *moods: str) -> None:
        self._inner = inner
        self.moods = list(moods)
        self._late: list[Mapping[Identifier, TableChange]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        return (await self.commit_all({identifier: change}))[identifier]

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        for late in self._late:
            await self._landed(late)
        self._late.clear()
        mood = self.moods.pop(0) if self.moods else ""
        unknown: dict[Identifier, CommitOutcome] = dict.fromkeys(changes, CommitUnknown(mood))
        match mood:
            case "away":
                raise errors.StorageUnavailable("503")
            case "fails after success":
                await self._landed(changes)
                raise errors.StorageUnavailable("500 by somebody on the way")
            case "lost":
                await self._landed(changes)
                return unknown
            case "never sent":
                return unknown
            case "late":
                self._late.append(changes)
                return unknown
            case "twice":
                await self._landed(changes)
            case "twice, the second one late":
                self._late.append(changes)
            case "read back":
                found = await self._landed(changes)
                return {
                    one: CommitDone(outcome.table, was_read_back=True) if isinstance(outcome, CommitDone) else outcome
                    for one, outcome in found.items()
                }
        return await self._landed(changes)

    async def _landed(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        return {one: await self._inner.commit(one, change) for one, change in changes.items()}


MOODS = (
    "away", "fails after success", "lost", "never sent", "late", "twice", "twice, the second one late", "read back",
)  # fmt: skip


@pytest.mark.parametrize("mood", MOODS)
async def test_a_catalog_that_fails(either: FaultWorld, mood: str) -> None:
    await either.publish_some()
    one = either.driver(wrap=lambda inner: Moody(inner, "", "", mood, mood))
    await either.drain(one)
    for _ in range(2):
        await either.publish_some()
        await either.drain(one)
    await either.check()


@pytest.mark.parametrize("mood", MOODS[2:])
async def test_a_catalog_that_fails_and_a_driver_that_is_killed_by_its_answer(either: FaultWorld, mood: str) -> None:
    """What is late lands when the next driver is at work already."""
    moody: list[Moody] = []

    def wrap(inner: TableCatalog) -> Moody:
        moody.append(Moody(inner, "", mood, mood, mood) if not moody else moody[0])
        return moody[-1]

    first = either.driver(Fault(False, Effect.COMMIT, 2), wrap=wrap)
    with pytest.raises(Struck):
        await rounds(either, first)
    await first.end()
    await either.publish_some()
    await either.drain(either.driver(wrap=wrap))
    await either.check()


# --- others who change tables between two attempts (hazard 21) --------------------------------------------------------


async def meddled(world: FaultWorld, deed: str, answer: Answer) -> Halt | None:
    """A driver whose third round meets a table that was changed while its files were written. Why it stopped then."""
    found: list[Meddler] = []

    def wrap(inner: TableCatalog) -> Meddler:
        found.append(Meddler(inner, world, deed, 5 if world.is_foreign else 3))
        return found[-1]

    one = world.driver(wrap=wrap)
    may_stop = {1} if answer is Answer.STOPS else set[int]()
    for _ in range(4):
        await world.publish_some()
        await world.drain(one, may_stop)
    assert found[0].is_done
    assert found[0].was_refused == (answer is Answer.REFUSED)
    await world.check(may_stop)
    assert one.topics.halted.keys() == may_stop
    await one.lease.release()
    return one.topics.halted.get(1)


@pytest.mark.parametrize(("deed", "answer"), OWN.items())
async def test_others_who_change_a_table_between_two_attempts(world: FaultWorld, deed: str, answer: Answer) -> None:
    """What a rollback takes out of main stays out until somebody decides; everything else is there once."""
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
async def test_others_who_change_a_table_of_another_catalog(tmp_path: Path, deed: str, answer: Answer) -> None:
    """Nothing of a topic that stopped leaves the log."""
    world = await FaultWorld.open(tmp_path, is_foreign=True)
    halt = await meddled(world, deed, answer)
    if halt is not None:
        assert "recreate" in halt.stopped.hint, halt
        for key in (key for key in world.published if key.topic_id == 1):
            assert world.log.reader.earliest(key) <= world.log.shard(*key).floor < world.log.shard(*key).synced
    await world.close()
