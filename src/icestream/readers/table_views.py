"""A topic's table as readers see it, and the interface through which readers and `verify` load it.

`TableView` is one snapshot of the table: its binding to the topic, and its files by shard and offset. `TableViews`
loads and caches the views; it has one implementation for the embedded catalog and one for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from icestream import errors
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.catalog.topic_rules.snapshot_progress import snapshot_progress
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets
from icestream.readers.data_files import ScanDataFile, SnapshotFiles, table_columns
from icestream.readers.offset_windows import OffsetSpan, SpanIndex


class ShardFiles(NamedTuple):
    """The files that can hold rows of one shard."""

    bounded: SpanIndex[ScanDataFile]
    unbounded: tuple[ScanDataFile, ...]  # without bounds of the offset: each may hold any


class TableView:
    """The immutable view of a table at one snapshot, shared by all scans until the table changes."""

    def __init__(
        self,
        identifier: Identifier,
        record: TableRecord,
        table: TableMetadata,
        files: SnapshotFiles,
        mirror: Mapping[int, int] | None = None,
        first: Mapping[int, int] = MappingProxyType({}),
        erased: ErasedOffsets = NOTHING_ERASED,
    ) -> None:
        """`mirror`: for a table in another catalog, the committed offsets in our own metadata store. `first`: the first
        kept offsets, which a retention raises. `erased`: what erasures removed."""
        self.identifier = identifier
        self.mirror = mirror
        self.record = record
        self.table = table
        self.files = files
        self.columns = table_columns(table.current_schema, table.properties)
        self.first_offsets = first
        self.erased = erased
        self._shard_files: dict[int, ShardFiles] = {}

    @property
    def uuid(self) -> str:
        return self.record.uuid

    @property
    def binding(self) -> Binding:
        assert self.record.binding is not None  # views are made of bound tables only
        return self.record.binding

    def end(self, shard: int) -> int:
        """Returns the committed offset of the shard: one past the last committed message."""
        return self.binding.committed().get(shard, 0)

    def first(self, shard: int) -> int:
        """Returns the first kept offset of the shard: what files have below it is not read."""
        return self.first_offsets.get(shard, 0)

    def epoch_of(self, shard: int, offset: int) -> int:
        runs = self.binding.runs[shard]
        # The last run that starts at or before the offset; an offset in a gap between two runs belongs to the earlier
        # one.
        return next((run.epoch for run in reversed(runs) if offset >= run.start), runs[0].epoch)

    def shard_files(self, shard: int) -> ShardFiles:
        """Returns the files that may have rows of the shard, indexed by offset; computed once."""
        shard_files = self._shard_files.get(shard)
        if shard_files is None:
            files = [file for file in self.files.data if file.shards.may_hold(shard)]
            spans = [
                OffsetSpan(file.offsets.low, file.offsets.high, file.rows, file.size_bytes, file)
                for file in files
                if file.offsets.low is not None and file.offsets.high is not None
            ]
            unbounded = tuple(file for file in files if None in file.offsets)
            shard_files = self._shard_files[shard] = ShardFiles(SpanIndex(spans), unbounded)
        return shard_files

    def committed_at_snapshot(self, snapshot_id: int, shard: int) -> int | None:
        """Returns the committed offset of the shard when the snapshot was made; None if the table does not have the
        snapshot. Raises InvalidInput if no round in the snapshot's history tells."""
        if self.table.snapshots.find(snapshot_id) is None:
            return None
        state = snapshot_progress(self.table, snapshot_id, self.binding.topic_id, self.binding.base)
        if not state.is_known:
            raise errors.InvalidInput(
                f"the offsets in snapshot {snapshot_id} of table {self.identifier} are no longer known",
                hint="start at a time, or at a snapshot that a round of the pipeline made",
            )
        return state.last_round.committed.get(shard, 0)


class BoundTopic(NamedTuple):
    """A topic that is bound to a table, by its record."""

    topic: str
    topic_id: int
    problem: str | None = None  # why the record cannot be decoded; then the other fields are unknown


class DetachedTopic(NamedTuple):
    """A topic that was bound to a table and no longer is."""

    topic: str
    topic_id: int
    table: str
    committed: dict[int, int]  # per shard, when the table was detached
    problem: str | None = None


class TableViews(Protocol):
    """Loads and caches the views of topic tables."""

    async def view(self, topic_id: int) -> TableView | None:
        """Returns the cached view if it is current as far as known, else loads it; None if the topic has no table."""

    async def fresh(self, topic_id: int) -> TableView | None:
        """Loads the view from the catalog, bypassing the cache; None if the topic has no table."""

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        """Returns the recorded offsets of an expired snapshot; None if there is no record, or no longer."""

    async def bound_topics(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        """Lists topics with a table, and where the next page begins. A record that cannot be decoded is listed with its
        problem."""

    async def detached_topics(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        """Lists topics whose table was detached, dropped or replaced by force, and where the next page begins."""

    async def detached_topic(self, topic_id: int) -> DetachedTopic | None: ...

    async def run(self) -> None:
        """Follows changes until it is cancelled."""
