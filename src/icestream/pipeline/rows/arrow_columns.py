"""One column of many blocks as an Arrow array, without an object for each message or block.

A column's *elements* are its stored values: one per block if it has the same value in all rows (CONSTANT), else one per
row. `Elements` has the position of each element in the bytes, and the element of each row. Values of variable length
are taken by Arrow from one array over the bytes themselves, in which every second item is an element and the others are
what lies between two of them: 34 ns for each value, whatever the blocks are like.
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

_OFFSET_MAX: Final = 2**31 - 1


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
            self._forget_nulls(blocks, stored, number)

    def _forget_nulls(self, blocks: Blocks, stored: StoredColumn, number: Ints) -> None:
        # a column without nulls has no bitmap, and an empty one may lie behind the last byte: its value is ignored
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
    """u32 ends[rows + 1], then the bytes; a constant is its bytes alone."""
    stop = stored.start + stored.size
    heads = np.where(is_constant, 0, 4 * (rows + 1))
    _check(data + heads <= stop)
    at = np.minimum((np.repeat(data, count) >> 2) + number, len(blocks.halves) - 2)
    constant = np.repeat(is_constant, count)
    body = np.repeat(data + heads, count)
    start = body + np.where(constant, 0, blocks.halves[at])
    end = np.where(constant, np.repeat(stop, count), body + blocks.halves[at + 1])
    last = np.cumsum(count) - 1
    _check(end >= start)
    _check(start[last - count + 1] == (data + heads))
    _check(end[last] == stop)
    return start, end


def _row(blocks: Blocks, stored: StoredColumn, is_constant: NDArray[np.bool_], first: Ints) -> Ints:
    """The element of each row of all blocks; -1 in blocks without the column."""
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
