"""A driver with everything real but the broker and Spark: a broker on paper that has offsets and no messages, and a
writer that makes files of whatever offsets it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from icestream import errors
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.model.backlog_messages import Backlog, BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.driver.driver import Driver
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects
from icestream.pipeline.driver.ingest_job import IngestJob
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.tables.learned_structures import LearnedStructures
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.committer_harness import CommitterHarness


class FakePipelineBroker:
    """Topics by id: name, and per shard how far it is synced and committed."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.synced: dict[tuple[int, int], int] = {}
        self.floors: dict[tuple[int, int], int] = {}
        self.begins: dict[tuple[int, int], int] = {}  # the first offset that the log still has
        self.gaps: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.policies: dict[int, dict[str, str]] = {}
        self.oldest_us: dict[int, int] = {}  # since when topics wait; others since ever
        self.held: dict[str, list[int]] = {}
        self.told: list[dict[str, Any]] = []
        self.is_away = False

    def publish(self, topic_id: int, rows: int, shard: int = 0, name: str = "") -> None:
        self.names.setdefault(topic_id, name or f"/default/t{topic_id}")
        key = topic_id, shard
        self.synced[key] = self.synced.get(key, 0) + rows
        self.floors.setdefault(key, 0)

    async def backlog(self, wait_ms: int, passed_over: Collection[int] = ()) -> Backlog:
        self._check()
        topics = [self._topic(topic_id) for topic_id in self.names if topic_id not in passed_over]
        waiting = [topic for topic in topics if topic.rows]
        stretches = [
            BacklogRange(
                topic.topic_id, backlog.shard, backlog.epoch, begin, backlog.synced, 100 * backlog.synced, 4096
            )
            for topic in waiting
            for backlog in topic.shards
            if (begin := self.begins.get((topic.topic_id, backlog.shard), 0)) < backlog.synced
        ]
        files = [BacklogFile(1, 100_000, [(4096, 1)], stretches)] if waiting else []
        return Backlog("paper", "/nowhere", "", "", waiting, files, lsn=1)

    def _topic(self, topic_id: int) -> TopicBacklog:
        shards = [
            ShardBacklog(key[1], 0, self.floors[key], end, self.gaps.get(key, []))
            for key, end in sorted(self.synced.items())
            if key[0] == topic_id
        ]
        rows = sum(shard.synced - shard.committed for shard in shards)
        policy = self.policies.get(topic_id, {})
        return TopicBacklog(
            topic_id, self.names[topic_id], topic_id, shards, rows, 100 * rows, self.oldest_us.get(topic_id, 0), policy
        )

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> str:
        self._check()
        if files:
            self.held[lease] = list(files)
        else:
            self.held.pop(lease, None)
        return "token"

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        self._check()
        for topic_id, shard, offset in positions:
            key = topic_id, shard
            self.floors[key] = max(offset, min(self.begins.get(key, 0), self.floors[key]))

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        self._check()
        for topic_id, shard, offset in positions:
            key = topic_id, shard
            assert offset <= self.synced[key], "a floor beyond synced"
            self.floors[key] = max(self.floors[key], offset)

    async def send_state(self, state: dict[str, Any]) -> None:
        self.told.append(state)

    def _check(self) -> None:
        if self.is_away:
            raise errors.ConnectionLost("the broker went away")


class FakeRoundWriter:
    def __init__(self, world: CommitterHarness, topics: TopicTableSet) -> None:
        self._world = world
        self._topics = topics
        self.rounds = 0
        self.failing: Callable[[int], bool] = lambda topic_id: False
        self.between: Callable[[], None] = lambda: None

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        self.rounds += 1
        results = []
        for topic in plan.topics:
            for shard in topic.shards:
                if self.failing(topic.topic_id):
                    error = TaskError(TaskErrorKind.FAILED, "on purpose")
                    results.append(TopicTaskResult(topic.topic_id, shard.shard, [], [], error))
                    continue
                table = self._topics[topic.topic_id]
                file = self._world.write(table, shard.shard, shard.start, shard.end)
                covered = [CoveredRange(shard.shard, shard.start, shard.end)]
                results.append(TopicTaskResult(topic.topic_id, shard.shard, covered, [file]))
        self.between()
        return results


class PipelineHarness:
    """`broker` is shared by several drivers of one world."""

    def __init__(
        self,
        folder: Path,
        broker: FakePipelineBroker | None = None,
        effects: Effects | None = None,
        owner: str = "",
        options: DriverOptions | None = None,
        **world: Any,
    ) -> None:
        self.broker = broker or FakePipelineBroker()
        self.world = CommitterHarness(folder, **world)
        effects = effects or Effects()
        self.topics = TopicTableSet(
            self.world.books,
            self.world.catalog,
            LearnedStructures(self.world.store),
            effects,
            self.world.clock,
            SeededRandomness(1),
            {},
        )
        self.writer = FakeRoundWriter(self.world, self.topics)
        self.lease = DriverLease(self.world.store, self.world.clock, owner)
        options, report, jobs = (
            options or DriverOptions(),
            DriverReport("paper", 1, 1),
            JobRegistry(JobGuard(self.world.clock)),
        )
        self.ingest = IngestJob(
            self.broker,
            self.lease,
            self.world.books,
            self.topics,
            self.world.committer,
            self.writer,
            InlineOffload(),
            effects,
            self.world.clock,
            options,
            report,
            jobs,
        )
        jobs.add(self.ingest)
        if self.world.books.is_embedded:
            references = ReferencedFiles(ManifestReader(self.world.files, InlineOffload()))
            in_use = self.world.making.files_in_use(ManifestReader(self.world.files, InlineOffload()))
            cleaner = FileCleaner(
                self.world.store,
                self.world.catalog,
                self.world.files,
                references,
                in_use,
                self.world.clock,
                jobs.guard,
                0,
            )
            jobs.add(FileCleanupJob(cleaner, self.lease, effects))
        self.driver = Driver(self.broker, self.lease, self.topics, jobs, effects, self.world.clock, options, report)

    async def round(self) -> None:
        """Runs one round over the whole backlog."""
        backlog = await self.broker.backlog(0)
        if backlog.topics:
            await self.driver.round(backlog, is_expedited=True)

    def pass_pauses(self) -> None:
        """Ends the pauses of all halted topics."""
        for topic_id, halt in self.topics.halted.items():
            self.topics.halted[topic_id] = halt._replace(retry_at_ns=0)

    async def close(self) -> None:
        await self.lease.release()
