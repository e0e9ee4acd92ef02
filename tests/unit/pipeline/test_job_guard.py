"""A job that fails is backed off by itself: ingest and the other jobs go on (ADR 131)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from icestream import errors, limits
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.driver.job import Job, Turn
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import SimulatedClock
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio


class FailingJob(Job[Literal[True], None]):
    """Raises `error` in one of its steps."""

    name: ClassVar[str] = "failing"

    def __init__(self, step: str, error: BaseException | None) -> None:
        self.step = step
        self.error = error
        self.attempts = 0
        self.done = 0

    def _fail(self, step: str) -> None:
        if step == self.step and self.error is not None:
            self.attempts += 1
            raise self.error

    def is_due(self, turn: Turn) -> bool:
        self._fail("is_due")
        return True

    async def plan(self, turn: Turn) -> Literal[True]:
        self._fail("plan")
        return True

    async def run(self, turn: Turn, plan: Literal[True]) -> None:
        self._fail("run")

    async def commit(self, turn: Turn, plan: Literal[True], result: None) -> None:
        self._fail("commit")
        self.done += 1

    def on_table_committed(self, table: TopicTable) -> None:
        self._fail("on_table_committed")


class CountingJob(FailingJob):
    name: ClassVar[str] = "counting"


@pytest_asyncio.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    harness = PipelineHarness(tmp_path / "warehouse", clock=SimulatedClock())
    yield harness
    await harness.close()


def failures_of(job: str) -> float:
    return REGISTRY.get_sample_value("icestream_pipeline_job_failures_total", {"job": job}) or 0.0


async def turns(pipeline: PipelineHarness, count: int) -> None:
    for _ in range(count):
        await pipeline.driver.round(await pipeline.broker.backlog(0), is_expedited=True)


@pytest.mark.parametrize("error", [TypeError("no such thing"), errors.TableUnreadable("damaged")])
@pytest.mark.parametrize("step", ["is_due", "plan", "run", "commit", "on_table_committed"])
async def test_a_failing_job_stops_neither_ingest_nor_the_jobs_behind_it(
    pipeline: PipelineHarness, step: str, error: Exception
) -> None:
    failing, counting = FailingJob(step, error), CountingJob("", None)
    pipeline.driver.jobs.add(failing)
    pipeline.driver.jobs.add(counting)
    before = failures_of("failing")
    pipeline.broker.publish(1, 5)
    await turns(pipeline, 1)
    pipeline.broker.publish(1, 3)
    await turns(pipeline, 1)
    assert pipeline.broker.floors == {(1, 0): 8}
    assert counting.done == 2
    # The second turn came before the backoff was over. Events of tables are heard in any case.
    assert failing.attempts == (2 if step == "on_table_committed" else 1)
    assert failures_of("failing") == before + failing.attempts
    (failure,) = pipeline.driver.report.as_document()["failed_jobs"]
    assert failure["job"] == "failing"
    assert str(error) in failure["error"]
    assert failure["topic"] == ("/default/t1" if step == "on_table_committed" else "")
    assert pipeline.driver.report.as_document()["ok"], "messages are committed"


async def test_the_backoff_of_a_job_doubles_and_ends_with_its_success(pipeline: PipelineHarness) -> None:
    job = FailingJob("run", TypeError("no such thing"))
    pipeline.driver.jobs.add(job)
    clock = pipeline.world.clock
    assert isinstance(clock, SimulatedClock)
    pauses = []
    for _ in range(12):
        await turns(pipeline, 1)
        (failure,) = pipeline.driver.report.as_document()["failed_jobs"]
        pauses.append(failure["retry_seconds"])
        await turns(pipeline, 1)
        assert job.attempts == len(pauses), "tried again before its time"
        clock.advance(failure["retry_seconds"])
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == limits.JOB_RETRY_SECONDS_MAX
    job.error = None
    await turns(pipeline, 1)
    assert job.done == 1
    assert pipeline.driver.report.as_document()["failed_jobs"] == []


async def test_a_lost_lease_is_not_a_failure_of_the_job(pipeline: PipelineHarness) -> None:
    pipeline.driver.jobs.add(FailingJob("run", errors.LeaseLost("taken")))
    with pytest.raises(errors.LeaseLost):
        await turns(pipeline, 1)
    assert pipeline.driver.report.as_document()["failed_jobs"] == []


@pytest.mark.parametrize("step", ["plan", "run", "commit"])
async def test_ingest_that_fails_unexpectedly_goes_on_under_a_new_epoch(pipeline: PipelineHarness, step: str) -> None:
    """Clean-up and other jobs run meanwhile, and no message is lost or doubled."""
    counting = CountingJob("", None)
    pipeline.driver.jobs.add(counting)
    pipeline.broker.publish(1, 5)
    original = getattr(pipeline.ingest, step)

    async def fails(*arguments: Any) -> Any:
        await original(*arguments)
        raise KeyError("no such thing")

    setattr(pipeline.ingest, step, fails)
    await turns(pipeline, 1)
    epoch = pipeline.lease.epoch
    assert counting.done == 1
    document = pipeline.driver.report.as_document()
    assert not document["ok"]
    assert "KeyError" in document["reason"]
    setattr(pipeline.ingest, step, original)
    await turns(pipeline, 1)
    assert counting.done == 2
    clock = pipeline.world.clock
    assert isinstance(clock, SimulatedClock)
    clock.advance(limits.PIPELINE_RETRY_SECONDS_MAX)
    await turns(pipeline, 1)
    assert pipeline.lease.epoch > epoch
    assert pipeline.broker.floors == {(1, 0): 5}
    metadata = (await pipeline.world.catalog.load(Identifier(("default",), "t1"))).metadata
    assert metadata["snapshots"][-1]["summary"]["total-records"] == "5"
    assert pipeline.driver.report.as_document()["ok"]


async def test_a_commit_request_waits_for_the_backoff_of_ingest(pipeline: PipelineHarness) -> None:
    """Until it is over no turn ends, however often the request is made; then everything is committed."""
    clock, original = pipeline.world.clock, pipeline.ingest.run
    assert isinstance(clock, SimulatedClock)

    async def fails(*_: Any) -> Any:
        raise KeyError("no such thing")

    pipeline.ingest.run = fails  # type: ignore[method-assign]
    pipeline.broker.publish(1, 5)
    pipeline.driver.expedite()
    await pipeline.driver.turn()
    turn = asyncio.create_task(pipeline.driver.turn())
    while not clock._sleepers and not turn.done():
        await asyncio.sleep(0)
        pipeline.driver.expedite()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not turn.done(), "the next turn would be the same"
    pipeline.ingest.run = original  # type: ignore[method-assign]
    clock.advance(limits.PIPELINE_RETRY_SECONDS_MAX)
    await turn
    assert pipeline.driver.is_expedited
    await pipeline.driver.turn()
    assert pipeline.broker.floors == {(1, 0): 5}
    assert not pipeline.driver.is_expedited


async def test_a_commit_request_without_messages_waits_as_long_as_any_turn(pipeline: PipelineHarness) -> None:
    with pipeline.driver.jobs.guard.protect("ingest"):
        raise KeyError("no such thing")
    waits: list[int] = []
    ask = pipeline.broker.backlog

    async def backlog(wait_ms: int, *arguments: Any) -> Any:
        waits.append(wait_ms)
        return await ask(wait_ms, *arguments)

    pipeline.broker.backlog = backlog  # type: ignore[method-assign]
    pipeline.driver.expedite()
    await pipeline.driver.turn()
    assert all(waits)
    assert pipeline.driver.is_expedited


async def test_a_topic_whose_table_meets_a_programming_error_is_halted_alone(
    pipeline: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icestream.pipeline.commit import committer

    build = committer.build_snapshot

    def fails(table: Any, *arguments: Any) -> Any:
        if table.properties.get("icestream.topic") == "/default/t1":
            raise KeyError("no such thing")
        return build(table, *arguments)

    monkeypatch.setattr(committer, "build_snapshot", fails)
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    await turns(pipeline, 1)
    assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 5}
    assert "KeyError" in pipeline.topics.halted[1].stopped.reason
    monkeypatch.setattr(committer, "build_snapshot", build)
    pipeline.pass_pauses()
    await turns(pipeline, 1)
    assert pipeline.broker.floors == {(1, 0): 5, (2, 0): 5}


async def test_work_on_one_table_is_backed_off_by_itself() -> None:
    clock = SimulatedClock()
    guard = JobGuard(clock)
    done = []
    for topic_id in (1, 2, 3):
        if guard.may_run("retention", topic_id):
            with guard.protect("retention", topic_id, f"/default/t{topic_id}"):
                if topic_id == 2:
                    raise ZeroDivisionError("no such thing")
                done.append(topic_id)
    assert done == [1, 3]
    assert not guard.may_run("retention", 2)
    assert guard.may_run("retention")
    clock.advance(limits.JOB_RETRY_SECONDS_MIN)
    assert guard.may_run("retention", 2)
    guard.succeeded("retention", 2)
    assert guard.documents() == []


async def test_an_outage_met_at_a_table_is_one_of_the_whole_job() -> None:
    guard = JobGuard(SimulatedClock())
    with guard.protect("retention"), guard.protect("retention", 2, "/default/t2"):
        raise errors.StorageUnavailable("no route")
    (failure,) = guard.documents()
    assert failure["topic"] == ""


async def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOB_FAILURES_MAX", 3)
    guard = JobGuard(SimulatedClock())
    for topic_id in range(1, 9):
        with guard.protect("retention", topic_id, f"/default/t{topic_id}"):
            raise errors.TableUnreadable("damaged")
    assert [failure["topic"] for failure in guard.documents()] == ["/default/t8", "/default/t7", "/default/t6"]
