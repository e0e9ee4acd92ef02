"""What came for a subscription and was not taken yet: bounded by the credit that was given. Pure.

A generation belongs to each shard (hazard 48). A delivery of an older one is passed over; one of a newer one, or the
answer to a seek, forgets everything of the shard that came before it.

What comes again may wait here as a copy of what the application has. While that may be so (`may_hold_copies`), an ack
drops the copy at once; otherwise nobody looks for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from icestream import errors
from icestream.client.credit import CreditWindow
from icestream.client.delivered import Delivered
from icestream.client.handled import Handled, split_narrow


class Chunk(NamedTuple):
    """Rows [first, end) of what was delivered."""

    delivered: Delivered
    first: int
    end: int


class Inbox:
    def __init__(self, prefetch: int, buffer_bytes: int, *, deduplicates: bool) -> None:
        self.credit = CreditWindow(prefetch, buffer_bytes)
        self._deduplicates = deduplicates
        self._shards: list[Handled] = []
        self._queue: deque[Delivered] = deque()
        self._at = 0  # the first row of the first in the queue that was not taken
        self.may_hold_copies = False

    def __bool__(self) -> bool:
        return bool(self._queue)

    # --- its life ---

    def begin(self, generations: Sequence[int], *, is_same: bool) -> None:
        """On a new connection. `is_same`: it is the subscription that it was, with the same offsets."""
        self.clear()
        self.credit.restart()
        if not is_same or len(generations) != len(self._shards):
            self._shards = [Handled(generation, deduplicates=self._deduplicates) for generation in generations]
        else:
            self.sought(generations, is_new=True)

    def clear(self) -> None:
        """What waits is given up: it comes again."""
        if self._queue:
            first = self._queue[0]
            self._give_up(first, self._at)
            for delivered in list(self._queue)[1:]:
                self._give_up(delivered, 0)
        self._queue.clear()
        self._at = 0
        self.may_hold_copies = False
        self.credit.held = self.credit.held_bytes = 0

    def sought(self, generations: Sequence[int], *, is_new: bool = False) -> None:
        """What the broker says now; an answer that was overtaken by a newer delivery changes nothing."""
        for shard, generation in enumerate(generations):
            known = self.generation(shard)
            if generation > known or (is_new and generation != known):
                self._renew(shard, generation)

    def generation(self, shard: int) -> int:
        return self._shards[shard].generation if shard < len(self._shards) else -1

    def _renew(self, shard: int, generation: int) -> None:
        self._shards[shard] = Handled(generation, deduplicates=self._deduplicates)
        kept: deque[Delivered] = deque()
        at = self._at if self._queue and self._queue[0].shard != shard else 0
        for number, delivered in enumerate(self._queue):
            if delivered.shard != shard:
                kept.append(delivered)
                continue
            first = self._at if number == 0 else 0
            self.credit.took(delivered.rows - first, _size(delivered, first, delivered.rows))
        self._queue, self._at = kept, at

    def _give_up(self, delivered: Delivered, row: int) -> None:
        """Its messages from `row` on."""
        handled = self._of(delivered)
        if handled is None or row >= delivered.rows:
            return
        if delivered.offsets is not None:
            handled.given_up_picked(delivered.offsets[row:])
        else:
            handled.given_up(delivered.start + row, delivered.end)

    def _of(self, delivered: Delivered) -> Handled | None:
        """None: it belongs to a generation that is over."""
        if delivered.shard >= len(self._shards):
            return None
        handled = self._shards[delivered.shard]
        return handled if handled.generation == delivered.generation else None

    # --- in ---

    def arrive(self, delivered: Delivered) -> list[tuple[int, int]]:
        """Offsets that are to be acked again. Raises DecodeError for what was not asked for."""
        shard = delivered.shard
        if shard >= len(self._shards):
            raise errors.DecodeError(f"messages of shard {shard}, which is none")
        if not self.credit.came(delivered.rows, delivered.bytes):
            raise errors.DecodeError(f"{delivered.rows} messages, and {self.credit.credit} were asked for")
        if delivered.generation > self.generation(shard):
            self._renew(shard, delivered.generation)
        handled = self._of(delivered)
        if handled is None:
            self.credit.took(delivered.rows, delivered.bytes)
            return []
        if delivered.offsets is not None:
            arrived = handled.arrived_picked(delivered.offsets)
        else:
            arrived = handled.arrived(delivered.start, delivered.end)
        if arrived is None or arrived.fresh == [(delivered.start, delivered.end)]:
            self._queue.append(delivered)
        else:
            self.credit.took(delivered.rows, delivered.bytes)
            self._queue.extend(self._parts(delivered, arrived.fresh))
        if arrived is None:
            return []
        self.may_hold_copies |= arrived.may_be_copies and bool(arrived.fresh)
        return arrived.acked

    def _parts(self, delivered: Delivered, ranges: Sequence[tuple[int, int]]) -> list[Delivered]:
        """Some of its messages, which are held from now on."""
        parts = delivered.parts(ranges)
        self.credit.held += sum(part.rows for part in parts)
        self.credit.held_bytes += sum(part.bytes for part in parts)
        return parts

    # --- out ---

    def take(self, rows_max: int, now_ns: int) -> Chunk | None:
        """The next messages, at most so many, all of one delivery. They count as held until they are finished.

        Those that were taken before are finished by now.
        """
        if not self._queue:
            self.may_hold_copies = False
            return None
        delivered, first = self._queue[0], self._at
        end = min(delivered.rows, first + rows_max)
        self._at = end
        if end == delivered.rows:
            self._queue.popleft()
            self._at = 0
        self.credit.adapt(end - first, now_ns - delivered.arrived_ns, now_ns)
        return Chunk(delivered, first, end)

    def finish(self, chunk: Chunk, row: int) -> None:
        """The application has the rows up to `row`; the others are given up and come again."""
        delivered, first, end = chunk
        self.credit.took(end - first, _size(delivered, first, end))
        handled, start, offsets = self._of(delivered), delivered.start, delivered.offsets
        if handled is not None and first < row:
            if offsets is not None:
                handled.handed_out_picked(offsets[first:row])
            else:
                handled.handed_out(start + first, start + row)
        if handled is not None and row < end:
            if offsets is not None:
                handled.given_up_picked(offsets[row:end])
            else:
                handled.given_up(start + row, start + end)

    def hand_back(self, chunk: Chunk, row: int) -> None:
        """The application has the rows up to `row`; the others wait again, in front of everything."""
        delivered, _, end = chunk
        self.finish(chunk._replace(end=row), row)
        if row == end:
            return
        if self._queue and self._queue[0] is delivered:
            self._at = row
            return
        self.credit.took(end - row, _size(delivered, row, end))
        self._queue.extendleft(self._parts(delivered, delivered.ranges(row, end)))

    # --- what becomes of messages ---

    def acked(self, shard: int, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        if generation != self.generation(shard):
            return
        handled = self._shards[shard]
        narrow, wide = split_narrow(ranges)
        had_copies = [pair for pair in wide if handled.acked(*pair)]
        if narrow and handled.acked_narrow(narrow):
            had_copies += narrow
        if self.may_hold_copies:
            for start, end in had_copies:
                self._drop(shard, start, end)

    def _drop(self, shard: int, start: int, end: int) -> None:
        """These messages are not handed out."""
        queue, self._queue = self._queue, deque()
        for number, delivered in enumerate(queue):
            first = self._at if number == 0 else 0
            low, high = delivered.offset(first), delivered.end
            if delivered.shard != shard or end <= low or high <= start:
                self._queue.append(delivered)
                continue
            if number == 0:
                self._at = 0
            self.credit.took(delivered.rows - first, _size(delivered, first, delivered.rows))
            left = [(low, min(start, high)), (max(end, low), high)]
            self._queue.extend(self._parts(delivered, [piece for piece in left if piece[0] < piece[1]]))

    def acked_through(self, shard: int, generation: int, end: int) -> None:
        """Everything below `end`: first deliveries are in order, so all of it was handed out to somebody."""
        self.acked(shard, generation, [(0, end)])

    def nacked(self, shard: int, generation: int, start: int, end: int) -> None:
        if generation == self.generation(shard):
            self._shards[shard].nacked(start, end)


def _size(delivered: Delivered, first: int, end: int) -> int:
    """The bytes of some rows; those of all parts are exactly those of the whole."""
    return delivered.bytes * end // delivered.rows - delivered.bytes * first // delivered.rows
