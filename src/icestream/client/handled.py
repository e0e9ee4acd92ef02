"""What became of the messages of one shard, as far as this consumer knows. Pure; by ranges and sets of offsets.

    waiting   came, and was not handed out yet       handed out -> handed; given up with its connection -> forgotten
    handed    the application has it                 acked -> acked; nacked -> forgotten: it is to come again
    acked     for good

A broker delivers again whatever it does not know as acked: after a lost connection, after a crash that took the newest
acks with it, after a time-out. What was acked here is never handed out again, it is acked again; a copy that waits when
the message is acked is dropped. What waits is not put in a second time. What was handed out is handed out again (at
least once), unless the subscription deduplicates.

All of it belongs to one generation of the shard: a seek asks for everything anew (hazard 48).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream.client.sparse_offsets import Pairs, SparseOffsets

# Ranges of so few messages are remembered as single offsets when many of them are acked together.
_NARROW: Final = 8


class Arrived(NamedTuple):
    """What is to be handed out, what is to be acked again, and whether the application may have some of it already."""

    fresh: Pairs
    acked: Pairs
    may_be_copies: bool


class Handled:
    def __init__(self, generation: int, *, deduplicates: bool) -> None:
        self.generation = generation
        self._deduplicates = deduplicates
        self._waiting = SparseOffsets()
        self._handed = SparseOffsets()  # and neither acked nor nacked
        self._acked = SparseOffsets()

    def arrived(self, start: int, end: int) -> Arrived:
        """Messages came; what is fresh of them waits from now on."""
        fresh, acked = [(start, end)], self._acked.within(start, end) if self._acked else []
        may_be_copies = bool(self._handed) and bool(self._handed.within(start, end))
        for offsets in (self._acked, self._waiting, *((self._handed,) if self._deduplicates else ())):
            if offsets and offsets.within(start, end):
                fresh = [piece for low, high in fresh for piece in offsets.without(low, high)]
        for low, high in fresh:
            self._waiting.add(low, high)
        return Arrived(fresh, acked, may_be_copies)

    def arrived_picked(self, offsets: Sequence[int]) -> Arrived | None:
        """The same for messages that do not follow one another; their offsets rise. None: all of them are fresh, and
        none is a copy."""
        known = (self._acked, self._waiting, self._handed)
        if not any(book.touches(offsets) for book in known):
            self._waiting.add_singles(offsets)
            return None
        found = [self.arrived(offset, offset + 1) for offset in offsets]
        return Arrived(
            [pair for arrived in found for pair in arrived.fresh],
            [pair for arrived in found for pair in arrived.acked],
            any(arrived.may_be_copies for arrived in found),
        )

    def given_up(self, start: int, end: int) -> None:
        """They waited, and are not handed out."""
        self._waiting.take(start, end)

    def given_up_picked(self, offsets: Sequence[int]) -> None:
        self._waiting.take_singles(offsets)

    def handed_out(self, start: int, end: int) -> None:
        self._waiting.take(start, end)
        self._handed.add(start, end)

    def handed_out_picked(self, offsets: Sequence[int]) -> None:
        self._waiting.take_singles(offsets)
        self._handed.add_singles(offsets)

    def acked(self, start: int, end: int) -> bool:
        """A copy of them does not wait any more. Returns whether one did."""
        had_copy = self._waiting.take(start, end)
        self._handed.take(start, end)
        self._acked.add(start, end)
        return had_copy

    def acked_narrow(self, ranges: Pairs) -> bool:
        """The same for many short ranges, which rise."""
        offsets = [offset for start, end in ranges for offset in range(start, end)]
        had_copy = self._waiting.take_singles(offsets)
        self._handed.take_singles(offsets)
        self._acked.add_singles(offsets)
        return had_copy

    def nacked(self, start: int, end: int) -> None:
        """They are asked for again."""
        self._handed.take(start, end)

    @property
    def ranges(self) -> int:
        return len(self._acked) + len(self._handed)


def split_narrow(ranges: Sequence[tuple[int, int]]) -> tuple[Pairs, Pairs]:
    """Ranges of few messages where there are many of them, and all others."""
    if len(ranges) < _NARROW:
        return [], list(ranges)
    narrow = [pair for pair in ranges if pair[1] - pair[0] <= _NARROW]
    return narrow, [pair for pair in ranges if pair[1] - pair[0] > _NARROW]
