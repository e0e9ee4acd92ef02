"""Hazard 21: an operator takes a table back below what was committed, and the pipeline writes again what the log has.

A real log, our own catalog and one like another's, the tasks' own code; the operations as the lake process does them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview
from icestream.lake.foreign_operations import ForeignOperations
from icestream.lake.operations import EmbeddedOperations, ReadLog, TableOperations
from icestream.lake.topic_log import read_topic_log, run_operation
from icestream.model import ShardKey
from icestream.model.backlog_messages import Backlog, ShardBacklog, TopicBacklog
from icestream.pipeline.driver.offset_sync import find_divergence
from tests.support.driver_life import Stop
from tests.support.fault_world import HANGS_SECONDS, FaultWorld, name_of

TOPIC, NAME = "/default/t1", name_of(1)
KEYS = (ShardKey(1, 0), ShardKey(1, 1))


class Calls:
    """The broker's local socket, as the lake process asks it."""

    def __init__(self, world: FaultWorld) -> None:
        self._world = world
        self.before_reopening: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, method: str, /, **given: Any) -> dict[str, Any]:
        match method:
            case "inspect_topic":
                return {"topic": TOPIC, "id": 1, "shard_offsets": [self._shard(key) for key in KEYS]}
            case "pipeline_reopen":
                if self.before_reopening is not None:
                    await self.before_reopening()
                return {"floors": await self._world.ingest.reopen([tuple(one) for one in given["positions"]])}
        raise AssertionError(method)

    def _shard(self, key: ShardKey) -> dict[str, int]:
        shard = self._world.log.shard(*key)
        earliest = self._world.log.reader.earliest(key)
        return {"shard": key.shard, "epoch": shard.epoch, "earliest": earliest, "synced": shard.synced}


class Operator:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.calls = Calls(world)
        self.operations: TableOperations = (
            ForeignOperations(world.store, world.catalog, world.avro, world.clock, None)
            if world.is_foreign
            else EmbeddedOperations(world.making)
        )

    async def snapshots(self) -> list[int]:
        return [one["snapshot-id"] for one in (await self.world.catalog.load(NAME)).metadata["snapshots"]]

    async def roll_back(self) -> None:
        """To the first snapshot, as another engine does."""
        point = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
        change = point | {"snapshot-id": (await self.snapshots())[0]}
        await self.world.making.commits.commit(NAME, CommitRequest([], [change]))

    async def rewind(self, *consents: Consent) -> OperationPreview:
        async def decide(log: ReadLog, is_dry: bool) -> OperationPreview:
            return await self.operations.rewind(NAME, log, consents, None, is_dry)

        return await run_operation(self.calls, TOPIC, consents, False, decide)  # type: ignore[arg-type]

    async def rewind_alone(self) -> None:
        """As a lake process that ends before it has told the broker."""
        await self.operations.rewind(NAME, lambda: read_topic_log(self.calls, TOPIC), [], None, False)  # type: ignore[arg-type]

    async def recreate(self, *consents: Consent) -> OperationPreview:
        async def decide(log: ReadLog, is_dry: bool) -> OperationPreview:
            return (await self.operations.recreate(NAME, log, consents, is_dry))[1]

        return await run_operation(self.calls, TOPIC, consents, False, decide)  # type: ignore[arg-type]


