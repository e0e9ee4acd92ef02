"""Offsets of messages of one shard: stretches as ranges, and those that came as picks (PICK frames) as single numbers.

A range costs the same however long it is; single offsets cost a set operation for all of them together. Both are
bounded, and the lowest, which are the least likely to come again, are forgotten first. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.model.run_set import RunSet

Pairs = list[tuple[int, int]]


class SparseOffsets:
    __slots__ = ("_runs", "_singles")

    def __init__(self) -> None:
        self._runs: RunSet[None] = RunSet()
        self._singles: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._runs) or bool(self._singles)

    def __len__(self) -> int:
        """How many ranges and single offsets it remembers."""
        return len(self._runs) + len(self._singles)

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), parts of which may be here already."""
        runs = self._runs
        runs.take(start, end)
        runs.add(start, end, None)
        while len(runs) > limits.CLIENT_HANDLED_RANGES_MAX:
            lowest = runs.first()
            runs.take(lowest.start, lowest.end)

    def add_singles(self, offsets: Sequence[int]) -> None:
        self._singles.update(offsets)
        if len(self._singles) > limits.CLIENT_HANDLED_RANGES_MAX:
            self._singles = set(sorted(self._singles)[len(self._singles) // 2 :])

    def take(self, start: int, end: int) -> bool:
        """Removes what lies in [start, end). Returns whether something did."""
        is_taken = bool(self._runs.take(start, end)) if self._runs.size else False
        if self._singles and (here := self._singles_within(start, end)):
            self._singles.difference_update(here)
            return True
        return is_taken

    def take_singles(self, offsets: Sequence[int]) -> bool:
        """Removes these offsets, which rise. Returns whether one was here."""
        before = len(self._singles)
        if before:
            self._singles.difference_update(offsets)
        is_taken = len(self._singles) < before
        if self._runs.size and self._runs.first_within(offsets[0], offsets[-1] + 1) is not None:
            for offset in offsets:
                is_taken |= bool(self._runs.take(offset, offset + 1))
        return is_taken

    def touches(self, offsets: Sequence[int]) -> bool:
        """Whether one of these offsets, which rise, may be here. False is certain."""
        if self._singles and not self._singles.isdisjoint(offsets):
            return True
        return bool(self._runs.size) and self._runs.first_within(offsets[0], offsets[-1] + 1) is not None

    def within(self, start: int, end: int) -> Pairs:
        """What lies in [start, end), rising."""
        found = [(run.start, run.end) for run in self._runs.within(start, end)] if self._runs.size else []
        if self._singles and (here := self._singles_within(start, end)):
            joined: Pairs = []
            for low, high in sorted(found + [(offset, offset + 1) for offset in here]):
                if joined and low <= joined[-1][1]:
                    joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
                else:
                    joined.append((low, high))
            return joined
        return found

    def without(self, start: int, end: int) -> Pairs:
        """The parts of [start, end) that are not here."""
        left: Pairs = []
        for low, high in self.within(start, end):
            if start < low:
                left.append((start, low))
            start = high
        if start < end:
            left.append((start, end))
        return left

    def _singles_within(self, start: int, end: int) -> set[int]:
        if end - start <= len(self._singles):
            return self._singles.intersection(range(start, end))
        return {offset for offset in self._singles if start <= offset < end}
