"""The warm window: log files that are entirely below all floors and are kept for a while as a cache (hazard 21).

A file is warm when it and every older file lie below all floors. Warm files absorb mistakes (a table that was rolled
back is written again from them) and serve readers that are a little late. They count as free room and are freed,
oldest first,

    by age        after `warm_ms` on the monotonic clock; the age starts again at a restart
    by size       beyond `warm_bytes`
    by need       as far as the log comes near its quota, or all of them when the disk has no room for another file
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from icestream.model.shard import ShardKey
from icestream.runtime.clock import Clock
from icestream.wal.file_summary import FileSummary


class WarmFiles:
    """The warm files of one log, and since when each is warm."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: dict[int, int] = {}
        self.files: list[FileSummary] = []
        self.bytes = 0

    def refresh(self, files: Sequence[FileSummary], floor_of: Callable[[ShardKey], int]) -> None:
        """Recomputes which files are warm; to be called when floors move and when files are sealed or freed."""
        now_ns = self._clock.monotonic_ns()
        # Only a prefix can be warm: files are freed strictly from the oldest on, so a file behind a needed one is not
        # reclaimable.
        self.files = list(takewhile(lambda file: file.is_passed(floor_of), files))
        self._since_ns = {file.number: self._since_ns.get(file.number, now_ns) for file in self.files}
        self.bytes = sum(file.size for file in self.files)

    def due_count(self, warm_ms: int, warm_bytes: int, needed_bytes: int) -> int:
        """How many warm files are to be freed now, from the oldest on."""
        expired_ns = self._clock.monotonic_ns() - warm_ms * 1_000_000
        remaining_bytes, freed_bytes = self.bytes, 0
        for count, file in enumerate(self.files):
            is_young = self._since_ns[file.number] > expired_ns
            if is_young and remaining_bytes <= warm_bytes and freed_bytes >= needed_bytes:
                return count
            remaining_bytes -= file.size
            freed_bytes += file.size
        return len(self.files)

    def seconds_until_due(self, warm_ms: int) -> float:
        """Until the oldest warm file is due by its age. There must be a warm file."""
        age_ns = self._clock.monotonic_ns() - self._since_ns[self.files[0].number]
        return max(0.0, warm_ms / 1e3 - age_ns / 1e9)
