"""The model of table care: everything that happens to a table, in any order. Rounds, compactions, other engines that
append, compact, delete, expire, add columns and partition, drivers that are killed, erasures, a retention that comes
and goes, files that are cleaned up.

Afterwards the rows are those that were published, without those that an engine deleted or that were erased: each offset
once, with its payload, in PyIceberg, DuckDB, our own readers and `verify --deep` (`FaultWorld.check`), for some seeds
in Spark (tests/engines/test_rows_after_care.py); and every file that any snapshot names is there. When some days have
passed, no other file is, and no file has a row that was erased.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pyarrow.parquet as pq

from icestream.catalog import catalog_keys
from icestream.catalog.plans.commit_plans import erased_record
from icestream.model import ShardKey
from icestream.model.backlog_messages import RetainedTopic
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased
from icestream.model.erasure_messages import ErasureMode, HistoryChoice
from icestream.pipeline.compaction.compaction_job import CompactionJob
from icestream.pipeline.driver.effects import ERASURE_EFFECTS, Effect, Fault
from icestream.pipeline.erasure.erasure_job import ErasureJob
from tests.support.compaction import add_compaction, compact, data_files
from tests.support.deleting_engine import delete_by_position, delete_by_value, live_entries, table_of
from tests.support.erasures import Erasures
from tests.support.fault_world import FaultWorld
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver
from tests.support.table_check import RowReader, rows_by_duckdb

STEPS = 14
DEEDS = ("append", "compaction", "delete", "expiry", "add a column", "partition", "by position", "by value")
FAULTS = (Effect.REWRITE, Effect.COMMIT, Effect.LOOK_AGAIN, Effect.NOTE)
KINDS = ("ingest", "ingest", "compact", "compact", "engine", "kill", "time", "retention", "erase", "kill an erasure")


class CareModel:
    """A world with one driver at a time, which compacts and erases."""

    def __init__(self, world: FaultWorld, seed: int, readers: Sequence[RowReader]) -> None:
        """`readers`: engines that read the rows beside PyIceberg."""
        self.world = world
        self.readers = readers
        self.chance = random.Random(seed)
        self.compactions = 0
        self.erased = 0
        self._done: set[str] = set()
        self.erasures = Erasures(world)
        self.life, self.job, self.erasure = self._new_life()

    def _new_life(self, fault: Fault | None = None) -> tuple[InterruptibleDriver, CompactionJob, ErasureJob]:
        life = self.world.driver(fault)
        compaction = add_compaction(life)
        return life, compaction, self.erasures.add_to(life, compaction=compaction)[0]

    async def step(self) -> None:
        kind = self.chance.choice(KINDS)
        if kind == "engine":
            await self.meddle(self.chance.choice(DEEDS))
            return
        before = await data_files(self.world)
        await self._run_drivers(kind)
        # Whichever turn committed it: a driver that ingests, or that takes over, compacts as well.
        self.compactions += len(await data_files(self.world)) < len(before)

    async def meddle(self, deed: str) -> None:
        """An engine deletes rows by delete files, or does what `ForeignEngine` does, which takes files at face value
        and so comes only while there are no delete files."""
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
            case "by value":
                published = [*self.world.published[ShardKey(1, 0)]]
                await delete_by_value(self.world, 0, self.chance.sample(published, 2))
            case "expiry" if len((await table_of(self.world)).snapshots) == 1:
                pass  # nothing is older
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
            case "erase":
                await self.erase()
            case "kill an erasure":
                await self.kill(ERASURE_EFFECTS | {Effect.COMMIT}, erases=True)
            case "retention":
                self.world.retained = [RetainedTopic(1, "/default/t1", messages_max=self.chance.randint(20, 60))]
                self.world.clock.advance(61)
                await self.life.driver.turn()
                self.world.retained = []
            case "time":
                self.world.clock.advance(3_600)
                if self.life.cleaner is not None:
                    await self.world.clean(self.life)

    async def kill(self, effects: AbstractSet[Effect] = frozenset(FAULTS), *, erases: bool = False) -> None:
        """A driver ends at any of its effects, and another one takes over."""
        await self.close()
        await self.life.end()
        fault = Fault(self.chance.random() < 0.5, self.chance.choice(sorted(effects)), self.chance.randint(1, 3))
        self.life, self.job, self.erasure = self._new_life(fault)
        with contextlib.suppress(DriverKilled):
            if erases:
                await self.erase()
            await self.world.publish_some()
            await self.world.drain(self.life)
            await compact(self.life, self.job, 3)
        await self.close()
        await self.life.end()
        self.life, self.job, self.erasure = self._new_life()
        if erases:  # the broker hands out the request again, unless it has ended
            await self.erasures.run(self.life, self.erasure)
            await self.note_erased()

    async def close(self) -> None:
        await self.job.close()
        await self.erasure.close()

    async def erase(self) -> None:
        """Offsets of either shard, with all history that has them, or from it."""
        shard = self.chance.randrange(2)
        offsets = sorted(self.chance.sample([*self.world.published[ShardKey(1, shard)]], 3))
        where = f"shard = {shard} and offset in ({', '.join(map(str, offsets))})"
        history = self.chance.choice([HistoryChoice.DROP, HistoryChoice.REWRITE])
        request_id = await self.erasures.begin(where, ErasureMode.ERASE, history=history)
        await self.erasures.run(self.life, self.erasure)
        progress, _ = self.erasures.service.progress(request_id)
        assert progress.is_done
        # Files of engines are refused before anything is changed, and so is history that has their delete files.
        refusals = ("of another engine", "deletes by value", "by position")
        assert not progress.error or any(text in progress.error for text in refusals), progress.error
        await self.note_erased()
        if not progress.error:
            gone = self.world.forgone.get(ShardKey(1, shard), set())
            first = (await self.world.first(1)).get(shard, 0)
            assert {offset for offset in offsets if offset >= first} <= gone

    async def note_erased(self) -> None:
        erased = await self.erased_offsets()
        self.erased = erased.offset_count
        for shard, ranges in erased.shards.items():
            gone = self.world.forgone.setdefault(ShardKey(1, shard), set())
            gone.update(offset for start, end in ranges for offset in range(start, end))

    async def erased_offsets(self) -> ErasedOffsets:
        """As the record of the topic has them."""
        record = erased_record(1, await self.world.store.get(catalog_keys.erased_key(1)))
        return NOTHING_ERASED if record is None else decode_erased(await self.world.files.read(record.offsets))

    async def finish(self) -> None:
        await self.world.publish_some()
        await self.world.drain(self.life)
        await compact(self.life, self.job)
        await self.world.check(readers=self.readers)
        assert not self.life.topics.halted
        await self.check_files()
        await self.check_erased()

    async def check_erased(self) -> None:
        """No file below the world's folder has an erased row, whether it is of the table or of the log."""
        erased = await self.erased_offsets()
        payloads = {
            payload
            for shard, ranges in erased.shards.items()
            for offset, payload in self.world.published[ShardKey(1, shard)].items()
            if any(start <= offset < end for start, end in ranges)
        }
        for path in (path for path in self.world.folder.rglob("*") if path.is_file()):
            data = path.read_bytes()
            if path.suffix == ".parquet":
                rows = pq.read_table(path)
                data = b"".join(rows["payload"].to_pylist()) if "payload" in rows.column_names else b""
            assert not any(payload in data for payload in payloads), path

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


async def run_model(folder: Path, seed: int, readers: Sequence[RowReader] = (rows_by_duckdb,)) -> tuple[int, int]:
    """Returns how many steps of the pipeline left fewer files than they found, and how many offsets were erased."""
    world = await FaultWorld.open(folder)
    for _ in range(2):
        await world.publish_some()
    model = CareModel(world, seed, readers)
    await world.drain(model.life)
    try:
        for _ in range(STEPS):
            await model.step()
        await model.finish()
    finally:
        await model.close()
        await world.close()
    return model.compactions, model.erased
