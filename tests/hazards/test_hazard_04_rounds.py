"""Hazard 4 with the pipeline: the broker is ended before and after everything that the log does behind a round, when
its floors have moved. The cases follow from the list of these steps: one that no round here comes to fails the suite.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from icestream.model import SyncMode
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import log_file
from tests.support.interruptible_driver import InterruptibleDriver
from tests.support.machine import Machine
from tests.support.power_loss_world import PowerLossWorld

pytestmark = pytest.mark.asyncio
ROUNDS = 4


class DiskStep(StrEnum):
    CHECKPOINT = "a checkpoint gets its name"
    LET_GO = "the oldest checkpoint goes"
    RECYCLE = "a log file loses its name"
    REUSE = "a spare gets the name of the next log file"


def step_of(old: str, new: str | None) -> DiskStep | None:
    """The step of recycling that a rename, or a removal (`new` is None), is part of; None for other files."""
    if new is None:
        if log_file.checkpoint_parts(old) is not None:
            return DiskStep.LET_GO
        return DiskStep.RECYCLE if log_file.log_number(old) is not None else None
    if log_file.checkpoint_parts(new) is not None:
        return DiskStep.CHECKPOINT
    if log_file.log_number(old) is not None:
        return DiskStep.RECYCLE
    return DiskStep.REUSE if old.startswith("spare-") and log_file.log_number(new) is not None else None


class CrashingDisk:
    """The process ends before or after the so-many-th time of a step: nothing of it reaches the disk any more."""

    def __init__(
        self, disk: SimulatedDisk, step: DiskStep | None = None, number: int = 1, *, is_before: bool = True
    ) -> None:
        self._disk = disk
        self._fault = step, number
        self._is_before = is_before
        self.counts = dict.fromkeys(DiskStep, 0)
        self.is_struck = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def rename(self, old: str, new: str) -> None:
        self._do(step_of(old, new), lambda: self._disk.rename(old, new))

    def remove(self, name: str) -> None:
        self._do(step_of(name, None), lambda: self._disk.remove(name))

    def _do(self, step: DiskStep | None, operation: Any) -> None:
        if step is not None:
            self.counts[step] += 1
        is_here = step is not None and (step, self.counts[step]) == self._fault
        if is_here and self._is_before:
            self._strike()
        operation()
        if is_here and not self._is_before:
            self._strike()

    def _strike(self) -> None:
        self.is_struck = True
        self._disk.crash_after(0)


async def rounds(world: PowerLossWorld, harness: InterruptibleDriver) -> None:
    """Enough for files of the log to be done with, and used again."""
    for _ in range(ROUNDS):
        for _ in range(4):
            await world.publish_some()
        await world.drain(harness)


async def test_hazard_04_the_rounds_reach_every_step(tmp_path: Path) -> None:
    machine = Machine()
    disk = machine.view = CrashingDisk(machine.disk)
    world = await PowerLossWorld.on(tmp_path, machine)
    await rounds(world, world.driver())
    assert all(count >= 2 for count in disk.counts.values()), disk.counts
    await world.check()
    await world.close()


@pytest.mark.parametrize(
    ("mode", "is_power"), [(SyncMode.ALWAYS, False), (SyncMode.PERIODIC, True)], ids=["kill", "power"]
)
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", DiskStep)
async def test_hazard_04_the_broker_is_killed_at_each_step_after_a_round(
    tmp_path: Path, step: DiskStep, mode: SyncMode, is_before: bool, is_power: bool
) -> None:
    """At the second time: something was let go of already."""
    machine = Machine(1, mode, sync_interval_ms=10**9)
    disk = machine.view = CrashingDisk(machine.disk, step, 2, is_before=is_before)
    world = await PowerLossWorld.on(tmp_path, machine)
    first = world.driver()
    assert not await machine.survives(rounds(world, first))
    assert disk.is_struck
    machine.view = machine.disk
    await (world.lose_power() if is_power else world.kill())
    await first.end()
    await world.publish_some()
    await world.drain(world.driver())
    await world.check()
    await world.close()
