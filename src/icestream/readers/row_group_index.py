"""The row groups of a table's files as units of a window (window.py): which offsets of a shard each can hold.

Statistics of the footer say it. A row group without them, or with rows of several shards, is looked into, once.
"""

from __future__ import annotations

import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.readers.data_files import DataFile
from icestream.readers.file_reader import FileReader, RowGroup, of_shard
from icestream.readers.offset_windows import OffsetSpan
from icestream.readers.sections import OFFSET, SHARD
from icestream.readers.table_view import TableView


class RowGroupIndex:
    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._bounds: LRUCache[tuple[str, int, int], tuple[int, int] | None] = LRUCache(limits.SCAN_FOOTERS_MAX)

    def of_file(self, view: TableView, file: DataFile, shard: int, position: int) -> list[OffsetSpan[RowGroup]]:
        """Those that can hold offsets of the shard from a position on."""
        found = []
        for group in self._files.groups(file, view.columns):
            low, high = group.offsets
            if not group.shards.may_hold(shard) or (high is not None and high < position):
                continue
            if low is None or high is None or group.shards.low != group.shards.high:
                bounds = self._bounds_of(view, group, shard)
                if bounds is None or bounds[1] < position:
                    continue
                low, high = bounds
            found.append(OffsetSpan(low, high, group.rows, group.bytes, group))
        return found

    def _bounds_of(self, view: TableView, group: RowGroup, shard: int) -> tuple[int, int] | None:
        """Of the rows of one shard in a row group with several, or without statistics."""
        key = (group.file.path, group.number, shard)
        if key not in self._bounds:
            rows = self._files.columns(group, view.columns, SHARD, OFFSET)
            ends = pc.min_max(of_shard(rows, shard)[OFFSET]).as_py()
            self._bounds.insert(key, None if ends["min"] is None else (ends["min"], ends["max"]))
        found: tuple[int, int] | None = self._bounds[key]
        return found
