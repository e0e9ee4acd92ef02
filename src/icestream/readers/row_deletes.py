"""Applies Iceberg's delete files to the rows of a data file.

    position deletes   Parquet, ORC or Avro files with the columns `file_path` and `pos`
    deletion vectors   Iceberg v3: one bitmap of positions for each data file, in a Puffin file (deletion_vector.py)
    equality deletes   files of rows; a data row that equals one of them in the compared columns is deleted. A null
                       equals a null. The compared columns must be columns of the envelope

Deletes that cannot be applied raise TableUnreadable: a row that an engine deleted is never delivered (hazard 22).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from cachebox import LRUCache

from icestream import limits
from icestream.iceberg.manifests import EQUALITY_DELETES_CONTENT
from icestream.readers import deletion_vector
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, TableColumns
from icestream.readers.file_columns import match_columns, to_envelope_columns
from icestream.readers.file_format import ColumnTypes, FileFormat, FileShape, FormatOf, decoding, unreadable
from icestream.readers.sections import TYPES
from icestream.readers.stored_files import OpenFile

_POSITION_COLUMNS: Final = {"file_path": pa.utf8(), "pos": pa.int64()}
_PUFFIN: Final = "puffin"
COMPACT_HINT: Final = "compact the table (Spark: rewrite_data_files with delete-file-threshold 1)"


class ValueDeletes(NamedTuple):
    """An equality delete file: a row is deleted if its values in `columns` are in `values`."""

    columns: tuple[str, ...]
    values: frozenset[tuple[Any, ...]]


class Deletes(NamedTuple):
    """The deletes that apply to one data file."""

    positions: list[int]  # row numbers in the file, rising
    by_value: tuple[ValueDeletes, ...] = ()

    @property
    def columns(self) -> set[str]:
        """The columns that must be read to know which rows are deleted by value."""
        return {name for deletes in self.by_value for name in deletes.columns}


NO_DELETES: Final = Deletes([])


class RowDeletes:
    """Reads delete files, and keeps the decoded ones for the next scan."""

    def __init__(self, open_file: OpenFile, format_of: FormatOf) -> None:
        self._open = open_file
        self._format_of = format_of
        self._positions: LRUCache[tuple[str, int, str], list[int]] = LRUCache(limits.SCAN_FOOTERS_MAX)
        self._values: LRUCache[str, ValueDeletes] = LRUCache(limits.SCAN_VALUE_DELETES_MAX)

    def of(self, file: ScanDataFile, deletes: tuple[ScanDeleteFile, ...], table: TableColumns) -> Deletes:
        """Returns the rows that delete files remove from a data file. Raises TableUnreadable if one cannot be
        applied."""
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

    def rows_in(self, delete: ScanDeleteFile) -> int:
        """Returns the number of rows that a delete file states itself.

        A deletion vector states none, so the manifest's count is returned; `_decode_vector` compares the two.
        """
        return delete.rows if delete.format == _PUFFIN else self._open_file(delete)[1].rows

    # --- by position ---

    def _by_position(self, delete: ScanDeleteFile, file: ScanDataFile) -> list[int]:
        """Returns the positions that a delete file or vector deletes from a data file, cached."""
        # One file of position deletes may name many data files, and one Puffin file has many vectors.
        key = delete.path, delete.blob[0], file.path
        positions: list[int] | None = self._positions.get(key)
        if positions is None:
            is_vector = delete.format == _PUFFIN
            positions = self._decode_vector(delete, file) if is_vector else self._read_positions(delete, file)
            self._positions.insert(key, positions)
        return positions

    def _read_positions(self, delete: ScanDeleteFile, file: ScanDataFile) -> list[int]:
        """Reads a file of position deletes, and returns the positions for one data file."""
        format_, shape = self._open_file(delete)
        positions: list[int] = []
        for number in range(len(shape.groups)):
            for rows in format_.batches(delete.path, shape, number, _POSITION_COLUMNS, limits.SCAN_BATCH_ROWS):
                with decoding(delete.path):
                    is_of_file = pc.equal(rows["file_path"].cast(pa.utf8()), file.path)
                    positions += rows["pos"].filter(is_of_file).to_pylist()
        return positions

    def _decode_vector(self, delete: ScanDeleteFile, file: ScanDataFile) -> list[int]:
        """Reads the deletion vector of a data file. Raises TableUnreadable for one that is too large, TableDamaged for
        one that is invalid or has another number of positions than its manifest states."""
        start, size = delete.blob
        if not 0 < size <= limits.SCAN_VECTOR_BYTES_MAX:
            raise unreadable(
                f"{delete.path} has a deletion vector of {size} bytes (limit {limits.SCAN_VECTOR_BYTES_MAX})",
                COMPACT_HINT,
            )
        with self._open(delete.path) as source, decoding(delete.path, ValueError):
            source.seek(start)
            positions = deletion_vector.decode(source.read(size), file.rows)
            if len(positions) != delete.rows:
                raise ValueError(f"deletion vector of {len(positions)} rows, its manifest states {delete.rows}")
        return positions

    # --- by value ---

    def _by_value(self, delete: ScanDeleteFile, table: TableColumns) -> ValueDeletes:
        deletes: ValueDeletes | None = self._values.get(delete.path)
        if deletes is None:
            deletes = self._read_values(delete, table)
            self._values.insert(delete.path, deletes)
        return deletes

    def _read_values(self, delete: ScanDeleteFile, table: TableColumns) -> ValueDeletes:
        """Reads a file of equality deletes. Raises TableUnreadable if it compares columns that are not of the
        envelope."""
        names = {id_: name for name, id_ in table.ids.items() if name in TYPES}
        compared = tuple(names.get(id_, "") for id_ in delete.equality_ids)
        if not compared or "" in compared:
            raise unreadable(
                f"{delete.path} deletes rows by the values of columns that are not columns of a message",
                COMPACT_HINT,
            )
        format_, shape = self._open_file(delete)
        columns = match_columns(shape, table)
        types: ColumnTypes = {columns[name]: TYPES[name] for name in compared if name in columns}
        values: set[tuple[Any, ...]] = set()
        for number in range(len(shape.groups)):
            for rows in format_.batches(delete.path, shape, number, types, limits.SCAN_BATCH_ROWS):
                with decoding(delete.path):
                    values.update(row_values(to_envelope_columns(rows, columns, compared), compared))
        return ValueDeletes(compared, frozenset(values))

    def _open_file(self, delete: ScanDeleteFile) -> tuple[FileFormat, FileShape]:
        format_ = self._format_of(delete.format)
        if format_ is None:
            raise unreadable(f"the delete file {delete.path} has the unsupported format {delete.format}", COMPACT_HINT)
        return format_, format_.shape(delete.path)


def _check_value_deletes(file: ScanDataFile, deletes: tuple[ScanDeleteFile, ...]) -> None:
    """Raises TableUnreadable if the values of all equality deletes of the file are too many to hold in memory."""
    rows = sum(delete.rows for delete in deletes if delete.content == EQUALITY_DELETES_CONTENT)
    if rows > limits.SCAN_VALUE_DELETE_ROWS_MAX:
        raise unreadable(
            f"{file.path} has {rows} equality deletes, readers apply at most {limits.SCAN_VALUE_DELETE_ROWS_MAX}",
            COMPACT_HINT,
        )


def row_values(rows: Any, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Returns the values of some columns for each row, in a form that can be compared. An absent column is null."""
    lists: list[list[Any]] = []
    for name in columns:
        if name not in rows.column_names:
            lists.append([None] * len(rows))
        else:
            column = rows[name]
            # As integers: a datetime cannot represent all timestamps of a file.
            lists.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return list(zip(*lists, strict=True))


