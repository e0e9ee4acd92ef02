"""Encodes rows of a table as sections of the log: blocks (model/block.py) cut from Arrow's buffers.

A section has contiguous offsets and one append time, as in the log, so a message that is delivered from the table
equals the message that was delivered from the tail, value for value (hazard 31). The blocks are not numbered: the
producer's numbers are in the columns `producer_id` and `sequence` of the rows, and are delivered as columns.

Rows arrive as an Arrow table sorted by `offset`, each offset once. Envelope columns that the table lacks, or that are
null in every row, are left out of the blocks. No Python code runs for each message: a scan returns MiB per request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream import limits
from icestream.model import envelope
from icestream.model.arrow_types import ARROW_TYPES
from icestream.model.block import COLUMN, CONSTANT, FIXED, HEAD, NOT_NUMBERED, NULLS, VARIABLE, padded
from icestream.model.envelope import ColumnKind, EnvelopeColumn
from icestream.model.scan_messages import ScanSection

OFFSET: Final = "offset"
APPEND_TIME: Final = "append_time"
SHARD: Final = "shard"
TYPES: Final[dict[str, Any]] = {
    SHARD: pa.int32(),
    OFFSET: pa.int64(),
    APPEND_TIME: pa.timestamp("us", tz="UTC"),
    **{column.name: ARROW_TYPES[column.kind] for column in envelope.COLUMNS if column.in_table},
}
_WIDTHS: Final = {ColumnKind.INT32: 4, ColumnKind.INT64: 8, ColumnKind.TIMESTAMP_US: 8, ColumnKind.BOOLEAN: 1}
_ZEROS: Final = bytes(8)
_SPARE: Final = 2  # factor: the first rows may be shorter than the average row
_ROW_BYTES: Final = 64  # estimated size of a row's values of fixed size
ColumnBytes = tuple[int, int, bytes]  # encoding, flags and data of a column in a block


def int64s(array: Any) -> memoryview:
    """Returns a view of the values of a 64-bit column without nulls."""
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if not len(flat):
        return memoryview(b"").cast("q")
    return memoryview(flat.buffers()[1])[8 * flat.offset : 8 * (flat.offset + len(flat))].cast("q")


def to_sections(
    rows: Any, epoch_of: Callable[[int], int], bytes_max: int, sections_max: int = limits.READ_SECTIONS_MAX
) -> list[ScanSection]:
    """Returns the first rows as sections: as many as fit the bounds, but at least one row, so that a reader advances.

    `epoch_of`: the shard epoch of an offset.
    """
    rows = _encode_headers(rows.slice(0, _rows_to_inspect(rows, bytes_max)).combine_chunks())
    rows = rows.slice(0, _rows_that_fit(rows, bytes_max))
    offsets, times = int64s(rows[OFFSET]), int64s(_append_times(rows))
    starts = _section_starts(rows)[: sections_max + 1]
    # With more than `sections_max` starts, the last one kept is the end of the last section that is returned.
    if len(starts) <= sections_max:
        starts.append(len(rows))
    columns = [source for column in envelope.COLUMNS if (source := _column_source(rows, column)) is not None]
    sections = []
    for start, end in pairwise(starts):
        body = b"".join(
            _encode_block(columns, at, min(at + limits.BLOCK_ROWS_MAX, end))
            for at in range(start, end, limits.BLOCK_ROWS_MAX)
        )
        sections.append(ScanSection(offsets[start], end - start, times[start], epoch_of(offsets[start]), body))
    return sections


def to_sparse_sections(rows: Any, epoch_starts: Sequence[tuple[int, int]], bytes_max: int) -> list[ScanSection]:
    """Returns the first rows as sections whose rows have any offsets and append times: as many as fit, at least one.
    Messages that a filter selects are seldom neighbours, and a section for each would cost more than the message.

    `epoch_starts`: (first offset, shard epoch), rising.
    """
    rows = _encode_headers(rows.slice(0, _rows_to_inspect(rows, bytes_max)).combine_chunks())
    rows = rows.slice(0, _rows_that_fit(rows, bytes_max))
    offsets, times = int64s(rows[OFFSET]), int64s(_append_times(rows))
    columns = [source for column in envelope.COLUMNS if (source := _column_source(rows, column)) is not None]
    firsts = [first for first, _ in epoch_starts]
    cuts = {bisect_left(offsets, first) for first in firsts} | {*range(0, len(rows), limits.BLOCK_ROWS_MAX)}
    starts = sorted(cut for cut in cuts if cut < len(rows))
    sections = []
    for start, end in pairwise([*starts, len(rows)]):
        epoch = epoch_starts[max(bisect_right(firsts, offsets[start]) - 1, 0)][1]
        body = _encode_block(columns, start, end)
        sections.append(
            ScanSection(
                offsets[start],
                end - start,
                times[start],
                epoch,
                body,
                bytes(offsets[start:end]),
                bytes(times[start:end]),
            )
        )
    return sections


def check_values(rows: Any) -> None:
    """Raises the Arrow error that `to_sections` would raise for values that no block can hold. Rows may be in any
    order.

    `verify --deep` uses it to find rows that consumers could not read.
    """
    rows = _encode_headers(rows.combine_chunks())
    if len(rows):
        for column in envelope.COLUMNS:
            _column_source(rows, column)


def _rows_to_inspect(rows: Any, bytes_max: int) -> int:
    """Estimates how many rows may fit `bytes_max`, generously: `combine_chunks` copies all rows that it is given."""
    row_bytes = max(rows.nbytes // len(rows), _ROW_BYTES)
    return int(_SPARE * bytes_max // row_bytes) + 1


def _encode_headers(rows: Any) -> Any:
    """Returns the rows with headers as bytes instead of maps: from here on they are values of variable length."""
    index = rows.schema.get_field_index(envelope.HEADERS.name)
    if index < 0:
        return rows
    return rows.set_column(index, envelope.HEADERS.name, _header_bytes(rows[index].combine_chunks()))


def _append_times(rows: Any) -> Any:
    """Returns the append times in microseconds; 0 for rows without one, which another engine has inserted."""
    if APPEND_TIME not in rows.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), len(rows))])
    return pc.fill_null(rows[APPEND_TIME].cast(pa.int64()), 0)


def _section_starts(rows: Any) -> list[int]:
    """Returns the rows at which a section begins: the first, those behind a hole, and those with another append
    time."""
    last = len(rows) - 1
    offsets, times = rows[OFFSET], _append_times(rows)
    is_behind_hole = pc.not_equal(pc.subtract(offsets.slice(1), offsets.slice(0, last)), 1)
    is_other_time = pc.not_equal(times.slice(1), times.slice(0, last))
    changes = pc.indices_nonzero(pc.or_(is_behind_hole, is_other_time))
    return [0, *(row + 1 for row in changes.to_pylist())]


def _rows_that_fit(rows: Any, bytes_max: int) -> int:
    """Returns how many of the first rows fit `bytes_max`, at least 1. Counts the bytes of variable-length values, and
    an estimate for the others."""
    value_ends = [
        _value_ends(rows[column.name].combine_chunks())
        for column in envelope.COLUMNS
        if column.in_table and column.kind not in _WIDTHS and column.name in rows.column_names
    ]

    def size(count: int) -> int:
        return _ROW_BYTES * count + sum(ends[count] - ends[0] for ends in value_ends)

    # The size rises with the number of rows, and Arrow keeps running ends: a binary search needs no pass over the rows.
    return max(1, bisect_right(range(len(rows) + 1), bytes_max, key=size) - 1)


def _value_ends(array: Any) -> memoryview:
    """Returns Arrow's offsets of a variable-length column: where each value begins, and where the last one ends."""
    return _buffer_slice(array, 4, more=1).cast("i")


