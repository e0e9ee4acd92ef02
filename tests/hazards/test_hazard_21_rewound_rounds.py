"""Hazard 21: an operator takes a table back below what was committed, and the pipeline writes again what the log has.

A real log, our own catalog and one like another's, the tasks' own code; the operations as the lake process does them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.admin_api.admin_call import AdminCall
from icestream.admin_api.topic_api import INSPECT_TOPIC, TopicOnly
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview
from icestream.lake.foreign_operations import ForeignOperations
from icestream.lake.operations import EmbeddedOperations, ReadLog, TopicTableOperations
from icestream.lake.topic_log import read_topic_log, run_operation
from icestream.model import ShardKey
from icestream.model.backlog_messages import Backlog, ShardBacklog, TopicBacklog
from icestream.pipeline.driver.offset_sync import find_divergence
from tests.support.fault_world import HANGS_SECONDS, FaultWorld, name_of
from tests.support.interruptible_driver import StopPoint

TOPIC, NAME = "/default/t1", name_of(1)
KEYS = (ShardKey(1, 0), ShardKey(1, 1))


class RewindCalls:
    """The broker's local socket, as the lake process asks it."""

    def __init__(self, world: FaultWorld) -> None:
        self._world = world
        self.before_reopening: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, call: AdminCall[TopicOnly, Any], request: TopicOnly) -> SimpleNamespace:
        assert (call, request.topic) == (INSPECT_TOPIC, TOPIC)
        return SimpleNamespace(topic=TOPIC, id=1, shard_offsets=[self._shard(key) for key in KEYS])

    async def reopen_offsets(self, positions: list[list[int]]) -> dict[int, int]:
        if self.before_reopening is not None:
            await self.before_reopening()
        floors = await self._world.ingest.reopen([tuple(position) for position in positions])
        return {shard: floor for _, shard, floor in floors}

    def _shard(self, key: ShardKey) -> SimpleNamespace:
        shard = self._world.log.shard(*key)
        earliest = self._world.log.reader.earliest(key)
        return SimpleNamespace(shard=key.shard, epoch=shard.epoch, earliest=earliest, synced=shard.synced)


class RewindOperator:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.calls = RewindCalls(world)
        self.operations: TopicTableOperations = (
            ForeignOperations(world.store, world.catalog, world.avro, world.clock, None)
            if world.is_foreign
            else EmbeddedOperations(world.making)
        )

    async def snapshots(self) -> list[int]:
        return [entry["snapshot-id"] for entry in (await self.world.catalog.load(NAME)).metadata["snapshots"]]

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
        """Rewinds the table as a lake process that ends before it has told the broker."""
        await self.operations.rewind(NAME, lambda: read_topic_log(self.calls, TOPIC), [], None, False)  # type: ignore[arg-type]

    async def recreate(self, *consents: Consent) -> OperationPreview:
        async def decide(log: ReadLog, is_dry: bool) -> OperationPreview:
            return (await self.operations.recreate(NAME, log, consents, is_dry))[1]

        return await run_operation(self.calls, TOPIC, consents, False, decide)  # type: ignore[arg-type]


