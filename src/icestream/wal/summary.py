"""What is kept in memory of a sealed log file: which offsets of which shards it holds. The rest is in its footer."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream.model.shard import ShardKey
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal


class Range(NamedTuple):
    first: int
    end: int
    own_bytes: int
    max_time_us: int


@dataclass(slots=True)
class FileSummary:
    """One sealed file. Arrays beside a sorted list of keys: about 130 bytes for a shard."""

    seal: Seal
    size: int
    keys: list[ShardKey] = field(default_factory=list)
    _first: array[int] = field(default_factory=lambda: array("q"))
    _end: array[int] = field(default_factory=lambda: array("q"))
    _bytes: array[int] = field(default_factory=lambda: array("q"))
    _time: array[int] = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, seal: Seal, size: int, index: FileIndex) -> FileSummary:
        summary = cls(seal, size)
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

    @property
    def number(self) -> int:
        return self.seal.number