async def three_rounds(world: FaultWorld) -> Operator:
    one = world.driver()
    for _ in range(3):
        await world.publish_some()
        await world.drain(one)
    await world.check()
    return Operator(world)


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    found = await FaultWorld.open(tmp_path, request.param, warm_ms=600_000, warm_bytes=2**30)
    yield found
    await found.close()


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Of whose log only a few files stay."""
    found = await FaultWorld.open(tmp_path, request.param, warm_ms=600_000, warm_bytes=70_000)
    yield found
    await found.close()


def floors(world: FaultWorld) -> list[int]:
    return [world.log.shard(*key).floor for key in KEYS]


# --- going back -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_21_a_rewound_topic_is_written_again_from_the_log(world: FaultWorld) -> None:
    """Nothing new is published: the pipeline finds it by the floor alone. The same driver, and one that comes new."""
    one, operator = world.driver(), await three_rounds(world)
    await operator.roll_back()
    told = await operator.rewind()
    assert [(fate.goes_on_at, fate.committed) for fate in told.shards] == [(9, 27), (5, 15)]
    assert floors(world) == [9, 5]
    await world.drain(one)
    await world.check()
    assert floors(world) == [27, 15]


@pytest.mark.asyncio
async def test_hazard_21_a_topic_whose_table_is_made_anew_gets_all_that_the_log_has(world: FaultWorld) -> None:
    operator = await three_rounds(world)
    await world.making.tables.drop(NAME, is_forced=True)
    await operator.recreate()
    assert floors(world) == [0, 0]
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_what_the_log_has_no_longer_is_a_gap_that_somebody_agreed_to(forgetful: FaultWorld) -> None:
    world = forgetful
    one = world.driver()
    for _ in range(12):
        await world.publish_some()
        await world.drain(one)
    operator = Operator(world)
    await operator.roll_back()
    before = floors(world)
    earliest = [world.log.reader.earliest(key) for key in KEYS]
    assert 9 < earliest[0] < before[0]
    with pytest.raises(errors.TopicTableConflict, match="in neither table nor log"):
        await operator.rewind()
    assert floors(world) == before, "what was refused changes nothing"
    told = await operator.rewind(Consent.GAP)
    assert [fate.goes_on_at for fate in told.shards] == earliest == floors(world)
    for key, start, end in zip(KEYS, (9, 5), earliest, strict=True):
        world.forgone[key] = set(range(start, end))
    await world.drain(one)
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_what_the_log_has_is_kept_until_it_is_written(forgetful: FaultWorld) -> None:
    """However much comes behind it meanwhile, and however late the pipeline is."""
    world = forgetful
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind()
    assert floors(world) == [9, 5]
    world.clock.shift(100_000)
    for _ in range(12):
        await world.publish_some()
    await world.drain(world.driver())
    await world.check()


# --- in the wrong moment ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_21_a_lake_process_that_ends_before_it_decides_changes_nothing(world: FaultWorld) -> None:
    await three_rounds(world)
    await world.ingest.reopen([(1, 0, 9), (1, 1, 5)])
    rounds = len(await Operator(world).snapshots())
    await world.drain(world.driver())
    await world.check()
    assert len(await Operator(world).snapshots()) == rounds, "the floors went up to where the table is"


@pytest.mark.asyncio
async def test_hazard_21_a_lake_process_that_ends_after_it_decided_is_made_good_for(world: FaultWorld) -> None:
    """With the next message at the latest."""
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind_alone()
    assert floors(world) == [27, 15]
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
async def test_hazard_21_a_driver_that_is_killed_while_a_floor_goes_back(world: FaultWorld, is_before: bool) -> None:
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind_alone()
    await world.publish_some()
    one = world.driver(stop=Stop(is_before, "reopen"))
    draining = asyncio.create_task(world.drain(one))
    async with asyncio.timeout(HANGS_SECONDS):
        await one.life.stands_still.wait()
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    await one.end()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_a_driver_that_moves_a_floor_up_while_an_operator_decides(world: FaultWorld) -> None:
    """It found the table as it was before, and is asked no more: nothing else is published."""
    one, operator = world.driver(), await three_rounds(world)
    await operator.roll_back()
    asked = 0

    async def meanwhile() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:  # the table is where it is to be, the floors are told of it once more
            backlog = await world.ingest.backlog()
            assert floors(world) == [9, 5]
            await world.ingest.committed([(1, 0, 27), (1, 1, 15)], backlog.reopenings)

    operator.calls.before_reopening = meanwhile
    await operator.rewind()
    assert (asked, floors(world)) == (2, [9, 5])
    await world.drain(one)
    await world.check()


# --- where they disagree ----------------------------------------------------------------------------------------------


def test_hazard_21_floors_and_tables_are_compared_by_what_holds_messages() -> None:
    shards = [
        ShardBacklog(0, 0, 10, 20),
        ShardBacklog(1, 0, 10, 20),
        ShardBacklog(2, 0, 10, 20),
        ShardBacklog(3, 0, 10, 20, [(4, 10)]),
        ShardBacklog(4, 0, 10, 20, [(6, 10)]),
        ShardBacklog(5, 0, 10, 20),
        ShardBacklog(6, 0, 10, 20, [(10, 15)]),
        ShardBacklog(7, 0, 12, 20, [(10, 15)]),
    ]
    backlog = Backlog("", "", "", "", [TopicBacklog(7, TOPIC, 1, shards, 0, 0, 0)], [])
    found = find_divergence(backlog, {7: {0: 10, 1: 15, 2: 30, 3: 4, 4: 5, 6: 10, 7: 10}})
    assert found.broker_behind == [(7, 1, 15), (7, 2, 20)], "as far as it is synced, and no gap beyond the table"
    assert found.broker_ahead == [(7, 4, 5)], "a gap that ends at the floor is what a retention left"
    assert find_divergence(backlog, {}) == ([], [])
