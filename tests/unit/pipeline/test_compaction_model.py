"""Compaction among everything else that happens to a table, in any order: rounds, other engines that append, compact,
delete, expire, add columns and partition, drivers that are killed, a retention that comes and goes, files that are
cleaned up.

Afterwards the rows are those that were published, without those that an engine deleted: each offset once, with its
payload, in PyIceberg, in our own readers and in `verify --deep` (`FaultWorld.check`); and every file that any snapshot
names is there. When some days have passed, no other file is.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from icestream.iceberg.manifests import ManifestEntry
from icestream.model import ShardKey
from icestream.model.backlog_messages import RetainedTopic
from icestream.model.pipeline_file_name import parse_pipeline_file
from icestream.pipeline.compaction.compaction_job import CompactionJob
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.compaction import add_compaction, compact, data_files
from tests.support.deleting_engine import delete_by_position, delete_by_value, live_entries
from tests.support.fault_world import FaultWorld
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
STEPS = 14
DEEDS = ("append", "compaction", "delete", "expiry", "add a column", "partition", "by position", "by value")
FAULTS = (Effect.REWRITE, Effect.COMMIT, Effect.LOOK_AGAIN, Effect.NOTE)


def is_ours(entry: ManifestEntry) -> bool:
    """Whether compaction may rewrite a file: it is of the pipeline, and of a table without a partitioning."""
    return parse_pipeline_file(entry.file_path) is not None and not entry.partition


class CompactionModel:
    """A world with one driver at a time, which compacts."""

    def __init__(self, world: FaultWorld, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.compactions = 0
        self._done: set[str] = set()
        self.life, self.job = self._new_life()

    def _new_life(self, fault: Fault | None = None) -> tuple[InterruptibleDriver, CompactionJob]:
        life = self.world.driver(fault)
        return life, add_compaction(life)

    async def step(self) -> None:
        kind = self.chance.choice(("ingest", "ingest", "compact", "compact", "engine", "kill", "time", "retention"))
        if kind == "engine":
            await self.meddle(self.chance.choice(DEEDS))
            return
        before = await data_files(self.world)
        await self._run_drivers(kind)
        # Whichever turn committed it: a driver that ingests, or that takes over, compacts as well.
        self.compactions += len(await data_files(self.world)) < len(before)

    async def meddle(self, deed: str) -> None:
        """An engine deletes rows by delete files, or does what `ForeignEngine` does, which takes files at face value
        and so comes only while there are no delete files. Deletes by value come only while compaction can apply them to
        all files: PyIceberg, which checks the rows, cannot read them."""
        # `ForeignEngine` gives a column one name, and knows no partitions.
        if deed in self._done or ("partition" in self._done and deed in ("compaction", "delete")):
            return
        if deed in ("add a column", "partition"):
            self._done.add(deed)
        entries = await live_entries(self.world)
        match deed:
            case "by position":
                chosen = self.chance.sample(entries, min(2, len(entries)))
                positions = {entry.file_path: [self.chance.randrange(entry.record_count)] for entry in chosen}
                await delete_by_position(self.world, positions, is_one_file=self.chance.random() < 0.5)
            case "by value" if all(is_ours(entry) for entry in entries):
                published = [*self.world.published[ShardKey(1, 0)]]
                await delete_by_value(self.world, 0, self.chance.sample(published, 2))
            case "by value":
                pass
            case _ if len(entries) > 1 and not await live_entries(self.world, content=1):
                await ForeignEngine(self.world.catalog, self.world, deed, 1).meddle()

    async def _run_drivers(self, kind: str) -> None:
        match kind:
            case "ingest":
                await self.world.publish_some()
                await self.world.drain(self.life)
            case "compact":
                await compact(self.life, self.job, 3)
            case "kill":
                await self.kill()
            # A delete by value stays when its data files go (ADR 87), and PyIceberg cannot read what it applies to.
            case "retention" if not await live_entries(self.world, content=1):
                self.world.retained = [RetainedTopic(1, "/default/t1", messages_max=self.chance.randint(20, 60))]
                self.world.clock.advance(61)
                await self.life.driver.turn()
                self.world.retained = []
            case "time":
                self.world.clock.advance(3_600)
                if self.life.cleaner is not None:
                    await self.world.clean(self.life)

    async def kill(self) -> None:
        """A driver ends at any of its effects, and another one takes over."""
        await self.job.close()
        await self.life.end()
        fault = Fault(self.chance.random() < 0.5, self.chance.choice(FAULTS), self.chance.randint(1, 3))
        life, job = self._new_life(fault)
        with contextlib.suppress(DriverKilled):
            await self.world.publish_some()
            await self.world.drain(life)
            await compact(life, job, 3)
        await job.close()
        await life.end()
        self.life, self.job = self._new_life()

    async def finish(self) -> None:
        await self.world.publish_some()
        await self.world.drain(self.life)
        await compact(self.life, self.job)
        await self.world.check()
        assert not self.life.topics.halted
        await self.check_files()

    async def check_files(self) -> None:
        """What attempts, engines and expired snapshots have left is gone after some days: the second listing condemns
        files of others, and epochs have ended."""
        for _ in range(4):
            await self.life.lease.release()
            self.world.clock.advance(25 * 3_600)
            await self.world.publish_some()
            await self.world.drain(self.life)
            await compact(self.life, self.job)
            await self.world.clean(self.life)
        # What an overtaken compaction of the last day has left goes once a later epoch has committed.
        self.life.jobs.remove(self.job.name)
        for _ in range(2):
            await self.life.lease.release()
            self.world.clock.advance(25 * 3_600)
            await self.world.publish_some()
            await self.world.drain(self.life)
            await self.world.clean(self.life)
        for topic_id in (1, 2):
            left = await self.world.present(topic_id) - await self.world.needed(topic_id)
            assert not left, (self.life.lease.epoch, left)


async def run(folder: Path, seed: int) -> int:
    """Returns how many steps of the pipeline left fewer files than they found."""
    world = await FaultWorld.open(folder)
    for _ in range(2):
        await world.publish_some()
    model = CompactionModel(world, seed)
    await world.drain(model.life)
    try:
        for _ in range(STEPS):
            await model.step()
        await model.finish()
    finally:
        await model.job.close()
        await world.close()
    return model.compactions


async def test_whatever_happens_beside_compaction_every_row_stays(tmp_path: Path) -> None:
    compactions = [await run(tmp_path / str(seed), seed) for seed in range(4)]
    assert sum(compactions) >= 4, "a model without compactions shows nothing"


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
async def test_whatever_happens_beside_compaction_every_row_stays_for_long(tmp_path: Path) -> None:
    compactions = [await run(tmp_path / str(seed), seed) for seed in range(100, 300)]
    assert sum(compactions) >= 200
