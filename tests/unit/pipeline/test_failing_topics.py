"""Topics whose part of a round fails, again and again: they wait longer each time, they are told, and the others go on.
The driver's rounds over our own catalog on a real disk; broker and Spark on paper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from icestream import limits
from icestream.catalogs.table_catalog import CommitUnknown
from icestream.iceberg.identifier import Identifier
from icestream.model.task_messages import TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.driver.unresolved_commits import UnresolvedCommit
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import SimulatedClock
from tests.support.committing import Committing, topic
from tests.support.paper_pipeline import PaperPipeline

pytestmark = pytest.mark.asyncio
# More than a round may take: who comes first has it for itself.
HUGE = 4_000_000
# Only what waits for ever takes so long.
HANGS_SECONDS = 10.0


class SteppingClock(SimulatedClock):
    """The driver, which sleeps for moments, makes the time pass; who keeps a lease sleeps for long, and wakes by it."""

    async def sleep(self, seconds: float) -> None:
        if seconds > limits.PIPELINE_LOOK_SECONDS:
            await super().sleep(seconds)
            return
        await self.pass_by(seconds)

    async def pass_by(self, seconds: float) -> None:
        self.advance(seconds)
        for _ in range(10):  # whoever renews a lease does so now
            await asyncio.sleep(0)


class Mute:
    """A catalog that does not say what became of a commit."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_mute = self.takes_it = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, name: Identifier, change: Any) -> Any:
        if not self.is_mute:
            return await self._inner.commit(name, change)
        if self.takes_it:
            await self._inner.commit(name, change)
        return CommitUnknown("no answer")

    async def commit_all(self, changes: dict[Identifier, Any]) -> Any:
        if not self.is_mute:
            return await self._inner.commit_all(changes)
        return {name: await self.commit(name, change) for name, change in changes.items()}


@pytest_asyncio.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[PaperPipeline]:
    found = PaperPipeline(tmp_path / "warehouse", clock=SteppingClock(), wrap=Mute)
    yield found
    await found.close()


def stopped(pipeline: PaperPipeline) -> list[tuple[str, str]]:
    found = pipeline.driver.report.as_document()
    assert found["ok"] == (not found["stopped_topics"])
    return [(one["topic"], one["reason"]) for one in found["stopped_topics"]]


def stopped_topics(cause: str) -> float | None:
    return REGISTRY.get_sample_value("icestream_pipeline_stopped_topics", {"cause": cause})


def clock_of(pipeline: PaperPipeline) -> SteppingClock:
    assert isinstance(pipeline.world.clock, SteppingClock)
    return pipeline.world.clock


async def turns(pipeline: PaperPipeline, seconds: float) -> int:
    """The driver works for so long, by its clock. Jobs that it began."""
    clock = clock_of(pipeline)
    until_ns, before = clock.monotonic_ns() + int(seconds * 1e9), pipeline.writer.rounds
    while clock.monotonic_ns() < until_ns:
        began_ns = clock.monotonic_ns()
        await pipeline.driver.turn()
        if clock.monotonic_ns() == began_ns:
            await clock.pass_by(0.05)  # what a round takes, or to wait for messages
    return pipeline.writer.rounds - before


async def test_a_topic_that_fails_waits_longer_each_time_and_is_told(pipeline: PaperPipeline) -> None:
    pipeline.broker.publish(1, 5)
    pipeline.writer.failing = lambda topic_id: True
    first, later = await turns(pipeline, 60), await turns(pipeline, 600)
    assert 5 <= first <= 15
    assert 600 / limits.TOPIC_RETRY_SECONDS_MAX <= later <= 2 * 600 / limits.TOPIC_RETRY_SECONDS_MAX + 2
    assert stopped(pipeline) == [("/default/t1", "on purpose")]
    assert stopped_topics("failed") == 1
    pipeline.writer.failing = lambda topic_id: False
    await turns(pipeline, limits.TOPIC_RETRY_SECONDS_MAX + 1)
    assert pipeline.broker.floors == {(1, 0): 5}
    assert (stopped(pipeline), stopped_topics("failed")) == ([], 0)


