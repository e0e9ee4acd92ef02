"""How far a subscription has come in one shard: everything below `position` is acked, and some ranges above it.

    position = 5         acked = [7, 9) [12, 13)          holes: [5, 7) [9, 12)

The ranges are bounded in number and in span (hazard 17), and nothing acked is ever forgotten: so what is sent out is
bounded. In front of every range there is a hole, and a hole of n messages can become at most (n + 1) / 2 holes,
whatever is acked in it. With u unacked messages in at most ranges + 1 holes there are never more ranges than

    (u + ranges + 1) / 2

and `room` is how many more messages can go out until that reaches the bound. Where it is 0, dispatch of new messages
pauses until a hole closes; `hole` names the one that it waits for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from icestream import errors, limits


class AckedOffsets:
    """The acked offsets of one shard."""

    __slots__ = ("_ends", "_starts", "position")

    def __init__(self, position: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        if not 0 <= position <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"position {position} is not between 0 and {limits.OFFSET_MAX}")
        self.position = position
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            if not 0 <= start < end <= limits.OFFSET_MAX:
                raise errors.InvalidInput(f"acked range [{start}, {end}) is not a range of offsets")
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Marks [start, end) as acked; what is acked already stays so."""
        if start >= end:
            return
        # The common case of in-order acks: no range is needed.
        if start <= self.position:
            self.position = max(self.position, end)
            if self._starts:
                self._close_holes()
            return
        low = bisect_left(self._ends, start)  # the first range that touches or follows
        high = bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def _close_holes(self) -> None:
        done = 0
        while done < len(self._starts) and self._starts[done] <= self.position:
            self.position = max(self.position, self._ends[done])
            done += 1
        if done:
            del self._starts[:done], self._ends[:done]

    def __contains__(self, offset: int) -> bool:
        """Whether the offset is acked."""
        if offset < self.position:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __len__(self) -> int:
        """How many ranges there are above the position."""
        return len(self._starts)

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) that are not acked."""
        while (hole := self.first_missing(start, end)) is not None:
            yield hole
            start = hole[1]

    def first_missing(self, start: int, end: int) -> tuple[int, int] | None:
        """The first part of [start, end) that is not acked, up to the next range."""
        start = max(start, self.position)
        if self._starts and start < self._ends[-1]:
            at = bisect_right(self._ends, start)
            if self._starts[at] <= start:
                start = self._ends[at]
                at += 1
            if at < len(self._starts):
                end = min(end, self._starts[at])
        return (start, end) if start < end else None

    def below(self, end: int) -> AckedOffsets:
        """The acked offsets below `end`: a stored position never passes what is synced, nor the end of its log."""
        cut = [(low, min(high, end)) for low, high in self.ranges if low < end]
        return AckedOffsets(min(self.position, end), cut)

    def room(self, unacked: int, at: int) -> int:
        """How many more messages, from offset `at` on, may go out to the `unacked` ones that are out already."""
        by_ranges = 2 * limits.ACKED_RANGES_MAX - 1 - len(self._starts) - unacked
        by_span = self.position + limits.ACKED_SPAN_OFFSETS_MAX - at
        return max(0, min(by_ranges, by_span))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The acked ranges above the position."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def end(self) -> int:
        """Behind the highest acked offset."""
        return self._ends[-1] if self._ends else self.position

    @property
    def hole(self) -> tuple[int, int] | None:
        """The first offsets that are not acked although later ones are."""
        return (self.position, self._starts[0]) if self._starts else None
