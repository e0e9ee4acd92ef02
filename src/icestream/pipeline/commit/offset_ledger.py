"""`OffsetLedger`: how each offset gets into its table exactly once, in our own catalog or in any other.

EmbeddedLedger   our own catalog: a commit claims its offsets, and the catalog accepts each offset once (hazard 14)
ForeignLedger    any other catalog: the snapshot records the next offsets of the table, and so does a mirror in our
                 metadata store. Before each retry and after each unknown outcome, both and the column bounds of the
                 files are compared (hazards 13, 21)

A rewrite adds no offsets and has no claims: it leaves the next offsets of its table as they are. Like every commit it
requires that main is the snapshot that it was built on, so it never undoes, repeats or hides an append that landed in
between; it is built again on the new main then. Whether it still may be committed is decided again before each attempt:

EmbeddedLedger   the commit names its job, its files and its epoch, and the catalog judges it (hazard 75)
ForeignLedger    `check_job` looks for it in the history of main, and compares lease and epoch (hazard 96). A retention
                 is announced: its first kept offsets are written before the catalog hears of it (hazard 86)
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from icestream.catalog.topic_rules.claim import CLAIM_TYPE
from icestream.catalog.topic_rules.erase_claim import EraseClaim, erase_requirement
from icestream.catalog.topic_rules.erased_record import StatedErasure
from icestream.catalog.topic_rules.job_claim import JobClaim
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.catalog.topic_rules.retention_claim import RetentionClaim, retention_requirement
from icestream.catalog.topic_rules.rewrite import JOB_TYPE, REWRITE_KIND, RewriteClaim
from icestream.iceberg.values import Object
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit.snapshot_builder import Operation
from icestream.pipeline.round_judgement import OffsetClaim
from icestream.pipeline.tables.topic_table import TopicTable


class ErasedChange(NamedTuple):
    """The erased offsets of a topic after an erasure, and the rows that it leaves out."""

    stated: StatedErasure
    rows: RowDigest


class TopicCommit(NamedTuple):
    """A commit to the table of one topic."""

    table: TopicTable
    round_id: bytes
    epoch: int  # of the pipeline
    claims: Sequence[OffsetClaim]
    files: Sequence[WrittenFile]  # to add
    snapshot_id: int
    operation: Operation = Operation.APPEND
    removed_files: Sequence[str] = ()  # locations of data files in the table: of a rewrite, their rows are in `files`
    first: Mapping[int, int] = MappingProxyType({})  # of a retention: the first kept offset of each shard after it
    consumers: int | None = None  # of a retention: the consumer generation that must be in force
    removed_rows: RowDigest = RowDigest()  # of a rewrite: the digest of the removed files, and that of `files`
    added_rows: RowDigest = RowDigest()
    deleted_rows: RowDigest = RowDigest()  # of a rewrite: what delete files delete from the removed files
    sequence_number: int = 0  # of a rewrite: of the snapshot that it was planned on
    applied_deletes: frozenset[str] = frozenset()  # of a rewrite: names of delete files (`ManifestEntry.delete_name`)
    job: str = ""  # of a rewrite: its kind, for the summary of the snapshot
    erased: ErasedChange | None = None  # of an erasure

    @property
    def is_job(self) -> bool:
        """True for a commit that adds no offsets: a rewrite, a retention or an erasure."""
        return self.operation is not Operation.APPEND

    @property
    def is_retention(self) -> bool:
        return self.operation is Operation.DELETE

    @property
    def ends(self) -> dict[int, int]:
        return {claim.shard: claim.end for claim in self.claims}

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class OffsetLedger(Protocol):
    """The tables of topics in one catalog, and their committed offsets."""

    @property
    def is_embedded(self) -> bool:
        """True for our own catalog: it takes all tables of a round in one request."""

    async def open(self, topic: TopicBacklog) -> TopicTable:
        """Returns the table of a topic, created if it never had one. Raises TopicTableConflict if an operator must
        decide."""

    async def find(self, topic_id: int, topic: str) -> TopicTable | None:
        """Returns the table of a topic whose backlog is not known; None if it has none. Never creates one."""

    async def create_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """Creates the tables of new topics together. Returns those that were created, by topic id; the others are
        opened one by one, which reports what is wrong with them."""

    async def refresh(self, table: TopicTable) -> TopicTable:
        """Reloads the table in place and returns it. Raises TopicTableConflict if table and topic do not agree any
        more."""

    async def add_shards(self, table: TopicTable, topic: TopicBacklog) -> TopicTable:
        """Adds the shards of the topic that the table does not know yet."""

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        """Undoes a commit whose files are missing: sets main to the parent of `snapshot_id`, which must be main. The
        table must be refreshed afterwards. `shards`: what the log has. Raises CommitConflict or TopicTableConflict if
        that is not possible."""

    def requirements(self, commit: TopicCommit) -> list[Object]:
        """What the commit requires beyond the requirements of every commit."""

    async def check_job(self, commit: TopicCommit) -> int | None:
        """Checks a rewrite or retention against its table as last loaded, before each attempt. Returns its snapshot
        if it is in the table already, else None. Raises LeaseLost if another driver took over."""

    async def announce(self, commit: TopicCommit) -> None:
        """Makes durable what readers must know before the catalog gets a commit that was checked: the first kept
        offsets of a retention, where the catalog does not take them with it. Raises RangeRefused for a commit that must
        be planned again, LeaseLost if another driver took over."""

    def summary(self, commit: TopicCommit) -> Mapping[str, str]:
        """The entries that the ledger needs in the summary of the snapshot."""

    async def record(self, commits: Sequence[TopicCommit]) -> Collection[int]:
        """Records commits that succeeded. Returns the ids of topics whose commit does not count, because an operator
        gave the topic another table or another position meanwhile: their messages stay in the log."""


def claim_requirement(commit: TopicCommit) -> Object:
    """The requirement by which our own catalog accepts each offset once."""
    return {
        "type": CLAIM_TYPE,
        "topic-id": commit.table.topic_id,
        "round-id": str(uuid.UUID(bytes=commit.round_id)),
        "pipeline-epoch": commit.epoch,
        "ranges": [
            {"shard": claim.shard, "epoch": claim.epoch, "start": claim.start, "end": claim.end}
            for claim in commit.claims
        ],
    }


def job_claim(commit: TopicCommit) -> JobClaim:
    """The claim of a rewrite, a retention or an erasure, as our own catalog reads it from the requirement."""
    if commit.is_retention:
        removed = frozenset(commit.removed_files)
        return RetentionClaim(
            commit.round_id, commit.table.topic_id, commit.epoch, removed, commit.first, consumers=commit.consumers
        )
    rewrite, erased = rewrite_claim(commit), commit.erased
    if erased is None:
        return rewrite
    return EraseClaim(rewrite, erased.stated)


def job_requirement(commit: TopicCommit) -> Object:
    """The requirement by which our own catalog judges a rewrite, a retention or an erasure."""
    claim = job_claim(commit)
    if isinstance(claim, RetentionClaim):
        return retention_requirement(claim, str(uuid.UUID(bytes=claim.round_id)))
    if isinstance(claim, EraseClaim):
        return erase_requirement(claim, rewrite_requirement(commit))
    return rewrite_requirement(commit)


def rewrite_claim(commit: TopicCommit) -> RewriteClaim:
    """The claim of a rewrite, as our own catalog reads it from the requirement."""
    added = frozenset(file.location for file in commit.files)
    return RewriteClaim(
        commit.round_id,
        commit.table.topic_id,
        commit.epoch,
        frozenset(commit.removed_files),
        added,
        replaced_rows=commit.removed_rows,
        added_rows=commit.added_rows,
        sequence_number=commit.sequence_number,
        deletes=commit.applied_deletes,
        deleted_rows=commit.deleted_rows,
        erased_rows=RowDigest() if commit.erased is None else commit.erased.rows,
    )


def rewrite_requirement(commit: TopicCommit) -> Object:
    """The requirement by which our own catalog judges a rewrite (catalog/topic_rules/rewrite.py)."""
    claim = rewrite_claim(commit)
    return {
        "type": JOB_TYPE,
        "kind": REWRITE_KIND,
        "topic-id": claim.topic_id,
        "round-id": str(uuid.UUID(bytes=claim.round_id)),
        "pipeline-epoch": claim.pipeline_epoch,
        "replaced": sorted(claim.replaced),
        "added": sorted(claim.added),
        "sequence-number": claim.sequence_number,
        "deletes": sorted(claim.deletes),
        "replaced-rows": claim.replaced_rows.text,
        "deleted-rows": claim.deleted_rows.text,
        "added-rows": claim.added_rows.text,
    }
