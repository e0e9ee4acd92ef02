"""The offsets of a shard as ranges: which offsets a table has, and which of them more than once. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream.readers.sections import int64s

Ranges = list[tuple[int, int]]
NO_OFFSETS: Final = pa.array([], pa.int64())


@dataclass
class ShardOffsetRanges:
    """The offsets of a shard that the table has. A check fills it, and sets `is_known` if `ranges` is complete."""

    ranges: Ranges
    is_known: bool = False


def ranges_of(offsets: Any) -> tuple[Ranges, Ranges]:
    """Returns the ranges of the offsets, given in any order, and the ranges of duplicates."""
    if not len(offsets):
        return [], []
    ordered = offsets.take(pc.sort_indices(offsets))
    last = len(ordered) - 1
    steps = pc.subtract(ordered.slice(1), ordered.slice(0, last))
    repeated = ordered.slice(1).filter(pc.equal(steps, 0))
    return _to_ranges(ordered, steps), _unique_to_ranges(pc.unique(repeated))


def _to_ranges(ordered: Any, steps: Any) -> Ranges:
    """Joins consecutive values; `steps` are the differences between neighbours."""
    values = int64s(ordered)
    cuts = [index + 1 for index in pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()]
    starts, ends = [0, *cuts], [*cuts, len(values)]
    return [(values[start], values[end - 1] + 1) for start, end in zip(starts, ends, strict=True)]


def _unique_to_ranges(ordered: Any) -> Ranges:
    if not len(ordered):
        return []
    return _to_ranges(ordered, pc.subtract(ordered.slice(1), ordered.slice(0, len(ordered) - 1)))


def append_ranges(ranges: Ranges, later: Ranges) -> None:
    """Appends ranges that lie after the existing ones; adjacent ranges are joined."""
    for start, end in later:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = ranges[-1][0], end
        else:
            ranges.append((start, end))


def concat_offsets(parts: list[Any]) -> Any:
    """Returns the offsets of several row groups as one array."""
    chunks = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    return pa.concat_arrays([NO_OFFSETS, *chunks])


def offsets_between(offsets: Any, start: int, stop: int) -> Any:
    """Returns the offsets in [start, stop), in their order."""
    return offsets.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop)))
