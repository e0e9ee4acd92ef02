"""Parquet files of a topic's table: their row groups as rows of one shard, in the order of their offsets.

Columns are found by Iceberg's field ids, and by their names in files that have none. Inside of a file rows may stand in
any order. Position deletes take rows away behind the cache. What cannot be applied stops the reader, with the reason:
a row that somebody deleted is never handed out (hazard 22). So do bytes that cannot be decoded.

Everything here blocks, and runs beside the loop.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import errors, limits
from icestream.lake.scan.data_files import EQUALITY_DELETES, Bounds, DataFile, DeleteFile
from icestream.lake.scan.group_cache import GroupCache, GroupKey
from icestream.lake.scan.sections import APPEND_TIME, OFFSET, SHARD, TYPES, int64s
from icestream.lake.scan.stored_files import OpenFile
from icestream.model import envelope


class Group(NamedTuple):
    """One row group of a data file."""

    file: DataFile
    number: int
    first_row: int  # its place in the file
    rows: int
    bytes: int  # decoded, about
    shards: Bounds
    offsets: Bounds
    times: Bounds


class Footer(NamedTuple):
    metadata: Any
    columns: dict[str, str]  # of the envelope: its name, and what the file calls it


class ParquetFiles:
    def __init__(self, open_file: OpenFile, cache: GroupCache) -> None:
        self._open = open_file
        self._cache = cache
        self._footers: LRUCache[str, Footer] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._counted: LRUCache[tuple[str, int], int] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._deleted: LRUCache[tuple[str, str], list[int]] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self.groups_read = 0

    # --- what is in a file ---

    def groups(self, file: DataFile, ids: Mapping[str, int]) -> list[Group]:
        footer = self._footer(file, ids)
        found, first = [], 0
        for number in range(footer.metadata.num_row_groups):
            group = footer.metadata.row_group(number)
            bounds = [_statistics(group, footer.columns.get(name)) for name in (SHARD, OFFSET, APPEND_TIME)]
            size = self._decoded_bytes(file, footer, number)
            found.append(Group(file, number, first, group.num_rows, size, *bounds))
            first += group.num_rows
        return found

    def _decoded_bytes(self, file: DataFile, footer: Footer, number: int) -> int:
        """About. What a footer says is the size of the encoded values: of equal ones a dictionary has one, and rows of
        a few KiB can decode to gigabytes. Where that may be, they are counted, once, without being decoded."""
        group = footer.metadata.row_group(number)
        repeated = _repeated(group, footer)
        if not repeated:
            return int(group.total_byte_size)
        key = file.path, number
        counted: int | None = self._counted.get(key)
        if counted is None:
            counted = self._count(file, footer, number, repeated)
            self._counted.insert(key, counted)
        return int(group.total_byte_size) + counted

    def _count(self, file: DataFile, footer: Footer, number: int, names: list[str]) -> int:
        source = self._open(file.path)
        with decoding(file.path), pq.ParquetFile(source, metadata=footer.metadata, read_dictionary=names) as parquet:
            rows = parquet.read_row_group(number, columns=names, use_threads=False)
        return sum(_value_bytes(chunk) for column in rows.columns for chunk in column.chunks)

    def rows_in(self, file: DataFile | DeleteFile, ids: Mapping[str, int]) -> int:
        """By the footer. A file of deletes that we do not read is believed."""
        if isinstance(file, DataFile):
            return int(self._footer(file, ids).metadata.num_rows)
        return int(self._metadata(file.path).num_rows) if file.format == "parquet" else file.rows

    def _footer(self, file: DataFile, ids: Mapping[str, int]) -> Footer:
        found: Footer | None = self._footers.get(file.path)
        if found is None:
            if file.format != "parquet":
                raise unreadable(f"{file.path} is a file of format {file.format}", "compact the table to Parquet")
            metadata = self._metadata(file.path)
            with decoding(file.path):
                found = Footer(metadata, _columns(metadata.schema.to_arrow_schema(), ids))
            self._footers.insert(file.path, found)
        return found

    def _metadata(self, path: str) -> Any:
        source = self._open(path)
        try:
            with decoding(path):
                return pq.read_metadata(source)
        finally:
            source.close()

    # --- rows ---

    def shard_rows(
        self, group: Group, ids: Mapping[str, int], shard: int, deletes: tuple[DeleteFile, ...], low: int, high: int
    ) -> Any:
        """Rows of the shard with the offsets [low, high), in the order of their offsets."""
        gone = self._positions(group, deletes)
        if group.bytes > limits.SCAN_GROUP_BYTES_MAX:
            parts = [_selected(rows, shard, low, high) for rows in self._batches(group, ids, gone)]
            return in_order(pa.concat_tables(parts)) if parts else empty()
        rows = _without(self._decoded(group, ids), group.first_row, gone)
        is_alone = group.shards.low == group.shards.high == shard and group.shards.low is not None
        return between(in_order(rows if is_alone else _of_shard(rows, shard)), low, high)

    def columns(self, group: Group, ids: Mapping[str, int], *names: str) -> Any:
        """Some columns of a row group, as they stand in it; not from the cache, and not into it."""
        footer = self._footer(group.file, ids)
        return self._read(group.file, footer, group.number, [*names])

    def offsets(self, group: Group, ids: Mapping[str, int], shard: int, deletes: tuple[DeleteFile, ...]) -> Any:
        """Of the rows of one shard that are not deleted, in the order in which they stand."""
        rows = _without(self.columns(group, ids, SHARD, OFFSET), group.first_row, self._positions(group, deletes))
        return _of_shard(rows, shard)[OFFSET]

    def live_rows(self, group: Group, deletes: tuple[DeleteFile, ...]) -> int:
        return group.rows - len(self._positions(group, deletes))

    def _decoded(self, group: Group, ids: Mapping[str, int]) -> Any:
        key = GroupKey(group.file.path, group.number)
        found = self._cache.get(key)
        if found is None:
            found = self._read(group.file, self._footer(group.file, ids), group.number, [*TYPES])
            self._cache.put(key, found)
        return found

    def _read(self, file: DataFile, footer: Footer, number: int, names: list[str]) -> Any:
        self.groups_read += 1
        with decoding(file.path), self._opened(file, footer) as parquet:
            wanted = [footer.columns[name] for name in names if name in footer.columns]
            return _named(parquet.read_row_group(number, columns=wanted, use_threads=False), footer)

    def _batches(self, group: Group, ids: Mapping[str, int], gone: list[int]) -> Iterator[Any]:
        footer = self._footer(group.file, ids)
        self.groups_read += 1
        at = group.first_row
        with decoding(group.file.path), self._opened(group.file, footer) as parquet:
            for batch in parquet.iter_batches(
                _batch_rows(group), [group.number], [*footer.columns.values()], use_threads=False
            ):
                rows = _named(pa.Table.from_batches([batch]), footer)
                yield _without(rows, at, gone)
                at += len(rows)

    def _opened(self, file: DataFile, footer: Footer) -> Any:
        """What lies elsewhere is fetched in few large pieces; from a disk, each column when it is decoded."""
        source = self._open(file.path)
        return pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=not isinstance(source, pa.OSFile))

    # --- deletes ---

    def _positions(self, group: Group, deletes: tuple[DeleteFile, ...]) -> list[int]:
        """Places in the file of rows of this group that are deleted."""
        found: set[int] = set()
        for one in deletes:
            found.update(self._deleted_by(one, group.file.path))
        return sorted(at for at in found if group.first_row <= at < group.first_row + group.rows)

    def _deleted_by(self, deletes: DeleteFile, path: str) -> list[int]:
        if deletes.content == EQUALITY_DELETES:
            raise unreadable(
                f"{path} has rows that {deletes.path} deletes by their values",
                "compact the table (Spark: rewrite_data_files with delete-file-threshold 1)",
            )
        if deletes.format != "parquet":
            raise unreadable(
                f"{path} has rows that {deletes.path} deletes, of format {deletes.format}", "compact the table"
            )
        found: list[int] | None = self._deleted.get((deletes.path, path))
        if found is None:
            source = self._open(deletes.path)
            try:
                with decoding(deletes.path):
                    rows = pq.read_table(source, columns=["file_path", "pos"], use_threads=False, partitioning=None)
            finally:
                source.close()
            found = rows.filter(pc.equal(rows["file_path"], path))["pos"].to_pylist()
            self._deleted.insert((deletes.path, path), found)
        return found


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Around everything that Parquet's library does with the bytes of a file. What the machine says (too many files are
    open) passes as it is: it may be another time. Without a number it is about the bytes."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        raise errors.TableDamaged(
            f"this table cannot be read: {path} is damaged: {error}",
            hint="put the file back from a copy, or take its rows out with an engine (DELETE), so that readers go on "
            "behind them; `icestream verify --deep` names all such files",
        ) from None


def unreadable(message: str, hint: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(f"this table cannot be read: {message}", hint=hint)


# --- columns of a file ------------------------------------------------------------------------------------------------


def _columns(schema: Any, ids: Mapping[str, int]) -> dict[str, str]:
    by_id = {int(field.metadata[b"PARQUET:field_id"]): field.name for field in schema if _has_id(field)}
    if not by_id:
        return {name: name for name in TYPES if name in schema.names}
    return {name: by_id[ids[name]] for name in TYPES if ids.get(name) in by_id}


def _has_id(field: Any) -> bool:
    return field.metadata is not None and b"PARQUET:field_id" in field.metadata


def _named(rows: Any, footer: Footer) -> Any:
    """With our names and types. What the file lacks is null in every row, but a row without a place is none."""
    found: dict[str, Any] = {}
    for name, kind in TYPES.items():
        named = footer.columns.get(name)
        if named is not None and named in rows.column_names:
            column = rows[named]
            found[name] = column if name == envelope.HEADERS.name else column.cast(kind)
    return pa.table(found)


def _statistics(group: Any, column: str | None) -> Bounds:
    for number in range(group.num_columns):
        one = group.column(number)
        if one.path_in_schema == column:
            statistics = one.statistics
            if statistics is None or not statistics.has_min_max:
                break
            return Bounds(_plain(statistics.min_raw), _plain(statistics.max_raw))
    return Bounds(None, None)


def _repeated(group: Any, footer: Footer) -> list[str]:
    """Columns of values of any length that can decode to much more than they take: each value may be as long as all
    that the dictionary has."""
    named = set(footer.columns.values())
    columns = [group.column(number) for number in range(group.num_columns)]
    return [
        one.path_in_schema
        for one in columns
        if one.has_dictionary_page
        and one.physical_type == "BYTE_ARRAY"
        and one.path_in_schema in named
        and one.num_values * one.total_uncompressed_size > limits.SCAN_GROUP_BYTES_MAX
    ]


def _value_bytes(chunk: Any) -> int:
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
    return int(pc.sum(lengths.take(chunk.indices)).as_py() or 0)


def _batch_rows(group: Group) -> int:
    """So many that a batch is a part of a window, however long the rows are."""
    row_bytes = max(group.bytes // max(group.rows, 1), 1)
    return max(1, min(limits.SCAN_BATCH_ROWS, limits.SCAN_BATCH_BYTES // row_bytes))


def _plain(value: Any) -> int | None:
    return value if isinstance(value, int) else None


# --- rows -------------------------------------------------------------------------------------------------------------


def empty() -> Any:
    return pa.table({OFFSET: pa.array([], pa.int64()), APPEND_TIME: pa.array([], TYPES[APPEND_TIME])})


def _of_shard(rows: Any, shard: int) -> Any:
    return rows.filter(pc.equal(rows[SHARD], shard))


def _selected(rows: Any, shard: int, low: int, high: int) -> Any:
    offsets = rows[OFFSET]
    is_inside = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
    return rows.filter(pc.and_(is_inside, pc.equal(rows[SHARD], shard)))


def in_order(rows: Any) -> Any:
    offsets = rows[OFFSET]
    last = len(rows) - 1
    if last > 0 and not pc.all(pc.less_equal(offsets.slice(0, last), offsets.slice(1))).as_py():
        return rows.take(pc.sort_indices(offsets))
    return rows


def between(rows: Any, low: int, high: int) -> Any:
    """Of rows in order."""
    from bisect import bisect_left

    offsets = int64s(rows[OFFSET])
    start = bisect_left(offsets, low)
    return rows.slice(start, bisect_left(offsets, high) - start)


def _without(rows: Any, first_row: int, gone: list[int]) -> Any:
    inside = [at - first_row for at in gone if first_row <= at < first_row + len(rows)]
    if not inside:
        return rows
    kept = bytearray(b"\x01") * len(rows)
    for at in inside:
        kept[at] = 0
    mask = pa.Array.from_buffers(pa.uint8(), len(kept), [None, pa.py_buffer(kept)])
    return rows.filter(mask.cast(pa.bool_()))