# --- columns: a source prepares a column of all rows once; each block takes the bytes of its rows from it -------------


class _ConstantSource(NamedTuple):
    """A column with the same value in every row."""

    id: int
    data: bytes

    def encode(self, start: int, end: int) -> ColumnBytes | None:
        return CONSTANT, 0, self.data


class _FixedSource(NamedTuple):
    """A column of values of one size."""

    id: int
    width: int
    data: memoryview
    valid: memoryview | None  # Arrow's bitmap of the rows that are not null; None: no nulls

    def encode(self, start: int, end: int) -> ColumnBytes | None:
        bitmap = _bitmap(self.valid, start, end)
        if bitmap is None:
            return None
        return FIXED, NULLS if bitmap else 0, bitmap + self.data[self.width * start : self.width * end]


class _VariableSource(NamedTuple):
    """A column of values of any length."""

    id: int
    ends: Any  # an array of int32, one more than rows
    data: memoryview
    valid: memoryview | None  # Arrow's bitmap of the rows that are not null; None: no nulls

    def encode(self, start: int, end: int) -> ColumnBytes | None:
        bitmap = _bitmap(self.valid, start, end)
        if bitmap is None:
            return None
        low, high = self.ends[start].as_py(), self.ends[end].as_py()
        ends = pc.subtract(self.ends.slice(start, end - start + 1), self.ends[start])
        return VARIABLE, NULLS if bitmap else 0, b"".join((bitmap, _buffer_slice(ends, 4), self.data[low:high]))


