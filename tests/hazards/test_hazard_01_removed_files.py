"""Hazard 1: files are removed when no snapshot names them and no commit can bring them any more; nothing else ever is.

Over a real log, a real catalog and the tasks' own code (`FaultWorld`). The rule alone, in every order of events:
tests/unit/pipeline/test_file_cleanup_model.py; kills at each effect: tests/unit/pipeline/test_effect_faults.py.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import limits
from icestream.catalogs.table_catalog import CommitDone, TableCatalog, TableChange
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file
from icestream.observability import metrics
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from tests.support.fault_world import FaultWorld, name_of
from tests.support.faulty_catalog import FaultyCatalog
from tests.support.foreign_engine import ForeignEngine
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
HALF_AN_HOUR, HOUR = 31 * 60, 3_700


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    world = await FaultWorld.open(tmp_path)
    yield world
    await world.close()


async def rounds(world: FaultWorld, harness: InterruptibleDriver, count: int) -> None:
    for _ in range(count):
        await world.publish(1, 3)
        await world.drain(harness)


async def pass_time(world: FaultWorld, harness: InterruptibleDriver, seconds: int) -> None:
    """Advances the clock while no driver has the lease."""
    await harness.lease.release()
    world.clock.advance(seconds)


async def finished(world: FaultWorld) -> InterruptibleDriver:
    """Another driver commits, so that what the others left cannot land any more, and all that is due is done."""
    last = world.driver()
    for topic_id in (1, 2):
        await world.publish(topic_id, 1)
    await world.drain(last)
    await world.clean(last)
    return last


async def test_hazard_01_only_files_of_expired_snapshots_are_removed(world: FaultWorld) -> None:
    """Ten rounds: manifests are merged in between."""
    harness = world.driver()
    await rounds(world, harness, 10)
    before = await world.present(1)
    assert before == await world.needed(1)
    await pass_time(world, harness, HALF_AN_HOUR)
    removed = metrics.PIPELINE_REMOVED_FILES._value.get(), metrics.PIPELINE_REMOVED_BYTES._value.get()
    await rounds(world, harness, 1)
    await world.clean(harness)
    after = await world.present(1)
    gone = before - after
    assert after == await world.needed(1)
    assert {file.kind for path in gone if (file := parse_pipeline_file(path))} == {
        PipelineFileKind.LIST,
        PipelineFileKind.MANIFEST,
    }
    assert len(gone) > 9
    assert metrics.PIPELINE_REMOVED_FILES._value.get() - removed[0] == len(gone)
    assert metrics.PIPELINE_REMOVED_BYTES._value.get() - removed[1] > 1_000 * len(gone)
    await world.check()


async def test_hazard_01_replaced_data_files_are_removed_with_the_last_snapshot_that_references_them(
    world: FaultWorld,
) -> None:
    """A tag leads to it for two hours; then its snapshot goes with the tag."""
    world.history = TagRetention(2 * 3_600_000, 0)
    harness = world.driver()
    await rounds(world, harness, 3)
    data = {path for path in await world.present(1) if path.endswith(".parquet")}
    await pass_time(world, harness, HOUR)
    await rounds(world, harness, 1)
    await ForeignEngine(world.catalog, world, "compaction", 1).meddle()
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 1)
    await world.clean(harness)
    assert data <= await world.present(1), "the tag still leads to it"
    await pass_time(world, harness, 3 * HOUR)
    await rounds(world, harness, 1)
    await world.clean(harness)
    assert not data & await world.present(1)
    await harness.lease.release()
    await finished(world)
    assert await world.present(1) == await world.needed(1), "files of the refused attempt are removed too"
    await world.check()


async def test_hazard_23_a_file_is_kept_for_the_delay_after_its_last_reference(world: FaultWorld) -> None:
    """The delay ends also without new messages: an idle driver does what is due, and releases the lease."""
    world.clean_up_delay_ms = 3_600_000
    harness = world.driver()
    await rounds(world, harness, 3)
    before = await world.present(1)
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 1)
    await pass_time(world, harness, 58 * 60)
    await harness.driver.turn()
    assert before < await world.present(1), "the delay is not over"
    await pass_time(world, harness, 5 * 60)
    assert not harness.lease.is_held
    for _ in range(2):  # condemned, then removed
        await harness.driver.turn()
        assert not harness.lease.is_held
    assert await world.present(1) == await world.needed(1)
    assert before - await world.present(1)


async def test_hazard_23_readers_of_each_snapshot_have_the_whole_delay(world: FaultWorld) -> None:
    """Files of an expired snapshot stay until the delay of the last expired snapshot that names them."""
    world.clean_up_delay_ms = 3_600_000
    harness = world.driver()
    await rounds(world, harness, 3)
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 2)  # the first of them expire
    (*_, last) = (await world.catalog.load(name_of(1))).metadata["snapshots"]
    named = await world.paths(last["manifest-list"])
    await rounds(world, harness, 4)  # its manifests are merged
    await pass_time(world, harness, HOUR)
    await rounds(world, harness, 2)  # it expires, and the delay of the first is over
    await world.clean(harness)
    assert {
        path for path in named - await world.needed(1) if parse_pipeline_file(path) == (PipelineFileKind.MANIFEST, 1)
    }, "no snapshot has it"
    assert named <= await world.present(1)
    for _ in range(2):  # what is seen to have gone now waits from now on
        await pass_time(world, harness, HOUR)
        await world.clean(harness)
    assert await world.present(1) == await world.needed(1)


async def test_hazard_01_a_restarted_driver_waits_for_the_delay_too(world: FaultWorld) -> None:
    """Files that a new driver finds in the folders may have expired a second ago."""
    harness = world.driver()
    harness.cleaner = None
    harness.driver.jobs.remove(FileCleanupJob.name)
    await rounds(world, harness, 3)
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 1)  # expires, and ends
    await harness.lease.release()
    world.clean_up_delay_ms = 3_600_000
    second = world.driver()
    await rounds(world, second, 1)
    await world.clean(second)
    left = await world.present(1) - await world.needed(1)
    assert left
    await pass_time(world, second, HOUR)
    await world.clean(second)
    assert await world.present(1) == await world.needed(1)


@pytest.mark.parametrize("why", ["gc.enabled", "elsewhere"])
async def test_hazard_01_a_foreign_table_keeps_all_files(world: FaultWorld, why: str) -> None:
    harness = world.driver()
    await rounds(world, harness, 3)
    change: dict[str, Any] = {"action": "set-properties", "updates": {"gc.enabled": "false"}}
    if why == "elsewhere":
        change = {"action": "set-location", "location": f"file:{world.folder}/warehouse/elsewhere"}
    assert isinstance(await world.catalog.commit(name_of(1), TableChange([], [change])), CommitDone)
    before = _all_files(world)
    await pass_time(world, harness, HALF_AN_HOUR)
    harness.topics.clear()
    await rounds(world, harness, 1)
    await world.clean(harness)
    assert before <= _all_files(world)


def _all_files(world: FaultWorld) -> set[Path]:
    return {path for path in (world.folder / "warehouse").rglob("*.avro") if path.is_file()}


async def test_hazard_01_a_missing_manifest_list_and_foreign_files_are_tolerated(world: FaultWorld) -> None:
    """Another engine expired snapshots and removed their files, and a foreign file lies in the folder."""
    harness = world.driver()
    await rounds(world, harness, 2)
    location = (await world.catalog.load(name_of(1))).metadata["location"].removeprefix("file:")
    theirs = [Path(location) / "data" / name for name in ("part-0.parquet", f"icestream-{'a' * 32}.parquet")]
    theirs.append(Path(location) / "metadata" / "snap-1-1-00000000-0000-4000-8000-000000000000.avro")
    for path in theirs:
        path.write_bytes(b"x")
    (first, *_) = (await world.catalog.load(name_of(1))).metadata["snapshots"]
    await world.files.remove(first["manifest-list"])
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 1)
    await world.clean(harness)
    assert await world.present(1) == await world.needed(1) | {f"file:{path}" for path in theirs}
    assert theirs[0].exists()


async def test_hazard_01_a_scan_over_many_rounds_removes_no_new_file(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan does one step with each round: the table changes between any two steps."""
    monkeypatch.setattr(limits, "CLEAN_UP_STEPS", 1)
    harness = world.driver()
    await rounds(world, harness, 4)
    await pass_time(world, harness, HALF_AN_HOUR)
    await rounds(world, harness, 20)
    assert await world.needed(1) <= await world.present(1)
    monkeypatch.undo()
    await world.clean(harness)
    assert await world.needed(1) == await world.present(1)


