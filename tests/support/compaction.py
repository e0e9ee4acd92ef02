"""The compaction job in a driver of the fault world, with its tasks in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from icestream.iceberg.identifier import Identifier
from icestream.pipeline.compaction.compaction_job import CompactionJob, CompactionOptions
from icestream.pipeline.compaction.compaction_plan import CompactionRule
from icestream.pipeline.compaction.group_rewrite import rewrite_group
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.rewrite_commit import RewriteCommit
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.runtime.tasks import InlineOffload, Offload
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.interruptible_driver import InterruptibleDriver

# Two files are enough, so that a test needs few of them.
RULE = CompactionRule(files_min=2, is_requested=True)


class LocalGroupWriter:
    """The tasks of a compaction, in this process. `before` is called in front of each group."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self.groups = 0

    def rewrite(self, group_jobs: Sequence[bytes]) -> list[bytes]:
        results = []
        for job in group_jobs:
            self._before()
            self.groups += 1
            results.append(rewrite_group(job, open_store, fresh_name))
        return results


def add_compaction(
    life: InterruptibleDriver,
    rule: CompactionRule = RULE,
    writer: LocalGroupWriter | None = None,
    offload: Offload | None = None,
    options: CompactionOptions | None = None,
) -> CompactionJob:
    """Registers the job in front of the clean-up, as the pipeline process does."""
    sequence = CommitSequence(life.lease, life.ledger, life.committer, life.effects, life.clock, life.report)
    job = CompactionJob(
        life.lease,
        life.topics,
        life.manifests,
        RewriteCommit(life.lease, life.committer, sequence, life.jobs),
        writer or LocalGroupWriter(),
        offload or InlineOffload(),
        life.effects,
        life.clock,
        options or CompactionOptions(rule=rule, interval_ms=0),
        life.report,
    )
    life.jobs.add(job)
    return job


async def compact(life: InterruptibleDriver, job: CompactionJob, turns: int = 8) -> None:
    """Runs turns of a driver whose tables have messages of this life, until nothing is planned any more."""
    async with asyncio.timeout(HANGS_SECONDS):
        for _ in range(turns):
            await life.driver.turn()
        while job.is_busy:
            await life.driver.turn()


async def data_files(world: FaultWorld, topic_id: int = 1) -> set[str]:
    metadata = (await world.catalog.load(Identifier(("default",), f"t{topic_id}"))).metadata
    lists = {snapshot["snapshot-id"]: snapshot["manifest-list"] for snapshot in metadata["snapshots"]}
    paths = await world.paths(lists[metadata["current-snapshot-id"]])
    return {path for path in paths if path.endswith(".parquet")}
