"""Hazard 1: files are removed when no snapshot names them and no commit can bring them any more; nothing else ever is.

Over a real log, a real catalog and the tasks' own code (`FaultWorld`). The rule alone, in every order of events:
tests/unit/pipeline/test_clean_up_model.py; kills at each effect: tests/unit/pipeline/test_faults.py.
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
from tests.support.driver_life import DriverLife, Struck
from tests.support.fault_world import FaultWorld, name_of
from tests.support.meddler import Meddler
from tests.unit.pipeline.test_faults import Moody

pytestmark = pytest.mark.asyncio
HALF_AN_HOUR, HOUR = 31 * 60, 3_700


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    found = await FaultWorld.open(tmp_path)
    yield found
    await found.close()


async def rounds(world: FaultWorld, one: DriverLife, count: int) -> None:
    for _ in range(count):
        await world.publish(1, 3)
        await world.drain(one)


async def pass_time(world: FaultWorld, one: DriverLife, seconds: int) -> None:
    """Nobody holds a lease over it."""
    await one.lease.release()
    world.clock.shift(seconds)


async def finished(world: FaultWorld) -> DriverLife:
    """Another driver commits, so that what the others left cannot land any more, and all that is due is done."""
    last = world.driver()
    for topic_id in (1, 2):
        await world.publish(topic_id, 1)
    await world.drain(last)
    await world.clean(last)
    return last


async def test_hazard_01_files_of_expired_snapshots_go_and_nothing_else_does(world: FaultWorld) -> None:
    """Ten rounds: manifests are merged in between."""
    one = world.driver()
    await rounds(world, one, 10)
    before = await world.present(1)
    assert before == await world.needed(1)
    await pass_time(world, one, HALF_AN_HOUR)
    removed = metrics.PIPELINE_REMOVED_FILES._value.get(), metrics.PIPELINE_REMOVED_BYTES._value.get()
    await rounds(world, one, 1)
    await world.clean(one)
    after = await world.present(1)
    gone = before - after
    assert after == await world.needed(1)
    assert {found.kind for path in gone if (found := parse_pipeline_file(path))} == {
        PipelineFileKind.LIST,
        PipelineFileKind.MANIFEST,
    }
    assert len(gone) > 9
    assert metrics.PIPELINE_REMOVED_FILES._value.get() - removed[0] == len(gone)
    assert metrics.PIPELINE_REMOVED_BYTES._value.get() - removed[1] > 1_000 * len(gone)
    await world.check()


async def test_hazard_01_data_that_others_replaced_goes_with_the_last_snapshot_that_names_it(world: FaultWorld) -> None:
    """A tag leads to it for two hours; then its snapshot goes with the tag."""
    world.history = TagRetention(2 * 3_600_000, 0)
    one = world.driver()
    await rounds(world, one, 3)
    data = {path for path in await world.present(1) if path.endswith(".parquet")}
    await pass_time(world, one, HOUR)
    await rounds(world, one, 1)
    await Meddler(world.catalog, world, "compaction", 1).meddle()
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 1)
    await world.clean(one)
    assert data <= await world.present(1), "the tag still leads to it"
    await pass_time(world, one, 3 * HOUR)
    await rounds(world, one, 1)
    await world.clean(one)
    assert not data & await world.present(1)
    await one.lease.release()
    await finished(world)
    assert await world.present(1) == await world.needed(1), "what the attempt wrote that was refused, too"
    await world.check()


async def test_hazard_23_a_file_stays_for_the_delay_after_nothing_names_it(world: FaultWorld) -> None:
    """Also behind the last message: an idle driver does what is due, and gives the lease up again."""
    world.clean_up_delay_ms = 3_600_000
    one = world.driver()
    await rounds(world, one, 3)
    before = await world.present(1)
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 1)
    await pass_time(world, one, 58 * 60)
    await one.driver.turn()
    assert before < await world.present(1), "the delay is not over"
    await pass_time(world, one, 5 * 60)
    assert not one.lease.is_held
    await one.driver.turn()
    assert not one.lease.is_held
    assert await world.present(1) == await world.needed(1)
    assert before - await world.present(1)


async def test_hazard_23_readers_of_each_snapshot_have_the_whole_delay(world: FaultWorld) -> None:
    """What an expired snapshot names stays as long as the last one that expired with the same files."""
    world.clean_up_delay_ms = 3_600_000
    one = world.driver()
    await rounds(world, one, 3)
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 2)  # the first of them expire
    (*_, last) = (await world.catalog.load(name_of(1))).metadata["snapshots"]
    named = await world.paths(last["manifest-list"])
    await rounds(world, one, 4)  # its manifests are merged
    await pass_time(world, one, HOUR)
    await rounds(world, one, 2)  # it expires, and the delay of the first is over
    await world.clean(one)
    assert {
        path for path in named - await world.needed(1) if parse_pipeline_file(path) == (PipelineFileKind.MANIFEST, 1)
    }, "no snapshot has it"
    assert named <= await world.present(1)
    for _ in range(2):  # what is seen to have gone now waits from now on
        await pass_time(world, one, HOUR)
        await world.clean(one)
    assert await world.present(1) == await world.needed(1)


async def test_hazard_01_a_driver_that_begins_anew_waits_for_the_delay_too(world: FaultWorld) -> None:
    """What it finds in the folders may have expired a second ago."""
    one = world.driver()
    one.cleaner = None
    one.driver.jobs.remove(FileCleanupJob.name)
    await rounds(world, one, 3)
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 1)  # expires, and ends
    await one.lease.release()
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
async def test_hazard_01_a_table_that_is_not_ours_to_clean_keeps_all(world: FaultWorld, why: str) -> None:
    one = world.driver()
    await rounds(world, one, 3)
    change: dict[str, Any] = {"action": "set-properties", "updates": {"gc.enabled": "false"}}
    if why == "elsewhere":
        change = {"action": "set-location", "location": f"file:{world.folder}/warehouse/elsewhere"}
    assert isinstance(await world.catalog.commit(name_of(1), TableChange([], [change])), CommitDone)
    before = _all_files(world)
    await pass_time(world, one, HALF_AN_HOUR)
    one.topics.clear()
    await rounds(world, one, 1)
    await world.clean(one)
    assert before <= _all_files(world)


def _all_files(world: FaultWorld) -> set[Path]:
    return {one for one in (world.folder / "warehouse").rglob("*.avro") if one.is_file()}


async def test_hazard_01_a_list_that_is_gone_already_and_names_that_are_not_ours(world: FaultWorld) -> None:
    """Another engine expired and removed by itself; and somebody else's file lies in the folder."""
    one = world.driver()
    await rounds(world, one, 2)
    location = (await world.catalog.load(name_of(1))).metadata["location"].removeprefix("file:")
    theirs = [Path(location) / "data" / name for name in ("part-0.parquet", f"icestream-{'a' * 32}.parquet")]
    theirs.append(Path(location) / "metadata" / "snap-1-1-00000000-0000-4000-8000-000000000000.avro")
    for path in theirs:
        path.write_bytes(b"x")
    (first, *_) = (await world.catalog.load(name_of(1))).metadata["snapshots"]
    await world.files.remove(first["manifest-list"])
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 1)
    await world.clean(one)
    assert await world.present(1) == await world.needed(1) | {f"file:{path}" for path in theirs}
    assert theirs[0].exists()


