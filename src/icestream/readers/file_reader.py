"""The files of a topic's table: their groups of rows as rows of one shard, in the order of their offsets.

A file may be Parquet, ORC or Avro and may come from any engine: its columns are read into the envelope's own
(file_columns.py). Inside of a file rows may stand in any order. Deleted rows are taken away behind the cache
(row_deletes.py). What cannot be read or applied stops the reader, with the reason (hazard 22).

Everything here blocks, and runs beside the loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.readers.data_files import UNKNOWN, Bounds, DataFile, DeleteFile, TableColumns
from icestream.readers.file_columns import PLACE, columns_in, conformed
from icestream.readers.file_format import FileFormat, FileShape, decoding, unreadable
from icestream.readers.parquet_format import ParquetFormat
from icestream.readers.row_deletes import NO_DELETES, Deletes, RowDeletes, without
from icestream.readers.row_group_cache import RowGroupCache, RowGroupKey
from icestream.readers.sections import APPEND_TIME, OFFSET, SHARD, TYPES, int64s
from icestream.readers.stored_files import OpenFile


class RowGroup(NamedTuple):
    """A part of a data file that is decoded at a time: a row group, a stripe, some blocks."""

    file: DataFile
    number: int
    first_row: int  # its place in the file
    rows: int
    bytes: int  # decoded, about
    shards: Bounds
    offsets: Bounds
    times: Bounds


class OpenedFile(NamedTuple):
    """What is known of a file once it was opened."""

    format: FileFormat
    shape: FileShape
    columns: dict[str, str]  # of the envelope: its name, and the file's name for it


class FileReader:
    def __init__(self, open_file: OpenFile, cache: RowGroupCache) -> None:
        self._open = open_file
        self._cache = cache
        self._formats: dict[str, FileFormat] = {}
        self._opened: LRUCache[str, OpenedFile] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._sizes: LRUCache[tuple[str, int], int] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._deletes = RowDeletes(open_file, self._format)
        self.groups_read = 0

    # --- what is in a file ---

    def groups(self, file: DataFile, table: TableColumns) -> list[RowGroup]:
        opened = self._file(file, table)
        shapes = opened.shape.groups
        groups, first = [], 0
        for number, shape in enumerate(shapes):
            bounds = [shape.bounds_of(opened.columns.get(name)) for name in (SHARD, OFFSET, APPEND_TIME)]
            if len(shapes) == 1:  # what the manifest says of the file is true of its only group
                file_bounds = (file.shards, file.offsets, file.times)
                bounds = [own if own != UNKNOWN else listed for own, listed in zip(bounds, file_bounds, strict=True)]
            groups.append(RowGroup(file, number, first, shape.rows, self._decoded_bytes(file, opened, number), *bounds))
            first += shape.rows
        return groups

    def _decoded_bytes(self, file: DataFile, opened: OpenedFile, number: int) -> int:
        key = file.path, number
        size: int | None = self._sizes.get(key)
        if size is None:
            size = opened.format.decoded_bytes(file.path, opened.shape, number, [*opened.columns.values()])
            self._sizes.insert(key, size)
        return size

    def rows_in(self, file: DataFile | DeleteFile, table: TableColumns) -> int:
        """As many as the file itself says."""
        return self._file(file, table).shape.rows if isinstance(file, DataFile) else self._deletes.rows_in(file)

    def _file(self, file: DataFile, table: TableColumns) -> OpenedFile:
        opened: OpenedFile | None = self._opened.get(file.path)
        if opened is None:
            format_ = self._format(file.format)
            if format_ is None:
                raise unreadable(
                    f"{file.path} is a file of format {file.format}", "compact the table to Parquet, ORC or Avro"
                )
            shape = format_.shape(file.path)
            opened = OpenedFile(format_, shape, columns_in(shape, table))
            self._opened.insert(file.path, opened)
        return opened

    def _format(self, name: str) -> FileFormat | None:
        """None: no such format is read."""
        if name not in self._formats and name in FORMATS:
            self._formats[name] = FORMATS[name](self._open)
        return self._formats.get(name)

    # --- rows ---

    def shard_rows(
        self, group: RowGroup, table: TableColumns, shard: int, deletes: tuple[DeleteFile, ...], low: int, high: int
    ) -> Any:
        """Rows of the shard with the offsets [low, high), in the order of their offsets."""
        if not self._has_places(group, table):
            return empty()
        deleted = self._gone(group, deletes, table)
        if group.bytes > limits.SCAN_GROUP_BYTES_MAX:
            parts = [_selected(rows, shard, low, high) for rows in self.live_batches(group, table, deleted)]
            return in_order(pa.concat_tables(parts)) if parts else empty()
        rows = without(self._decoded(group, table), group.first_row, deleted)
        is_alone = group.shards.low == group.shards.high == shard and group.shards.low is not None
        has_nulls = rows[SHARD].null_count or rows[OFFSET].null_count
        return between(in_order(rows if is_alone and not has_nulls else of_shard(rows, shard)), low, high)

    def columns(self, group: RowGroup, table: TableColumns, *names: str) -> Any:
        """Some columns of a group, as they stand in it; not from the cache, and not into it. Rows without a place
        count too, but a file without the columns of a place has none."""
        if not self._has_places(group, table):
            return pa.table({name: pa.array([], TYPES[name]) for name in names})
        (rows,) = self._batches(group, table, names, None)
        for name in names:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(len(rows), TYPES[name]))
        return rows

    def offsets(self, group: RowGroup, table: TableColumns, shard: int, deletes: tuple[DeleteFile, ...]) -> Any:
        """Of the rows of one shard that are not deleted, in the order in which they stand."""
        deleted = self._gone(group, deletes, table)
        rows = self.columns(group, table, *{SHARD, OFFSET, *deleted.columns})
        return of_shard(without(rows, group.first_row, deleted), shard)[OFFSET]

    def live_rows(self, group: RowGroup, table: TableColumns, deletes: tuple[DeleteFile, ...]) -> int:
        deleted = self._gone(group, deletes, table)
        if not deleted.by_value:
            return group.rows - len(deleted.positions)
        return len(without(self.columns(group, table, *deleted.columns, OFFSET), group.first_row, deleted))

    def _has_places(self, group: RowGroup, table: TableColumns) -> bool:
        return all(name in self._file(group.file, table).columns for name in PLACE)

    def _gone(self, group: RowGroup, deletes: tuple[DeleteFile, ...], table: TableColumns) -> Deletes:
        deleted = self._deletes.of(group.file, deletes, table)
        low = bisect_left(deleted.positions, group.first_row)
        high = bisect_left(deleted.positions, group.first_row + group.rows)
        return deleted._replace(positions=deleted.positions[low:high])

    def _decoded(self, group: RowGroup, table: TableColumns) -> Any:
        key = RowGroupKey(group.file.path, group.number)
        rows = self._cache.get(key)
        if rows is None:
            (rows,) = self._batches(group, table, tuple(TYPES), None)
            self._cache.put(key, rows)
        return rows

    def live_batches(self, group: RowGroup, table: TableColumns, gone: Deletes = NO_DELETES) -> Iterator[Any]:
        """All columns of a group, some rows at a time, without those that are deleted."""
        at = group.first_row
        for rows in self._batches(group, table, tuple(TYPES), _batch_rows(group)):
            yield without(rows, at, gone)
            at += len(rows)

    def _batches(self, group: RowGroup, table: TableColumns, names: tuple[str, ...], rows: int | None) -> Iterator[Any]:
        self.groups_read += 1
        file, opened = group.file, self._file(group.file, table)
        kinds = {opened.columns[name]: TYPES[name] for name in names if name in opened.columns}
        for batch in opened.format.batches(file.path, opened.shape, group.number, kinds, rows):
            with decoding(file.path):
                yield conformed(batch, opened.columns, names)


def _orc(open_file: OpenFile) -> FileFormat:
    from icestream.readers.orc_format import OrcFormat

    return OrcFormat(open_file)


def _avro(open_file: OpenFile) -> FileFormat:
    from icestream.readers.avro_format import AvroFormat

    return AvroFormat(open_file)


# Those that tables of topics rarely have are loaded with the first file of their kind.
FORMATS: Final[dict[str, Callable[[OpenFile], FileFormat]]] = {"parquet": ParquetFormat, "orc": _orc, "avro": _avro}


def _batch_rows(group: RowGroup) -> int:
    """So many that a batch is a part of a window, however long the rows are."""
    row_bytes = max(group.bytes // max(group.rows, 1), 1)
    return max(1, min(limits.SCAN_BATCH_ROWS, limits.SCAN_BATCH_BYTES // row_bytes))


# --- rows -------------------------------------------------------------------------------------------------------------


def empty() -> Any:
    return pa.table({OFFSET: pa.array([], pa.int64()), APPEND_TIME: pa.array([], TYPES[APPEND_TIME])})


def together(parts: list[Any]) -> Any:
    """Rows of several files as one table. A column that some of them lack is null in their rows."""
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")


def of_shard(rows: Any, shard: int) -> Any:
    """A row without an offset has no place, and is none."""
    return rows.filter(pc.and_(pc.equal(rows[SHARD], shard), pc.is_valid(rows[OFFSET])))


def _selected(rows: Any, shard: int, low: int, high: int) -> Any:
    offsets = rows[OFFSET]
    is_inside = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
    return rows.filter(pc.and_(is_inside, pc.equal(rows[SHARD], shard)))


def in_order(rows: Any) -> Any:
    """By offset; rows of one offset stay in their order."""
    offsets = rows[OFFSET]
    last = len(rows) - 1
    if last > 0 and not pc.all(pc.less_equal(offsets.slice(0, last), offsets.slice(1))).as_py():
        return rows.take(pc.sort_indices(offsets))
    return rows


def between(rows: Any, low: int, high: int) -> Any:
    """Of rows in order."""
    offsets = int64s(rows[OFFSET])
    start = bisect_left(offsets, low)
    return rows.slice(start, bisect_left(offsets, high) - start)