# --- any sequence -----------------------------------------------------------------------------------------------------

SEEDS = [pytest.param(seed, marks=[] if seed < 2 else [pytest.mark.chaos]) for seed in range(40)]
KILLS = [Effect.WRITE, Effect.COMMIT, Effect.NOTE, Effect.ADVANCE, Effect.CLEAN_UP]


class RandomSequence:
    """Rounds, crashes, lost and late answers, compactions and hours, as the dice fall."""

    def __init__(self, world: FaultWorld, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.harness = world.driver()
        self.catalog: FaultyCatalog | None = None

    async def step(self) -> None:
        deed = self.dice.choice(["round", "round", "round", "killed", "answers", "compaction", "time"])
        await getattr(self, f"_{deed}")()
        await self.world.check()

    async def _round(self) -> None:
        await self.world.publish(1, self.dice.randrange(1, 4))
        await self.world.publish(2, 1)
        await self.world.drain(self.harness)

    async def _killed(self) -> None:
        await self.harness.lease.release()
        fault = Fault(self.dice.random() < 0.5, self.dice.choice(KILLS), 1)
        self.harness = self.world.driver(fault, wrap=self._wrap)
        with pytest.raises(DriverKilled):
            await self._round()
        await self.harness.end()
        self.harness = self.world.driver(wrap=self._wrap)
        await self._round()

    async def _answers(self) -> None:
        """A late one lands with a later commit, or never."""
        fault = self.dice.choice(["lost", "unknown", "late", "unavailable"])
        self.catalog = FaultyCatalog(self.world.catalog, fault, one_by_one=True)
        await self.harness.lease.release()
        self.harness = self.world.driver(wrap=self._wrap)
        await self._round()

    def _wrap(self, inner: TableCatalog) -> Any:
        return self.catalog or inner

    async def _compaction(self) -> None:
        await self._round()
        await ForeignEngine(self.world.catalog, self.world, "compaction", 1).meddle()
        await self._round()

    async def _time(self) -> None:
        await pass_time(self.world, self.harness, self.dice.choice([11 * 60, HALF_AN_HOUR, HOUR]))
        await self._round()


@pytest.mark.parametrize("seed", SEEDS)
async def test_hazard_01_any_sequence_keeps_exactly_the_files_that_are_needed(
    world: FaultWorld, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan does a few steps with each round: it continues in a table that has changed meanwhile."""
    monkeypatch.setattr(limits, "CLEAN_UP_STEPS", (1, 3, 20)[seed % 3])
    sequence = RandomSequence(world, seed)
    for _ in range(12):
        await sequence.step()
    await sequence.harness.lease.release()
    await finished(world)
    await world.check()
    for topic_id in (1, 2):
        needed, present = await world.needed(topic_id), await world.present(topic_id)
        assert needed <= present
        assert {path for path in present - needed if parse_pipeline_file(path)} == set()
