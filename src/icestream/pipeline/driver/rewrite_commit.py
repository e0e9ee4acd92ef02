"""Commits the work of a job: files of topic tables are replaced by others with the same rows, or removed.

    outcome                                  consequence
    committed, or committed before           the other jobs hear of it
    another commit was faster                the table is loaded again, and the job plans again
    unknown                                  the same: a table that has the rewrite offers nothing to replace any more
    wrong: rows would be lost or doubled     the table is unchanged; the job must leave these files alone

Ingest continues in every case: a topic is not halted because its files could not be rewritten. No file is removed here,
neither a replaced one nor a new one (hazard 1): the clean-up knows which files no snapshot needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.observability.log import get_logger
from icestream.pipeline.commit.committer import CommittedSnapshot, Committer, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import ErasedChange, TopicCommit
from icestream.pipeline.commit.snapshot_builder import Operation
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.tables.topic_table import TopicTable

_log = get_logger("pipeline")


class TableRewrite(NamedTuple):
    """Files of a table, written under the present epoch and synced, that hold the rows of other files of the table
    which no delete file deletes."""

    table: TopicTable
    replaced_files: Sequence[str]  # locations
    files: Sequence[WrittenFile]
    replaced_rows: RowDigest  # of the replaced files, as their footers have it
    added_rows: RowDigest  # of `files`, as they were read back
    job: str  # the kind of job, for the history of the table
    sequence_number: int  # of the snapshot that it was planned on (`planned_number`)
    deleted_rows: RowDigest = RowDigest()  # of the replaced files: what delete files delete
    applied_deletes: frozenset[str] = frozenset()  # names of the delete files that were looked at for the replaced ones


class TableRetention(NamedTuple):
    """Files of a table that a retention removes, and the first kept offset of each shard after it."""

    table: TopicTable
    removed_files: Sequence[str]  # locations
    first: Mapping[int, int]
    consumers: int | None = None  # the consumer generation that must be in force; None: acks did not matter


class TableErasure(NamedTuple):
    """An exchange of files that leaves out erased rows, and the erased offsets of the topic after it."""

    rewrite: TableRewrite
    erased: ErasedChange


def planned_number(table: TableMetadata) -> int:
    """The sequence number of the table's current snapshot: of a rewrite that is planned on it (hazard 77)."""
    current = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
    # Snapshots of format v1 have none, and count as 0.
    return 0 if current is None else int(current.get("sequence-number") or 0)


class RewriteCommit:
    """Commits rewrites, retentions and erasures under the driver's lease, by the same steps as ingest."""

    def __init__(self, lease: DriverLease, committer: Committer, sequence: CommitSequence, jobs: JobRegistry) -> None:
        """`jobs` hear of each commit, and of files that a commit left behind."""
        self._lease = lease
        self._committer = committer
        self._sequence = sequence
        self._jobs = jobs

    async def commit(self, changes: Sequence[TableRewrite | TableRetention | TableErasure]) -> dict[int, Result]:
        """Commits rewrites, retentions and erasures, at most one of each table. Returns the result of each, by topic
        id. Raises LeaseLost when another driver took over."""
        epoch, round_id = self._lease.check(), self._committer.new_round_id()
        commits = [self._commit_of(change, round_id, epoch) for change in changes]
        retries_before = self._committer.retries
        results = await self._sequence.run(commits)
        is_first_attempt = self._committer.retries == retries_before
        for commit in commits:
            self._apply_result(commit, results.get(commit.table.topic_id), is_first_attempt=is_first_attempt)
        return results

    def _commit_of(
        self, change: TableRewrite | TableRetention | TableErasure, round_id: bytes, epoch: int
    ) -> TopicCommit:
        snapshot_id = self._committer.new_snapshot_id()
        erased: ErasedChange | None = None
        if isinstance(change, TableErasure):
            change, erased = change
        if isinstance(change, TableRetention):
            return TopicCommit(
                change.table,
                round_id,
                epoch,
                (),
                (),
                snapshot_id,
                Operation.DELETE,
                change.removed_files,
                change.first,
                consumers=change.consumers,
            )
        return TopicCommit(
            change.table,
            round_id,
            epoch,
            (),
            change.files,
            snapshot_id,
            Operation.REPLACE if erased is None else Operation.OVERWRITE,
            change.replaced_files,
            removed_rows=change.replaced_rows,
            added_rows=change.added_rows,
            deleted_rows=change.deleted_rows,
            sequence_number=change.sequence_number,
            applied_deletes=change.applied_deletes,
            job=change.job,
            erased=erased,
        )

    def _apply_result(self, commit: TopicCommit, result: Result | None, *, is_first_attempt: bool) -> None:
        """Logs a job that was not committed, and lets the other jobs know what became of its files."""
        table = commit.table
        if isinstance(result, CommittedSnapshot):
            self._jobs.table_committed(table)
        elif result is not None:
            _log.warning(
                "commit of a job refused",
                operation=str(commit.operation),
                topic=table.topic,
                files=len(commit.files) or len(commit.removed_files),
                reason=result.reason,
            )
        if isinstance(result, NotCommitted):
            table.is_stale = True
        # Every attempt writes manifests of its own, and only those of the last one can be in the table.
        if not isinstance(result, CommittedSnapshot) or result.is_repeat or not is_first_attempt:
            self._jobs.files_left_behind(table)
