"""Columns of large blocks: the values of a block are contiguous already, so they are copied block by block.

Only if every block has the column, with a value for each row, and blocks have many rows; arrow_columns.py decodes the
others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import errors
from icestream.pipeline.rows.block_columns import Blocks, StoredColumn

# With fewer rows per block the copies cost more than they save.
_ROWS_PER_BLOCK_MIN: Final = 64
_OFFSET_MAX: Final = 2**31 - 1


def is_large(blocks: Blocks, stored: StoredColumn, encoding: int) -> bool:
    """`encoding`: the one that fits the type of the column."""
    return (
        len(stored.block) == len(blocks)
        and blocks.row_count >= _ROWS_PER_BLOCK_MIN * len(blocks)
        and not stored.has_nulls.any()
        and bool(np.all(stored.encoding == encoding))
    )


def numbers_copied(blocks: Blocks, stored: StoredColumn, width: int) -> NDArray[Any]:
    if np.any(stored.size != width * blocks.rows):
        raise errors.DecodeError("a column has another number of values than its block has messages")
    source = blocks.viewed(width)
    first = (stored.start // width).tolist()
    parts = [source[at : at + rows] for at, rows in zip(first, blocks.rows.tolist(), strict=True)]
    return np.concatenate(parts).view({8: np.int64, 4: np.int32, 1: np.uint8}[width])


def bytes_copied(blocks: Blocks, stored: StoredColumn, kind: Any) -> Any | None:
    """Returns None if the values are too large for one array of 32-bit offsets."""
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
        if value_ends[0] or value_ends[-1] != size:
            raise errors.DecodeError("the value ends of a column do not rise to its size")
        np.add(value_ends[1:], before, out=ends[row + 1 : row + 1 + rows], casting="unsafe")
        body = start + 4 * (rows + 1)
        bodies.append(view[body : body + size])
        row, before = row + rows, before + size
    if np.any(ends[1:] < ends[:-1]):
        raise errors.DecodeError("the value ends of a column fall")
    return pa.Array.from_buffers(kind, blocks.row_count, [None, pa.py_buffer(ends), pa.py_buffer(b"".join(bodies))])
