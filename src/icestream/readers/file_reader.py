"""Reads data files of a topic's table: returns the rows of one shard in a group of rows, ordered by offset.

A file may be Parquet, ORC or Avro and may come from any engine; its columns are converted to those of the envelope
(file_columns.py). The rows of a file may be in any order. Deleted rows are removed behind the cache (row_deletes.py),
so that a new delete does not invalidate decoded groups. A file that cannot be read, or deletes that cannot be applied,
stop the reader with the reason: a wrong row is never returned (hazard 22).

Everything here blocks, and runs in the threads of a scan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.catalog.topic_rules.topic_schema import LEVELS
from icestream.model.scan_messages import RowRange
from icestream.observability import metrics
from icestream.readers.data_files import UNKNOWN, ScanBounds, ScanDataFile, ScanDeleteFile, TableColumns
from icestream.readers.file_columns import REQUIRED_COLUMNS, match_columns, to_envelope_columns
from icestream.readers.file_format import FileFormat, FileShape, TextBounds, decoding, unreadable
from icestream.readers.level_bounds import GroupLevels, LevelBounds, known_levels
from icestream.readers.parquet_format import ParquetFormat
from icestream.readers.row_deletes import NO_DELETES, Deletes, RowDeletes, drop_deleted
from icestream.readers.row_group_cache import RowGroupCache, RowGroupKey
from icestream.readers.sections import APPEND_TIME, OFFSET, SHARD, TYPES, int64s
from icestream.readers.stored_files import OpenFile
from icestream.readers.topic_filters import TopicFilters


class RowGroup(NamedTuple):
    """The part of a data file that is decoded at a time: a row group, a stripe, a run of blocks."""

    file: ScanDataFile
    number: int
    first_row: int  # position of its first row in the file; position deletes count from the start of the file
    rows: int
    bytes: int  # estimated size once it is decoded
    shards: ScanBounds
    offsets: ScanBounds
    times: ScanBounds


class OpenedFile(NamedTuple):
    """The parts of a file that are kept after it was opened once: its footer, not its rows."""

    format: FileFormat
    shape: FileShape
    columns: dict[str, str]  # the name in the envelope, and the name in the file


class ShardRows(NamedTuple):
    """Rows of one shard, sorted by offset, and the positions in the file of some of them."""

    rows: Any
    ranges: list[RowRange]


class FileReader:
    """Reads groups of rows. Keeps footers, sizes and decoded deletes; decoded rows are in the cache."""

    def __init__(self, open_file: OpenFile, cache: RowGroupCache) -> None:
        self._open = open_file
        self._cache = cache
        self._formats: dict[str, FileFormat] = {}
        self._opened: LRUCache[str, OpenedFile] = LRUCache(
            limits.SCAN_FOOTER_GROUPS_MAX, getsizeof=lambda _, opened: _weight(opened.shape.groups)
        )
        self._sizes: LRUCache[tuple[str, int], int] = LRUCache(limits.SCAN_FOOTER_GROUPS_MAX)
        self._levels: LRUCache[str, list[GroupLevels | None]] = LRUCache(
            limits.SCAN_FOOTER_GROUPS_MAX, getsizeof=lambda _, levels: _weight(levels)
        )
        self._deletes = RowDeletes(open_file, self._format)
        self.groups_read = 0

    # --- footers ---

    def groups(self, file: ScanDataFile, table: TableColumns, filters: TopicFilters | None = None) -> list[RowGroup]:
        """Returns the groups of a file that can hold a row that the filters match, in its order. Raises TableUnreadable
        for a format that is not supported."""
        opened = self._open_file(file, table)
        shapes = opened.shape.groups
        levels = self._levels_of(file, table) if filters is not None else ()
        groups, first_row = [], 0
        for number, shape in enumerate(shapes):
            if filters is not None and not filters.may_match(levels[number]):
                first_row += shape.rows
                continue
            bounds = [shape.bounds_of(opened.columns.get(name)) for name in (SHARD, OFFSET, APPEND_TIME)]
            if len(shapes) == 1:
                # The bounds of the file in its manifest hold for its only group, also where the file has no statistics.
                file_bounds = (file.shards, file.offsets, file.times)
                bounds = [own if own != UNKNOWN else listed for own, listed in zip(bounds, file_bounds, strict=True)]
            groups.append(
                RowGroup(file, number, first_row, shape.rows, self._decoded_bytes(file, opened, number), *bounds)
            )
            first_row += shape.rows
        return groups

    def _decoded_bytes(self, file: ScanDataFile, opened: OpenedFile, number: int) -> int:
        key = file.path, number
        size: int | None = self._sizes.get(key)
        if size is None:
            size = opened.format.decoded_bytes(file.path, opened.shape, number, [*opened.columns.values()])
            self._sizes.insert(key, size)
        return size

    def _levels_of(self, file: ScanDataFile, table: TableColumns) -> list[GroupLevels | None]:
        """Returns the bounds of the topics' levels in each group."""
        levels: list[GroupLevels | None] | None = self._levels.get(file.path)
        if levels is None:
            opened = self._open_file(file, table)
            columns = match_columns(opened.shape, table, LEVELS)
            bounds = opened.format.text_bounds(opened.shape, [*columns.values()])
            levels = [
                _group_levels(dict(zip(columns, texts, strict=True)), shape.rows)
                for texts, shape in zip(bounds, opened.shape.groups, strict=True)
            ]
            self._levels.insert(file.path, levels)
        return levels

    def skipped_groups(
        self, file: ScanDataFile, table: TableColumns, filters: TopicFilters, start: int, stop: int
    ) -> int:
        """Returns how many groups with offsets in [start, stop) `groups` leaves out, for metrics."""
        opened = self._open_file(file, table)
        offset = opened.columns.get(OFFSET)
        bounds = (shape.bounds_of(offset) for shape in opened.shape.groups)
        return sum(
            not filters.may_match(levels) and (low is None or low < stop) and (high is None or high >= start)
            for levels, (low, high) in zip(self._levels_of(file, table), bounds, strict=True)
        )

    def rows_in(self, file: ScanDataFile | ScanDeleteFile, table: TableColumns) -> int:
        """Returns the number of rows that the file itself states, to be compared with its manifest."""
        return (
            self._open_file(file, table).shape.rows if isinstance(file, ScanDataFile) else self._deletes.rows_in(file)
        )

    def _open_file(self, file: ScanDataFile, table: TableColumns) -> OpenedFile:
        """Returns the footer of a file, read once, with its columns matched. Raises TableUnreadable for an unknown
        format."""
        opened: OpenedFile | None = self._opened.get(file.path)
        if opened is None:
            format_ = self._format(file.format)
            if format_ is None:
                raise unreadable(
                    f"{file.path} has the unsupported format {file.format}", "compact the table to Parquet, ORC or Avro"
                )
            shape = format_.shape(file.path)
            opened = OpenedFile(format_, shape, match_columns(shape, table))
            self._opened.insert(file.path, opened)
        return opened

    def _format(self, name: str) -> FileFormat | None:
        """Returns the reader of a format, created on first use; None if the format is not supported."""
        if name not in self._formats and name in FORMATS:
            self._formats[name] = FORMATS[name](self._open)
        return self._formats.get(name)

    # --- rows ---

    def decode_together(self, groups: Sequence[RowGroup], table: TableColumns) -> dict[RowGroupKey, Any]:
        """Returns the rows of groups, for `shard_rows`. Groups of one file that follow each other are read together, in
        one request to an object store. Those that are too large to hold are left out."""
        decoded: dict[RowGroupKey, Any] = {}
        missing: dict[str, list[RowGroup]] = {}
        for group in groups:
            if group.bytes > limits.SCAN_GROUP_BYTES_MAX or not self._has_required_columns(group, table):
                continue
            key = RowGroupKey(group.file.path, group.number)
            rows = self._cache.get(key)
            if rows is None:
                missing.setdefault(group.file.path, []).append(group)
            else:
                decoded[key] = rows
        for of_file in missing.values():
            for run in _adjacent(sorted(of_file, key=lambda group: group.number)):
                decoded |= self._decode_run(run, table)
        return decoded

    def _decode_run(self, groups: list[RowGroup], table: TableColumns) -> dict[RowGroupKey, Any]:
        file, opened = groups[0].file, self._open_file(groups[0].file, table)
        names = tuple(TYPES)
        types = {opened.columns[name]: TYPES[name] for name in names if name in opened.columns}
        tables = opened.format.tables(file.path, opened.shape, [group.number for group in groups], types)
        decoded: dict[RowGroupKey, Any] = {}
        for group, rows in zip(groups, tables, strict=True):
            self._count_read(group, opened, types)
            with decoding(file.path):
                converted = to_envelope_columns(rows, opened.columns, names)
            key = RowGroupKey(file.path, group.number)
            decoded[key] = converted
            self._cache.put(key, converted)
        return decoded

    def shard_rows(
        self,
        group: RowGroup,
        table: TableColumns,
        shard: int,
        deletes: tuple[ScanDeleteFile, ...],
        low: int,
        high: int,
        decoded_groups: Mapping[RowGroupKey, Any] = MappingProxyType({}),
    ) -> ShardRows:
        """Returns the live rows of the shard with offsets in [low, high). `decoded_groups`: of `decode_together`; a
        group that is not there is read."""
        if not self._has_required_columns(group, table):
            return ShardRows(no_rows(), [])
        deleted = self._deletes_in(group, deletes, table)
        if group.bytes > limits.SCAN_GROUP_BYTES_MAX:
            # Too large to hold, and therefore to cache: decoded again in batches for every window of offsets, and only
            # the rows of the window are kept. Slow, but the memory of a scan stays bounded (hazard 22).
            parts = [_filter_rows(rows, shard, low, high) for rows in self.live_batches(group, table, deleted)]
            return ShardRows(sort_by_offset(pa.concat_tables(parts)) if parts else no_rows(), [])
        key = RowGroupKey(group.file.path, group.number)
        decoded = decoded_groups[key] if key in decoded_groups else self._decode(group, table)
        rows = drop_deleted(decoded, group.first_row, deleted)
        # Files of the pipeline have one shard each. Where the bounds prove that, filtering would only copy the rows.
        is_one_shard = group.shards.low == group.shards.high == shard and group.shards.low is not None
        has_nulls = rows[SHARD].null_count or rows[OFFSET].null_count
        of_shard = rows if is_one_shard and not has_nulls else rows_of_shard(rows, shard)
        selected = slice_offsets(sort_by_offset(of_shard), low, high)
        return ShardRows(selected, row_ranges(decoded, group.file.path, group.first_row, shard, low, high))

    def columns(self, group: RowGroup, table: TableColumns, *names: str) -> Any:
        """Returns some columns of all rows of a group, deleted ones and rows with a null shard or offset included; no
        rows for a file without a shard or offset column. A column that the file lacks is null.

        Bypasses the cache: verification and bounds read every group once, and would evict what readers need.
        """
        if not self._has_required_columns(group, table):
            return pa.table({name: pa.array([], TYPES[name]) for name in names})
        (rows,) = self._batches(group, table, names, None)
        for name in names:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(len(rows), TYPES[name]))
        return rows

    def offsets(self, group: RowGroup, table: TableColumns, shard: int, deletes: tuple[ScanDeleteFile, ...]) -> Any:
        """Returns the offsets of the live rows of a shard, in the order of the file."""
        deleted = self._deletes_in(group, deletes, table)
        rows = self.columns(group, table, *{SHARD, OFFSET, *deleted.columns})
        return rows_of_shard(drop_deleted(rows, group.first_row, deleted), shard)[OFFSET]

    def live_rows(self, group: RowGroup, table: TableColumns, deletes: tuple[ScanDeleteFile, ...]) -> int:
        """Returns the number of rows that are not deleted."""
        deleted = self._deletes_in(group, deletes, table)
        if not deleted.by_value:
            return group.rows - len(deleted.positions)
        return len(drop_deleted(self.columns(group, table, *deleted.columns, OFFSET), group.first_row, deleted))

    def _has_required_columns(self, group: RowGroup, table: TableColumns) -> bool:
        return all(name in self._open_file(group.file, table).columns for name in REQUIRED_COLUMNS)

    def _deletes_in(self, group: RowGroup, deletes: tuple[ScanDeleteFile, ...], table: TableColumns) -> Deletes:
        """Returns the deletes of the group's file, with the positions narrowed to this group."""
        deleted = self._deletes.of(group.file, deletes, table)
        low = bisect_left(deleted.positions, group.first_row)
        high = bisect_left(deleted.positions, group.first_row + group.rows)
        return deleted._replace(positions=deleted.positions[low:high])

    def _decode(self, group: RowGroup, table: TableColumns) -> Any:
        key = RowGroupKey(group.file.path, group.number)
        rows = self._cache.get(key)
        if rows is None:
            (rows,) = self._batches(group, table, tuple(TYPES), None)
            self._cache.put(key, rows)
        return rows

    def live_rows_of(self, group: RowGroup, table: TableColumns, deletes: tuple[ScanDeleteFile, ...]) -> Iterator[Any]:
        """Yields all columns of the rows of a group that these delete files leave, one batch of bounded size at a
        time."""
        return self.live_batches(group, table, self._deletes_in(group, deletes, table))

    def live_batches(self, group: RowGroup, table: TableColumns, deletes: Deletes = NO_DELETES) -> Iterator[Any]:
        """Yields all columns of the live rows of a group, one batch of bounded size at a time."""
        position = group.first_row
        for rows in self._batches(group, table, tuple(TYPES), _batch_rows(group)):
            yield drop_deleted(rows, position, deletes)
            position += len(rows)

    def _batches(
        self, group: RowGroup, table: TableColumns, names: tuple[str, ...], batch_rows: int | None
    ) -> Iterator[Any]:
        """Decodes some columns of a group, with the envelope's names and types; columns that the file lacks are
        absent."""
        file, opened = group.file, self._open_file(group.file, table)
        types = {opened.columns[name]: TYPES[name] for name in names if name in opened.columns}
        self._count_read(group, opened, types)
        for batch in opened.format.batches(file.path, opened.shape, group.number, types, batch_rows):
            with decoding(file.path):
                yield to_envelope_columns(batch, opened.columns, names)

    def _count_read(self, group: RowGroup, opened: OpenedFile, columns: Iterable[str]) -> None:
        self.groups_read += 1
        metrics.SCAN_GROUPS.labels("read").inc()
        stored_bytes = opened.shape.groups[group.number].stored_bytes
        size = sum(stored_bytes.get(column, 0) for column in columns)
        # A format that does not tell: the share of the group's rows in the file.
        metrics.SCAN_READ_BYTES.inc(
            size if stored_bytes else group.file.size_bytes * group.rows // max(group.file.rows, 1)
        )


