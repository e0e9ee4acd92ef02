"""Commits a round, and decides what its outcome means for each of its topics.

    outcome                                      consequence
    committed, everything was written            the topic continues
    committed, some of its tasks failed          it continues; after the same failure again, it is halted for a while
    nothing of it could be written               it is halted for a while, longer each time (topic_table_set.py)
    refused because of what the commit is        it is planned again; refused again, and it is halted for a while
    unknown                                      it is halted for a while, then the same files are sent again
                                                 (unresolved_commits.py)
    an operator must decide                      it is halted

Other jobs commit by the same steps (commit_sequence.py) and draw other conclusions (rewrite_commit.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from icestream import errors, limits
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.model.backlog_messages import Backlog
from icestream.model.task_messages import TaskError, TaskErrorKind
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.committer import CommittedSnapshot, Committer, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.driver.commit_sequence import RETRIED_HINT, CommitSequence, unverified
from icestream.pipeline.driver.driver_report import DriverReport, RoundReport
from icestream.pipeline.driver.effects import Effects
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import HaltCause, TopicTableSet
from icestream.pipeline.driver.unresolved_commits import UnresolvedCommit, UnresolvedCommits
from icestream.pipeline.round_judgement import TopicVerdict
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.runtime.clock import Clock

Positions = list[tuple[int, int, int]]  # topic id, shard, offset
_log = get_logger("pipeline")
_HINTS: Final = {
    TaskErrorKind.STALE: RETRIED_HINT,
    TaskErrorKind.DAMAGED: f"`icestream wal inspect` shows what the log holds; {RETRIED_HINT}",
    TaskErrorKind.UNREACHABLE: f"check that the storage of the table is reachable; {RETRIED_HINT}",
    TaskErrorKind.FAILED: f"see the pipeline's log; {RETRIED_HINT}",
}


class RoundCommit:
    """Commits rounds of ingest, and keeps commits without a known outcome."""

    def __init__(
        self,
        lease: DriverLease,
        ledger: OffsetLedger,
        tables: TopicTableSet,
        committer: Committer,
        effects: Effects,
        clock: Clock,
        report: DriverReport,
        jobs: JobRegistry,
    ) -> None:
        """`jobs` hear of each commit and of files that a commit left behind."""
        self._lease = lease
        self._ledger = ledger
        self._tables = tables
        self._committer = committer
        self._sequence = CommitSequence(lease, ledger, committer, effects, clock, report)
        self._report = report
        self._jobs = jobs
        self._unresolved = UnresolvedCommits()

    async def commit(self, verdicts: Sequence[TopicVerdict], report: RoundReport) -> Positions:
        """Commits what may be committed of a round. Returns the next offsets of the tables that took their commit.

        Raises LeaseLost when another driver took over.
        """
        # One id for all tables of the round: the catalog answers a second copy of the request with the result of the
        # first.
        epoch, round_id = self._lease.check(), self._committer.new_round_id()
        commits = [
            TopicCommit(
                self._tables[verdict.topic.topic_id],
                round_id,
                epoch,
                verdict.claims,
                verdict.files,
                self._committer.new_snapshot_id(),
            )
            for verdict in verdicts
            if verdict.claims
        ]
        task_errors = {verdict.topic.topic_id: verdict.errors[0] for verdict in verdicts if verdict.errors}
        for verdict in verdicts:
            _log_task_errors(verdict)
        results = await self._commit_and_apply(commits, report, task_errors)
        for verdict in verdicts:
            # Stuck: nothing of the topic was committed, so the next round would fail the same way. With claims it has
            # moved on.
            if verdict.errors and not verdict.claims:
                self._record_failure(verdict.topic.topic_id, verdict.topic.name, verdict.errors[0], is_stuck=True)
        return [
            (commit.table.topic_id, shard, position.next)
            for commit in commits
            if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)
            for shard, position in commit.table.positions.items()
        ]

    async def _commit_and_apply(
        self, commits: Sequence[TopicCommit], report: RoundReport, task_errors: Mapping[int, TaskError]
    ) -> dict[int, Result]:
        """Returns the result for each topic id."""
        retries_before = self._committer.retries
        results = await self._sequence.run(commits)
        is_first_attempt = self._committer.retries == retries_before
        for commit in commits:
            topic_id = commit.table.topic_id
            # This attempt replaces what was kept of an earlier one; an unknown outcome keeps it again below.
            self._unresolved.drop(topic_id)
            self._apply_result(
                commit, results.get(topic_id), report, task_errors.get(topic_id), is_first_attempt=is_first_attempt
            )
        return results

    def _apply_result(
        self,
        commit: TopicCommit,
        result: Result | None,
        report: RoundReport,
        task_error: TaskError | None,
        *,
        is_first_attempt: bool,
    ) -> None:
        """Applies the result of a commit to its topic: see the table at the head of the module."""
        topic_id, topic = commit.table.topic_id, commit.table.topic
        match result:
            case CommittedSnapshot(snapshot_id, is_repeat):
                self._report_first_snapshot(commit, snapshot_id)
                self._notify_jobs(commit, is_clean=is_first_attempt and not is_repeat)
                report.add(commit)
                if task_error is None:
                    self._tables.record_success(topic_id)
                else:
                    self._record_failure(topic_id, topic, task_error, is_stuck=False)
            case StopReason() as stop_reason:
                self._tables.halt(topic_id, topic, stop_reason)
            case NotCommitted(reason, is_unresolved):
                metrics.PIPELINE_COMMIT_RETRIES.inc()
                self._notify_jobs(commit, is_clean=False)
                _log.warning("topic not committed in this round", topic=topic, reason=reason)
                self._tables.mark_stale([topic_id])
                if is_unresolved:
                    self._unresolved.add(commit)
                self._tables.record_failure(
                    topic_id, topic, HaltCause.COMMIT, StopReason(reason, RETRIED_HINT), is_stuck=is_unresolved
                )

    def _record_failure(self, topic_id: int, topic: str, error: TaskError, *, is_stuck: bool) -> None:
        stop_reason = StopReason(error.message, _HINTS[error.trouble])
        self._tables.record_failure(topic_id, topic, HaltCause(error.trouble), stop_reason, is_stuck=is_stuck)

    def _report_first_snapshot(self, commit: TopicCommit, snapshot_id: int) -> None:
        """Reports the first rows of a topic, so that the user of a new broker sees where they are."""
        if len(commit.table.table.snapshots) == 1:
            self._report.add_first_snapshot(commit.table.topic, commit.table.identifier, snapshot_id)
            _log.info(
                "first snapshot of a topic",
                topic=commit.table.topic,
                table=str(commit.table.identifier),
                snapshot_id=snapshot_id,
            )

    def _notify_jobs(self, commit: TopicCommit, *, is_clean: bool) -> None:
        self._jobs.table_committed(commit.table)
        if not is_clean:
            self._jobs.files_left_behind(commit.table)

    # --- commits without a known outcome ---

    async def retry_unresolved(self, report: RoundReport) -> None:
        """Sends the files of unresolved commits again, once their pause is over. The broker's committed offsets follow
        when the tables are next compared (offset_sync.py)."""
        commits = [
            unresolved.commit
            for unresolved in self._unresolved.due(self._lease.check(), self._tables.is_halted)
            if await self._can_retry(unresolved)
        ]
        if commits:
            await self._commit_and_apply(commits, report, {})

    async def _can_retry(self, unresolved: UnresolvedCommit) -> bool:
        """True if an unresolved commit can be sent again to its table as it is now. Otherwise it is dropped."""
        table = unresolved.commit.table
        try:
            obstacle = unresolved.obstacle(await self._ledger.refresh(table))
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            self._tables.halt(table.topic_id, table.topic, StopReason(error.message, error.hint or ""))
            self._unresolved.drop(table.topic_id)
            return False
        if obstacle:
            _log.info("files of an unresolved commit are not sent again", topic=table.topic, reason=obstacle)
            self._unresolved.drop(table.topic_id)
        return not obstacle

    # --- committed files that are missing ---

    async def positions_with_files(
        self, backlog: Backlog, tables: Sequence[TopicTable], positions: Positions
    ) -> Positions:
        """Returns those of `positions`, of tables that another driver wrote, that the broker may follow: the files of
        their newest snapshots exist. A commit whose files are missing is undone, or its topic is halted."""
        ahead_ids = {topic_id for topic_id, _, _ in positions}
        topics = {topic.topic_id: topic for topic in backlog.topics if topic.topic_id in ahead_ids}
        verified_ids: set[int] = set()
        for table in tables:
            if table.topic_id not in topics:
                continue
            try:
                missing_by_snapshot = await self._committer.committed_files.missing_of_newest(table.table)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                self._tables.halt(table.topic_id, table.topic, unverified(error))
                continue
            if not missing_by_snapshot:
                verified_ids.add(table.topic_id)
                continue
            snapshot_id, missing = next(iter(missing_by_snapshot.items()))
            shards = {
                shard.shard: ShardLog(shard.epoch, shard.committed, shard.synced)
                for shard in topics[table.topic_id].shards
            }
            # Only the newest: an undo makes its parent main, and the next comparison judges that one.
            result = await self._sequence.undo(table, snapshot_id, shards, missing)
            if isinstance(result, StopReason):
                self._tables.halt(table.topic_id, table.topic, result)
        return [position for position in positions if position[0] in verified_ids]


def _log_task_errors(verdict: TopicVerdict) -> None:
    """Logs and counts why some of a topic was not written."""
    for error in verdict.errors:
        _log.warning("task failed for a topic", topic=verdict.topic.name, trouble=error.trouble, reason=error.message)
        metrics.PIPELINE_TASK_ERRORS.labels(error.trouble).inc()
    if verdict.is_cut:
        _log.warning(
            "topic has more partition values than a round writes files for: the rest follows with the next round",
            topic=verdict.topic.name,
            hint=f"at most {limits.ROUND_PARTITIONS_MAX} in one task; a bucket of the key makes larger files",
        )
