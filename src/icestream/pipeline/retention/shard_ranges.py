"""Reads which offsets of which shards a data file of several shards holds. Blocks: it runs beside the event loop.

A manifest has one pair of bounds for each column of a file, so of a file of several shards it does not tell where each
shard ends. The two columns are small; what was read is kept, because files never change.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import errors, limits
from icestream.catalog.topic_rules.rewritten_rows import Bounds
from icestream.readers.stored_files import OpenFile


class ShardRanges:
    """The offsets of each shard in data files that the pipeline wrote."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._known: LRUCache[str, dict[int, Bounds]] = LRUCache(limits.RETENTION_RANGES_KEPT)

    def read(self, location: str) -> dict[int, Bounds]:
        """Returns the lowest and highest offset of each shard in the file. Raises TableUnreadable."""
        if location in self._known:
            return self._known[location]
        try:
            ranges = _read(self._open(location))
        except (OSError, pa.ArrowException, KeyError) as error:
            raise errors.TableUnreadable(f"{location} cannot be read: {error}") from error
        self._known[location] = ranges
        return ranges


def _read(source: Any) -> dict[int, Bounds]:
    ranges: dict[int, Bounds] = {}
    with pq.ParquetFile(source) as file:
        # One row group at a time: two numbers of each row, of a file of any size.
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=["shard", "offset"])
            extremes = rows.group_by("shard").aggregate([("offset", "min"), ("offset", "max")])
            for row in extremes.to_pylist():
                low, high = ranges.get(row["shard"], Bounds(row["offset_min"], row["offset_max"]))
                ranges[row["shard"]] = Bounds(min(low, row["offset_min"]), max(high, row["offset_max"]))
    return ranges
