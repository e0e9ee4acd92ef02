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
from typing import Any, NamedTuple

from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.store import MetadataStore
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.driver import Driver
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects, Fault
from icestream.pipeline.driver.ingest_job import IngestJob
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.pipeline_round import write_here

# Long enough that nobody loses it by himself, short enough to wait for.
LEASE_MS = 3_000


class Struck(BaseException):
    """The process ended here."""


class Stop(NamedTuple):
    """Where it stands still: before or after the so-many-th call of this name."""

    is_before: bool
    call: str
    number: int = 1


class Life:
    def __init__(self, stop: Stop | None = None) -> None:
        self.is_over = False
        self._stop = stop
        self._calls: Counter[str] = Counter()
        self.stands_still = asyncio.Event()
        self.goes_on = asyncio.Event()

    def strike(self) -> None:
        """Instead of a signal."""
        self.is_over = True
        raise Struck

    async def meet(self, call: str, *, is_before: bool) -> None:
        if self.is_over:
            raise Struck
        self._calls[call] += is_before
        if self._stop == (is_before, call, self._calls[call]):
            self.stands_still.set()
            await self.goes_on.wait()


class Watched:
    """Any part that a driver reaches the world by."""

    def __init__(self, inner: object, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            await self._life.meet(name, is_before=True)
            answer = await found(*given, **named)
            await self._life.meet(name, is_before=False)
            return answer

        return call


class HastyClock:
    """The same time, but nobody sleeps for long: a driver looks again at once whether somebody has decided."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner

    def wall_us(self) -> int:
        return self._inner.wall_us()

    def monotonic_ns(self) -> int:
        return self._inner.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(min(seconds, 0.1))


class TaskWriter:
    """The tasks of a round, in this process."""

    master = "here"
    tasks_max = 2

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        return write_here(plan)


class Outside(NamedTuple):
    """What all drivers of a world share."""

    store: MetadataStore
    broker: BrokerApi
    books: Callable[[TableCatalog], OffsetLedger]
    files: Any
    reader: Callable[[], ManifestCache]
    clock: Clock
    clean_up_delay_ms: int | None  # None: nobody removes files
    history: TagRetention


class DriverLife:
    """As pipeline/driver/serving.py puts one together."""

    def __init__(
        self,
        outside: Outside,
        catalog: TableCatalog,
        fault: Fault | None = None,
        stop: Stop | None = None,
        owner: str = "node/child",
        age_due_ms: int = 0,
    ) -> None:
        life = self.life = Life(stop)
        clock, effects = outside.clock, Effects(fault, life.strike)
        watched: Any = Watched(catalog, life)
        books: Any = Watched(outside.books(watched), life)
        files: Any = Watched(outside.files, life)
        store: Any = Watched(outside.store, life)
        broker: Any = Watched(outside.broker, life)
        offload: Any = Watched(InlineOffload(), life)
        self.broker: Any = outside.broker
        self.effects = effects
        self.topics = TopicTableSet(books, watched, effects, clock, SystemRandomness(), {})
        committer = Committer(watched, books, files, outside.reader(), clock, SystemRandomness(), outside.history)
        self.lease = DriverLease(store, clock, owner, LEASE_MS)
        options = DriverOptions(RoundBudget(age_due_ms=age_due_ms), wait_ms=0)
        report = DriverReport("here", 1, 1)
        jobs = JobRegistry()
        own_clock = HastyClock(clock)
        self.ingest = IngestJob(
            broker,
            self.lease,
            books,
            self.topics,
            committer,
            TaskWriter(),
            offload,
            effects,
            own_clock,
            options,
            report,
            jobs,
        )
        jobs.add(self.ingest)
        self.cleaner: FileCleaner | None = None
        if outside.clean_up_delay_ms is not None:
            named = ReferencedFiles(ManifestReader(files, InlineOffload()))
            self.cleaner = FileCleaner(store, watched, files, named, clock, outside.clean_up_delay_ms)
            jobs.add(FileCleanupJob(self.cleaner, self.lease, effects))
        self.driver = Driver(broker, self.lease, self.topics, jobs, effects, own_clock, options, report)

    async def end(self) -> None:
        """Whatever it still has under way ends with it."""
        self.life.is_over = True
        if (renewing := self.lease._renewing) is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
