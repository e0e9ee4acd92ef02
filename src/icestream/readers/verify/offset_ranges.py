"""The offsets of a shard as ranges: which a table holds, and which of them twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream.readers.sections import int64s

Ranges = list[tuple[int, int]]
NONE: Final = pa.array([], pa.int64())


@dataclass
class ShardOffsets:
    """The offsets of a shard that the table holds."""

    ranges: Ranges
    is_known: bool = False


def ranges_of(offsets: Any) -> tuple[Ranges, Ranges]:
    """Of offsets in any order: the ranges that are there, and those that are there more than once."""
    if not len(offsets):
        return [], []
    ordered = offsets.take(pc.sort_indices(offsets))
    last = len(ordered) - 1
    steps = pc.subtract(ordered.slice(1), ordered.slice(0, last))
    repeated = ordered.slice(1).filter(pc.equal(steps, 0))
    return _joined(ordered, steps), _joined_values(pc.unique(repeated))


def _joined(ordered: Any, steps: Any) -> Ranges:
    """Cut where the next one is more than one further."""
    values = int64s(ordered)
    cuts = [at + 1 for at in pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()]
    starts, ends = [0, *cuts], [*cuts, len(values)]
    return [(values[start], values[end - 1] + 1) for start, end in zip(starts, ends, strict=True)]


def _joined_values(ordered: Any) -> Ranges:
    if not len(ordered):
        return []
    return _joined(ordered, pc.subtract(ordered.slice(1), ordered.slice(0, len(ordered) - 1)))


def append_ranges(held: Ranges, more: Ranges) -> None:
    """Adds ranges that lie behind those that are there."""
    for start, end in more:
        if held and held[-1][1] == start:
            held[-1] = held[-1][0], end
        else:
            held.append((start, end))


def together(parts: list[Any]) -> Any:
    found = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    return pa.concat_arrays([NONE, *found])


def within(offsets: Any, start: int, stop: int) -> Any:
    return offsets.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop)))
