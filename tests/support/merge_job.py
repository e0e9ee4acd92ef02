"""A job of the driver that merges two files of a topic's table: the smallest compaction, by the interfaces of a real
one. Its tasks can be told to make mistakes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.iceberg.manifests import DATA_CONTENT
from icestream.model.backlog_messages import ShardBacklog, TopicBacklog
from icestream.model.pipeline_file_name import data_name
from icestream.model.row_digest import sum_of
from icestream.model.task_messages import CoveredRange, WrittenFile
from icestream.pipeline.commit.committer import CommittedSnapshot, Result
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.effects import Effect
from icestream.pipeline.driver.job import Job, Turn
from icestream.pipeline.driver.rewrite_commit import RewriteCommit, TableRewrite, planned_number
from icestream.pipeline.files.data_file import encode_parquet
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.files.parquet_layout import layout_of
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.readers.row_hashes import digest_of
from tests.support.fault_world import FaultWorld
from tests.support.interruptible_driver import InterruptibleDriver

Mistake = Callable[[pa.Table], pa.Table]


class MergePlan(NamedTuple):
    table: TopicTable
    locations: list[str]
    sequence_number: int


class MergeJob(Job[MergePlan, list[TableRewrite]]):
    """Merges the two oldest files of a table, until that has succeeded once."""

    name: ClassVar[str] = "merge"

    def __init__(self, life: InterruptibleDriver, topic: TopicBacklog, mistake: Mistake | None = None) -> None:
        self._life = life
        self._topic = topic
        self._mistake = mistake or (lambda rows: rows)
        sequence = CommitSequence(life.lease, life.ledger, life.committer, life.effects, life.clock, life.report)
        self._commit = RewriteCommit(life.lease, life.committer, sequence, life.jobs)
        self.results: list[Result | None] = []

    @property
    def is_done(self) -> bool:
        return any(isinstance(result, CommittedSnapshot) for result in self.results)

    def is_due(self, turn: Turn) -> bool:
        return not self.is_done

    async def plan(self, turn: Turn) -> MergePlan | None:
        (table,) = await self._life.topics.open_all([self._topic])
        manifests = await self._life.manifests.current_manifests(table.table)
        oldest_first = [manifest for manifest in reversed(manifests) if manifest.content == DATA_CONTENT]
        entries = [entry for manifest in oldest_first for entry in await self._life.manifests.live_entries(manifest)]
        locations = [entry.file_path for entry in entries][:2]
        return MergePlan(table, locations, planned_number(table.table)) if len(locations) == 2 else None

    async def run(self, turn: Turn, plan: MergePlan) -> list[TableRewrite]:
        with turn.timed("merge"), self._life.effects.happens(Effect.WRITE):
            written = self._write(plan)
        replaced = sum_of(digest_of(pq.read_table(_path(location))) for location in plan.locations)
        added = digest_of(pq.read_table(_path(written.location)))
        return [TableRewrite(plan.table, plan.locations, [written], replaced, added, self.name, plan.sequence_number)]

    async def commit(self, turn: Turn, plan: MergePlan, result: list[TableRewrite]) -> None:
        results = await self._commit.commit(result)
        self.results.append(results.get(plan.table.topic_id))

    def _write(self, plan: MergePlan) -> WrittenFile:
        table = plan.table
        target = table_policy.target_of(table.table, table.policy, {})
        layout = layout_of(target)
        parts = [pq.read_table(_path(location)) for location in plan.locations]
        rows = pa.concat_tables(parts, promote_options="default").sort_by(
            [("shard", "ascending"), ("offset", "ascending")]
        )
        rows = self._mistake(rows).combine_chunks()
        data, metrics = encode_parquet(rows, layout, "zstd", None)
        location = f"{target.location}/{data_name(self._life.lease.epoch, uuid.uuid4().hex)}"
        store = FolderStore()
        store.put(location, data)
        assert not store.settle()
        return WrittenFile(
            table.topic_id,
            location,
            data.size,
            rows.num_rows,
            _covered(rows),
            layout.schema_id,
            target.spec["spec-id"],
            [],
            *metrics,
        )


def _path(location: str) -> Path:
    return Path(location.removeprefix("file:"))


def _covered(rows: Any) -> list[CoveredRange]:
    ranges = []
    for shard in sorted(set(rows["shard"].to_pylist())):
        bounds = pc.min_max(rows.filter(pc.field("shard") == shard)["offset"]).as_py()
        ranges.append(CoveredRange(shard, bounds["min"], bounds["max"] + 1))
    return ranges


def add_merge(world: FaultWorld, life: InterruptibleDriver, mistake: Mistake | None = None) -> MergeJob:
    """Registers the job for topic 1 of the world."""
    shards = [
        ShardBacklog(key.shard, state.epoch, state.floor, state.synced)
        for key in world.published
        if key.topic_id == 1
        for state in [world.log.shard(*key)]
    ]
    topic = TopicBacklog(1, "/default/t1", 1, shards, 0, 0, 0, world.policies.get(1, {}))
    job = MergeJob(life, topic, mistake)
    life.jobs.add(job)
    return job
