"""Rows of a table as the log's sections: blocks (model/block.py), made from Arrow's buffers, nothing per message.

A section has contiguous offsets and one append time, as in the log, so delivery from the table says what delivery from
the tail says, value for value (hazard 31). What a producer numbered stands in the columns `producer_id` and `sequence`
of the rows, and comes back there.

Rows come in as an Arrow table that is sorted by `offset`, each offset once. Columns of the envelope that it lacks, or
that are null in every row, are left out of the blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
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
_SPARE: Final = 2  # rows at the front may be shorter than the others
_ROW_BYTES: Final = 64  # what a row takes beside its values of any length, about
Cut = tuple[int, int, bytes]  # encoding, flags, data


def int64s(array: Any) -> memoryview:
    """The values of a column without nulls, of eight bytes each."""
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if not len(flat):
        return memoryview(b"").cast("q")
    return memoryview(flat.buffers()[1])[8 * flat.offset : 8 * (flat.offset + len(flat))].cast("q")


def to_sections(
    rows: Any, epoch_of: Callable[[int], int], bytes_max: int, sections_max: int = limits.READ_SECTIONS_MAX
) -> list[ScanSection]:
    """The first rows, at least one of them, as long as they are within the bounds."""
    rows = _with_encoded_headers(rows.slice(0, _likely(rows, bytes_max)).combine_chunks())
    rows = rows.slice(0, _fitting(rows, bytes_max))
    offsets, times = int64s(rows[OFFSET]), int64s(_times(rows))
    starts = _starts(rows)[: sections_max + 1]
    if len(starts) <= sections_max:
        starts.append(len(rows))
    columns = [stored_column for column in envelope.COLUMNS if (stored_column := _stored(rows, column)) is not None]
    sections = []
    for start, end in pairwise(starts):
        body = b"".join(
            _block(columns, at, min(at + limits.BLOCK_ROWS_MAX, end)) for at in range(start, end, limits.BLOCK_ROWS_MAX)
        )
        sections.append(ScanSection(offsets[start], end - start, times[start], epoch_of(offsets[start]), body))
    return sections


def check_values(rows: Any) -> None:
    """Raises Arrow's error where a column has values that no block can hold: what `to_sections` would raise for them.
    Rows may be in any order."""
    rows = _with_encoded_headers(rows.combine_chunks())
    if len(rows):
        for column in envelope.COLUMNS:
            _stored(rows, column)


def _likely(rows: Any, bytes_max: int) -> int:
    """How many rows are looked at: large ones are not copied by the thousand for each answer."""
    row_bytes = max(rows.nbytes // len(rows), _ROW_BYTES)
    return int(_SPARE * bytes_max // row_bytes) + 1


def _with_encoded_headers(rows: Any) -> Any:
    at = rows.schema.get_field_index(envelope.HEADERS.name)
    if at < 0:
        return rows
    return rows.set_column(at, envelope.HEADERS.name, _header_bytes(rows[at].combine_chunks()))


def _times(rows: Any) -> Any:
    """0 for rows without an append time: another engine has inserted them."""
    if APPEND_TIME not in rows.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), len(rows))])
    return pc.fill_null(rows[APPEND_TIME].cast(pa.int64()), 0)


def _starts(rows: Any) -> list[int]:
    """Where another section begins: behind a hole, and where the append time is another."""
    last = len(rows) - 1
    offsets, times = rows[OFFSET], _times(rows)
    is_behind_hole = pc.not_equal(pc.subtract(offsets.slice(1), offsets.slice(0, last)), 1)
    is_other_time = pc.not_equal(times.slice(1), times.slice(0, last))
    changes = pc.indices_nonzero(pc.or_(is_behind_hole, is_other_time))
    return [0, *(at + 1 for at in changes.to_pylist())]


def _fitting(rows: Any, bytes_max: int) -> int:
    """How many rows: of each the bytes of its values of any length count, and about what the others take."""
    ends = [
        _ends(rows[column.name].combine_chunks())
        for column in envelope.COLUMNS
        if column.in_table and column.kind not in _WIDTHS and column.name in rows.column_names
    ]

    def size(count: int) -> int:
        return _ROW_BYTES * count + sum(one[count] - one[0] for one in ends)

    return max(1, bisect_right(range(len(rows) + 1), bytes_max, key=size) - 1)


def _ends(array: Any) -> memoryview:
    """Of values of any length: where each begins, and where the last one ends."""
    return _bytes_of(array, 4, more=1).cast("i")


# --- columns ----------------------------------------------------------------------------------------------------------


class _Constant(NamedTuple):
    id: int
    data: bytes

    def cut(self, start: int, end: int) -> Cut | None:
        return CONSTANT, 0, self.data


class _Fixed(NamedTuple):
    id: int
    width: int
    data: memoryview
    valid: memoryview | None

    def cut(self, start: int, end: int) -> Cut | None:
        bitmap = _bitmap(self.valid, start, end)
        if bitmap is None:
            return None
        return FIXED, NULLS if bitmap else 0, bitmap + self.data[self.width * start : self.width * end]


class _Variable(NamedTuple):
    id: int
    ends: Any  # an array of int32, one more than rows
    data: memoryview
    valid: memoryview | None

    def cut(self, start: int, end: int) -> Cut | None:
        bitmap = _bitmap(self.valid, start, end)
        if bitmap is None:
            return None
        low, high = self.ends[start].as_py(), self.ends[end].as_py()
        ends = pc.subtract(self.ends.slice(start, end - start + 1), self.ends[start])
        return VARIABLE, NULLS if bitmap else 0, b"".join((bitmap, _bytes_of(ends, 4), self.data[low:high]))


_Stored = _Constant | _Fixed | _Variable


def _bitmap(valid: memoryview | None, start: int, end: int) -> bytes | None:
    """Of some rows; empty where none is null, None where all are."""
    if valid is None:
        return b""
    rows = end - start
    bits = int.from_bytes(valid[start >> 3 : (end + 7) >> 3], "little") >> (start & 7) & ((1 << rows) - 1)
    if not bits:
        return None
    return b"" if bits == (1 << rows) - 1 else bits.to_bytes(padded((rows + 7) // 8), "little")


def _bytes_of(array: Any, width: int, more: int = 0) -> memoryview:
    return memoryview(array.buffers()[1])[width * array.offset : width * (array.offset + len(array) + more)]


def _stored(rows: Any, column: EnvelopeColumn) -> _Stored | None:
    """None: it has no value in any row."""
    if not column.in_table or column.name not in rows.column_names:
        return None
    array = rows[column.name].combine_chunks()
    if array.null_count == len(array):
        return None
    valid = memoryview(pc.is_valid(array).buffers()[1]) if array.null_count else None
    width = _WIDTHS.get(column.kind)
    if width is not None:
        return _fixed(column.id, array, width, valid)
    return _variable(column.id, array, valid)


def _fixed(id_: int, array: Any, width: int, valid: memoryview | None) -> _Stored:
    plain = array.cast(pa.uint8()) if width == 1 else array.cast(pa.int64() if width == 8 else pa.int32())
    data = _bytes_of(pc.fill_null(plain, 0), width)
    if valid is None and _repeats(data, width):
        return _Constant(id_, bytes(data[:width]))
    return _Fixed(id_, width, data, valid)


def _variable(id_: int, array: Any, valid: memoryview | None) -> _Stored:
    binary = pc.fill_null(array.cast(pa.binary()), b"")
    ends = pa.Array.from_buffers(pa.int32(), len(binary) + 1, [None, binary.buffers()[1]], offset=binary.offset)
    data = memoryview(binary.buffers()[2] or b"")
    low, after, high = ends[0].as_py(), ends[1].as_py(), ends[len(binary)].as_py()
    size = after - low
    if valid is None and high - low == size * len(binary) and _repeats(data[low:high], size):
        lengths = pc.min_max(pc.binary_length(binary)).as_py()
        if lengths["min"] == lengths["max"]:
            return _Constant(id_, bytes(data[low:after]))
    return _Variable(id_, ends, data, valid)


def _repeats(data: memoryview, size: int) -> bool:
    """Whether it is one value of so many bytes again and again. Views are compared element by element, which takes
    seconds for some MiB; bytes are not. Most columns are told by their last value."""
    first = data[:size].tobytes()
    return data[len(data) - size :].tobytes() == first and data.tobytes() == first * (len(data) // max(size, 1))


def _header_bytes(array: Any) -> Any:
    """Maps as blocks have them: count, then each key and value with its length; keys rising."""
    low, high = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    offsets = pc.subtract(array.offsets, array.offsets[0])
    entries = _header_entries(offsets, array.keys.slice(low, high - low), array.items.slice(low, high - low))
    lists = pa.ListArray.from_arrays(offsets, entries)
    counts = _little(pc.list_value_length(lists), pa.uint16())
    joined = pc.binary_join_element_wise(counts, pc.binary_join(lists, b""), b"")
    return pc.if_else(pc.is_valid(array), joined, None)


def _header_entries(offsets: Any, keys: Any, values: Any) -> Any:
    keys, values = keys.cast(pa.binary()), pc.fill_null(values.cast(pa.binary()), b"")
    last = len(keys) - 1
    if last > 0:  # as we write them they rise; another engine may have put them otherwise
        rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
        is_same_row = pc.equal(rows.slice(1), rows.slice(0, last))
        if pc.any(pc.and_(is_same_row, pc.greater_equal(keys.slice(0, last), keys.slice(1)))).as_py():
            order = pc.sort_indices(pa.table({"row": rows, "key": keys}), [("row", "ascending"), ("key", "ascending")])
            keys, values = keys.take(order), values.take(order)
    key_bytes, value_bytes = pc.binary_length(keys), pc.binary_length(values)
    return pc.binary_join_element_wise(
        _little(key_bytes, pa.uint16()), keys, _little(value_bytes, pa.uint32()), values, b""
    )


def _little(numbers: Any, kind: Any) -> Any:
    return pc.fill_null(numbers, 0).cast(kind).view(pa.binary(kind.bit_width // 8)).cast(pa.binary())


# --- blocks -----------------------------------------------------------------------------------------------------------


def _block(columns: list[_Stored], start: int, end: int) -> bytes:
    directory: list[bytes] = []
    data: list[bytes] = []
    size = 0
    for column in columns:
        cut = column.cut(start, end)
        if cut is None:
            continue
        encoding, flags, content = cut
        directory.append(COLUMN.pack(column.id, encoding, flags, len(content)))
        data += (content, _ZEROS[: -len(content) % 8])
        size += padded(len(content))
    size += HEAD.size + COLUMN.size * len(directory)
    head = HEAD.pack(end - start, size, NOT_NUMBERED, 0, len(directory), 0, NOT_NUMBERED)
    return b"".join((head, *directory, *data))
