"""The in-memory summary of a sealed log file: which offsets of which shards it contains. The rest is in its footer."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream.model.shard import ShardKey
from icestream.wal.format import RECORDS_START
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal


class ShardRange(NamedTuple):
    """What one file contains of one shard: offsets [first, end), with their bytes and their newest append time."""

    first: int
    end: int
    own_bytes: int
    max_time_us: int


@dataclass(slots=True)
class FileSummary:
    """One sealed file. Arrays parallel to a sorted list of keys: about 130 bytes for a shard.

    `marks` are (position, lsn) of records where a reader may begin; the first record is always one.
    """

    seal: Seal
    size: int
    marks: list[tuple[int, int]] = field(default_factory=list)
    keys: list[ShardKey] = field(default_factory=list)
    _first: array[int] = field(default_factory=lambda: array("q"))
    _end: array[int] = field(default_factory=lambda: array("q"))
    _bytes: array[int] = field(default_factory=lambda: array("q"))
    _time: array[int] = field(default_factory=lambda: array("q"))
    _passed: int = 0  # the first so many of its shards were below their floors at the last check

    @classmethod
    def of(cls, seal: Seal, size: int, index: FileIndex) -> FileSummary:
        """The summary of a file with this index. Without marks (an older footer) the first record is the only one."""
        summary = cls(seal, size, index.marks or [(RECORDS_START, seal.first_lsn)])
        for key, shard in sorted(index.shards.items()):
            summary.keys.append(key)
            summary._first.append(shard.first_offset)
            summary._end.append(shard.end_offset)
            summary._bytes.append(shard.own_bytes)
            summary._time.append(shard.max_time_us)
        return summary

    def __getitem__(self, at: int) -> ShardRange:
        return ShardRange(self._first[at], self._end[at], self._bytes[at], self._time[at])

    def find(self, key: ShardKey) -> ShardRange | None:
        """What the file contains of a shard; None if nothing."""
        at = bisect_left(self.keys, key)
        return self[at] if at < len(self.keys) and self.keys[at] == key else None

    def ranges(self) -> Iterator[tuple[ShardKey, ShardRange]]:
        """Every shard in the file with its range, sorted by key."""
        for at, key in enumerate(self.keys):
            yield key, self[at]

    def is_passed(self, floor_of: Callable[[ShardKey], int]) -> bool:
        """Whether everything in the file lies below the floors.

        Shards that were below their floor once are not checked again, because floors rise; `reset_passed` undoes that.
        """
        while self._passed < len(self.keys) and self._end[self._passed] <= floor_of(self.keys[self._passed]):
            self._passed += 1
        return self.was_passed

    def reset_passed(self) -> None:
        """To be called when a floor was lowered: `is_passed` then checks every shard again."""
        self._passed = 0

    @property
    def was_passed(self) -> bool:
        """The result of the last `is_passed`."""
        return self._passed == len(self.keys)

    @property
    def number(self) -> int:
        return self.seal.number


def contiguous_start(spans: Iterable[tuple[int, int]], offset: int) -> int:
    """Where an unbroken chain of spans [start, end) that leads to `offset` begins; the spans may overlap.

    Offsets before a hole may still be on disk but are useless, because nothing can continue from them: a spill file is
    kept as a whole for the one shard that needs it (hazard 8), while log files with other shards' messages are freed.
    """
    for start, end in sorted(spans, key=lambda span: span[1], reverse=True):
        if end < offset:
            break  # sorted by end: no later span reaches the offset either
        offset = min(offset, start)
    return offset
