"""Background jobs of the pipeline: what the driver runs under its lease, turn by turn.

A job is one kind of work on the tables of topics: ingest (ingest_job.py), compaction
(compaction/compaction_job.py), file clean-up (file_cleanup/cleanup_job.py).
The driver calls each job that is due, in the order of the registry:

    is_due   pure: does this turn have work for the job?
    plan     decides what to do; nothing that a reader could see changes. None: nothing after all
    hold     keeps what the plan depends on in place while it runs, such as log files
    run      the long part: writes files that no table refers to yet
    commit   makes the result visible, in one commit for each table: new offsets by round_commit.py, replaced files by
             rewrite_commit.py
    metrics  `Turn.timed` counts the seconds of each step; other metrics are declared in observability/metrics.py

A job that fails is backed off by itself, and so is its work on a single table where it encloses that in
`turn.guard.protect` (job_guard.py). Any step can be cut off anywhere, by kill -9 too, and the next driver does the work
again: a plan holds no state that the next plan cannot derive from the tables and the log.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from icestream.model.backlog_messages import Backlog
from icestream.observability.spans import span
from icestream.pipeline.driver.driver_report import RoundReport
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


@dataclass
class Turn:
    """One turn of the driver: its input, and what the jobs report back to the loop."""

    backlog: Backlog
    expedited_us: int | None  # commit-now was requested at this wall-clock time: age limits do not apply
    report: RoundReport
    clock: Clock
    guard: JobGuard
    next_due_us: int | None = None  # wall clock: when the next topic becomes due; None: unknown
    is_ingest_paused: bool = False  # it failed and is backed off: messages wait, and no round is run for them
    has_more_expedited: bool = False  # one round was too small for everything that commit-now covers

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Counts the seconds of a step in the report and the step metric, and traces it as a span."""
        start_ns = self.clock.monotonic_ns()
        with span(f"round.{step}"):
            yield
        self.report.seconds[step] = (self.clock.monotonic_ns() - start_ns) / 1e9


class Job(ABC, Generic[PlanT, ResultT]):
    """One kind of work on tables. `PlanT`: what `plan` decides; `ResultT`: what `run` returns for `commit`."""

    name: ClassVar[str]

    @abstractmethod
    def is_due(self, turn: Turn) -> bool:
        """Returns whether to plan this job in this turn. Jobs before it in the registry have been planned already."""

    @abstractmethod
    async def plan(self, turn: Turn) -> PlanT | None:
        """Called with the lease held. Returns None if there is nothing to do after all."""

    def hold(self, plan: PlanT) -> contextlib.AbstractAsyncContextManager[None]:
        """Open while the plan runs and commits."""
        return contextlib.nullcontext()

    @abstractmethod
    async def run(self, turn: Turn, plan: PlanT) -> ResultT: ...

    async def commit(self, turn: Turn, plan: PlanT, result: ResultT) -> None:
        """Makes the result visible. Jobs that change no table have nothing to do here."""

    @property
    def is_busy(self) -> bool:
        """True while the job has work under way that outlives a turn: the driver keeps its lease, and its next turn
        comes soon."""
        return False

    @property
    def wants_new_epoch(self) -> bool:
        """True if the epoch of the lease is to end as soon as no job is busy: files that carry it are left behind, and
        only then is it certain that no commit can bring them any more."""
        return False

    # --- events of other jobs ---

    def on_table_committed(self, table: TopicTable) -> None:
        """Another job has committed to this table."""

    def on_files_left_behind(self, table: TopicTable) -> None:
        """A commit to this table was refused, repeated or has no known outcome: its files may be in no table."""


# The jobs by their right to a turn (hazard 99): messages first, then what frees space, then what makes tables faster.
ORDER: Final = ("ingest", "erasure", "expiry", "file_cleanup", "retention", "compaction", "requested_care")


class JobRegistry:
    """The jobs of a driver, in the order in which they run, and the way by which they hear of each other's commits."""

    def __init__(self, guard: JobGuard) -> None:
        self.guard = guard
        self._jobs: dict[str, Job[Any, Any]] = {}

    def add(self, job: Job[Any, Any]) -> None:
        self._jobs[job.name] = job

    def remove(self, name: str) -> None:
        self._jobs.pop(name, None)

    def __iter__(self) -> Iterator[Job[Any, Any]]:
        return iter(sorted(self._jobs.values(), key=_rank))

    @property
    def is_busy(self) -> bool:
        return any(job.is_busy for job in self)

    @property
    def wants_new_epoch(self) -> bool:
        return any(job.wants_new_epoch for job in self)

    def table_committed(self, table: TopicTable) -> None:
        for job in self:
            with self.guard.protect(job.name, table.topic_id, table.topic):
                job.on_table_committed(table)

    def files_left_behind(self, table: TopicTable) -> None:
        for job in self:
            with self.guard.protect(job.name, table.topic_id, table.topic):
                job.on_files_left_behind(table)


def _rank(job: Job[Any, Any]) -> int:
    return ORDER.index(job.name) if job.name in ORDER else len(ORDER)


async def execute(job: Job[PlanT, ResultT], turn: Turn, plan: PlanT) -> None:
    """Runs a plan and commits its result."""
    async with job.hold(plan):
        result = await job.run(turn, plan)
        await job.commit(turn, plan, result)
