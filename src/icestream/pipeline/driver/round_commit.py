"""Commits a round, and decides what its outcome means for each of its topics.

    outcome                                      consequence
    committed, everything was written            the topic continues
    committed, some of its tasks failed          it continues; after the same failure again, it is halted for a while
    nothing of it could be written               it is halted for a while, longer each time (topic_table_set.py)
    refused because of what the commit is        it is planned again; refused again, and it is halted for a while
    unknown                                      it is halted for a while, then the same files are sent again
                                                 (unresolved_commits.py)
    an operator must decide                      it is halted

While the catalog is unreachable the written files wait, and the commit is retried as long as the lease is held.
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
from icestream.observability.words import counted, were
from icestream.pipeline.commit.committer import CommittedSnapshot, Committer, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.driver.driver_report import DriverReport, RoundReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import HaltCause, TopicTableSet
from icestream.pipeline.driver.unresolved_commits import UnresolvedCommit, UnresolvedCommits
from icestream.pipeline.round_judgement import TopicVerdict
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock

Positions = list[tuple[int, int, int]]  # topic id, shard, offset
_log = get_logger("pipeline")
_RETRIED: Final = "retried automatically"
_ORPHAN_RETENTION: Final = "an engine that removes orphan files needs a retention of some hours (docs/lake.md)"
_REWIND: Final = (
    "the log keeps the messages: `icestream lake rewind TABLE --snapshot ID`, to a snapshot before it, lets them be "
    "written again"
)
_HINTS: Final = {
    TaskErrorKind.STALE: _RETRIED,
    TaskErrorKind.DAMAGED: f"`icestream wal inspect` shows what the log holds; {_RETRIED}",
    TaskErrorKind.UNREACHABLE: f"check that the storage of the table is reachable; {_RETRIED}",
    TaskErrorKind.FAILED: f"see the pipeline's log; {_RETRIED}",
}


class RoundCommit:
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
        self._effects = effects
        self._clock = clock
        self._report = report
        self._jobs = jobs
        self._unresolved = UnresolvedCommits()

    async def commit(self, verdicts: Sequence[TopicVerdict], report: RoundReport) -> Positions:
        """Commits what may be committed of a round. Returns the next offsets of the tables that took their commit.

        Raises LeaseLost when another driver took over.
        """
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
        results = await self._commit_and_verify(commits, report, task_errors)
        for verdict in verdicts:
            if verdict.errors and not verdict.claims:
                self._record_failure(verdict.topic.topic_id, verdict.topic.name, verdict.errors[0], is_stuck=True)
        return [
            (commit.table.topic_id, shard, position.next)
            for commit in commits
            if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)
            for shard, position in commit.table.positions.items()
        ]

    async def _commit_and_verify(
        self, commits: Sequence[TopicCommit], report: RoundReport, task_errors: Mapping[int, TaskError]
    ) -> dict[int, Result]:
        """Returns the result for each topic id. The committed files are verified before the ledger records the commit,
        and before any offset of the log follows from it."""
        results: dict[int, Result] = {}
        retries_before = self._committer.retries
        await self._commit_with_retries(commits, results)
        await self._verify_files(commits, results)
        committed = [commit for commit in commits if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)]
        with self._effects.happens(Effect.NOTE):
            for topic_id in await self._ledger.record(committed):
                results[topic_id] = NotCommitted("an operator changed the binding of the topic's table meanwhile")
        is_first_attempt = self._committer.retries == retries_before
        for commit in commits:
            topic_id = commit.table.topic_id
            self._unresolved.drop(topic_id)
            self._apply_result(
                commit, results.get(topic_id), report, task_errors.get(topic_id), is_first_attempt=is_first_attempt
            )
        return results

    async def _commit_with_retries(self, commits: Sequence[TopicCommit], results: dict[int, Result]) -> None:
        """Retries while the catalog is unreachable. Fills `results`. Raises LeaseLost."""
        failures = 0
        while True:
            self._lease.check()
            try:
                with self._effects.happens(Effect.COMMIT):
                    await self._committer.commit(commits, results)
                return
            except errors.StorageUnavailable as error:
                failures += 1
                metrics.PIPELINE_COMMIT_RETRIES.inc()
                self._report.set_phase("committing", f"the catalog is unreachable: {error.message}")
                await self._report.publish()
                pause = backoff_seconds(failures, limits.PIPELINE_RETRY_SECONDS_MIN, limits.PIPELINE_RETRY_SECONDS_MAX)
                await self._clock.sleep(pause)
                self._report.set_phase("committing")

    def _apply_result(
        self,
        commit: TopicCommit,
        result: Result | None,
        report: RoundReport,
        task_error: TaskError | None,
        *,
        is_first_attempt: bool,
    ) -> None:
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
                    topic_id, topic, HaltCause.COMMIT, StopReason(reason, _RETRIED), is_stuck=is_unresolved
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
            await self._commit_and_verify(commits, report, {})

    async def _can_retry(self, unresolved: UnresolvedCommit) -> bool:
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

    async def _verify_files(self, commits: Sequence[TopicCommit], results: dict[int, Result]) -> None:
        """Checks that the files of the commits exist. A commit can land although another engine removed its files
        before: it is undone while the log still has the messages, and the next round writes them again
        (docs/adr/0042)."""
        committed = {
            commit.table.topic_id: commit
            for commit in commits
            if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)
        }
        with self._effects.happens(Effect.LOOK_AGAIN):
            for topic_id, missing in (await self._committer.missing_files([*committed.values()])).items():
                commit, result = committed[topic_id], results[topic_id]
                assert isinstance(result, CommittedSnapshot)
                if isinstance(missing, errors.IcestreamError):
                    commit.table.is_stale = True
                    results[topic_id] = _unverified(missing)
                    continue
                starts = {claim.shard: claim.start for claim in commit.claims}
                shards = {
                    shard: ShardLog(position.epoch, starts.get(shard, position.next), position.next)
                    for shard, position in commit.table.positions.items()
                }
                results[topic_id] = await self._undo(commit.table, result.snapshot_id, shards, missing)

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
                missing_by_snapshot = await self._committer.missing_files_of_newest(table.table)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                self._tables.halt(table.topic_id, table.topic, _unverified(error))
                continue
            if not missing_by_snapshot:
                verified_ids.add(table.topic_id)
                continue
            snapshot_id, missing = next(iter(missing_by_snapshot.items()))
            shards = {
                shard.shard: ShardLog(shard.epoch, shard.committed, shard.synced)
                for shard in topics[table.topic_id].shards
            }
            result = await self._undo(table, snapshot_id, shards, missing)
            if isinstance(result, StopReason):
                self._tables.halt(table.topic_id, table.topic, result)
        return [position for position in positions if position[0] in verified_ids]

    async def _undo(
        self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog], missing: Sequence[str]
    ) -> NotCommitted | StopReason:
        """Undoes a commit whose files are missing. Returns what that means for its topic."""
        self._lease.check()
        metrics.PIPELINE_VANISHED_FILES.inc(len(missing))
        self._report.vanished_files += len(missing)
        description = (
            f"{counted(len(missing), 'file')} of snapshot {snapshot_id} {were(len(missing))} missing after its commit, "
            f"such as {missing[0]}"
        )
        try:
            await self._ledger.undo(table, snapshot_id, shards)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            return StopReason(f"{description}; the commit cannot be undone: {error.message}", _REWIND)
        finally:
            table.is_stale = True
        _log.error(
            "committed files are missing: commit undone, its messages are written again from the log",
            topic=table.topic,
            snapshot_id=snapshot_id,
            files=len(missing),
            file=missing[0],
            hint=_ORPHAN_RETENTION,
        )
        return NotCommitted(f"{description}: its messages are written again from the log")


def _log_task_errors(verdict: TopicVerdict) -> None:
    for error in verdict.errors:
        _log.warning("task failed for a topic", topic=verdict.topic.name, trouble=error.trouble, reason=error.message)
        metrics.PIPELINE_TASK_ERRORS.labels(error.trouble).inc()
    if verdict.is_cut:
        _log.warning(
            "topic has more partition values than a round writes files for: the rest follows with the next round",
            topic=verdict.topic.name,
            hint=f"at most {limits.ROUND_PARTITIONS_MAX} in one task; a bucket of the key makes larger files",
        )


def _unverified(error: errors.IcestreamError) -> StopReason:
    """For a topic whose committed files cannot be checked: its committed offset stays, the other topics continue."""
    return StopReason(f"its committed files cannot be checked: {error.message}", error.hint or _RETRIED)
