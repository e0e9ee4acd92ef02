"""A set of disjoint offset ranges in rising order, each with a value: in flight, waiting, and for which consumer.

A dispatcher describes millions of offsets by a few ranges, so nothing here costs per message. Neighbours with equal
values are merged into one run; values that must stay apart compare by identity.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")
_FEW: Final = 16  # fewer ranges than this are added one by one
_PASS_SHARE: Final = 16  # one pass over this many runs is cheaper than looking up one offset
_start_of = itemgetter(0)


class ValueRun(NamedTuple, Generic[Value]):
    """Offsets [start, end) that share one value."""

    start: int
    end: int
    value: Value


class RunSet(Generic[Value]):
    """Runs never overlap. A lookup costs the logarithm of their number, a change also the move of two short lists."""

    __slots__ = ("_runs", "_starts", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[ValueRun[Value]] = []
        self.size = 0  # offsets in all runs

    def __iter__(self) -> Iterator[ValueRun[Value]]:
        return iter(self._runs)

    def __len__(self) -> int:
        """How many runs."""
        return len(self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def first(self) -> ValueRun[Value]:
        """The run with the lowest offsets; there must be one."""
        return self._runs[0]

    def add(self, start: int, end: int, value: Value) -> None:
        """Adds offsets that are in no run yet; neighbours with an equal value are merged."""
        runs = self._runs
        assert start < end
        if not runs or runs[-1].end < start:  # the most frequent case
            self._starts.append(start)
            runs.append(ValueRun(start, end, value))
            self.size += end - start
            return
        low = bisect_left(self._starts, start)
        assert low == 0 or runs[low - 1].end <= start, "runs overlap"
        assert low == len(runs) or end <= runs[low].start, "runs overlap"
        self.size += end - start
        high = low
        if low and runs[low - 1].end == start and runs[low - 1].value == value:
            low -= 1
            start = runs[low].start
        if high < len(runs) and runs[high].start == end and runs[high].value == value:
            end = runs[high].end
            high += 1
        self._starts[low:high] = [start]
        runs[low:high] = [ValueRun(start, end, value)]

    def add_all(self, ranges: Sequence[tuple[int, int]], value: Value) -> None:
        """Adds ranges in rising order that touch neither each other nor any run.

        No run may have `value` yet, so that no range continues a run.
        """
        if len(ranges) < _FEW:
            for start, end in ranges:
                self.add(start, end, value)
            return
        runs = self._runs
        runs.extend([ValueRun(start, end, value) for start, end in ranges])
        runs.sort(key=_start_of)  # two sorted lists: one pass
        self._starts = [run.start for run in runs]
        self.size += sum([end - start for start, end in ranges])

    def within(self, start: int, end: int) -> list[ValueRun[Value]]:
        """The parts of runs that lie in [start, end)."""
        if start >= end:
            return []
        touched = self._runs[self._first_touching(start) : bisect_left(self._starts, end)]
        return [ValueRun(max(run.start, start), min(run.end, end), run.value) for run in touched]

    def first_within(self, start: int, end: int) -> ValueRun[Value] | None:
        """The first part of a run that lies in [start, end)."""
        at = self._first_touching(start)
        if start >= end or at == len(self._runs) or self._runs[at].start >= end:
            return None
        run = self._runs[at]
        return ValueRun(max(run.start, start), min(run.end, end), run.value)

    def take(self, start: int, end: int) -> list[ValueRun[Value]]:
        """Removes and returns the parts of runs that lie in [start, end)."""
        low = self._first_touching(start)
        if start >= end or low == len(self._runs):
            return []
        run = self._runs[low]
        if run.start == start and run.end == end:  # the most frequent case
            del self._runs[low], self._starts[low]
            self.size -= end - start
            return [run]
        high = bisect_left(self._starts, end, low)
        touched = self._runs[low:high]
        if not touched:
            return []
        remaining: list[ValueRun[Value]] = []
        if touched[0].start < start:
            remaining.append(ValueRun(touched[0].start, start, touched[0].value))
        if touched[-1].end > end:
            remaining.append(ValueRun(end, touched[-1].end, touched[-1].value))
        if remaining or len(touched) > 1:
            touched = [ValueRun(max(run.start, start), min(run.end, end), run.value) for run in touched]
        self._runs[low:high] = remaining
        self._starts[low:high] = [run.start for run in remaining]
        self.size -= sum([run.end - run.start for run in touched])
        return touched

    def take_offsets(self, offsets: Sequence[int]) -> list[ValueRun[Value]]:
        """Removes and returns the parts of runs at these rising offsets; in one pass if they are many."""
        if not offsets:
            return []
        low, high = self._first_touching(offsets[0]), bisect_right(self._starts, offsets[-1])
        if len(offsets) < _FEW or high - low > _PASS_SHARE * len(offsets):
            return [run for offset in offsets for run in RunSet.take(self, offset, offset + 1)]
        requested, remaining, removed = set(offsets), list[ValueRun[Value]](), list[ValueRun[Value]]()
        for run in self._runs[low:high]:
            if run.end - run.start == 1:
                (removed if run.start in requested else remaining).append(run)
                continue
            at = run.start
            for offset in range(run.start, run.end):
                if offset in requested:
                    if at < offset:
                        remaining.append(ValueRun(at, offset, run.value))
                    removed.append(ValueRun(offset, offset + 1, run.value))
                    at = offset + 1
            if at < run.end:
                remaining.append(ValueRun(at, run.end, run.value))
        self._runs[low:high] = remaining
        self._starts[low:high] = [run.start for run in remaining]
        self.size -= len(removed)
        return removed

    def clear(self) -> None:
        self._starts, self._runs, self.size = [], [], 0

    def _first_touching(self, offset: int) -> int:
        """Index of the first run that ends after `offset`."""
        at = bisect_right(self._starts, offset)
        return at - 1 if at and self._runs[at - 1].end > offset else at
