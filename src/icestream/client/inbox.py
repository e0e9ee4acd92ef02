"""Inbox: messages of a subscription that arrived and were not handed out yet, bounded by the credit. Pure.

Each shard has a generation (hazard 48). A delivery of an older generation is ignored; one of a newer generation, or the
reply to a seek, drops everything of the shard that arrived before.

A redelivered message may wait here as a copy of one that the application has. While that is possible
(`may_hold_copies`) an ack drops the copy immediately; otherwise copies are not searched for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from icestream import errors
from icestream.client.ack_ledger import AckLedger, split_narrow
from icestream.client.credit import CreditWindow
from icestream.client.delivered_rows import DeliveredRows


class Chunk(NamedTuple):
    """Rows [first, end) of a delivery."""

    delivered: DeliveredRows
    first: int
    end: int


class Inbox:
    """The queue of deliveries of one consumer, with a ledger for each shard."""

    def __init__(self, prefetch: int, buffer_bytes: int, *, deduplicates: bool) -> None:
        self.credit = CreditWindow(prefetch, buffer_bytes)
        self._deduplicates = deduplicates
        self._ledgers: list[AckLedger] = []  # of each shard
        self._queue: deque[DeliveredRows] = deque()
        self._first_row = 0  # of the first delivery in the queue: the first row that was not taken
        self.may_hold_copies = False

    def __bool__(self) -> bool:
        return bool(self._queue)

    # --- connections and generations ---

    def begin(self, generations: Sequence[int], *, is_same: bool) -> None:
        """Begins with a new connection. `is_same`: it is the same subscription as before, with the same offsets."""
        self.clear()
        self.credit.restart()
        if not is_same or len(generations) != len(self._ledgers):
            self._ledgers = [AckLedger(generation, deduplicates=self._deduplicates) for generation in generations]
        else:
            self.seek(generations, is_new_connection=True)

    def clear(self) -> None:
        """Drops the messages that wait: they are redelivered."""
        if self._queue:
            first = self._queue[0]
            self._drop_rows(first, self._first_row)
            for delivered in list(self._queue)[1:]:
                self._drop_rows(delivered, 0)
        self._queue.clear()
        self._first_row = 0
        self.may_hold_copies = False
        self.credit.buffered = self.credit.buffered_bytes = 0

    def seek(self, generations: Sequence[int], *, is_new_connection: bool = False) -> None:
        """Adopts the broker's generations. A reply that was overtaken by a newer delivery changes nothing."""
        for shard, generation in enumerate(generations):
            current = self.generation(shard)
            if generation > current or (is_new_connection and generation != current):
                self._begin_generation(shard, generation)

    def generation(self, shard: int) -> int:
        """The present generation of a shard; -1 for an unknown shard, which no delivery has."""
        return self._ledgers[shard].generation if shard < len(self._ledgers) else -1

    def _begin_generation(self, shard: int, generation: int) -> None:
        """Drops everything of a shard that belongs to earlier generations, and begins a new ledger for it."""
        self._ledgers[shard] = AckLedger(generation, deduplicates=self._deduplicates)
        other_shards: deque[DeliveredRows] = deque()
        first_row = self._first_row if self._queue and self._queue[0].shard != shard else 0
        for number, delivered in enumerate(self._queue):
            if delivered.shard != shard:
                other_shards.append(delivered)
                continue
            first = self._first_row if number == 0 else 0
            self.credit.release(delivered.rows - first, _bytes_of(delivered, first, delivered.rows))
        self._queue, self._first_row = other_shards, first_row

    def _drop_rows(self, delivered: DeliveredRows, row: int) -> None:
        """Drops the messages of a delivery from `row` on."""
        ledger = self._ledger_of(delivered)
        if ledger is None or row >= delivered.rows:
            return
        if delivered.offsets is not None:
            ledger.drop_singles(delivered.offsets[row:])
        else:
            ledger.drop(delivered.start + row, delivered.end)

    def _ledger_of(self, delivered: DeliveredRows) -> AckLedger | None:
        """The ledger of a delivery's shard; None if the delivery belongs to an earlier generation."""
        if delivered.shard >= len(self._ledgers):
            return None
        ledger = self._ledgers[delivered.shard]
        return ledger if ledger.generation == delivered.generation else None

    # --- arriving messages ---

    def arrive(self, delivered: DeliveredRows) -> list[tuple[int, int]]:
        """Queues a delivery. Returns the offsets that are to be acked again. Raises DecodeError for messages that were
        not requested."""
        shard = delivered.shard
        if shard >= len(self._ledgers):
            raise errors.DecodeError(f"messages of unknown shard {shard}")
        if not self.credit.arrived(delivered.rows, delivered.bytes):
            raise errors.DecodeError(f"{delivered.rows} messages delivered, {self.credit.credit} requested")
        if delivered.generation > self.generation(shard):  # a seek, perhaps of another consumer of the subscription
            self._begin_generation(shard, delivered.generation)
        ledger = self._ledger_of(delivered)
        if ledger is None:  # sent before a seek: ignored, and its credit is granted again
            self.credit.release(delivered.rows, delivered.bytes)
            return []
        if delivered.offsets is not None:
            arrival = ledger.arrive_singles(delivered.offsets)
        else:
            arrival = ledger.arrive(delivered.start, delivered.end)
        if arrival is None or arrival.fresh == [(delivered.start, delivered.end)]:
            self._queue.append(delivered)
        else:
            self.credit.release(delivered.rows, delivered.bytes)
            self._queue.extend(self._buffer_parts(delivered, arrival.fresh))
        if arrival is None:
            return []
        self.may_hold_copies |= arrival.may_be_copies and bool(arrival.fresh)
        return arrival.acked

    def _buffer_parts(self, delivered: DeliveredRows, ranges: Sequence[tuple[int, int]]) -> list[DeliveredRows]:
        """Returns the rows of a delivery with offsets in the ranges, and counts them as buffered."""
        parts = delivered.parts(ranges)
        self.credit.buffered += sum(part.rows for part in parts)
        self.credit.buffered_bytes += sum(part.bytes for part in parts)
        return parts

    # --- handing out ---

    def take(self, rows_max: int, now_ns: int) -> Chunk | None:
        """Returns the next messages, at most `rows_max`, all of one delivery. They count as buffered until `finish`,
        which the caller has called for the chunk before."""
        if not self._queue:
            self.may_hold_copies = False  # nothing waits, so no copy does: acks are cheap again
            return None
        delivered, first = self._queue[0], self._first_row
        end = min(delivered.rows, first + rows_max)
        self._first_row = end
        if end == delivered.rows:
            self._queue.popleft()
            self._first_row = 0
        self.credit.adapt(end - first, now_ns - delivered.arrived_ns, now_ns)
        return Chunk(delivered, first, end)

    def finish(self, chunk: Chunk, row: int) -> None:
        """Records that the application has the chunk's rows up to `row`; the others are dropped and redelivered."""
        delivered, first, end = chunk
        self.credit.release(end - first, _bytes_of(delivered, first, end))
        ledger, start, offsets = self._ledger_of(delivered), delivered.start, delivered.offsets
        if ledger is not None and first < row:
            if offsets is not None:
                ledger.hand_out_singles(offsets[first:row])
            else:
                ledger.hand_out(start + first, start + row)
        if ledger is not None and row < end:
            if offsets is not None:
                ledger.drop_singles(offsets[row:end])
            else:
                ledger.drop(start + row, start + end)

    def put_back(self, chunk: Chunk, row: int) -> None:
        """Records that the application has the chunk's rows up to `row`; the others wait again, in front of the
        queue."""
        delivered, _, end = chunk
        self.finish(chunk._replace(end=row), row)
        if row == end:
            return
        if self._queue and self._queue[0] is delivered:  # the rest of the delivery is there still: only its start moves
            self._first_row = row
            return
        self.credit.release(end - row, _bytes_of(delivered, row, end))
        self._queue.extendleft(self._buffer_parts(delivered, delivered.ranges(row, end)))

    # --- acks and nacks ---

    def ack(self, shard: int, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Records acks, and drops waiting copies of the messages."""
        if generation != self.generation(shard):
            return
        ledger = self._ledgers[shard]
        # Acks of a key-shared subscription are many short ranges: as single offsets they cost one set operation.
        narrow, wide = split_narrow(ranges)
        with_copies = [pair for pair in wide if ledger.ack(*pair)]
        if narrow and ledger.ack_narrow(narrow):
            with_copies += narrow
        if self.may_hold_copies:
            for start, end in with_copies:
                self._drop_copies(shard, start, end)

    def _drop_copies(self, shard: int, start: int, end: int) -> None:
        """Removes the offsets [start, end) of a shard from the queue."""
        queue, self._queue = self._queue, deque()
        for number, delivered in enumerate(queue):
            first = self._first_row if number == 0 else 0
            low, high = delivered.offset(first), delivered.end
            if delivered.shard != shard or end <= low or high <= start:
                self._queue.append(delivered)
                continue
            if number == 0:
                self._first_row = 0
            self.credit.release(delivered.rows - first, _bytes_of(delivered, first, delivered.rows))
            remaining = [(low, min(start, high)), (max(end, low), high)]
            self._queue.extend(self._buffer_parts(delivered, [pair for pair in remaining if pair[0] < pair[1]]))

    def ack_through(self, shard: int, generation: int, end: int) -> None:
        """Records a cumulative ack. First deliveries are in order, so everything below `end` was handed out before."""
        self.ack(shard, generation, [(0, end)])

    def nack(self, shard: int, generation: int, start: int, end: int) -> None:
        """Records nacks: the messages are handed out again when they are redelivered."""
        if generation == self.generation(shard):
            self._ledgers[shard].nack(start, end)


def _bytes_of(delivered: DeliveredRows, first: int, end: int) -> int:
    """Returns the share of the rows [first, end) in the bytes of a delivery; the shares add up to exactly the whole."""
    return delivered.bytes * end // delivered.rows - delivered.bytes * first // delivered.rows


class ChunkCursor:
    """The chunk of the inbox that is being handed out, row by row.

    Per message only `row` is advanced (`Consumer.__anext__` does it inline). The chunk is recorded as handed out as a
    whole when it is used up, or before an event that must know its exact state: a copy of it, a nack, an ack of a copy,
    a seek, the end of its connection.
    """

    __slots__ = ("_chunk", "_inbox", "chunks", "delivered", "end", "row")

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._chunk: Chunk | None = None
        # Set while rows of a chunk are left; never read otherwise.
        self.delivered: DeliveredRows = None  # type: ignore[assignment]
        self.row = self.end = 0  # of the chunk: the next row, and behind the last one
        self.chunks = 0  # how many were started

    @property
    def is_used_up(self) -> bool:
        """True if there is a chunk, and all of it was handed out."""
        return self._chunk is not None and self.row >= self.end

    @property
    def waiting_messages(self) -> int:
        """How many messages of the chunk and the inbox were not handed out."""
        handed_out = self.row - self._chunk.first if self._chunk is not None else 0
        return self._inbox.credit.buffered - handed_out

    # --- handing out ---

    def start(self, rows_max: int, now_ns: int) -> bool:
        """Starts the next chunk; the one before is used up. False if no messages wait."""
        self.finish()
        chunk = self._inbox.take(rows_max, now_ns)
        if chunk is None:
            return False
        self._chunk, self.delivered, self.row, self.end = chunk, *chunk
        self.chunks += 1
        return True

    def take_rows(self, rows_max: int) -> Chunk:
        """Hands out the next rows of the chunk together, at most `rows_max`."""
        delivered, first, end = self.delivered, self.row, min(self.end, self.row + rows_max)
        self.row = end
        return Chunk(delivered, first, end)

    # --- recording ---

    def finish(self) -> None:
        """Records the rows that were handed out; the others are dropped and redelivered."""
        if self._chunk is not None:
            self._inbox.finish(self._chunk, self.row)
        self._reset()

    def record(self) -> None:
        """Records the rows that were handed out; the others can still be handed out."""
        if self._chunk is not None and self.row > self._chunk.first:
            self._inbox.finish(self._chunk._replace(end=self.row), self.row)
            self._chunk = self._chunk._replace(first=self.row)

    def record_before(self, shard: int, offset: int) -> None:
        """Records before messages of the shard arrive from `offset` on: rows that were handed out must not be taken
        for waiting ones if they are redelivered."""
        if (
            self._chunk is not None
            and self.delivered.shard == shard
            and self.row
            and offset <= self.delivered.offset(self.row - 1)
        ):
            self.record()

    def ack(self, shard: int, generation: int, start: int, end: int) -> None:
        """Records an ack; copies of the messages are not handed out any more, neither from here nor the inbox."""
        if self._chunk is not None and self.delivered.shard == shard:
            delivered = self.delivered
            if self.row < self.end and delivered.offset(self.row) < end and start <= delivered.offset(self.end - 1):
                self._inbox.put_back(self._chunk, self.row)
                self._reset()
        self._inbox.ack(shard, generation, [(start, end)])

    def drop_outdated(self) -> None:
        """Drops the chunk if it belongs to an earlier generation of its shard."""
        if self._chunk is not None and self.delivered.generation != self._inbox.generation(self.delivered.shard):
            self.finish()

    def _reset(self) -> None:
        self._chunk, self.row, self.end = None, 0, 0
        self.delivered = None  # type: ignore[assignment]
