"""The row groups of a table's files as spans of offsets (offset_windows.py): which offsets of a shard each can hold.

The statistics in the footer tell. A row group without statistics, or with rows of several shards, is read once to find
out.
"""

from __future__ import annotations

import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.readers.data_files import ScanDataFile
from icestream.readers.file_reader import FileReader, RowGroup, rows_of_shard
from icestream.readers.offset_windows import OffsetSpan
from icestream.readers.sections import OFFSET, SHARD
from icestream.readers.table_views import TableView
from icestream.readers.topic_filters import TopicFilters


class RowGroupIndex:
    """Finds the row groups of a file by offset. Keeps the bounds of groups that had to be read."""

    def __init__(self, files: FileReader) -> None:
        self._files = files
        # by path, row group and shard; None: no row of the shard
        self._bounds: LRUCache[tuple[str, int, int], tuple[int, int] | None] = LRUCache(limits.SCAN_FOOTERS_MAX)

    def spans(
        self, view: TableView, file: ScanDataFile, shard: int, position: int, filters: TopicFilters | None = None
    ) -> list[OffsetSpan[RowGroup]]:
        """Returns the row groups of a file that can hold offsets of the shard at or after the position, in rows that
        the filters match."""
        spans = []
        for group in self._files.groups(file, view.columns, filters):
            low, high = group.offsets
            if not group.shards.may_hold(shard) or (high is not None and high < position):
                continue
            # Bounds over several shards say nothing about one of them.
            if low is None or high is None or group.shards.low != group.shards.high:
                bounds = self._read_bounds(view, group, shard)
                if bounds is None or bounds[1] < position:
                    continue
                low, high = bounds
            spans.append(OffsetSpan(low, high, group.rows, group.bytes, group))
        return spans

    def _read_bounds(self, view: TableView, group: RowGroup, shard: int) -> tuple[int, int] | None:
        """Returns the lowest and highest offset of the shard's rows in a row group; None if it has none."""
        key = (group.file.path, group.number, shard)
        if key not in self._bounds:
            rows = self._files.columns(group, view.columns, SHARD, OFFSET)
            ends = pc.min_max(rows_of_shard(rows, shard)[OFFSET]).as_py()
            self._bounds.insert(key, None if ends["min"] is None else (ends["min"], ends["max"]))
        bounds: tuple[int, int] | None = self._bounds[key]
        return bounds
