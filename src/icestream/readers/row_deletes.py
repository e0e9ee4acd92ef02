"""Rows of a data file that delete files take away: by position, by deletion vector, or by the values of columns.

    positions   Parquet, ORC or Avro files with the columns `file_path` and `pos`
    vectors     of Iceberg v3: a blob of a Puffin file (deletion_vector.py)
    values      files of rows; a data row that equals one of them in the compared columns is deleted. A null equals a
                null. The columns must be ones of the envelope

What cannot be applied raises TableUnreadable: a row that an engine deleted is never delivered (hazard 22).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.iceberg.manifests import EQUALITY_DELETES_CONTENT
from icestream.readers import deletion_vector
from icestream.readers.data_files import DataFile, DeleteFile, TableColumns
from icestream.readers.file_columns import columns_in, conformed
from icestream.readers.file_format import ColumnTypes, FileFormat, FileShape, FormatOf, decoding, unreadable
from icestream.readers.sections import TYPES
from icestream.readers.stored_files import OpenFile

_PLACES: Final = {"file_path": pa.utf8(), "pos": pa.int64()}
_PUFFIN: Final = "puffin"
COMPACT_HINT: Final = "compact the table (Spark: rewrite_data_files with delete-file-threshold 1)"


class ValueDeletes(NamedTuple):
    """Rows with these values are deleted."""

    columns: tuple[str, ...]
    values: frozenset[tuple[Any, ...]]


class Deletes(NamedTuple):
    """What applies to one data file."""

    positions: list[int]  # rising
    by_value: tuple[ValueDeletes, ...] = ()

    @property
    def columns(self) -> set[str]:
        """That have to be read to tell which rows are deleted."""
        return {name for deletes in self.by_value for name in deletes.columns}


NO_DELETES: Final = Deletes([])


class RowDeletes:
    def __init__(self, open_file: OpenFile, format_of: FormatOf) -> None:
        self._open = open_file
        self._format_of = format_of
        self._positions: LRUCache[tuple[str, int, str], list[int]] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._values: LRUCache[str, ValueDeletes] = LRUCache(limits.SCAN_VALUE_DELETES_MAX)

    def of(self, file: DataFile, deletes: tuple[DeleteFile, ...], table: TableColumns) -> Deletes:
        if not deletes:
            return NO_DELETES
        positions: set[int] = set()
        by_value: list[ValueDeletes] = []
        _check_value_deletes(file, deletes)
        for delete in deletes:
            if delete.content == EQUALITY_DELETES_CONTENT:
                by_value.append(self._by_value(delete, table))
            else:
                positions.update(self._by_position(delete, file))
        return Deletes(sorted(positions), tuple(by_value))

    def rows_in(self, delete: DeleteFile) -> int:
        """By the file itself; of a deletion vector by its manifest, which is checked when the vector is decoded."""
        return delete.rows if delete.format == _PUFFIN else self._opened(delete)[1].rows

    # --- by position ---

    def _by_position(self, delete: DeleteFile, file: DataFile) -> list[int]:
        key = delete.path, delete.blob[0], file.path
        positions: list[int] | None = self._positions.get(key)
        if positions is None:
            is_vector = delete.format == _PUFFIN
            positions = self._vector(delete, file) if is_vector else self._listed(delete, file)
            self._positions.insert(key, positions)
        return positions

    def _listed(self, delete: DeleteFile, file: DataFile) -> list[int]:
        format_, shape = self._opened(delete)
        positions: list[int] = []
        for number in range(len(shape.groups)):
            for rows in format_.batches(delete.path, shape, number, _PLACES, limits.SCAN_BATCH_ROWS):
                with decoding(delete.path):
                    is_meant = pc.equal(rows["file_path"].cast(pa.utf8()), file.path)
                    positions += rows["pos"].filter(is_meant).to_pylist()
        return positions

    def _vector(self, delete: DeleteFile, file: DataFile) -> list[int]:
        start, size = delete.blob
        if not 0 < size <= limits.SCAN_VECTOR_BYTES_MAX:
            raise unreadable(f"{delete.path} has a deletion vector of {size} bytes", "compact the table")
        with self._open(delete.path) as source, decoding(delete.path, ValueError):
            source.seek(start)
            positions = deletion_vector.decode(source.read(size), file.rows)
            if len(positions) != delete.rows:
                raise ValueError(f"a deletion vector of {len(positions)} rows, and its manifest says {delete.rows}")
        return positions

    # --- by value ---

    def _by_value(self, delete: DeleteFile, table: TableColumns) -> ValueDeletes:
        deletes: ValueDeletes | None = self._values.get(delete.path)
        if deletes is None:
            deletes = self._read_values(delete, table)
            self._values.insert(delete.path, deletes)
        return deletes

    def _read_values(self, delete: DeleteFile, table: TableColumns) -> ValueDeletes:
        names = {id_: name for name, id_ in table.ids.items() if name in TYPES}
        compared = tuple(names.get(id_, "") for id_ in delete.equality_ids)
        if not compared or "" in compared:
            raise unreadable(
                f"{delete.path} deletes rows by their values, in columns that are not columns of a message",
                COMPACT_HINT,
            )
        format_, shape = self._opened(delete)
        columns = columns_in(shape, table)
        kinds: ColumnTypes = {columns[name]: TYPES[name] for name in compared if name in columns}
        values: set[tuple[Any, ...]] = set()
        for number in range(len(shape.groups)):
            for rows in format_.batches(delete.path, shape, number, kinds, limits.SCAN_BATCH_ROWS):
                with decoding(delete.path):
                    values.update(row_values(conformed(rows, columns, compared), compared))
        return ValueDeletes(compared, frozenset(values))

    def _opened(self, delete: DeleteFile) -> tuple[FileFormat, FileShape]:
        format_ = self._format_of(delete.format)
        if format_ is None:
            raise unreadable(f"{delete.path} deletes rows, and is of format {delete.format}", "compact the table")
        return format_, format_.shape(delete.path)


def _check_value_deletes(file: DataFile, deletes: tuple[DeleteFile, ...]) -> None:
    """Raises TableUnreadable when a reader of the file would have to hold too many deleted values, in however many
    files they are."""
    rows = sum(delete.rows for delete in deletes if delete.content == EQUALITY_DELETES_CONTENT)
    if rows > limits.SCAN_VALUE_DELETE_ROWS_MAX:
        raise unreadable(
            f"{rows} rows are deleted by their values from {file.path}, and readers hold at most "
            f"{limits.SCAN_VALUE_DELETE_ROWS_MAX}",
            COMPACT_HINT,
        )


def row_values(rows: Any, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Of each row the values of some columns. A column that is absent is null."""
    lists: list[list[Any]] = []
    for name in columns:
        if name not in rows.column_names:
            lists.append([None] * len(rows))
        else:
            column = rows[name]
            lists.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return list(zip(*lists, strict=True))


def without(rows: Any, first_row: int, deletes: Deletes) -> Any:
    """Rows that stand in their file from `first_row` on, without those that are deleted."""
    live_flags = bytearray(b"\x01") * len(rows)
    for at in deletes.positions:
        if first_row <= at < first_row + len(rows):
            live_flags[at - first_row] = 0
    for by_value in deletes.by_value:
        for at, values in enumerate(row_values(rows, by_value.columns)):
            if values in by_value.values:
                live_flags[at] = 0
    if 0 not in live_flags:
        return rows
    mask = pa.Array.from_buffers(pa.uint8(), len(live_flags), [None, pa.py_buffer(live_flags)])
    return rows.filter(mask.cast(pa.bool_()))
