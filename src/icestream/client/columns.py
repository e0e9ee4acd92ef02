"""The values of a block's columns, for many rows at once: nothing is done for each value that is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from icestream import errors
from icestream.model.block import VARIABLE, Block, Value, block_head
from icestream.model.envelope import Column, ColumnKind

_BINARY: Final = ColumnKind.BINARY


def rows_of(body: bytes) -> list[tuple[int, int]]:
    """(rows, where it starts) of each block of a body. Raises DecodeError."""
    found: list[tuple[int, int]] = []
    view, at = memoryview(body), 0
    while at < len(body):
        rows, size, _ = block_head(view[at:])
        found.append((rows, at))
        at += size
    return found


def values_of(block: Block, column: Column, first: int, end: int) -> Sequence[Value]:
    """Of the rows [first, end). Raises DecodeError."""
    stored = block.stored(column)
    if stored is None:
        return [None] * (end - first)
    encoding, flags, data = stored
    if column.kind is _BINARY and encoding == VARIABLE and not flags:
        return _binaries(column, bytes(data), block.rows, first, end)
    return block.values(column)[first:end]


def _binaries(column: Column, data: bytes, rows: int, first: int, end: int) -> list[Value]:
    """Keys and payloads without nulls, which is most of what comes."""
    start = 4 * (rows + 1)
    if len(data) < start:
        raise errors.DecodeError(f"column {column.name}: ends cut off")
    size = len(data) - start
    every_end = memoryview(data)[:start].cast("I")
    ends = every_end[first : end + 1].tolist()
    found: list[Value] = [data[start + low : start + high] for low, high in pairwise(ends)]
    # inside the data, where ends fall a slice is empty and the sum too large
    is_sound = not every_end[0] and every_end[rows] == size and max(ends) <= size
    if not is_sound or sum(map(len, found)) != ends[-1] - ends[0]:  # type: ignore[arg-type]  # all of them are bytes
        raise errors.DecodeError(f"column {column.name}: ends do not rise to {size}")
    return found
