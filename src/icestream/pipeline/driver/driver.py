"""The driver: round after round, the steps of docs/adr/0025. Each step can be cut off anywhere and done again.

    ask      what is in no table, by the broker; waits there while nothing is
    take     the lease
    tables   of its topics: made, changed to their policies, positions by the catalog
    plan     pure (planner.py)
    hold     the log files, while they are read
    write    one Spark job
    judge    pure (judgement.py)
    commit   all tables in one request; then the files are looked at again, before anything follows from it
    advance  the broker's floors, by what the catalog answered alone (floors.py)
    clean up some of the files that no table needs any more (upkeep/cleaner.py)

What fails is tried again: the catalog away, the broker away, a job that failed. A topic that cannot go on stops alone,
and what it waits for does not hold up the others (commits.py, topics.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import msgspec

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog
from icestream.model.task_messages import TopicTaskResult
from icestream.observability.log import get_logger
from icestream.observability.spans import span
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport, RoundReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.offset_sync import OffsetSync
from icestream.pipeline.driver.round_commit import RoundCommit
from icestream.pipeline.driver.topic_tables import TopicTables
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_judgement import judge_round
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.pipeline.tables.topic_table import StopReason
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

_log = get_logger("pipeline")


class RoundWriter(Protocol):
    """Blocking: it is called in a thread of its own."""

    @property
    def master(self) -> str:
        """Where Spark runs."""

    @property
    def tasks_max(self) -> int:
        """That run at the same time."""

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]: ...


class Driver:
    def __init__(
        self,
        broker: BrokerApi,
        lease: DriverLease,
        books: OffsetLedger,
        topics: TopicTables,
        committer: Committer,
        writer: RoundWriter,
        offload: Offload,
        effects: Effects,
        clock: Clock,
        options: DriverOptions,
        report: DriverReport,
        cleaner: FileCleaner | None = None,
    ) -> None:
        """`cleaner`: none where nobody removes files."""
        self._broker = broker
        self._lease = lease
        self._topics = topics
        self._writer = writer
        self._offload = offload
        self._effects = effects
        self._clock = clock
        self._options = options
        self._cleaner = cleaner
        self._after_lsn = 0
        self._hurry = asyncio.Event()
        self._wished_us = 0
        self._commits = RoundCommit(lease, books, topics, committer, effects, clock, report, cleaner)
        self._floors = OffsetSync(broker, topics, effects, self._commits.passable)
        self.report = report
        report.halted = topics.halted
        report.on_told = broker.tell

    def hurry(self) -> None:
        """Everything that waits is due now (`icestream lake commit-now`), in as many rounds as it takes."""
        self._wished_us = self._clock.wall_us()
        self._hurry.set()

    # --- life ---

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what goes wrong is told and tried again."""
        failures = 0
        while not stop.is_set():
            try:
                await self._unless(stop, self.turn())
                failures = 0
            except errors.LeaseLost as error:
                _log.warning("this pipeline does not commit any more", reason=error.message)
                await self._lease.give_up()  # what is refused under this epoch is refused for ever
                self._topics.forget()
            except errors.IcestreamError as error:
                failures += 1
                pause = backoff_seconds(failures, limits.PIPELINE_RETRY_SECONDS_MIN, limits.PIPELINE_RETRY_SECONDS_MAX)
                self.report.say("waiting", error.message)
                _log.warning("a round failed and is tried again", reason=error.message, again_seconds=pause)
                await self.report.tell()
                await self._unless(stop, self._clock.sleep(pause))

    async def _unless(self, stop: asyncio.Event, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self.report.phase == "committing":
                await asyncio.wait({task}, timeout=limits.PIPELINE_STOP_SECONDS)
            if task.done():
                task.result()
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    async def turn(self) -> None:
        """Asks, waits where nothing is due, and does one round."""
        self.report.say("idle" if not self._after_lsn else "waiting")
        await self.report.tell()
        is_hurried = self._hurry.is_set()
        with self._effects.happens(Effect.ASK):
            passed_over = self._topics.standing()
            backlog = await self._broker.backlog(0 if is_hurried else self._wait_ms, 0, passed_over)
        self.report.waiting(backlog, self._clock.wall_us())
        self._topics.forget_halts(backlog, passed_over)
        if not backlog.topics:
            self._hurry.clear()
            await self._clean_up_idle()
            if not self._topics.halted:
                await self._lease.give_up()
            return
        self._hurry.clear()
        try:
            plan = await self.round(backlog, is_hurried)
        except errors.IcestreamError:
            if is_hurried:  # nothing of it was done: the next turn does it
                self._hurry.set()
            raise
        if is_hurried and self._has_more_of_wish(backlog, plan):
            self._hurry.set()
        if not plan.topics:
            await self._wait_until(plan.next_due_us)

    @property
    def _wait_ms(self) -> int:
        """In the broker, for news. Not longer than until one that stands still is tried again."""
        if not self._topics.halted:
            return self._options.wait_ms
        return min(self._options.wait_ms, int(self._topics.next_look_seconds * 1000) + 1)

    def _has_more_of_wish(self, backlog: Backlog, plan: RoundPlan) -> bool:
        """Who waited longest comes first: what did not fit may be older than the wish while something of this round
        is. What came since waits as usual, else a wish would have no end."""
        planned = {one.topic_id for one in plan.topics}
        is_older = any(one.oldest_us <= self._wished_us for one in backlog.topics if one.topic_id in planned)
        return is_older and plan.next_due_us is not None

    async def _wait_until(self, due_us: int | None) -> None:
        """When the next topic is due, or somebody cannot wait. Large backlogs are looked at more often: they are due by
        their size."""
        if due_us is None:  # topics that stand still; or another driver wrote it all while we waited for the lease
            standing_seconds = min(self._topics.next_look_seconds, limits.PIPELINE_LOOK_SECONDS)
            seconds = max(standing_seconds, limits.PIPELINE_RETRY_SECONDS_MIN)
        else:
            seconds = min(max((due_us - self._clock.wall_us()) / 1e6, 0.001), limits.PIPELINE_LOOK_SECONDS)
        waking = asyncio.ensure_future(self._hurry.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({waking, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            sleeping.cancel()
            await asyncio.gather(waking, sleeping, return_exceptions=True)

    # --- a round ---

    async def round(self, backlog: Backlog, is_hurried: bool = False) -> RoundPlan:
        """The plan that was carried out; one without topics: nothing is due."""
        with self._effects.happens(Effect.TAKE_LEASE):
            await self._lease.take()
        self.report.epoch = self._lease.epoch
        made = RoundReport(self._clock.wall_us() // 1000, 0)
        with self._timed(made, "tables"):
            await self._commits.bring_again(made)
            plan = await self._planned(backlog, is_hurried)
            if plan.left_out:  # by what we remember: others may have gone on
                self._topics.doubt(one.topic_id for one in plan.left_out)
                plan = await self._planned(backlog, is_hurried)
        self.report.age_limit_ms = plan.age_limit_ms
        planned = {one.topic_id for one in plan.topics}
        for one in plan.left_out:
            if one.topic_id not in planned:  # else some of its shards go on
                self._topics.halt(one.topic_id, one.name, StopReason(one.reason, LEFT_OUT))
        if plan.topics:
            made.topics = len(plan.topics)
            with span("round", topics=made.topics, epoch=self._lease.epoch):
                await self._carry_out(plan, made)
                with self._timed(made, "clean_up"):
                    await self._clean_up()
        if plan.topics or made.committed:
            self.report.done(made)
            _log.info("a round is done", **made.as_document())
        return plan

    async def _planned(self, backlog: Backlog, is_hurried: bool) -> RoundPlan:
        backlog, tables = await self._floors.settled(backlog)
        positions, targets = self._topics.positions(tables), self._topics.targets(tables)
        budget = self._budget(backlog, is_hurried)
        return plan_round(backlog, positions, targets, budget, self._clock.wall_us())

    def _budget(self, backlog: Backlog, is_hurried: bool) -> RoundBudget:
        budget = self._options.budget_now(backlog.changed_settings)
        return msgspec.structs.replace(budget, age_due_ms=0) if is_hurried else budget

    async def _carry_out(self, plan: RoundPlan, made: RoundReport) -> None:
        self.report.say("writing")
        name = uuid.uuid4().hex
        async with self._held(name, plan.files):
            leased = plan.leased(name, self._lease.epoch)
            with self._timed(made, "write"), self._effects.happens(Effect.WRITE):
                written = await self._offload.run(lambda: self._writer.write(leased))
            judged = judge_round(plan, written)
            self.report.say("committing")
            self.report.written(sum(file.rows for one in judged for file in one.files), self._clock.wall_us())
            try:
                with self._timed(made, "commit"):
                    positions = await self._commits.commit(judged, made)
            finally:
                self.report.settled(made.committed > 0, self._clock.wall_us())
            with self._timed(made, "advance"):
                await self._floors.advance(positions)
        self._after_lsn = 1

    # --- files that nobody needs ---

    async def _clean_up(self) -> None:
        """Nothing depends on it: what fails is tried again with another round."""
        if self._cleaner is None:
            return
        with self._effects.happens(Effect.CLEAN_UP):
            await self._cleaner.work(self._lease.check)

    async def _clean_up_idle(self) -> None:
        """What became due behind the last messages. An idle pipeline has no lease and gives it up at once."""
        if self._cleaner is None or not self._cleaner.is_due:
            return
        with self._effects.happens(Effect.TAKE_LEASE):
            await self._lease.take()
        await self._clean_up()

    # --- the broker ---

    @contextlib.asynccontextmanager
    async def _held(self, name: str, files: Sequence[int]) -> AsyncIterator[None]:
        """The log files of a round stay until it is over."""
        ttl_ms, epoch = self._options.hold_ms, self._lease.epoch

        async def renew() -> None:
            while True:
                await self._clock.sleep(ttl_ms / 3000)
                with contextlib.suppress(errors.ConnectionLost):
                    await self._broker.hold(name, epoch, files, ttl_ms)

        with self._effects.happens(Effect.HOLD_FILES):
            await self._broker.hold(name, epoch, files, ttl_ms)
        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(errors.IcestreamError), self._effects.happens(Effect.RELEASE_FILES):
                await self._broker.hold(name, epoch, [], 0)

    # --- what it says ---

    @contextlib.contextmanager
    def _timed(self, made: RoundReport, step: str) -> Iterator[None]:
        began_ns = self._clock.monotonic_ns()
        with span(f"round.{step}"):
            yield
        made.seconds[step] = (self._clock.monotonic_ns() - began_ns) / 1e9


LEFT_OUT = "`icestream lake adopt`, `rewind` or `recreate` says where the table goes on (docs/lake.md)"
