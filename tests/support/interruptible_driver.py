"""A driver of the pipeline that can be cut off or made to stand still at everything it does: what kill -9 and SIGSTOP
do to its process, in this one.

Everything it reaches the world by is watched. When its life is over nothing goes through any more, not even what it
does on its way out: a dead process releases nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from icestream.catalog.cleanup.files_in_use import FilesInUseScan
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.store import MetadataStore
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.driver import Driver
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects, Fault
from icestream.pipeline.driver.ingest_job import IngestJob
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.rewrite_commit import RewriteCommit
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.retention.retention_clock import RetentionClock
from icestream.pipeline.retention.shard_ranges import ShardRanges
from icestream.pipeline.retention.table_retention_job import TableRetentionJob
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.pipeline.tables.learned_structures import LearnedStructures
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.fake_clock import FakeClock
from tests.support.pipeline_round import write_here

# Long enough that no driver loses its lease by being slow, short enough to wait for.
LEASE_MS = 3_000


class DriverKilled(BaseException):
    """The process ended here."""


class StopPoint(NamedTuple):
    """The point at which a driver stands still: before or after the n-th call of this name."""

    is_before: bool
    call: str
    number: int = 1


class DriverProcess:
    def __init__(self, stop: StopPoint | None = None) -> None:
        self.is_over = False
        self._stop = stop
        self._calls: Counter[str] = Counter()
        self.stands_still = asyncio.Event()
        self.goes_on = asyncio.Event()

    def strike(self) -> None:
        """Instead of a signal."""
        self.is_over = True
        raise DriverKilled

    async def meet(self, call: str, *, is_before: bool) -> None:
        if self.is_over:
            raise DriverKilled
        self._calls[call] += is_before
        if self._stop == (is_before, call, self._calls[call]):
            self.stands_still.set()
            await self.goes_on.wait()


class InterruptibleCalls:
    """Any part that a driver reaches the world by."""

    def __init__(self, inner: object, life: DriverProcess) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        async def call(*arguments: Any, **named: Any) -> Any:
            await self._life.meet(name, is_before=True)
            answer = await attribute(*arguments, **named)
            await self._life.meet(name, is_before=False)
            return answer

        return call


class LocalTaskWriter:
    """The tasks of a round, in this process."""

    master = "here"
    tasks_max = 2

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        return write_here(plan)


class DriverEnvironment(NamedTuple):
    """The parts that all drivers of a world share."""

    store: MetadataStore
    broker: BrokerApi
    books: Callable[[TableCatalog], OffsetLedger]
    files: Any
    reader: Callable[[], ManifestCache]
    clock: Clock
    clean_up_delay_ms: int | None  # None: no files are removed
    history: TagRetention
    files_in_use: Callable[[], FilesInUseScan]
    lease_name: str = ""  # of a node of a cluster


class InterruptibleDriver:
    """A driver assembled as in processes/pipeline_process.py, whose calls a test can interrupt."""

    def __init__(
        self,
        outside: DriverEnvironment,
        catalog: TableCatalog,
        fault: Fault | None = None,
        stop: StopPoint | None = None,
        owner: str = "node/child",
        age_due_ms: int = 0,
    ) -> None:
        life = self.life = DriverProcess(stop)
        clock, effects = outside.clock, Effects(fault, life.strike)
        watched: Any = InterruptibleCalls(catalog, life)
        books: Any = InterruptibleCalls(outside.books(watched), life)
        files: Any = InterruptibleCalls(outside.files, life)
        store: Any = InterruptibleCalls(outside.store, life)
        broker: Any = InterruptibleCalls(outside.broker, life)
        offload: Any = InterruptibleCalls(InlineOffload(), life)
        self.watched = SimpleNamespace(store=store, catalog=watched, files=files)  # for jobs that a test adds
        self.broker: Any = outside.broker
        self.effects = effects
        self.topics = TopicTableSet(books, watched, LearnedStructures(store), effects, clock, SystemRandomness(), {})
        self.ledger = books
        self.manifests = outside.reader()
        committer = Committer(watched, books, files, self.manifests, clock, SystemRandomness(), outside.history)
        self.committer = committer
        self.lease = DriverLease(store, clock, owner, LEASE_MS, name=outside.lease_name)
        options = DriverOptions(RoundBudget(age_due_ms=age_due_ms), wait_ms=0)
        report = DriverReport("here", 1, 1)
        self.report = report
        jobs = self.jobs = JobRegistry(JobGuard(clock))
        own_clock = self.clock = FakeClock(clock, shorten=lambda seconds: min(seconds, 0.1))
        self.ingest = IngestJob(
            broker,
            self.lease,
            books,
            self.topics,
            committer,
            LocalTaskWriter(),
            offload,
            effects,
            own_clock,
            options,
            report,
            jobs,
        )
        jobs.add(self.ingest)
        sequence = CommitSequence(self.lease, books, committer, effects, own_clock, report)
        commits = RewriteCommit(self.lease, committer, sequence, jobs)
        believed = RetentionClock(store, clock, "")
        ranges = ShardRanges(file_opener(outside.files))
        inline = InlineOffload()
        jobs.add(
            TableRetentionJob(
                broker, store, self.topics, self.manifests, commits, believed, ranges, inline, effects, clock
            )
        )
        self.cleaner: FileCleaner | None = None
        if outside.clean_up_delay_ms is not None:
            named = ReferencedFiles(ManifestReader(files, InlineOffload()))
            in_use = outside.files_in_use()
            self.cleaner = FileCleaner(
                store, watched, files, named, in_use, clock, jobs.guard, outside.clean_up_delay_ms
            )
            jobs.add(FileCleanupJob(self.cleaner, self.lease, effects))
        self.driver = Driver(broker, self.lease, self.topics, jobs, effects, own_clock, options, report)

    async def end(self) -> None:
        """Whatever it still has under way ends with it."""
        self.life.is_over = True
        if (renewing := self.lease._renewing) is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
