"""One table of a topic as its readers see it: a snapshot, the binding beside the pointer, the files by offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from icestream import errors
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.snapshot_progress import snapshot_progress
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.readers.data_files import DataFile, SnapshotFiles, table_columns
from icestream.readers.offset_windows import OffsetSpan, SpanIndex


class ShardFiles(NamedTuple):
    """The files that can hold rows of one shard: by their bounds, and those without."""

    bounded: SpanIndex[DataFile]
    loose: tuple[DataFile, ...]


class TableView:
    def __init__(
        self,
        identifier: Identifier,
        record: TableRecord,
        table: TableMetadata,
        files: SnapshotFiles,
        mirror: Mapping[int, int] | None = None,
    ) -> None:
        """`mirror`: how far it has come by our own note, where it is in another catalog."""
        self.identifier = identifier
        self.mirror = mirror
        self.record = record
        self.table = table
        self.files = files
        self.columns = table_columns(table.current_schema, table.properties)
        self._shelves: dict[int, ShardFiles] = {}

    @property
    def uuid(self) -> str:
        return self.record.uuid

    @property
    def binding(self) -> Binding:
        assert self.record.binding is not None  # whoever makes a view sees to it
        return self.record.binding

    def end(self, shard: int) -> int:
        """Behind the last offset that was committed."""
        return self.binding.committed().get(shard, 0)

    def epoch_of(self, shard: int, offset: int) -> int:
        runs = self.binding.runs[shard]
        return next((run.epoch for run in reversed(runs) if offset >= run.start), runs[0].epoch)

    def shelf(self, shard: int) -> ShardFiles:
        found = self._shelves.get(shard)
        if found is None:
            held = [file for file in self.files.data if file.shards.may_hold(shard)]
            units = [
                OffsetSpan(file.offsets.low, file.offsets.high, file.rows, file.size_bytes, file)
                for file in held
                if file.offsets.low is not None and file.offsets.high is not None
            ]
            loose = tuple(file for file in held if None in file.offsets)
            found = self._shelves[shard] = ShardFiles(SpanIndex(units), loose)
        return found

    def behind_snapshot(self, snapshot_id: int, shard: int) -> int | None:
        """The first offset that was not committed when the snapshot was made: its last round says it. None: the table
        has no such snapshot, or none any more."""
        if self.table.snapshots.find(snapshot_id) is None:
            return None
        found = snapshot_progress(self.table, snapshot_id, self.binding.topic_id, self.binding.base)
        if not found.is_known:
            raise errors.InvalidInput(
                f"what snapshot {snapshot_id} of table {self.identifier} holds is not known any more",
                hint="start at a time, or at a snapshot that a round of the pipeline made",
            )
        return found.progress.committed.get(shard, 0)
