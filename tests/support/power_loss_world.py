"""Rounds of the pipeline over a log on a simulated disk, whose process can be killed and whose power can go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from icestream.iceberg.identifier import Identifier
from icestream.model import ShardKey, SyncMode
from tests.support.fault_world import FaultWorld
from tests.support.machine import TOPICS, Machine, messages


class PowerLossWorld(FaultWorld):
    """A world whose log is on a simulated disk; tasks find a copy of its files."""

    machine: Machine

    @classmethod
    async def on(cls, folder: Path, machine: Machine) -> PowerLossWorld:
        (folder / "log").mkdir(parents=True)
        world = cls(folder, await machine.start())
        world.machine = machine
        world.names = {topic.id: Identifier(("default",), topic.name.rpartition("/")[2]) for topic in TOPICS}
        world._copy_for_tasks()
        return world

    def _copy_for_tasks(self) -> None:
        take_lease = self.ingest.lease

        def lease(name: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None:
            for file in self.machine.disk.names():
                (self.folder / "log" / file).write_bytes(self.machine.disk.content(file))
            take_lease(name, epoch, files, ttl_ms)

        self.ingest.lease = lease  # type: ignore[method-assign]

    async def lose_power(self) -> None:
        """Unsynced records may be gone. Messages that neither log nor table has are a declared gap."""
        await self._again(self.machine.power_loss)

    async def kill(self) -> None:
        """kill -9 of the broker: whatever was written is there."""
        await self._again(self.machine.kill)

    async def _again(self, end: Callable[[], Awaitable[None]]) -> None:
        synced = {key: self.log.shard(*key).synced for key in self.published}
        await end()
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