async def test_hazard_01_a_look_that_takes_many_rounds_takes_nothing_new_for_gone(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step with each round: the table goes on between any two of them."""
    monkeypatch.setattr(limits, "CLEAN_UP_STEPS", 1)
    one = world.driver()
    await rounds(world, one, 4)
    await pass_time(world, one, HALF_AN_HOUR)
    await rounds(world, one, 20)
    assert await world.needed(1) <= await world.present(1)
    monkeypatch.undo()
    await world.clean(one)
    assert await world.needed(1) == await world.present(1)


# --- any sequence -----------------------------------------------------------------------------------------------------

SEEDS = [pytest.param(one, marks=[] if one < 2 else [pytest.mark.chaos]) for one in range(40)]
KILLS = [Effect.WRITE, Effect.COMMIT, Effect.NOTE, Effect.ADVANCE, Effect.CLEAN_UP]


class Sequence:
    """Rounds, crashes, lost and late answers, compactions and hours, as the dice fall."""

    def __init__(self, world: FaultWorld, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.one = world.driver()
        self.moody: Moody | None = None

    async def step(self) -> None:
        deed = self.dice.choice(["round", "round", "round", "killed", "answers", "compaction", "time"])
        await getattr(self, f"_{deed}")()
        await self.world.check()

    async def _round(self) -> None:
        await self.world.publish(1, self.dice.randrange(1, 4))
        await self.world.publish(2, 1)
        await self.world.drain(self.one)

    async def _killed(self) -> None:
        await self.one.lease.release()
        fault = Fault(self.dice.random() < 0.5, self.dice.choice(KILLS), 1)
        self.one = self.world.driver(fault, wrap=self._wrap)
        with pytest.raises(Struck):
            await self._round()
        await self.one.end()
        self.one = self.world.driver(wrap=self._wrap)
        await self._round()

    async def _answers(self) -> None:
        """A late one lands with a later commit, or never."""
        self.moody = Moody(self.world.catalog, self.dice.choice(["lost", "never sent", "late", "away"]))
        await self.one.lease.release()
        self.one = self.world.driver(wrap=self._wrap)
        await self._round()

    def _wrap(self, inner: TableCatalog) -> Any:
        return self.moody or inner

    async def _compaction(self) -> None:
        await self._round()
        await Meddler(self.world.catalog, self.world, "compaction", 1).meddle()
        await self._round()

    async def _time(self) -> None:
        await pass_time(self.world, self.one, self.dice.choice([11 * 60, HALF_AN_HOUR, HOUR]))
        await self._round()


@pytest.mark.parametrize("seed", SEEDS)
async def test_hazard_01_after_any_sequence_all_that_is_needed_is_there_and_nothing_else(
    world: FaultWorld, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each round a step or a few: what was begun goes on in a table that has gone on too."""
    monkeypatch.setattr(limits, "CLEAN_UP_STEPS", (1, 3, 20)[seed % 3])
    sequence = Sequence(world, seed)
    for _ in range(12):
        await sequence.step()
    await sequence.one.lease.release()
    await finished(world)
    await world.check()
    for topic_id in (1, 2):
        needed, present = await world.needed(topic_id), await world.present(topic_id)
        assert needed <= present
        assert {path for path in present - needed if parse_pipeline_file(path)} == set()