_ColumnSource = _ConstantSource | _FixedSource | _VariableSource  # `encode` returns None for rows that are all null


def _bitmap(valid: memoryview | None, start: int, end: int) -> bytes | None:
    """Returns the null bitmap of the rows [start, end) as blocks have it; empty if none is null, None if all are."""
    if valid is None:
        return b""
    rows = end - start
    # Blocks need not begin at a multiple of 8 rows: an integer of any size shifts the whole bitmap at once.
    bits = int.from_bytes(valid[start >> 3 : (end + 7) >> 3], "little") >> (start & 7) & ((1 << rows) - 1)
    if not bits:
        return None
    return b"" if bits == (1 << rows) - 1 else bits.to_bytes(padded((rows + 7) // 8), "little")


def _buffer_slice(array: Any, width: int, more: int = 0) -> memoryview:
    """Returns the part of the array's value buffer that belongs to it: a slice shares the buffer of its parent."""
    return memoryview(array.buffers()[1])[width * array.offset : width * (array.offset + len(array) + more)]


def _column_source(rows: Any, column: EnvelopeColumn) -> _ColumnSource | None:
    """Returns the source of a column; None if it has no value in any row. Raises an Arrow error for values that do not
    fit the column."""
    if not column.in_table or column.name not in rows.column_names:
        return None
    array = rows[column.name].combine_chunks()
    if array.null_count == len(array):
        return None
    valid = memoryview(pc.is_valid(array).buffers()[1]) if array.null_count else None
    width = _WIDTHS.get(column.kind)
    if width is not None:
        return _fixed_source(column.id, array, width, valid)
    return _variable_source(column.id, array, valid)


def _fixed_source(id_: int, array: Any, width: int, valid: memoryview | None) -> _ColumnSource:
    plain = array.cast(pa.uint8()) if width == 1 else array.cast(pa.int64() if width == 8 else pa.int32())
    data = _buffer_slice(pc.fill_null(plain, 0), width)
    if valid is None and _is_repeated(data, width):
        return _ConstantSource(id_, bytes(data[:width]))
    return _FixedSource(id_, width, data, valid)


def _variable_source(id_: int, array: Any, valid: memoryview | None) -> _ColumnSource:
    """Returns the source of a column of bytes or text."""
    binary = pc.fill_null(array.cast(pa.binary()), b"")
    ends = pa.Array.from_buffers(pa.int32(), len(binary) + 1, [None, binary.buffers()[1]], offset=binary.offset)
    data = memoryview(binary.buffers()[2] or b"")
    low, after, high = ends[0].as_py(), ends[1].as_py(), ends[len(binary)].as_py()
    size = after - low
    # A constant needs two tests: the bytes repeat the first value, and no value has another length.
    if valid is None and high - low == size * len(binary) and _is_repeated(data[low:high], size):
        lengths = pc.min_max(pc.binary_length(binary)).as_py()
        if lengths["min"] == lengths["max"]:
            return _ConstantSource(id_, bytes(data[low:after]))
    return _VariableSource(id_, ends, data, valid)


def _is_repeated(data: memoryview, size: int) -> bool:
    """True if the data consists of its first `size` bytes again and again."""
    # The last value decides for most columns, before anything is copied. Comparing memoryviews goes element by element,
    # which takes seconds for some MiB, so bytes are compared.
    first = data[:size].tobytes()
    return data[len(data) - size :].tobytes() == first and data.tobytes() == first * (len(data) // max(size, 1))


def _header_bytes(array: Any) -> Any:
    """Encodes header maps as blocks have them: count, then each key and value with its length; keys rising."""
    low, high = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    offsets = pc.subtract(array.offsets, array.offsets[0])
    entries = _header_entries(offsets, array.keys.slice(low, high - low), array.items.slice(low, high - low))
    lists = pa.ListArray.from_arrays(offsets, entries)
    counts = _little_endian(pc.list_value_length(lists), pa.uint16())
    joined = pc.binary_join_element_wise(counts, pc.binary_join(lists, b""), b"")
    return pc.if_else(pc.is_valid(array), joined, None)


def _header_entries(offsets: Any, keys: Any, values: Any) -> Any:
    """Encodes each header of all rows, in the order of the rows, with keys rising within a row."""
    keys, values = keys.cast(pa.binary()), pc.fill_null(values.cast(pa.binary()), b"")
    last = len(keys) - 1
    if last > 0:
        # The pipeline writes keys in rising order; a file that another engine rewrote may have them in any order.
        rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
        is_same_row = pc.equal(rows.slice(1), rows.slice(0, last))
        if pc.any(pc.and_(is_same_row, pc.greater_equal(keys.slice(0, last), keys.slice(1)))).as_py():
            order = pc.sort_indices(pa.table({"row": rows, "key": keys}), [("row", "ascending"), ("key", "ascending")])
            keys, values = keys.take(order), values.take(order)
    key_bytes, value_bytes = pc.binary_length(keys), pc.binary_length(values)
    return pc.binary_join_element_wise(
        _little_endian(key_bytes, pa.uint16()), keys, _little_endian(value_bytes, pa.uint32()), values, b""
    )


def _little_endian(numbers: Any, type_: Any) -> Any:
    """Returns the numbers as binary values. Raises an Arrow error for a number that does not fit `type_`."""
    return pc.fill_null(numbers, 0).cast(type_).view(pa.binary(type_.bit_width // 8)).cast(pa.binary())


# --- blocks -----------------------------------------------------------------------------------------------------------


def _encode_block(columns: list[_ColumnSource], start: int, end: int) -> bytes:
    """Returns the block of the rows [start, end)."""
    directory: list[bytes] = []
    data: list[bytes] = []
    size = 0
    for column in columns:
        encoded = column.encode(start, end)
        if encoded is None:
            continue
        encoding, flags, content = encoded
        directory.append(COLUMN.pack(column.id, encoding, flags, len(content)))
        data += (content, _ZEROS[: -len(content) % 8])
        size += padded(len(content))
    size += HEAD.size + COLUMN.size * len(directory)
    head = HEAD.pack(end - start, size, NOT_NUMBERED, 0, len(directory), 0, NOT_NUMBERED)
    return b"".join((head, *directory, *data))
