"""Which stretch of offsets is read next, and from what: pure, for files of a table and for row groups of files alike.

Ours cover disjoint ranges, so a window is a part of one. Where others made them overlap, a window [start, stop) names
everything that can hold one of its offsets, and it is no wider than its bytes allow: a reader holds one window, however
the table was sorted (hazard 22). `stop` never passes the next unit that begins behind `start`, so that each window has
as few units as there can be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

What = TypeVar("What")


class OffsetSpan(NamedTuple, Generic[What]):
    """Something that can hold the offsets [low, high], both inclusive."""

    low: int
    high: int
    rows: int
    bytes: int
    what: What


class OffsetWindow(NamedTuple, Generic[What]):
    start: int  # nothing is held between the position asked for and this
    stop: int
    units: list[OffsetSpan[What]]


class SpanIndex(Generic[What]):
    def __init__(self, units: Iterable[OffsetSpan[What]]) -> None:
        self._units = sorted(units, key=lambda one: (one.low, one.high))
        # the highest offset up to each: everything before the first that reaches a position lies below it
        self._reach = list(accumulate((one.high for one in self._units), max))

    def __len__(self) -> int:
        return len(self._units)

    def next_window(self, position: int, bytes_max: int) -> OffsetWindow[What] | None:
        """None: nothing lies at the position or behind it."""
        start: int | None = None
        stop: int | None = None
        here: list[OffsetSpan[What]] = []
        for at in range(bisect_left(self._reach, position), len(self._units)):
            unit = self._units[at]
            if unit.high < position:
                continue
            if start is None:
                start = max(position, unit.low)
            if unit.low > start:
                stop = unit.low
                break
            here.append(unit)
        if start is None:
            return None
        reach = max(unit.high for unit in here) + 1
        return OffsetWindow(start, min(reach, stop or reach, start + _width(here, bytes_max)), here)


def _width(units: list[OffsetSpan[What]], bytes_max: int) -> int:
    """How many offsets, when every unit had a row for each of them. All of them, where all rows fit anyway."""
    if sum(unit.bytes for unit in units) <= bytes_max:
        return max(unit.high for unit in units) + 1
    bytes_of_an_offset = sum(unit.bytes / max(unit.rows, 1) for unit in units)
    return max(1, int(bytes_max / bytes_of_an_offset))
