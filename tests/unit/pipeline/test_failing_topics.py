"""Topics whose part of a round fails, again and again: they back off, they are reported, and the others continue.
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
from icestream.iceberg.identifier import Identifier
from icestream.model.task_messages import TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.driver.unresolved_commits import UnresolvedCommit
from icestream.rpc.backoff import backoff_seconds
from tests.support.committer_harness import CommitterHarness, topic
from tests.support.fake_clock import FakeClock
from tests.support.faulty_catalog import FaultyCatalog
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio
# More than a round may take: the first topic has the round for itself.
HUGE = 4_000_000
# Only what waits for ever takes so long.
HANGS_SECONDS = 10.0


def driver_clock() -> FakeClock:
    """The short sleeps of the driver make time pass; the long ones of the lease end when it has."""
    return FakeClock(auto_advance=limits.PIPELINE_LOOK_SECONDS)


@pytest_asyncio.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    harness = PipelineHarness(tmp_path / "warehouse", clock=driver_clock(), wrap=FaultyCatalog)
    yield harness
    await harness.close()


def stopped(pipeline: PipelineHarness) -> list[tuple[str, str]]:
    report = pipeline.driver.report.as_document()
    assert report["ok"] == (not report["stopped_topics"])
    return [(topic["topic"], topic["reason"]) for topic in report["stopped_topics"]]


def stopped_topics(cause: str) -> float | None:
    return REGISTRY.get_sample_value("icestream_pipeline_stopped_topics", {"cause": cause})


def clock_of(pipeline: PipelineHarness) -> FakeClock:
    assert isinstance(pipeline.world.clock, FakeClock)
    return pipeline.world.clock


async def turns(pipeline: PipelineHarness, seconds: float) -> int:
    """The driver works for so long, by its clock. Jobs that it began."""
    clock = clock_of(pipeline)
    until_ns, before = clock.monotonic_ns() + int(seconds * 1e9), pipeline.writer.rounds
    while clock.monotonic_ns() < until_ns:
        began_ns = clock.monotonic_ns()
        await pipeline.driver.turn()
        if clock.monotonic_ns() == began_ns:
            await clock.advance_and_yield(0.05)  # what a round takes, or to wait for messages
    return pipeline.writer.rounds - before


async def test_a_failing_topic_waits_longer_each_time_and_is_reported(pipeline: PipelineHarness) -> None:
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


async def test_a_repaired_topic_starts_again_with_a_short_pause(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 5)
    pipeline.writer.failing = lambda topic_id: True
    await turns(pipeline, 600)
    pipeline.writer.failing = lambda topic_id: False
    await turns(pipeline, limits.TOPIC_RETRY_SECONDS_MAX + 1)
    pipeline.broker.publish(1, 5)
    pipeline.writer.failing = lambda topic_id: True
    await pipeline.round()
    assert pipeline.topics.next_retry_seconds <= limits.PIPELINE_RETRY_SECONDS_MIN


async def test_a_failing_topic_that_fills_a_round_does_not_block_others(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, HUGE)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    for _ in range(3):
        await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 5}


async def test_the_broker_skips_paused_topics_until_their_time(pipeline: PipelineHarness) -> None:
    backlog_calls: list[tuple[int, list[int]]] = []
    ask = pipeline.broker.backlog

    async def backlog(wait_ms: int, passed_over: Collection[int] = ()) -> Any:
        backlog_calls.append((wait_ms, list(passed_over)))
        return await ask(wait_ms, passed_over)

    pipeline.broker.backlog = backlog  # type: ignore[method-assign]
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    for _ in range(2):
        await pipeline.driver.turn()
    until_ms = pipeline.topics.next_retry_seconds * 1000
    assert backlog_calls == [(limits.BACKLOG_WAIT_MS_MAX // 2, []), (int(until_ms) + 1, [1])]
    assert 0 < until_ms <= limits.PIPELINE_RETRY_SECONDS_MIN * 1000
    assert pipeline.lease.is_held, "what is kept of a round is of this epoch"
    await clock_of(pipeline).advance_and_yield(limits.PIPELINE_RETRY_SECONDS_MIN)
    await pipeline.driver.turn()
    assert backlog_calls[2][1] == []
    assert stopped(pipeline) == [("/default/t1", "on purpose")]


async def test_a_failing_shard_beside_a_working_one_is_paused_when_it_fails_again(pipeline: PipelineHarness) -> None:
    """One shard of a topic cannot be read; the other has new messages all the time."""
    write = pipeline.writer.write

    def half(plan: Any) -> list[TopicTaskResult]:
        error = TaskError(TaskErrorKind.DAMAGED, "a wrong CRC")
        return [result if result.range_number else TopicTaskResult(1, 0, [], [], error) for result in write(plan)]

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


async def test_a_deleted_topic_is_no_longer_reported(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    await pipeline.round()
    del pipeline.broker.names[1]
    pipeline.pass_pauses()
    await pipeline.driver.turn()
    assert stopped(pipeline) == []


async def test_paused_topics_do_not_stop_the_driver_from_polling(pipeline: PipelineHarness) -> None:
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


def data_files(pipeline: PipelineHarness) -> int:
    return len(list(pipeline.world.folder.rglob("icestream-*.parquet")))


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_files_with_an_unknown_commit_are_committed_again(tmp_path: Path, is_foreign: bool) -> None:
    pipeline = PipelineHarness(tmp_path / "warehouse", clock=driver_clock(), wrap=FaultyCatalog, is_foreign=is_foreign)
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.publish(1, 3)
    pipeline.broker.publish(2, 4)
    catalog.standing_fault = "unknown"
    assert await turns(pipeline, 120) == 1
    assert sorted(stopped(pipeline)) == [("/default/t1", "unknown"), ("/default/t2", "unknown")]
    assert stopped_topics("commit") == 2
    before = data_files(pipeline)
    catalog.standing_fault = ""
    assert await turns(pipeline, limits.TOPIC_RETRY_SECONDS_MAX + 1) == 0
    assert pipeline.broker.floors == {(1, 0): 6, (2, 0): 4}
    assert data_files(pipeline) == before == 3
    assert stopped(pipeline) == []
    assert pipeline.driver.report.as_document()["rows"] == 10
    await pipeline.close()


async def test_files_with_a_successful_commit_are_not_committed_again(pipeline: PipelineHarness) -> None:
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.publish(1, 3)
    catalog.standing_fault = "lost"
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 3}
    catalog.standing_fault = ""
    await turns(pipeline, 10)
    assert pipeline.broker.floors == {(1, 0): 6}
    assert data_files(pipeline) == 2
    assert stopped(pipeline) == []


async def test_a_driver_with_another_epoch_writes_its_files_again(pipeline: PipelineHarness) -> None:
    """Files carry the epoch in their names: those of an old one may be removed at any time (hazard 1)."""
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    catalog.standing_fault = "unknown"
    await pipeline.round()
    await pipeline.lease.release()
    catalog.standing_fault = ""
    assert await turns(pipeline, 10) == 1
    assert pipeline.broker.floors == {(1, 0): 3}
    assert data_files(pipeline) == 2


async def test_a_topic_whose_table_is_detached_meanwhile_stops(pipeline: PipelineHarness) -> None:
    catalog: Any = pipeline.world.catalog
    pipeline.broker.publish(1, 3)
    catalog.standing_fault = "unknown"
    await pipeline.round()
    name = Identifier(("default",), "t1")
    await pipeline.world.making.topics.detach(name)
    catalog.standing_fault = ""
    await turns(pipeline, 10)
    assert pipeline.broker.floors == {(1, 0): 0}
    assert [topic for topic, _ in stopped(pipeline)] == ["/default/t1"]
    assert not (await pipeline.world.catalog.load(name)).metadata.get("snapshots")


async def test_files_are_committed_only_to_the_unchanged_table_they_were_written_for(tmp_path: Path) -> None:
    world = CommitterHarness(tmp_path / "warehouse")
    table = await world.open(topic())
    commit = UnresolvedCommit(world.brought(table, 3), table.table.uuid)
    assert commit.obstacle(table) == ""
    assert "another table" in commit._replace(table_uuid="another").obstacle(table)
    table.positions = table.advanced({0: 2})
    assert "advanced the table" in commit.obstacle(table)
    table.positions = table.advanced({0: 0})
    gone = [msgspec.structs.replace(file, spec_id=7) for file in commit.commit.files]
    assert "spec 7 is gone" in commit._replace(commit=commit.commit._replace(files=gone)).obstacle(table)


async def test_pauses_are_bounded() -> None:
    delays = [backoff_seconds(failures, 0.2, 30.0) for failures in (1, 2, 3, 8, 9, 10, 100_000)]
    assert delays == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0, 30.0]
