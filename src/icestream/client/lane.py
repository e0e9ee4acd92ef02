"""The batches of one producer in one shard, from the first message to the last answer. Pure: no socket, no clock.

    collecting -> waiting -> in flight -> stored           always in this order; a shard is never changed

    FLOWING    batches go out, at most PRODUCER_WINDOW_BATCHES in flight     a refusal, `hold` -> DRAINING
    DRAINING   nothing goes out, answers still come                          the last answer -> STOPPED
    STOPPED    nothing is in flight                                          `resume` -> FLOWING
    Whenever the connection is lost (`lose`): STOPPED, and what was in flight waits again, in front.

Why nothing is lost, doubled or reordered (hazards 7, 37). A batch gets its numbers when it goes out, behind those of
the batch before it. `resume` is told by the broker which number was stored last, at a moment when nothing is in flight,
so that is the truth: what has numbers up to there is stored, everything else is not and never will be. The rest goes
out again in order, numbered from there on; whatever was dropped in between leaves no hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum

from icestream import errors, limits
from icestream.client.batch import Batch


class Flow(Enum):
    FLOWING = 1
    DRAINING = 2
    STOPPED = 3


class Lane:
    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.flow = Flow.STOPPED
        self.next_sequence = 0
        self.cause: errors.IcestreamError | None = None  # the first refusal since it flowed
        self.collecting: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self._returned: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        """All of them, in order."""
        yield from self._returned
        yield from self.in_flight
        yield from self.waiting
        if self.collecting is not None:
            yield self.collecting

    @property
    def is_empty(self) -> bool:
        return self.collecting is None and not (self.in_flight or self.waiting or self._returned)

    # --- out ---

    def begin(self, batch: Batch) -> None:
        """The next messages go into this one; the one before takes no more."""
        if self.collecting is not None:
            self.waiting.append(self.collecting)
        self.collecting = batch

    def next_batch(self) -> Batch | None:
        """What may go out now. Whoever takes it sends it (`sent`) or fails it."""
        if self.flow is not Flow.FLOWING or len(self.in_flight) >= limits.PRODUCER_WINDOW_BATCHES:
            return None
        if self.waiting:
            return self.waiting.popleft()
        batch, self.collecting = self.collecting, None
        return batch

    def sent(self, batch: Batch) -> None:
        """With the numbers from `next_sequence` on."""
        batch.is_sent = True
        self.next_sequence += batch.rows
        self.in_flight.append(batch)

    @property
    def has_more(self) -> bool:
        """Something could go out."""
        is_full = len(self.in_flight) >= limits.PRODUCER_WINDOW_BATCHES
        return self.flow is Flow.FLOWING and not is_full and (bool(self.waiting) or self.collecting is not None)

    # --- answers ---

    def stored(self, batch: Batch) -> None:
        self._answered(batch)
        self._look_drained()

    def refused(self, batch: Batch, error: errors.IcestreamError, *, is_certain: bool) -> None:
        """`is_certain`: it is not stored. Otherwise nobody knows."""
        self._answered(batch)
        if self.cause is None:
            self.cause = error
        batch.is_sent = not is_certain
        self._returned.append(batch)
        self.flow = Flow.DRAINING
        self._look_drained()

    def _answered(self, batch: Batch) -> None:
        if not self.in_flight or self.in_flight[0] is not batch:
            raise errors.DecodeError(f"an answer for shard {self.shard} that is not next")
        self.in_flight.popleft()

    def hold(self) -> None:
        """Nothing more goes out until `resume`."""
        if self.flow is Flow.FLOWING:
            self.flow = Flow.DRAINING
        self._look_drained()

    def lose(self) -> None:
        """There will be no answers to what is in flight."""
        self._returned += self.in_flight
        self.in_flight.clear()
        self.flow = Flow.DRAINING
        self._look_drained()
        self.cause = None

    def _look_drained(self) -> None:
        if self.flow is not Flow.DRAINING or self.in_flight:
            return
        self.flow = Flow.STOPPED
        if self._returned:
            self.next_sequence = self._returned[0].first_sequence
            self.waiting.extendleft(reversed(self._returned))
            self._returned = []

    def take_culprit(self) -> Batch | None:
        """The batch that was refused first, out of the line."""
        assert self.flow is Flow.STOPPED
        return self.waiting.popleft() if self.waiting else None

    def put_back(self, *batches: Batch) -> None:
        """In front of everything."""
        self.waiting.extendleft(reversed(batches))

    # --- how it goes on ---

    def resume(self, last_sequence: int | None, recent: Sequence[int]) -> tuple[list[tuple[Batch, int]], list[Batch]]:
        """`last_sequence` is stored, nothing behind it is. `recent`: first number, messages, base offset, repeated.

        What turned out to be stored, each with its offset (-1: not known), and what nobody waits for any more.
        """
        assert self.flow is Flow.STOPPED
        found: list[tuple[Batch, int]] = []
        last = -1 if last_sequence is None else last_sequence
        while self.waiting and self.waiting[0].is_sent and self.waiting[0].last_sequence <= last:
            batch = self.waiting.popleft()
            found.append((batch, _offset_of(batch.first_sequence, recent)))
        dropped = [batch for batch in self.waiting if not batch.futures]
        if dropped:
            self.waiting = deque(batch for batch in self.waiting if batch.futures)
        for batch in self.waiting:
            batch.is_sent = False
        if last_sequence is not None:
            self.next_sequence = last_sequence + 1
        self.cause = None
        self.flow = Flow.FLOWING
        return found, dropped

    # --- time, and the end ---

    def expire(self, now_ns: int) -> tuple[list[Batch], list[Batch]]:
        """Those whose time is over: in flight, where they stay until they are answered, and the others, which leave."""
        under_way = [*self._returned, *self.in_flight]
        staying = [batch for batch in under_way if batch.futures and batch.deadline_ns <= now_ns]
        leaving: list[Batch] = []
        while self.waiting and self.waiting[0].deadline_ns <= now_ns:
            leaving.append(self.waiting.popleft())
        if self.collecting is not None and self.collecting.deadline_ns <= now_ns and not self.waiting:
            leaving.append(self.collecting)
            self.collecting = None
        return staying, leaving

    def wait_until(self, deadline_ns: int) -> None:
        """What waits has time until then."""
        for batch in self:
            batch.deadline_ns = max(batch.deadline_ns, deadline_ns)

    @property
    def deadline_ns(self) -> int | None:
        """Of the oldest batch that somebody waits for."""
        return next((batch.deadline_ns for batch in self if batch.futures), None)

    def clear(self) -> list[Batch]:
        """The end: all of them, in order."""
        found = list(self)
        self._returned, self.collecting = [], None
        self.in_flight.clear()
        self.waiting.clear()
        self.flow = Flow.STOPPED
        return found


def _offset_of(sequence: int, recent: Sequence[int]) -> int:
    for at in range(0, len(recent) - 2, 3):
        first, rows, base_offset = recent[at : at + 3]
        if first <= sequence < first + rows:
            return base_offset + sequence - first
    return -1
