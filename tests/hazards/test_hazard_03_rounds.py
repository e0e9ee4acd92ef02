"""Hazard 3 with the pipeline: whatever a power loss takes from the log, no offset of a table is used again, and the
next round commits. A disk that forgets what was not synced, in all three modes; rounds as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from icestream.catalog.identifier import Identifier
from icestream.model import ShardKey, SyncMode
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.driver_life import Struck
from tests.support.fault_world import FaultWorld
from tests.support.machine import TOPICS, Machine, messages

NOT_DUE_MS = 10**13  # longer than from any clock of a test to any other

pytestmark = pytest.mark.asyncio


class PowerlessWorld(FaultWorld):
    """Its log is on a simulated disk; tasks find a copy of its files."""

    machine: Machine

    @classmethod
    async def on(cls, folder: Path, machine: Machine) -> PowerlessWorld:
        (folder / "log").mkdir(parents=True)
        found = cls(folder, await machine.start())
        found.machine = machine
        found.names = {topic.id: Identifier(("default",), topic.name.rpartition("/")[2]) for topic in TOPICS}
        found._copy_for_tasks()
        return found

    def _copy_for_tasks(self) -> None:
        held = self.ingest.lease

        def lease(name: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None:
            for file in self.machine.disk.names():
                (self.folder / "log" / file).write_bytes(self.machine.disk.content(file))
            held(name, epoch, files, ttl_ms)

        self.ingest.lease = lease  # type: ignore[method-assign]

    async def lose_power(self) -> None:
        """What was not synced may be gone. What nobody has any more is a declared gap."""
        synced = {key: self.log.shard(*key).synced for key in self.published}
        await self.machine.power_loss()
        self.use(await self.machine.start())
        self._copy_for_tasks()
        for key, published in self.published.items():
            there = await messages(self.log, key)
            lost = [at for at in published if at >= synced[key] and at not in there]
            assert not lost or self.machine.options.mode is not SyncMode.ALWAYS
            for at in lost:
                del published[at]
            self._note_gaps(key)

    def _note_gaps(self, key: ShardKey) -> None:
        gone = self.forgone.setdefault(key, set())
        for gap in self.log.gaps(key):
            gone.update(range(gap.start, gap.end))


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
    one.driver.hurry()
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
