"""AckLedger: the state of the messages of one shard, as far as this consumer knows it. Pure; by ranges of offsets.

    waiting   arrived, not handed out yet    handed out -> handed; dropped with its connection -> forgotten
    handed    the application has it         acked -> acked; nacked -> forgotten, because it is redelivered
    acked     permanently

A broker redelivers what it does not know as acked: after a lost connection, after a crash that lost the newest acks,
after a timeout. A message that was acked here is never handed out again, but acked again; a copy that waits when its
message is acked is dropped. A waiting message is not queued a second time. A message that was handed out is handed out
again (at least once), unless the subscription deduplicates.

A ledger belongs to one generation of the shard: a seek starts anew (hazard 48).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream import limits
from icestream.model.run_set import RunSet

Pairs = list[tuple[int, int]]
# Ranges of at most so many messages are stored as single offsets if many of them are acked together.
_NARROW_ROWS: Final = 8


class Arrival(NamedTuple):
    """What to do with messages that arrived."""

    fresh: Pairs  # to hand out
    acked: Pairs  # to ack again
    may_be_copies: bool  # the application may have some of them already


class AckLedger:
    """The messages of one generation of a shard."""

    def __init__(self, generation: int, *, deduplicates: bool) -> None:
        self.generation = generation
        self._deduplicates = deduplicates
        self._waiting = OffsetSet()
        self._handed = OffsetSet()  # and neither acked nor nacked
        self._acked = OffsetSet()

    def arrive(self, start: int, end: int) -> Arrival:
        """Records the arrival of [start, end); the fresh ones of them are waiting from now on."""
        # Nearly every arrival is fresh, and the sets are empty: each step looks first whether there is anything to do.
        fresh, acked = [(start, end)], self._acked.within(start, end) if self._acked else []
        may_be_copies = bool(self._handed) and bool(self._handed.within(start, end))
        for offsets in (self._acked, self._waiting, *((self._handed,) if self._deduplicates else ())):
            if offsets and offsets.within(start, end):
                fresh = [piece for low, high in fresh for piece in offsets.without(low, high)]
        for low, high in fresh:
            self._waiting.add(low, high)
        return Arrival(fresh, acked, may_be_copies)

    def arrive_singles(self, offsets: Sequence[int]) -> Arrival | None:
        """`arrive` for messages with holes between them; offsets rise. None if all are fresh and no copies."""
        if not any(offset_set.touches(offsets) for offset_set in (self._acked, self._waiting, self._handed)):
            self._waiting.add_singles(offsets)
            return None
        arrivals = [self.arrive(offset, offset + 1) for offset in offsets]
        return Arrival(
            [pair for arrival in arrivals for pair in arrival.fresh],
            [pair for arrival in arrivals for pair in arrival.acked],
            any(arrival.may_be_copies for arrival in arrivals),
        )

    def drop(self, start: int, end: int) -> None:
        """Forgets waiting messages that will not be handed out: they are redelivered."""
        self._waiting.remove(start, end)

    def drop_singles(self, offsets: Sequence[int]) -> None:
        """`drop` for single offsets."""
        self._waiting.remove_singles(offsets)

    def hand_out(self, start: int, end: int) -> None:
        """Records that the application has the messages [start, end)."""
        self._waiting.remove(start, end)
        self._handed.add(start, end)

    def hand_out_singles(self, offsets: Sequence[int]) -> None:
        """`hand_out` for single offsets."""
        self._waiting.remove_singles(offsets)
        self._handed.add_singles(offsets)

    def ack(self, start: int, end: int) -> bool:
        """Records an ack. True if a copy of them was waiting, which must not be handed out any more."""
        # Kept after the broker has the ack: a crash of the broker may lose the newest acks, and it redelivers then.
        had_copy = self._waiting.remove(start, end)
        self._handed.remove(start, end)
        self._acked.add(start, end)
        return had_copy

    def ack_narrow(self, ranges: Pairs) -> bool:
        """`ack` for many short ranges, which rise."""
        offsets = [offset for start, end in ranges for offset in range(start, end)]
        had_copy = self._waiting.remove_singles(offsets)
        self._handed.remove_singles(offsets)
        self._acked.add_singles(offsets)
        return had_copy

    def nack(self, start: int, end: int) -> None:
        """Forgets messages that are nacked: they are handed out again, even if the subscription deduplicates."""
        self._handed.remove(start, end)

    @property
    def ranges(self) -> int:
        """How many ranges and single offsets are stored: the measure of its memory."""
        return len(self._acked) + len(self._handed)


def split_narrow(ranges: Sequence[tuple[int, int]]) -> tuple[Pairs, Pairs]:
    """Returns (ranges of few messages if there are many such ranges, all other ranges)."""
    if len(ranges) < _NARROW_ROWS:
        return [], list(ranges)
    narrow = [pair for pair in ranges if pair[1] - pair[0] <= _NARROW_ROWS]
    return narrow, [pair for pair in ranges if pair[1] - pair[0] > _NARROW_ROWS]


class OffsetSet:
    """A set of offsets of one shard: consecutive offsets as ranges, offsets of PICK frames as single numbers.

    A range costs the same however long it is; single offsets cost one set operation for all of them together. Both are
    bounded; the lowest offsets, which are the least likely to be redelivered, are forgotten first.
    """

    __slots__ = ("_runs", "_singles")

    def __init__(self) -> None:
        self._runs: RunSet[None] = RunSet()
        self._singles: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._runs) or bool(self._singles)

    def __len__(self) -> int:
        """How many ranges and single offsets are stored."""
        return len(self._runs) + len(self._singles)

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), which may overlap with the set."""
        runs = self._runs
        runs.take(start, end)  # a RunSet does not accept overlapping runs
        runs.add(start, end, None)
        while len(runs) > limits.CLIENT_HANDLED_RANGES_MAX:
            lowest = runs.first()
            runs.take(lowest.start, lowest.end)

    def add_singles(self, offsets: Sequence[int]) -> None:
        """Adds single offsets."""
        self._singles.update(offsets)
        # The lower half at once: a sort for each offset beyond the bound would cost too much.
        if len(self._singles) > limits.CLIENT_HANDLED_RANGES_MAX:
            self._singles = set(sorted(self._singles)[len(self._singles) // 2 :])

    def remove(self, start: int, end: int) -> bool:
        """Removes [start, end). True if the set had some of it."""
        is_removed = bool(self._runs.take(start, end)) if self._runs.size else False
        if self._singles and (singles := self._singles_within(start, end)):
            self._singles.difference_update(singles)
            return True
        return is_removed

    def remove_singles(self, offsets: Sequence[int]) -> bool:
        """Removes these offsets, which rise. True if the set had some of them."""
        count_before = len(self._singles)
        if count_before:
            self._singles.difference_update(offsets)
        is_removed = len(self._singles) < count_before
        if self._runs.size and self._runs.first_within(offsets[0], offsets[-1] + 1) is not None:
            for offset in offsets:
                is_removed |= bool(self._runs.take(offset, offset + 1))
        return is_removed

    def touches(self, offsets: Sequence[int]) -> bool:
        """True if the set may have one of these offsets, which rise; False if it certainly has none of them."""
        if self._singles and not self._singles.isdisjoint(offsets):
            return True
        return bool(self._runs.size) and self._runs.first_within(offsets[0], offsets[-1] + 1) is not None

    def within(self, start: int, end: int) -> Pairs:
        """Returns the part of the set in [start, end), as rising ranges."""
        ranges = [(run.start, run.end) for run in self._runs.within(start, end)] if self._runs.size else []
        if self._singles and (singles := self._singles_within(start, end)):
            merged: Pairs = []
            for low, high in sorted(ranges + [(offset, offset + 1) for offset in singles]):
                if merged and low <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
                else:
                    merged.append((low, high))
            return merged
        return ranges

    def without(self, start: int, end: int) -> Pairs:
        """Returns the parts of [start, end) that are not in the set."""
        missing: Pairs = []
        for low, high in self.within(start, end):
            if start < low:
                missing.append((start, low))
            start = high
        if start < end:
            missing.append((start, end))
        return missing

    def _singles_within(self, start: int, end: int) -> set[int]:
        if end - start <= len(self._singles):
            return self._singles.intersection(range(start, end))
        return {offset for offset in self._singles if start <= offset < end}
