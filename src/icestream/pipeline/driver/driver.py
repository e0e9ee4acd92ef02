"""The driver: turn after turn, it asks the broker for the backlog and runs the jobs that are due, under its lease.

    ask      the broker reports what is in no table yet; it waits there while nothing is
    lease    one driver at a time commits for a node's topics (lease.py)
    jobs     plan, run and commit, in the order of the registry (job.py)
    wait     until the next topic is due, or `icestream lake commit-now` is requested (commit_now.py)

Whatever fails is retried with backoff: catalog or broker unreachable, a Spark job that failed. A topic that cannot be
written is halted by itself and does not delay the others (topic_table_set.py), and a job that fails is backed off by
itself (job_guard.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine
from typing import Any

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog
from icestream.observability.log import get_logger
from icestream.observability.spans import span
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport, RoundReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.ingest_job import IngestJob
from icestream.pipeline.driver.job import Job, JobRegistry, Turn, execute
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock

_log = get_logger("pipeline")


class Driver:
    """The loop of the pipeline process."""

    def __init__(
        self,
        broker: BrokerApi,
        lease: DriverLease,
        tables: TopicTableSet,
        jobs: JobRegistry,
        effects: Effects,
        clock: Clock,
        options: DriverOptions,
        report: DriverReport,
    ) -> None:
        self._broker = broker
        self._lease = lease
        self._tables = tables
        self._effects = effects
        self._clock = clock
        self._options = options
        self._expedite = asyncio.Event()
        self._woken = asyncio.Event()
        self._expedite_requested_us = 0
        self.jobs = jobs
        self.report = report
        report.halted = tables.halted
        report.failures = jobs.guard.documents
        report.send = broker.send_state

    def expedite(self) -> None:
        """Commits everything that is in the log now, in as many rounds as it takes (`icestream lake commit-now`)."""
        self._expedite_requested_us = self._clock.wall_us()
        self._expedite.set()

    def wake(self) -> None:
        """Ends the wait for messages: a job has got something to do."""
        self._woken.set()

    @property
    def is_expedited(self) -> bool:
        """Whether a commit-now request is waiting for the next turn."""
        return self._expedite.is_set()

    async def run(self, stop: asyncio.Event) -> None:
        """Runs turns until `stop` is set. Errors are logged, reported and retried."""
        failures = 0
        while not stop.is_set():
            try:
                await self._unless_stopped(stop, self.turn())
                failures = 0
            except errors.LeaseLost as error:
                _log.warning("lost the pipeline lease, commits stop until it is acquired again", reason=error.message)
                # A commit that was refused under this epoch is refused for ever: start over with a new one.
                await self._lease.release()
                self._tables.clear()
            except errors.IcestreamError as error:
                failures += 1
                pause = backoff_seconds(failures, limits.PIPELINE_RETRY_SECONDS_MIN, limits.PIPELINE_RETRY_SECONDS_MAX)
                self.report.set_phase("waiting", error.message)
                _log.warning("round failed, retrying", reason=error.message, retry_seconds=pause)
                await self.report.publish()
                await self._unless_stopped(stop, self._clock.sleep(pause))

    async def _unless_stopped(self, stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
        """Runs work until it is done or the driver is stopped, which cancels it."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # A commit that is cut off has an unknown outcome, which the next start must resolve: let it finish.
            if not task.done() and self.report.phase == "committing":
                await asyncio.wait({task}, timeout=limits.PIPELINE_STOP_SECONDS)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stopping.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    async def turn(self) -> None:
        """Asks the broker for the backlog, runs the jobs that are due, and waits if none was."""
        self.report.set_phase("waiting" if self.report.rounds else "idle")
        await self.report.publish()
        # While ingest is backed off a request for commit-now waits for it, and the turn is one like any other.
        is_expedited = self._expedite.is_set() and self.jobs.guard.may_run(IngestJob.name)
        with self._effects.happens(Effect.ASK):
            halted_ids = self._tables.halted_ids()
            backlog = await self._ask_backlog(0 if is_expedited else self._backlog_wait_ms, halted_ids)
        self.report.set_backlog(backlog, self._clock.wall_us())
        self._tables.drop_finished_halts(backlog, halted_ids)
        # Cleared before the round: a request that arrives while it runs starts another one.
        if is_expedited:
            self._expedite.clear()
        try:
            turn = await self.round(backlog, is_expedited)
        except errors.IcestreamError:
            if is_expedited:  # nothing of it was committed: the next turn tries again
                self._expedite.set()
            raise
        # Halted topics are work that waits: their files are committed again under the epoch that they carry.
        has_open_work = bool(self._tables.halted) or self.jobs.is_busy
        if self.jobs.wants_new_epoch and not has_open_work:
            await self._lease.release()  # the next round takes it with a new epoch
        # One round has a budget. A request for commit-now lasts until everything that it covers is committed.
        # Ingest that failed has committed nothing of it, or not everything.
        if turn.has_more_expedited or (is_expedited and not self.jobs.guard.may_run(IngestJob.name)):
            self._expedite.set()
        if not backlog.topics:
            # An idle pipeline holds no lease, so that it writes nothing.
            if not has_open_work:
                await self._lease.release()
        elif not turn.report.topics:
            await self._wait_until_due(turn.next_due_us)

    async def _ask_backlog(self, wait_ms: int, halted_ids: Collection[int]) -> Backlog:
        """Asks the broker for the backlog. The call ends early if the driver is woken, and is made again."""
        backlog_call = asyncio.ensure_future(self._broker.backlog(wait_ms, halted_ids))
        wake_call = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({backlog_call, wake_call}, return_when=asyncio.FIRST_COMPLETED)
            # Without another wait: a stop that comes with the answer does not cut off what follows from it.
            if backlog_call.done():
                return backlog_call.result()
        finally:
            wake_call.cancel()
            self._woken.clear()
            if not backlog_call.done():
                backlog_call.cancel()
                await asyncio.gather(backlog_call, return_exceptions=True)
        return await self._broker.backlog(0, halted_ids)

    @property
    def _backlog_wait_ms(self) -> int:
        """How long the broker may wait for messages: at most until a halted topic is retried, and not long while a job
        has work under way."""
        wait_ms = min(self._options.wait_ms, limits.JOB_LOOK_MS) if self.jobs.is_busy else self._options.wait_ms
        if not self._tables.halted:
            return wait_ms
        return min(wait_ms, int(self._tables.next_retry_seconds * 1000) + 1)

    async def _wait_until_due(self, due_us: int | None) -> None:
        """Waits until the next topic is due, or commit-now is requested. At most LOOK_SECONDS: a topic whose backlog
        grows is due by its size before it is due by its age."""
        if due_us is None:  # only halted topics; or another driver committed it all while this one waited for the lease
            retry_seconds = min(self._tables.next_retry_seconds, limits.PIPELINE_LOOK_SECONDS)
            seconds = max(retry_seconds, limits.PIPELINE_RETRY_SECONDS_MIN)
        else:
            seconds = min(max((due_us - self._clock.wall_us()) / 1e6, 0.001), limits.PIPELINE_LOOK_SECONDS)
        if not self.jobs.guard.may_run(IngestJob.name):
            await self._clock.sleep(seconds)  # a request that is set already would end every wait at once
            return
        expedited = asyncio.ensure_future(self._expedite.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({expedited, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            expedited.cancel()
            sleeping.cancel()
            await asyncio.gather(expedited, sleeping, return_exceptions=True)

    async def round(self, backlog: Backlog, is_expedited: bool = False) -> Turn:
        """Plans all jobs that are due, then runs and commits their plans. Raises LeaseLost, and after that of all jobs
        an expected error of ingest."""
        report = RoundReport(self._clock.wall_us() // 1000, 0)
        expedited_us = self._expedite_requested_us if is_expedited else None
        turn = Turn(backlog, expedited_us, report, self._clock, self.jobs.guard)
        plans: list[tuple[Job[Any, Any], Any]] = []
        ingest_error: errors.IcestreamError | None = None
        has_lease = False
        guard = self.jobs.guard
        turn.is_ingest_paused = not guard.may_run(IngestJob.name)
        # All jobs are planned before the first one runs: whether the clean-up is due depends on what ingest has
        # planned.
        for job in self.jobs:
            if not guard.may_run(job.name):
                continue
            is_due, is_ingest = False, job.name == IngestJob.name
            with guard.protect(job.name, is_ingest=is_ingest):
                is_due = job.is_due(turn)
            if not is_due:
                continue
            # With the first job that is due, and not before: a turn without work writes nothing to the metadata store.
            if not has_lease:
                await self._acquire_lease()
                has_lease = True
            with guard.protect(job.name, is_ingest=is_ingest):
                if (plan := await job.plan(turn)) is not None:
                    plans.append((job, plan))
                elif not job.is_busy:
                    guard.succeeded(job.name)
        with (
            span("round", topics=report.topics, epoch=self._lease.epoch) if report.topics else contextlib.nullcontext()
        ):
            for job, plan in plans:
                try:
                    with guard.protect(job.name, is_ingest=job.name == IngestJob.name):
                        await execute(job, turn, plan)
                        if not job.is_busy:  # what it has started may still fail
                            guard.succeeded(job.name)
                except errors.LeaseLost:
                    raise
                except errors.IcestreamError as error:
                    # Of ingest: it ends the turn once the other jobs have done what they have planned, because a plan
                    # that is not run is lost.
                    ingest_error = error
        if ingest_error is not None:
            await self._distrust_memory()
            raise ingest_error
        if report.topics or report.committed:
            self.report.add_round(report)
            _log.info("round committed", **report.as_document())
        await self._distrust_memory()
        return turn

    async def _distrust_memory(self) -> None:
        """After an unexpected failure: what the job has left half done in memory is not to be trusted, and tables are
        read again. After one of ingest also under a new epoch, as after a restart of the process."""
        if not self.jobs.guard.take_unexpected():
            return
        if self.jobs.guard.may_run(IngestJob.name):
            self._tables.mark_stale(self._tables.loaded_ids())
        else:
            await self._lease.release()
            self._tables.clear()

    async def _acquire_lease(self) -> None:
        with self._effects.happens(Effect.TAKE_LEASE):
            await self._lease.acquire()
        self.report.epoch = self._lease.epoch
