"""The warm window: files that nobody needs any more and that are kept for a while all the same (hazard 21).

A file is warm when it and all before it lie below all floors. It absorbs mistakes (a table that was rolled back is
written anew from here) and serves readers that are a little late. Warm files count as room: they go, the oldest first,

    by age        when they have been warm for `warm_ms`, on the monotonic clock; a start counts anew
    by size       beyond `warm_bytes`
    by need       as far as the log comes near its quota, or all of them when the disk has no room for another file
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from icestream.model.shard import ShardKey
from icestream.runtime.clock import Clock
from icestream.wal.summary import FileSummary


class WarmFiles:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: dict[int, int] = {}
        self.files: list[FileSummary] = []
        self.bytes = 0

    def look(self, files: Sequence[FileSummary], floor_of: Callable[[ShardKey], int]) -> None:
        """Floors have moved, a file was sealed, or some were freed."""
        now_ns = self._clock.monotonic_ns()
        self.files = list(takewhile(lambda file: file.is_passed(floor_of), files))
        self._since_ns = {file.number: self._since_ns.get(file.number, now_ns) for file in self.files}
        self.bytes = sum(file.size for file in self.files)

    def due(self, warm_ms: int, warm_bytes: int, needed_bytes: int) -> int:
        """How many of them go now, from the oldest on."""
        old_ns = self._clock.monotonic_ns() - warm_ms * 1_000_000
        left, freed = self.bytes, 0
        for number, file in enumerate(self.files):
            if self._since_ns[file.number] > old_ns and left <= warm_bytes and freed >= needed_bytes:
                return number
            left -= file.size
            freed += file.size
        return len(self.files)

    def seconds_left(self, warm_ms: int) -> float:
        """Until the oldest is due by its age; there must be one."""
        waited_ns = self._clock.monotonic_ns() - self._since_ns[self.files[0].number]
        return max(0.0, warm_ms / 1e3 - waited_ns / 1e9)
