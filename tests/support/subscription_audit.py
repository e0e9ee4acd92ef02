"""All that one shard of a subscription was handed and acked, and every cursor that the broker wrote; what must hold.

S1  a cursor holds only what was acked by the application or buried as a dead letter, and what lies below a seek
S2  what a stored cursor holds is not delivered after the next start
S3  a write holds every ack that was counted before the write before it: a crash repeats one interval at most, however
    old the first message is that is not acked
S4  a cursor only grows; a seek alone moves it, and one that was answered stays
S5  where one consumer gets everything, the messages of a generation come in order, in each life
S6  where keys are shared, a message comes when all of its key before it are acked, and one at a time

Time is counted in ticks of the whole run, so that what was before what is known over all lives.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from tests.support.history import check

ticks = count(1)


class AuditedCursor(NamedTuple):
    """A cursor as it is stored (docs of the metadata store), read here by itself: the code under test is not asked."""

    revision: int
    generation: int
    offset: int
    ranges: list[tuple[int, int]]

    @classmethod
    def parse(cls, value: bytes, revision: int) -> AuditedCursor:
        fields: dict[str, Any] = json.loads(value)
        at, ranges = fields["offset"], []
        for step, messages in zip(fields["acked"][::2], fields["acked"][1::2], strict=True):
            ranges.append((at + step, at + step + messages))
            at += step + messages
        return cls(revision, fields["generation"], fields["offset"], ranges)

    def holds(self, offset: int) -> bool:
        at = bisect_right(self.ranges, (offset, 1 << 62)) - 1
        return offset < self.offset or (at >= 0 and offset < self.ranges[at][1])

    def holds_all_of(self, other: AuditedCursor) -> bool:
        """For two of one generation."""
        mine = [(0, self.offset), *self.ranges]
        theirs = [(0, other.offset), *other.ranges]
        return all(any(low <= start and end <= high for low, high in mine) for start, end in theirs)


class AuditedDelivery(NamedTuple):
    tick: int
    generation: int
    offset: int


class ShardAudit:
    def __init__(self, name: str, *, is_ordered: bool, is_keyed: bool) -> None:
        self.name = name
        self.cursor: AuditedCursor | None = None  # the newest that was seen
        self.repeated = 0  # acks that were counted and came again
        self._is_ordered = is_ordered
        self._is_keyed = is_keyed
        self._base: AuditedCursor | None = None  # where this life began
        self._starts: list[tuple[int, AuditedCursor]] = []  # where each life began, and when that was seen
        self._positions = {0: 0}  # of each generation
        self._answered = 0  # the generation that an answered seek must have left behind
        self._seek_target: int | None = None
        self._acked: dict[tuple[int, int], int] = {}  # generation, offset: when
        self._nacked: set[int] = set()
        self._counted: list[tuple[int, int, int]] = []  # store's revision, generation, offset of acks not seen stored
        self._handed: list[AuditedDelivery] = []
        self._last: dict[tuple[str, int], int] = {}  # consumer and generation: the newest offset, in this life
        self._in_hand: dict[tuple[int, bytes], int] = {}  # generation and key: the offset

    # --- cursors ---

    def written(self, cursor: AuditedCursor) -> None:
        """A write was seen; of those between two that were seen nothing is known."""
        before = self.cursor
        if not self._see(cursor) or before is None:
            return
        for revision, _, offset in self._counted:
            is_due = revision < before.revision
            check(not is_due, "S3 acked before the last write but one began, not stored", self.name, offset, cursor)

    def _see(self, cursor: AuditedCursor) -> bool:
        """Checks a cursor that was read; False if it is not newer than the last one."""
        if self.cursor is not None and cursor.revision <= self.cursor.revision:
            return False
        self._compare(cursor)
        self.cursor = cursor
        self._counted = [
            (revision, generation, offset)
            for revision, generation, offset in self._counted
            if generation > cursor.generation or (generation == cursor.generation and not cursor.holds(offset))
        ]
        return True

    def _compare(self, cursor: AuditedCursor) -> None:
        before = self.cursor
        if before is not None:
            check(cursor.generation >= before.generation, "S4 a seek was forgotten", self.name, before, cursor)
            is_grown = cursor.generation > before.generation or cursor.holds_all_of(before)
            check(is_grown, "S4 a cursor has shrunk", self.name, before, cursor)
        self._see_generation(cursor.generation)
        check(cursor.offset >= self._positions[cursor.generation], "S4 a cursor below its seek", self.name, cursor)

    def life_began(self, cursor: AuditedCursor, *, was_stopped: bool) -> None:
        """This is what the broker found, or made of that: a start which finds a dead letter that the cursor did not
        know writes it anew, before a consumer joins (hazard 41).

        Such a write holds what the last life had stored, and none of the acks that died with it. So S3 asks nothing of
        it: it was asked of each write that was seen before, and S4 says that all of those is still here.
        """
        self._see(cursor)
        newest = self.cursor
        assert newest is not None
        check(cursor == newest, "S4 a write that was seen is gone", self.name, newest, cursor)
        check(cursor.generation >= self._answered, "S4 an answered seek is gone", self.name, self._answered, cursor)
        if was_stopped:
            check(not self._counted, "S3 a stop in order forgot acks", self.name, self._counted)
        self.repeated += len(self._counted)
        self._counted = []
        self._seek_target = None
        for generation in [position for position in self._positions if position > cursor.generation]:
            self._retire(generation)
        self._base = cursor
        self._starts.append((next(ticks), cursor))
        self._last = {}
        self._in_hand = {}

    @property
    def waiting(self) -> set[tuple[int, int, int]]:
        """Counted acks that no write has held yet."""
        return set(self._counted)

    def _retire(self, generation: int) -> None:
        """Of a seek that was never answered messages were seen, and the crash took it: its number comes again."""
        retired = min(self._positions) - 1
        self._positions[retired] = self._positions.pop(generation)
        was, self._acked = self._acked, {}
        for (acked_in, offset), tick in was.items():
            self._acked[retired if acked_in == generation else acked_in, offset] = tick
        self._handed = [
            delivery._replace(generation=retired) if delivery.generation == generation else delivery
            for delivery in self._handed
        ]

    # --- seeks ---

    def seek_asked(self, position: int) -> None:
        self._seek_target = position

    def seek_answered(self) -> None:
        self._answered = max(self._positions) if self._seek_target is None else max(self._positions) + 1
        self._see_generation(self._answered)

    def _see_generation(self, generation: int) -> None:
        if generation not in self._positions:
            is_next = self._seek_target is not None and generation == max(self._positions) + 1
            check(is_next, "S4 a generation that no seek asked for", self.name, generation, self._positions)
            assert self._seek_target is not None
            self._positions[generation], self._seek_target = self._seek_target, None

    # --- messages ---

    def handed(self, consumer: str, generation: int, offset: int, key: bytes, attempt: int) -> None:
        base = self._base
        assert base is not None
        self._see_generation(generation)
        is_known = generation == base.generation and base.holds(offset)
        check(not is_known, "S2 delivered although its ack was stored", self.name, offset, base)
        check(offset >= self._positions[generation], "S4 delivered from below a seek", self.name, generation, offset)
        self._handed.append(AuditedDelivery(next(ticks), generation, offset))
        if self._is_ordered and not attempt:
            newest = self._last.get((consumer, generation), -1)
            check(offset > newest, "S5 out of order", self.name, consumer, newest, offset)
            self._last[consumer, generation] = offset
        if self._is_keyed:
            other = self._in_hand.setdefault((generation, key), offset)
            check(other == offset, "S6 two messages of a key at the same time", self.name, key, other, offset)

    def acked(self, generation: int, offset: int, key: bytes) -> None:
        self._acked.setdefault((generation, offset), next(ticks))
        self._in_hand.pop((generation, key), None)

    def nacked(self, generation: int, offset: int, key: bytes) -> None:
        self._nacked.add(offset)
        self._in_hand.pop((generation, key), None)

    def given_up(self, generation: int, key: bytes) -> None:
        """The consumer of this delivery has left."""
        self._in_hand.pop((generation, key), None)

    def counted(self, acks: Iterable[tuple[int, int]], revision: int) -> None:
        """The broker has counted these acks (generation, offset) while its store was at this revision, or before."""
        newest = self.cursor
        for generation, offset in acks:
            is_stored = newest is not None and newest.generation == generation and newest.holds(offset)
            if not is_stored and generation == max(self._positions):
                self._counted.append((revision, generation, offset))

    # --- in the end ---

    def check_all(self, messages: Mapping[int, bytes], is_buried: Callable[[int], bool]) -> None:
        """`messages`: every offset of the shard that has one, with its key. `is_buried`: it may be a dead letter."""
        assert self.cursor is not None
        for tick, cursor in [*self._starts, (next(ticks), self.cursor)]:
            position = self._positions[cursor.generation]
            for offset in messages:
                if offset >= position and cursor.holds(offset):
                    when = self._acked.get((cursor.generation, offset))
                    is_settled = (when is not None and when < tick) or (offset in self._nacked and is_buried(offset))
                    check(is_settled, "S1 counts as acked and was not", self.name, offset, cursor)
        lost = [offset for offset in messages if not self.cursor.holds(offset)]
        check(not lost, "S1 was never acked, and nothing is left to deliver", self.name, lost[:5])
        if self._is_keyed:
            self._check_keys(messages)

    def _check_keys(self, messages: Mapping[int, bytes]) -> None:
        offsets: defaultdict[bytes, list[int]] = defaultdict(list)
        for offset in sorted(messages):
            offsets[messages[offset]].append(offset)
        done: dict[tuple[int, bytes], int] = {}  # how many of a key are known to be acked in time
        for tick, generation, offset in self._handed:
            key = messages[offset]
            mine, position = offsets[key], self._positions[generation]
            at = done.get((generation, key), 0)
            while mine[at] < offset:
                when = self._acked.get((generation, mine[at]), 0 if mine[at] < position else None)
                is_before = when is not None and when < tick
                check(is_before, "S6 overtook another of its key", self.name, key, mine[at], offset)
                at += 1
            done[generation, key] = max(at, done.get((generation, key), 0))
