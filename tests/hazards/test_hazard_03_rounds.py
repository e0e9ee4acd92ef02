"""Hazard 3 with the pipeline: whatever a power loss takes from the log, no offset of a table is used again, and the
next round commits. A disk that forgets what was not synced, in all three modes; rounds as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.model import SyncMode
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.driver_life import Struck
from tests.support.machine import Machine
from tests.support.powerless_world import PowerlessWorld

NOT_DUE_MS = 10**13  # longer than from any clock of a test to any other

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("seed", range(3))
async def test_hazard_03_the_round_behind_a_power_loss_commits(tmp_path: Path, mode: SyncMode, seed: int) -> None:
    world = await PowerlessWorld.on(tmp_path, Machine(seed, mode, sync_interval_ms=10**9))
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
async def test_hazard_03_a_driver_looks_twice_at_a_gap_before_anything_is_due(tmp_path: Path, mode: SyncMode) -> None:
    """The table ends before the gap, the messages go on behind it: the second look finds what the first one left."""
    world = await PowerlessWorld.on(tmp_path, Machine(1, mode, sync_interval_ms=10**9))
    await world.publish_some()
    await world.drain(world.driver())
    await world.publish_some()
    await world.lose_power()
    assert mode is SyncMode.ALWAYS or any(world.log.gaps(key) for key in world.published)
    await world.publish_some()
    one = world.driver(age_due_ms=NOT_DUE_MS)
    for _ in range(3):
        await one.driver.turn()
        assert not one.topics.halted
    one.driver.expedite()
    await world.drain(one)
    await world.check()
    await world.close()


@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("effect", [Effect.WRITE, Effect.COMMIT, Effect.ADVANCE])
async def test_hazard_03_a_power_loss_in_the_middle_of_a_round(tmp_path: Path, mode: SyncMode, effect: Effect) -> None:
    """What is in the table was synced before: the broker syncs before it tells what there is."""
    world = await PowerlessWorld.on(tmp_path, Machine(1, mode, sync_interval_ms=10**9))
    await world.publish_some()
    await world.drain(world.driver())
    await world.publish_some()
    one = world.driver(Fault(False, effect, 1))
    with pytest.raises(Struck):
        await world.drain(one)
    await one.end()
    await world.publish_some()
    await world.lose_power()
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()
    await world.close()
