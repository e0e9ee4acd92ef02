"""FeedMarks: where the bytes and the times of a shard lie, as far as its feed has read it. Pure.

    mark      offset of a section's first row, bytes of the sections before it, append time of the section
    between   bytes and times are interpolated by offset; a jump in the offsets counts as rows of the mean size
    outside   before the first mark and behind the last section bytes go by the mean size of a row; before the first
              mark its time is told, so an age is a lower bound there
    bound     MQTT_MARKS_MAX. At the bound every second mark goes, and the next ones are twice as far apart: the error
              stays a fixed part of what the marks span

The lag of a session in bytes and age is read from here when it is asked for: a session that is behind costs nothing
while it is (R37). Marks live as long as the process; a start begins them at the oldest row that a session is owed, if
the log has it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from icestream import limits


class FeedMarks:
    """The marks of one shard, rising by offset."""

    def __init__(self, marks_max: int = limits.MQTT_MARKS_MAX) -> None:
        self._marks_max = marks_max
        self._span_bytes = limits.MQTT_MARK_BYTES
        self._span_us = limits.MQTT_MARK_US
        self._offsets = array("q")
        self._bytes = array("q")
        self._times = array("q")
        self._due_bytes = self._due_us = 0  # where the next mark is due
        self._end = 0  # behind the last row
        self._end_bytes = 0
        self._end_us = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, base: int, rows: int, size: int, time_us: int) -> None:
        """Adds the next section: its first offset, rows, bytes and append time. One that was added is ignored."""
        end = base + rows
        if self._offsets:
            if end <= self._end:
                return
            if base > self._end:
                self._end_bytes += int((base - self._end) * self.row_bytes)
            if self._end_bytes >= self._due_bytes or time_us >= self._due_us:
                self._append(max(base, self._end), time_us)  # tiers divide rows into other sections: marks only rise
        else:
            self._append(base, time_us)
        self._end = end
        self._end_bytes += size
        self._end_us = max(self._end_us, time_us)

    def _append(self, base: int, time_us: int) -> None:
        if len(self._offsets) >= self._marks_max:
            for column in (self._offsets, self._bytes, self._times):
                del column[1::2]
            self._span_bytes *= 2
            self._span_us *= 2
        self._offsets.append(base)
        self._bytes.append(self._end_bytes)
        self._times.append(time_us)
        self._due_bytes = self._end_bytes + self._span_bytes
        self._due_us = time_us + self._span_us

    @property
    def row_bytes(self) -> float:
        """The mean size of a row; 0 while no section was added."""
        rows = self._end - self._offsets[0] if len(self._offsets) else 0
        return self._end_bytes / rows if rows else 0.0

    def size(self, start: int, end: int) -> int:
        """About how many bytes the rows [start, end) have; `end`: the end of the shard, or before it."""
        return max(0, self._bytes_at(end) - self._bytes_at(start))

    def _bytes_at(self, offset: int) -> int:
        if not len(self._offsets):
            return 0
        if offset < self._offsets[0]:
            return int((offset - self._offsets[0]) * self.row_bytes)
        if offset >= self._end:
            return self._end_bytes + int((offset - self._end) * self.row_bytes)
        return self._between(offset, self._bytes, self._end_bytes)

    def time_us(self, offset: int) -> int | None:
        """About when the row was appended; of a row before the first mark the time of that, None without marks."""
        if not len(self._offsets):
            return None
        return self._between(max(offset, self._offsets[0]), self._times, self._end_us)

    def _between(self, offset: int, column: array[int], last: int) -> int:
        """The value of a column at an offset from the first mark on; `last`: at the end."""
        index = bisect_right(self._offsets, offset) - 1
        is_last = index + 1 == len(self._offsets)
        start, value = self._offsets[index], column[index]
        end, following = (self._end, last) if is_last else (self._offsets[index + 1], column[index + 1])
        share = min(1.0, (offset - start) / max(1, end - start))
        return value + int((following - value) * share)