def drop_deleted(rows: Any, first_row: int, deletes: Deletes) -> Any:
    """Returns the rows that are not deleted. `first_row`: the position of the first of them in their file."""
    is_live = _live_mask(rows, first_row, deletes)
    return rows if is_live is None else rows.filter(is_live)


def split_deleted(rows: Any, deletes: Deletes) -> tuple[Any, Any]:
    """Returns the rows of a whole file that are not deleted, and those that are."""
    is_live = _live_mask(rows, 0, deletes)
    return (rows, rows.slice(0, 0)) if is_live is None else (rows.filter(is_live), rows.filter(pc.invert(is_live)))


def _live_mask(rows: Any, first_row: int, deletes: Deletes) -> Any:
    """Returns which rows are not deleted; None for all of them."""
    live_flags = bytearray(b"\x01") * len(rows)
    for position in deletes.positions:
        if first_row <= position < first_row + len(rows):
            live_flags[position - first_row] = 0
    for by_value in deletes.by_value:
        for row, values in enumerate(row_values(rows, by_value.columns)):
            if values in by_value.values:
                live_flags[row] = 0
    if 0 not in live_flags:
        return None
    mask = pa.Array.from_buffers(pa.uint8(), len(live_flags), [None, pa.py_buffer(live_flags)])
    return mask.cast(pa.bool_())