async def three_rounds(world: FaultWorld) -> RewindOperator:
    harness = world.driver()
    for _ in range(3):
        await world.publish_some()
        await world.drain(harness)
    await world.check()
    return RewindOperator(world)


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path, request.param, warm_ms=600_000, warm_bytes=2**30)
    yield world
    await world.close()


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Of whose log only a few files stay."""
    world = await FaultWorld.open(tmp_path, request.param, warm_ms=600_000, warm_bytes=70_000)
    yield world
    await world.close()


def floors(world: FaultWorld) -> list[int]:
    return [world.log.shard(*key).floor for key in KEYS]


# --- going back -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_21_a_rewound_topic_is_written_again_from_the_log(world: FaultWorld) -> None:
    """Nothing new is published: the floor alone starts the round, of the same driver and of a new one."""
    harness, operator = world.driver(), await three_rounds(world)
    await operator.roll_back()
    report = await operator.rewind()
    assert [(fate.goes_on_at, fate.committed) for fate in report.shards] == [(9, 27), (5, 15)]
    assert floors(world) == [9, 5]
    await world.drain(harness)
    await world.check()
    assert floors(world) == [27, 15]


@pytest.mark.asyncio
async def test_hazard_21_a_recreated_table_gets_all_messages_of_the_log(world: FaultWorld) -> None:
    operator = await three_rounds(world)
    await world.making.tables.drop(NAME, is_forced=True)
    await operator.recreate()
    assert floors(world) == [0, 0]
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_offsets_missing_in_the_log_are_a_gap_after_consent(forgetful: FaultWorld) -> None:
    world = forgetful
    harness = world.driver()
    for _ in range(12):
        await world.publish_some()
        await world.drain(harness)
    operator = RewindOperator(world)
    await operator.roll_back()
    before = floors(world)
    earliest = [world.log.reader.earliest(key) for key in KEYS]
    assert 9 < earliest[0] < before[0]
    with pytest.raises(errors.TopicTableConflict, match="in neither table nor log"):
        await operator.rewind()
    assert floors(world) == before, "a refused rewind changes nothing"
    report = await operator.rewind(Consent.GAP)
    assert [fate.goes_on_at for fate in report.shards] == earliest == floors(world)
    for key, start, end in zip(KEYS, (9, 5), earliest, strict=True):
        world.forgone[key] = set(range(start, end))
    await world.drain(harness)
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_messages_of_the_log_are_kept_until_they_are_written(forgetful: FaultWorld) -> None:
    """However much comes behind it meanwhile, and however late the pipeline is."""
    world = forgetful
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind()
    assert floors(world) == [9, 5]
    world.clock.advance(100_000)
    for _ in range(12):
        await world.publish_some()
    await world.drain(world.driver())
    await world.check()


# --- in the wrong moment ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_21_a_lake_process_killed_before_its_decision_changes_nothing(world: FaultWorld) -> None:
    await three_rounds(world)
    await world.ingest.reopen([(1, 0, 9), (1, 1, 5)])
    rounds = len(await RewindOperator(world).snapshots())
    await world.drain(world.driver())
    await world.check()
    assert len(await RewindOperator(world).snapshots()) == rounds, "the floors went up to where the table is"


@pytest.mark.asyncio
async def test_hazard_21_a_lake_process_killed_after_its_decision_is_compensated(world: FaultWorld) -> None:
    """The compensation happens with the next message at the latest."""
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind_alone()
    assert floors(world) == [27, 15]
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
async def test_hazard_21_a_driver_killed_while_a_floor_is_lowered_is_followed_by_one_that_finishes(
    world: FaultWorld, is_before: bool
) -> None:
    operator = await three_rounds(world)
    await operator.roll_back()
    await operator.rewind_alone()
    await world.publish_some()
    harness = world.driver(stop=StopPoint(is_before, "reopen"))
    draining = asyncio.create_task(world.drain(harness))
    async with asyncio.timeout(HANGS_SECONDS):
        await harness.life.stands_still.wait()
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    await harness.end()
    await world.drain(world.driver())
    await world.check()


@pytest.mark.asyncio
async def test_hazard_21_a_driver_that_moves_a_floor_up_while_an_operator_decides(world: FaultWorld) -> None:
    """The driver read the table before the change and is not asked again: nothing else is published."""
    harness, operator = world.driver(), await three_rounds(world)
    await operator.roll_back()
    reopen_calls = 0

    async def meanwhile() -> None:
        nonlocal reopen_calls
        reopen_calls += 1
        if reopen_calls == 2:  # the table is where it is to be, the floors are told of it once more
            backlog = await world.ingest.backlog()
            assert floors(world) == [9, 5]
            await world.ingest.committed([(1, 0, 27), (1, 1, 15)], backlog.reopenings)

    operator.calls.before_reopening = meanwhile
    await operator.rewind()
    assert (reopen_calls, floors(world)) == (2, [9, 5])
    await world.drain(harness)
    await world.check()


# --- where they disagree ----------------------------------------------------------------------------------------------


def test_hazard_21_floors_and_tables_are_compared_by_offsets_with_messages() -> None:
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
    divergence = find_divergence(backlog, {7: {0: 10, 1: 15, 2: 30, 3: 4, 4: 5, 6: 10, 7: 10}})
    assert divergence.broker_behind == [(7, 1, 15), (7, 2, 20)], "as far as it is synced, and no gap beyond the table"
    assert divergence.broker_ahead == [(7, 4, 5)], "a gap that ends at the floor is what a retention left"
    assert find_divergence(backlog, {}) == ([], [])
