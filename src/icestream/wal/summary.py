"""What is kept in memory of a sealed log file: which offsets of which shards it holds. The rest is in its footer."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream.model.shard import ShardKey
from icestream.wal.format import RECORDS_START
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal


class Range(NamedTuple):
    first: int
    end: int
    own_bytes: int
    max_time_us: int


@dataclass(slots=True)
class FileSummary:
    """One sealed file. Arrays beside a sorted list of keys: about 130 bytes for a shard.

    `marks` are (position, lsn) of records where a reader may begin, the first record always.
    """

    seal: Seal
    size: int
    marks: list[tuple[int, int]] = field(default_factory=list)
    keys: list[ShardKey] = field(default_factory=list)
    _first: array[int] = field(default_factory=lambda: array("q"))
    _end: array[int] = field(default_factory=lambda: array("q"))
    _bytes: array[int] = field(default_factory=lambda: array("q"))
    _time: array[int] = field(default_factory=lambda: array("q"))
    _passed: int = 0  # so many of its shards, from the first on, are known to be below their floors

    @classmethod
    def of(cls, seal: Seal, size: int, index: FileIndex) -> FileSummary:
        summary = cls(seal, size, index.marks or [(RECORDS_START, seal.first_lsn)])
        for key, shard in sorted(index.shards.items()):
            summary.keys.append(key)
            summary._first.append(shard.first_offset)
            summary._end.append(shard.end_offset)
            summary._bytes.append(shard.own_bytes)
            summary._time.append(shard.max_time_us)
        return summary

    def __getitem__(self, at: int) -> Range:
        return Range(self._first[at], self._end[at], self._bytes[at], self._time[at])

    def find(self, key: ShardKey) -> Range | None:
        at = bisect_left(self.keys, key)
        return self[at] if at < len(self.keys) and self.keys[at] == key else None

    def ranges(self) -> Iterator[tuple[ShardKey, Range]]:
        for at, key in enumerate(self.keys):
            yield key, self[at]

    def is_passed(self, floor_of: Callable[[ShardKey], int]) -> bool:
        """Whether nothing in it lies above a floor. What was passed once is not looked at again: floors rise."""
        while self._passed < len(self.keys) and self._end[self._passed] <= floor_of(self.keys[self._passed]):
            self._passed += 1
        return self.was_passed

    def look_again(self) -> None:
        """A floor went down."""
        self._passed = 0

    @property
    def was_passed(self) -> bool:
        """As far as the last look at it has told."""
        return self._passed == len(self.keys)

    @property
    def number(self) -> int:
        return self.seal.number