def _orc(open_file: OpenFile) -> FileFormat:
    from icestream.readers.orc_format import OrcFormat

    return OrcFormat(open_file)


def _avro(open_file: OpenFile) -> FileFormat:
    from icestream.readers.avro_format import AvroFormat

    return AvroFormat(open_file)


# ORC and Avro are rare in tables of topics: their libraries are loaded with the first such file.
FORMATS: Final[dict[str, Callable[[OpenFile], FileFormat]]] = {"parquet": ParquetFormat, "orc": _orc, "avro": _avro}


def _weight(groups: Sequence[object]) -> int:
    """Returns the share of a file in SCAN_FOOTER_GROUPS_MAX. A file with more groups than that fills the cache."""
    return min(1 + len(groups), limits.SCAN_FOOTER_GROUPS_MAX)


def _adjacent(groups: list[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yields runs of groups that follow each other in the file, of at most SCAN_FETCH_BYTES."""
    run: list[RowGroup] = []
    size = 0
    for group in groups:
        if run and (group.number != run[-1].number + 1 or size + group.bytes > limits.SCAN_FETCH_BYTES):
            yield run
            run, size = [], 0
        run.append(group)
        size += group.bytes
    if run:
        yield run


def _group_levels(texts: Mapping[str, TextBounds], rows: int) -> GroupLevels | None:
    """Returns the bounds of level columns, of those that the file has."""
    levels = [
        LevelBounds(text.low, text.high, text.nulls != rows, text.nulls != 0)
        if (text := texts.get(name)) is not None
        else None
        for name in LEVELS
    ]
    return known_levels(levels)


def _batch_rows(group: RowGroup) -> int:
    """Returns how many rows make a batch of about SCAN_BATCH_BYTES."""
    row_bytes = max(group.bytes // max(group.rows, 1), 1)
    return max(1, min(limits.SCAN_BATCH_ROWS, limits.SCAN_BATCH_BYTES // row_bytes))


# --- rows -------------------------------------------------------------------------------------------------------------


def no_rows() -> Any:
    return pa.table({OFFSET: pa.array([], pa.int64()), APPEND_TIME: pa.array([], TYPES[APPEND_TIME])})


def concat_rows(parts: list[Any]) -> Any:
    """Returns the rows of several files as one table. A column that a file lacks is null in its rows."""
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")


def rows_of_shard(rows: Any, shard: int) -> Any:
    """Returns the rows of a shard. A row without an offset, which only another engine can insert, is not a message."""
    return rows.filter(pc.and_(pc.equal(rows[SHARD], shard), pc.is_valid(rows[OFFSET])))


def _filter_rows(rows: Any, shard: int, low: int, high: int) -> Any:
    offsets = rows[OFFSET]
    is_inside = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
    return rows.filter(pc.and_(is_inside, pc.equal(rows[SHARD], shard)))


def sort_by_offset(rows: Any) -> Any:
    """Returns the rows by rising offset. The sort is stable: of rows with the same offset, the first stays first."""
    offsets = rows[OFFSET]
    # Files of the pipeline are sorted already: comparing neighbours is much cheaper than copying every column.
    last = len(rows) - 1
    if last > 0 and not pc.all(pc.less_equal(offsets.slice(0, last), offsets.slice(1))).as_py():
        return rows.take(pc.sort_indices(offsets))
    return rows


def row_ranges(decoded: Any, path: str, first_row: int, shard: int, low: int, high: int) -> list[RowRange]:
    """Returns the positions in the file of rows of the shard with offsets in [low, high); at most SCAN_ROW_RANGES_MAX
    ranges.

    `decoded`: rows in the order of the file, from row `first_row` on. The ranges are hints: every range is correct, but
    they are complete only if the shard's rows are adjacent and sorted, as the pipeline writes them.
    """
    if decoded[OFFSET].null_count or decoded[SHARD].null_count or low >= high:
        return []
    of_this_shard = pc.equal(decoded[SHARD], shard)
    shard_start = pc.index(of_this_shard, True).as_py()
    shard_end = shard_start + (pc.sum(of_this_shard).as_py() or 0)
    if shard_start < 0 or not pc.all(of_this_shard.slice(shard_start, shard_end - shard_start)).as_py():
        return []
    offsets = int64s(decoded[OFFSET])
    start = bisect_left(offsets, low, shard_start, shard_end)
    end = bisect_left(offsets, high, start, shard_end)
    if start == end:
        return []
    later, earlier = (decoded[OFFSET].slice(at, end - start - 1) for at in (start + 1, start))
    breaks = pc.indices_nonzero(pc.not_equal(pc.subtract(later, earlier), 1)).slice(0, limits.SCAN_ROW_RANGES_MAX)
    bounds = [start, *(start + 1 + at for at in breaks.to_pylist()), end][: limits.SCAN_ROW_RANGES_MAX + 1]
    return [RowRange(offsets[at], stop - at, path, first_row + at) for at, stop in pairwise(bounds)]


def slice_offsets(rows: Any, low: int, high: int) -> Any:
    """Returns the rows with offsets in [low, high), without copying. The rows must be sorted by offset."""
    offsets = int64s(rows[OFFSET])
    start = bisect_left(offsets, low)
    return rows.slice(start, bisect_left(offsets, high) - start)
