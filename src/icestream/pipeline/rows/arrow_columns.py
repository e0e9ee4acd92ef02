"""One column of many blocks as an Arrow array, without an object for each message or block.

A column's *elements* are its stored values: one per block if it has the same value in all rows (CONSTANT), else one per
row. `Elements` has the position of each element in the bytes, and the element of each row. Values of variable length
are taken by Arrow from one array over the bytes themselves, in which every second item is an element and the others are
what lies between two of them: 34 ns for each value, whatever the blocks are like. Columns of large blocks, and headers,
have their own, faster ways (below).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import errors
from icestream.model.block import CONSTANT, VARIABLE
from icestream.pipeline.rows.block_columns import Blocks, StoredColumn
from icestream.pipeline.rows.log_sections import Ints

_OFFSET_MAX: Final = 2**31 - 1  # of an Arrow array with 32-bit offsets
# With fewer rows per block, copying block by block costs more than it saves.
_ROWS_PER_BLOCK_MIN: Final = 64


class Elements:
    """Where the elements of a column start and end, and the element of each row; -1 is a null."""

    def __init__(self, blocks: Blocks, stored: StoredColumn, width: int | None) -> None:
        """`width`: of the values, None where each has its own length."""
        rows = blocks.rows[stored.block]
        is_constant = stored.encoding == CONSTANT
        if np.any((stored.encoding == VARIABLE) != (width is None), where=~is_constant):
            raise errors.DecodeError("the encoding of a column does not fit its type")
        self.count: Ints = np.where(is_constant, 1, rows)
        self.first: Ints = np.cumsum(self.count) - self.count
        number = np.arange(int(self.count.sum())) - np.repeat(self.first, self.count)
        bitmap = np.where(stored.has_nulls, (rows + 63 >> 6) << 3, 0)
        data = stored.start + bitmap
        if width is None:
            self.start, self.end = _variable(blocks, stored, data, rows, is_constant, self.count, number)
        else:
            _check(stored.size == bitmap + width * self.count)
            self.start = np.repeat(data, self.count) + width * number
            self.end = self.start + width
        self.row = _row(blocks, stored, is_constant, self.first)
        if stored.has_nulls.any():
            self._clear_nulls(blocks, stored, number)

    def _clear_nulls(self, blocks: Blocks, stored: StoredColumn, number: Ints) -> None:
        # Blocks without nulls have no bitmap: for them the byte that is read is meaningless, may even lie behind the
        # last byte, and is ignored below.
        byte = np.minimum(np.repeat(stored.start, self.count) + (number >> 3), len(blocks.octets) - 1)
        is_set = (blocks.octets[byte] >> (number & 7).astype(np.uint8)) & 1
        is_null = (is_set == 0) & np.repeat(stored.has_nulls, self.count)
        row = self.row
        self.row = np.where((row >= 0) & is_null[np.maximum(row, 0)], -1, row)


def _check(is_right: NDArray[np.bool_]) -> None:
    if not is_right.all():
        raise errors.DecodeError("a column has another number of values than its block has messages")


def _variable(
    blocks: Blocks,
    stored: StoredColumn,
    data: Ints,
    rows: Ints,
    is_constant: NDArray[np.bool_],
    count: Ints,
    number: Ints,
) -> tuple[Ints, Ints]:
    """Returns start and end of each element: u32 ends[rows + 1], then the bytes; a constant is its bytes alone."""
    stop = stored.start + stored.size
    heads = np.where(is_constant, 0, 4 * (rows + 1))
    _check(data + heads <= stop)
    at = np.minimum((np.repeat(data, count) >> 2) + number, len(blocks.halves) - 2)
    constant = np.repeat(is_constant, count)
    body = np.repeat(data + heads, count)
    start = body + np.where(constant, 0, blocks.halves[at])
    end = np.where(constant, np.repeat(stop, count), body + blocks.halves[at + 1])
    last = np.cumsum(count) - 1
    # Every length is checked here, because Arrow follows offsets without looking: a wrong one reads foreign memory.
    _check(end >= start)
    _check(start[last - count + 1] == (data + heads))
    _check(end[last] == stop)
    return start, end


def _row(blocks: Blocks, stored: StoredColumn, is_constant: NDArray[np.bool_], first: Ints) -> Ints:
    """Returns the element of each row of all blocks; -1 in blocks without the column."""
    base = np.full(len(blocks), -1, np.int64)
    step = np.zeros(len(blocks), np.int64)
    base[stored.block] = first
    step[stored.block] = ~is_constant
    if not step.any():
        return np.repeat(base, blocks.rows)
    number = np.arange(blocks.row_count) - np.repeat(blocks.first_row, blocks.rows)
    return np.repeat(base, blocks.rows) + np.repeat(step, blocks.rows) * number


def bytes_taken(data: Any, start: Ints, end: Ints, indices: Any, kind: Any) -> Any:
    """Returns an Arrow array of bytes or text: the pieces [start, end) of the data, which rise, at these indices (None:
    all; -1: null)."""
    count = len(start)
    is_large = len(data) > _OFFSET_MAX
    ends = np.empty(2 * count + 1, np.int64 if is_large else np.int32)
    ends[0] = 0
    ends[1::2] = start
    ends[2::2] = end
    if count and np.any(start[1:] < end[:-1]):
        raise errors.DecodeError("values of a column overlap")
    wide = {pa.binary(): pa.large_binary(), pa.utf8(): pa.large_utf8()}[kind] if is_large else kind
    source = pa.Array.from_buffers(wide, 2 * count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    items = 2 * np.arange(count) + 1 if indices is None else 2 * indices + 1
    return source.take(pa.array(items, pa.int64(), mask=None if indices is None else indices < 0))


def numbers_taken(blocks: Blocks, elements: Elements, indices: Ints, width: int) -> tuple[NDArray[Any], Any]:
    """Returns the values at these indices, and a mask of those that are null (None if none is)."""
    source = blocks.viewed(width)
    is_null = indices < 0
    values = source[elements.start // width][np.maximum(indices, 0)]
    signed = values.view({8: np.int64, 4: np.int32, 1: np.uint8}[width])
    return signed, is_null if is_null.any() else None


# --- large blocks: the values of a block are contiguous, so they are copied block by block, without an index per row
# -----


def is_large(blocks: Blocks, stored: StoredColumn, encoding: int) -> bool:
    """True if every block has the column, with a value for each row in `encoding`, and blocks have many rows."""
    return (
        len(stored.block) == len(blocks)
        and blocks.row_count >= _ROWS_PER_BLOCK_MIN * len(blocks)
        and not stored.has_nulls.any()
        and bool(np.all(stored.encoding == encoding))
    )


def numbers_copied(blocks: Blocks, stored: StoredColumn, width: int) -> NDArray[Any]:
    """Returns the numbers of a column of large blocks. Raises DecodeError."""
    if np.any(stored.size != width * blocks.rows):
        raise errors.DecodeError("a column has another number of values than its block has messages")
    source = blocks.viewed(width)
    first = (stored.start // width).tolist()
    parts = [source[at : at + rows] for at, rows in zip(first, blocks.rows.tolist(), strict=True)]
    return np.concatenate(parts).view({8: np.int64, 4: np.int32, 1: np.uint8}[width])


def bytes_copied(blocks: Blocks, stored: StoredColumn, kind: Any) -> Any | None:
    """Returns the values of a column of large blocks; None if they are too large for one array of 32-bit offsets.
    Raises DecodeError."""
    heads = 4 * (blocks.rows + 1)
    sizes = stored.size - heads
    if np.any(sizes < 0):
        raise errors.DecodeError("a column has another number of values than its block has messages")
    total = int(sizes.sum())
    if total > _OFFSET_MAX:
        return None
    ends = np.zeros(blocks.row_count + 1, np.int32)
    view = memoryview(blocks.data)
    bodies: list[memoryview] = []
    row = before = 0
    for start, rows, size in zip(stored.start.tolist(), blocks.rows.tolist(), sizes.tolist(), strict=True):
        value_ends = blocks.halves[start >> 2 : (start >> 2) + rows + 1]
        # Checked here, and that they rise below: Arrow follows them without a look, into the memory behind its buffer.
        if value_ends[0] or value_ends[-1] != size:
            raise errors.DecodeError("the value ends of a column do not rise to its size")
        np.add(value_ends[1:], before, out=ends[row + 1 : row + 1 + rows], casting="unsafe")
        body = start + 4 * (rows + 1)
        bodies.append(view[body : body + size])
        row, before = row + rows, before + size
    if np.any(ends[1:] < ends[:-1]):
        raise errors.DecodeError("the value ends of a column fall")
    return pa.Array.from_buffers(kind, blocks.row_count, [None, pa.py_buffer(ends), pa.py_buffer(b"".join(bodies))])


# --- headers: maps of many values at a time, header by header. A value is u16 count, then for each header u16 key
# bytes, key, u32 value bytes, value (model/block.py)


def header_maps(blocks: Blocks, elements: Elements) -> Any:
    """Returns an Arrow map for each element. Raises DecodeError."""
    octets, at = blocks.octets, elements.start
    is_short = elements.end - at < 2
    counts = np.where(is_short, 0, _number(octets, np.minimum(at, len(octets) - 2), 2))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    keys = np.empty((2, int(offsets[-1])), np.int64)
    values = np.empty((2, int(offsets[-1])), np.int64)
    place, at, which = offsets[:-1], at + 2, np.arange(len(counts))
    for number in range(int(counts.max()) if len(counts) else 0):
        more = counts[which] > number
        which, at = which[more], at[more]
        slot = place[which] + number
        stop = elements.end[which]
        keys[:, slot] = _piece(octets, at, 2, stop)
        values[:, slot] = _piece(octets, keys[1, slot], 4, stop)
        at = values[1, slot]
    _check_ends(elements, counts, offsets, values)
    texts = [bytes_taken(blocks.data, bounds[0], bounds[1], None, pa.utf8()) for bounds in (keys, values)]
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *texts)


def _number(octets: Any, at: Ints, width: int) -> Ints:
    value: Ints = octets[at].astype(np.int64)
    for byte in range(1, width):
        value |= octets[at + byte].astype(np.int64) << (8 * byte)
    return value


def _piece(octets: Any, at: Ints, width: int, stop: Ints) -> tuple[Ints, Ints]:
    """Returns start and end of a key or value whose length is at `at`."""
    if np.any(at + width > stop):
        raise errors.DecodeError("headers end before their declared length")
    start = at + width
    end = start + _number(octets, at, width)
    if np.any(end > stop):
        raise errors.DecodeError("headers end before their declared length")
    return start, end


def _check_ends(elements: Elements, counts: Ints, offsets: Ints, values: Any) -> None:
    has_any = counts > 0
    if np.any(values[1, offsets[1:][has_any] - 1] != elements.end[has_any]):
        raise errors.DecodeError("headers do not end with their element")