async def test_a_topic_that_was_mended_begins_anew_with_a_short_pause(pipeline: PaperPipeline) -> None:
    pipeline.broker.publish(1, 5)
    pipeline.writer.failing = lambda topic_id: True
    await turns(pipeline, 600)
    pipeline.writer.failing = lambda topic_id: False
    await turns(pipeline, limits.TOPIC_RETRY_SECONDS_MAX + 1)
    pipeline.broker.publish(1, 5)
    pipeline.writer.failing = lambda topic_id: True
    await pipeline.round()
    assert pipeline.topics.next_retry_seconds <= limits.PIPELINE_RETRY_SECONDS_MIN


async def test_a_failing_topic_that_fills_a_round_does_not_hold_up_the_others(pipeline: PaperPipeline) -> None:
    pipeline.broker.publish(1, HUGE)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    for _ in range(3):
        await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 5}


async def test_the_broker_passes_over_who_stands_still_until_its_time(pipeline: PaperPipeline) -> None:
    asked: list[tuple[int, list[int]]] = []
    ask = pipeline.broker.backlog

    async def backlog(wait_ms: int, passed_over: Collection[int] = ()) -> Any:
        asked.append((wait_ms, list(passed_over)))
        return await ask(wait_ms, passed_over)

    pipeline.broker.backlog = backlog  # type: ignore[method-assign]
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    for _ in range(2):
        await pipeline.driver.turn()
    until_ms = pipeline.topics.next_retry_seconds * 1000
    assert asked == [(limits.BACKLOG_WAIT_MS_MAX // 2, []), (int(until_ms) + 1, [1])]
    assert 0 < until_ms <= limits.PIPELINE_RETRY_SECONDS_MIN * 1000
    assert pipeline.lease.is_held, "what is kept of a round is of this epoch"
    await clock_of(pipeline).pass_by(limits.PIPELINE_RETRY_SECONDS_MIN)
    await pipeline.driver.turn()
    assert asked[2][1] == []
    assert stopped(pipeline) == [("/default/t1", "on purpose")]


async def test_what_fails_beside_something_that_goes_on_waits_when_it_fails_again(pipeline: PaperPipeline) -> None:
    """One shard of a topic cannot be read; the other has new messages all the time."""
    write = pipeline.writer.write

    def half(plan: Any) -> list[TopicTaskResult]:
        error = TaskError(TaskErrorKind.DAMAGED, "a wrong CRC")
        return [one if one.range_number else TopicTaskResult(1, 0, [], [], error) for one in write(plan)]

    pipeline.writer.write = half  # type: ignore[method-assign]
    halted = []
    for _ in range(3):
        for shard in (0, 1):
            pipeline.broker.publish(1, 3, shard)
        await pipeline.round()
        halted.append(pipeline.topics.is_halted(1))
    assert halted == [False, True, True]
    assert pipeline.broker.floors == {(1, 0): 0, (1, 1): 6}
    assert stopped(pipeline) == [("/default/t1", "a wrong CRC")]


async def test_a_topic_that_is_deleted_is_not_told_any_more(pipeline: PaperPipeline) -> None:
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    await pipeline.round()
    del pipeline.broker.names[1]
    pipeline.pass_pauses()
    await pipeline.driver.turn()
    assert stopped(pipeline) == []


async def test_who_stands_still_does_not_keep_the_driver_from_looking(pipeline: PaperPipeline) -> None:
    """A topic whose table was taken away is looked at every quarter of a minute; the others are, all the time."""
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    await pipeline.world.making.topics.detach(Identifier(("default",), "t1"))
    pipeline.broker.publish(1, 1)
    async with asyncio.timeout(HANGS_SECONDS):
        for _ in range(4):
            await pipeline.driver.turn()
        assert stopped_topics("decision") == 1
        pipeline.broker.publish(2, 3)
        await turns(pipeline, limits.PIPELINE_LOOK_SECONDS)
    assert pipeline.broker.floors[2, 0] == 3


# --- commits without a known outcome ---


def data_files(pipeline: PaperPipeline) -> int:
    return len(list(pipeline.world.folder.rglob("rows-*.parquet")))


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_files_whose_commit_nobody_knows_of_are_brought_again(tmp_path: Path, is_foreign: bool) -> None:
    pipeline = PaperPipeline(tmp_path / "warehouse", clock=SteppingClock(), wrap=Mute, is_foreign=is_foreign)
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.publish(1, 3)
    pipeline.broker.publish(2, 4)
    catalog.is_mute = True
    assert await turns(pipeline, 120) == 1
    assert sorted(stopped(pipeline)) == [("/default/t1", "no answer"), ("/default/t2", "no answer")]
    assert stopped_topics("commit") == 2
    before = data_files(pipeline)
    catalog.is_mute = False
    assert await turns(pipeline, limits.TOPIC_RETRY_SECONDS_MAX + 1) == 0
    assert pipeline.broker.floors == {(1, 0): 6, (2, 0): 4}
    assert data_files(pipeline) == before == 3
    assert stopped(pipeline) == []
    assert pipeline.driver.report.as_document()["rows"] == 10
    await pipeline.close()


async def test_files_whose_commit_has_happened_are_not_brought_again(pipeline: PaperPipeline) -> None:
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.publish(1, 3)
    catalog.is_mute = catalog.takes_it = True
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 3}
    catalog.is_mute = False
    await turns(pipeline, 10)
    assert pipeline.broker.floors == {(1, 0): 6}
    assert data_files(pipeline) == 2
    assert stopped(pipeline) == []


async def test_a_driver_with_another_epoch_writes_its_files_again(pipeline: PaperPipeline) -> None:
    """Files carry the epoch in their names: those of an old one may be removed at any time (hazard 1)."""
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    catalog.is_mute = True
    await pipeline.round()
    await pipeline.lease.release()
    catalog.is_mute = False
    assert await turns(pipeline, 10) == 1
    assert pipeline.broker.floors == {(1, 0): 3}
    assert data_files(pipeline) == 2


async def test_a_topic_whose_table_is_taken_away_meanwhile_stops(pipeline: PaperPipeline) -> None:
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    catalog.is_mute = True
    await pipeline.round()
    name = Identifier(("default",), "t1")
    await pipeline.world.making.topics.detach(name)
    catalog.is_mute = False
    await turns(pipeline, 10)
    assert pipeline.broker.floors == {(1, 0): 0}
    assert [topic for topic, _ in stopped(pipeline)] == ["/default/t1"]
    assert not (await pipeline.world.catalog.load(name)).metadata.get("snapshots")


async def test_files_are_brought_to_the_table_that_they_were_written_for_as_it_was(tmp_path: Path) -> None:
    world = Committing(tmp_path / "warehouse")
    table = await world.open(topic())
    kept = UnresolvedCommit(world.brought(table, 3), table.table.uuid)
    assert kept.obstacle(table) == ""
    assert "another table" in kept._replace(table_uuid="another").obstacle(table)
    table.positions = table.advanced({0: 2})
    assert "advanced the table" in kept.obstacle(table)
    table.positions = table.advanced({0: 0})
    gone = [msgspec.structs.replace(one, spec_id=7) for one in kept.commit.files]
    assert "spec 7 is gone" in kept._replace(commit=kept.commit._replace(files=gone)).obstacle(table)


async def test_a_pause_has_a_bound_however_long_it_lasts() -> None:
    found = [backoff_seconds(failures, 0.2, 30.0) for failures in (1, 2, 3, 8, 9, 10, 100_000)]
    assert found == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0, 30.0]
