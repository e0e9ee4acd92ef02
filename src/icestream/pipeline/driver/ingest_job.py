"""Ingest: brings messages from the log into the tables of their topics, one round at a time (docs/adr/0025).

tables   of the topics in the backlog: created, evolved to their policies, next offsets as the catalog has them
plan     pure (planner.py)
hold     the log files of the round, while they are read
write    one Spark job writes data files
judge    pure (round_judgement.py): which of the written offsets continue their table without a hole
commit   all tables in one request; then the committed files are verified, before anything follows from it
advance  the broker's committed offsets, by what the catalog answered alone (offset_sync.py)
learn    the structure of MQTT topics, for the next rounds (tables/learned_structures.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from icestream import errors
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import INGEST, DriverReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, JobRegistry, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.offset_sync import OffsetSync
from icestream.pipeline.driver.round_commit import RoundCommit
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_judgement import judge_round
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.pipeline.tables.topic_table import StopReason
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

LEFT_OUT_HINT = "`icestream lake adopt`, `rewind` or `recreate` says where the table goes on (docs/lake.md)"


class RoundWriter(Protocol):
    """Writes the data files of a round. Blocking: the driver calls it in a thread of its own."""

    @property
    def master(self) -> str:
        """Spark's master URL."""

    @property
    def tasks_max(self) -> int:
        """How many tasks run at the same time."""

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]: ...


class IngestPlan(NamedTuple):
    """A round with something to write, and the name under which its log files are held."""

    round: RoundPlan
    hold_name: str


class IngestJob(Job[IngestPlan, list[TopicTaskResult]]):
    """The job that writes messages into tables."""

    name: ClassVar[str] = INGEST

    def __init__(
        self,
        broker: BrokerApi,
        lease: DriverLease,
        ledger: OffsetLedger,
        tables: TopicTableSet,
        committer: Committer,
        writer: RoundWriter,
        offload: Offload,
        effects: Effects,
        clock: Clock,
        options: DriverOptions,
        report: DriverReport,
        jobs: JobRegistry,
    ) -> None:
        """`offload` runs the blocking writer in a thread. `jobs` hear of the commits."""
        self._broker = broker
        self._lease = lease
        self._tables = tables
        self._offload = offload
        self._effects = effects
        self._clock = clock
        self._options = options
        self._report = report
        self._round_commit = RoundCommit(lease, ledger, tables, committer, effects, clock, report, jobs)
        self._offset_sync = OffsetSync(broker, tables, effects, self._round_commit.positions_with_files)
        self._log_token = ""  # of the round that runs: its tasks read the log files by it
        self.writer = writer

    def is_due(self, turn: Turn) -> bool:
        return bool(turn.backlog.topics)

    # --- planning ---

    async def plan(self, turn: Turn) -> IngestPlan | None:
        """Plans a round from tables that are in line with the broker; halts topics that cannot be planned."""
        with turn.timed("tables"):
            await self._round_commit.retry_unresolved(turn.report)
            plan = await self._plan_round(turn)
            if plan.left_out:
                # The positions in memory may be outdated because another driver went on: reload those tables once.
                self._tables.mark_stale(entry.topic_id for entry in plan.left_out)
                plan = await self._plan_round(turn)
        self._report.age_limit_ms = plan.age_limit_ms
        planned_ids = {topic.topic_id for topic in plan.topics}
        for entry in plan.left_out:
            if entry.topic_id not in planned_ids:  # otherwise some of its shards can still be written
                self._tables.halt(entry.topic_id, entry.name, StopReason(entry.reason, LEFT_OUT_HINT))
        turn.next_due_us = plan.next_due_us
        turn.has_more_expedited = self._has_more_expedited(turn, plan)
        turn.report.topics = len(plan.topics)
        return IngestPlan(plan, uuid.uuid4().hex) if plan.topics else None

    async def _plan_round(self, turn: Turn) -> RoundPlan:
        backlog, tables = await self._offset_sync.align(turn.backlog)
        budget = self._budget(turn)
        positions, targets = self._tables.positions(tables), self._tables.targets(tables)
        return plan_round(backlog, positions, targets, budget, self._clock.wall_us())

    def _budget(self, turn: Turn) -> RoundBudget:
        budget = self._options.current_budget(turn.backlog.changed_settings)
        return budget if turn.expedited_us is None else msgspec.structs.replace(budget, age_due_ms=0)

    def _has_more_expedited(self, turn: Turn, plan: RoundPlan) -> bool:
        """Returns whether commit-now needs another round.

        Commit-now covers the messages up to the time of the request. Rounds take the topics that waited longest first,
        so another round is needed while a round still contained such messages and something did not fit. Messages that
        arrived since wait as usual: otherwise a request would never end.
        """
        if turn.expedited_us is None or plan.next_due_us is None:
            return False
        planned_ids = {topic.topic_id for topic in plan.topics}
        return any(
            topic.oldest_us <= turn.expedited_us for topic in turn.backlog.topics if topic.topic_id in planned_ids
        )

    # --- a round ---

    @contextlib.asynccontextmanager
    async def hold(self, plan: IngestPlan) -> AsyncIterator[None]:
        """Keeps the log files of the round from being recycled until it is over."""
        ttl_ms, epoch, files = self._options.hold_ms, self._lease.epoch, plan.round.files

        async def renew() -> None:
            while True:
                await self._clock.sleep(ttl_ms / 3000)
                # The hold has a time to live, which bridges a short absence of the broker. If it expires, tasks find
                # recycled files, report them as stale, and the offsets are planned again.
                with contextlib.suppress(errors.ConnectionLost):
                    await self._broker.hold(plan.hold_name, epoch, files, ttl_ms)

        self._report.set_phase("writing")
        with self._effects.happens(Effect.HOLD_FILES):
            self._log_token = await self._broker.hold(plan.hold_name, epoch, files, ttl_ms)
        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(errors.IcestreamError), self._effects.happens(Effect.RELEASE_FILES):
                await self._broker.hold(plan.hold_name, epoch, [], 0)

    async def run(self, turn: Turn, plan: IngestPlan) -> list[TopicTaskResult]:
        """Writes the data files of the round: one Spark job, in a thread of its own."""
        # The files get the epoch of the lease into their names: the clean-up of a later driver knows by it that no
        # commit of theirs can be accepted any more.
        leased = plan.round.leased(plan.hold_name, self._log_token, self._lease.epoch)
        leased = await self._options.keys.narrow_round(leased)
        with turn.timed("write"), self._effects.happens(Effect.WRITE):
            return await self._offload.run(lambda: self.writer.write(leased))

    async def commit(self, turn: Turn, plan: IngestPlan, result: list[TopicTaskResult]) -> None:
        """Commits what may be committed of the round, then advances the committed offsets of the broker."""
        verdicts = judge_round(plan.round, result)
        self._report.set_phase("committing")
        rows = sum(file.rows for verdict in verdicts for file in verdict.files)
        self._report.set_uncommitted(rows, self._clock.wall_us())
        try:
            with turn.timed("commit"):
                positions = await self._round_commit.commit(verdicts, turn.report)
        finally:
            self._report.clear_uncommitted(turn.report.committed > 0, self._clock.wall_us())
        with turn.timed("advance"):
            await self._offset_sync.advance(positions)
        await self._tables.learn(result)
