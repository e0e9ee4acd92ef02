"""Hazard 3 with the pipeline: whatever a power loss takes from the log, no offset of a table is used again, and the
next round commits. A disk that forgets what was not synced, in all three modes; rounds as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.model import SyncMode
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.interruptible_driver import DriverKilled
from tests.support.machine import Machine
from tests.support.power_loss_world import PowerLossWorld

NOT_DUE_MS = 10**13  # longer than from any clock of a test to any other

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("seed", range(3))
async def test_hazard_03_the_round_after_a_power_loss_commits(tmp_path: Path, mode: SyncMode, seed: int) -> None:
    world = await PowerLossWorld.on(tmp_path, Machine(seed, mode, sync_interval_ms=10**9))
    for _ in range(3):
        await world.publish_some()
        await world.drain(world.driver())
        await world.check()
        await world.publish_some()  # in no table, and in `periodic` and `none` not synced
        await world.lose_power()
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()
    await world.close()


@pytest.mark.parametrize("mode", list(SyncMode))
async def test_hazard_03_a_driver_checks_a_gap_twice_before_a_round_is_due(tmp_path: Path, mode: SyncMode) -> None:
    """The table ends before the gap, the messages go on behind it: the second look finds what the first one left."""
    world = await PowerLossWorld.on(tmp_path, Machine(1, mode, sync_interval_ms=10**9))
    await world.publish_some()
    await world.drain(world.driver())
    await world.publish_some()
    await world.lose_power()
    assert mode is SyncMode.ALWAYS or any(world.log.gaps(key) for key in world.published)
    await world.publish_some()
    harness = world.driver(age_due_ms=NOT_DUE_MS)
    for _ in range(3):
        await harness.driver.turn()
        assert not harness.topics.halted
    harness.driver.expedite()
    await world.drain(harness)
    await world.check()
    await world.close()


@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("effect", [Effect.WRITE, Effect.COMMIT, Effect.ADVANCE])
async def test_hazard_03_a_power_loss_in_the_middle_of_a_round(tmp_path: Path, mode: SyncMode, effect: Effect) -> None:
    """Committed rows were synced before: the broker syncs before it reports its backlog."""
    world = await PowerLossWorld.on(tmp_path, Machine(1, mode, sync_interval_ms=10**9))
    await world.publish_some()
    await world.drain(world.driver())
    await world.publish_some()
    harness = world.driver(Fault(False, effect, 1))
    with pytest.raises(DriverKilled):
        await world.drain(harness)
    await harness.end()
    await world.publish_some()
    await world.lose_power()
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()
    await world.close()
