"""SendQueue: the batches of one producer in one shard, from the first message to the last answer. Pure: no I/O.

    collecting -> waiting -> in flight -> stored           always in this order; a batch never changes its shard

    FLOWING    batches leave, at most PRODUCER_WINDOW_BATCHES in flight      a refusal, `drain` -> DRAINING
    DRAINING   nothing leaves, answers still arrive                          the last answer -> STOPPED
    STOPPED    nothing is in flight                                          `resume` -> FLOWING
    A lost connection (`lose_connection`) in any state -> STOPPED; batches in flight wait again, in front.

Why nothing is lost, stored twice or reordered (hazards 7, 37). A batch gets its sequence numbers when it is sent,
behind those of the batch before it. `resume` gets the last sequence number that the broker stored, at a moment when
nothing is in flight, so it is final: batches with numbers up to it are stored, all others are not and never will be.
The others are sent again in order, numbered from there on; a batch that was dropped in between leaves no hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum

from icestream import errors, limits
from icestream.client.batch import Batch


class Flow(Enum):
    """The state of a queue; the transitions are at the top of the module."""

    FLOWING = 1
    DRAINING = 2
    STOPPED = 3


class SendQueue:
    """The batches of one producer in one shard. Iterating yields all of them, oldest first."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.flow = Flow.STOPPED
        self.next_sequence = 0
        self.cause: errors.IcestreamError | None = None  # the first refusal since the queue was flowing
        self.collecting: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self._returned: list[Batch] = []  # refused or without an answer; they wait again when the queue has drained

    def __iter__(self) -> Iterator[Batch]:
        yield from self._returned
        yield from self.in_flight
        yield from self.waiting
        if self.collecting is not None:
            yield self.collecting

    @property
    def is_empty(self) -> bool:
        """True if it holds no batch."""
        return self.collecting is None and not (self.in_flight or self.waiting or self._returned)

    # --- sending ---

    def begin(self, batch: Batch) -> None:
        """Collects the next messages in `batch`; the batch before it takes no more."""
        if self.collecting is not None:
            self.waiting.append(self.collecting)
        self.collecting = batch

    def next_batch(self) -> Batch | None:
        """Removes and returns the batch that may be sent now. The caller reports `sent`, or fails the batch."""
        # The window is that of the broker's memory of sequence numbers: beyond it a retry might be stored twice.
        if self.flow is not Flow.FLOWING or len(self.in_flight) >= limits.PRODUCER_WINDOW_BATCHES:
            return None
        if self.waiting:
            return self.waiting.popleft()
        batch, self.collecting = self.collecting, None
        return batch

    def sent(self, batch: Batch) -> None:
        """Records that the batch was sent, numbered from `next_sequence` on."""
        batch.is_sent = True
        self.next_sequence += batch.rows
        self.in_flight.append(batch)

    @property
    def has_more(self) -> bool:
        """True if `next_batch` would return a batch."""
        is_full = len(self.in_flight) >= limits.PRODUCER_WINDOW_BATCHES
        return self.flow is Flow.FLOWING and not is_full and (bool(self.waiting) or self.collecting is not None)

    # --- answers ---

    def stored(self, batch: Batch) -> None:
        """Records that the broker stored the batch. Raises DecodeError if it is not the oldest one in flight."""
        self._remove_answered(batch)
        self._stop_if_drained()

    def refused(self, batch: Batch, error: errors.IcestreamError, *, is_certain: bool) -> None:
        """Records that the broker refused the batch, and drains. `is_certain`: the batch is not stored; otherwise the
        outcome is unknown."""
        self._remove_answered(batch)
        if self.cause is None:  # the batches behind it are refused because of it: their errors say nothing new
            self.cause = error
        batch.is_sent = not is_certain
        self._returned.append(batch)
        self.flow = Flow.DRAINING
        self._stop_if_drained()

    def _remove_answered(self, batch: Batch) -> None:
        """Raises DecodeError if the batch is not the oldest one in flight: a broker answers in order."""
        if not self.in_flight or self.in_flight[0] is not batch:
            raise errors.DecodeError(f"answer out of order: shard {self.shard} expects the oldest batch in flight")
        self.in_flight.popleft()

    def drain(self) -> None:
        """Sends nothing more until `resume`."""
        if self.flow is Flow.FLOWING:
            self.flow = Flow.DRAINING
        self._stop_if_drained()

    def lose_connection(self) -> None:
        """Takes back the batches in flight: they will get no answer."""
        self._returned += self.in_flight
        self.in_flight.clear()
        self.flow = Flow.DRAINING
        self._stop_if_drained()
        self.cause = None

    def _stop_if_drained(self) -> None:
        """Stops once nothing is in flight; the returned batches wait again, in front and in their order."""
        if self.flow is not Flow.DRAINING or self.in_flight:
            return
        self.flow = Flow.STOPPED
        if self._returned:
            # The numbers of the first batch that may not be stored are used again: the sequence has no hole.
            self.next_sequence = self._returned[0].first_sequence
            self.waiting.extendleft(reversed(self._returned))
            self._returned = []

    def take_refused(self) -> Batch | None:
        """Removes and returns the batch that was refused first; None if no batch waits."""
        assert self.flow is Flow.STOPPED
        return self.waiting.popleft() if self.waiting else None

    def put_back(self, *batches: Batch) -> None:
        """Puts batches in front of all others."""
        self.waiting.extendleft(reversed(batches))

    def resume(self, last_sequence: int | None, recent: Sequence[int]) -> tuple[list[tuple[Batch, int]], list[Batch]]:
        """Flows again behind `last_sequence`, the last sequence number that the broker stored; None if it stored none.

        `recent` has the broker's latest batches: first sequence, rows, base offset, repeated. Returns the batches that
        turned out to be stored, each with its base offset (-1: the broker no longer knows it), and the batches that
        were dropped because their futures have failed already.
        """
        assert self.flow is Flow.STOPPED
        stored: list[tuple[Batch, int]] = []
        last = -1 if last_sequence is None else last_sequence
        # Only batches that were sent: one that was not has numbers of an earlier attempt, or none.
        while self.waiting and self.waiting[0].is_sent and self.waiting[0].last_sequence <= last:
            batch = self.waiting.popleft()
            stored.append((batch, _base_offset_of(batch.first_sequence, recent)))
        # Their futures failed while the outcome was unknown. Now it is known that they are not stored, and sending them
        # again would store messages that the application counts as failed.
        abandoned = [batch for batch in self.waiting if not batch.futures]
        if abandoned:
            self.waiting = deque(batch for batch in self.waiting if batch.futures)
        for batch in self.waiting:
            batch.is_sent = False  # nothing is in flight, and the broker has not stored it
        if last_sequence is not None:
            self.next_sequence = last_sequence + 1
        self.cause = None
        self.flow = Flow.FLOWING
        return stored, abandoned

    # --- deadlines, and the end ---

    def expire(self, now_ns: int) -> tuple[list[Batch], list[Batch]]:
        """Returns the batches past their deadline: those in flight, which stay until they are answered, and those
        that were not sent, which are removed."""
        # A batch in flight keeps its place without futures: its sequence numbers are used, and its answer will come.
        under_way = [*self._returned, *self.in_flight]
        unanswered = [batch for batch in under_way if batch.futures and batch.deadline_ns <= now_ns]
        unsent: list[Batch] = []
        while self.waiting and self.waiting[0].deadline_ns <= now_ns:
            unsent.append(self.waiting.popleft())
        # Deadlines rise from batch to batch, so the first one that has not expired ends the search.
        if self.collecting is not None and self.collecting.deadline_ns <= now_ns and not self.waiting:
            unsent.append(self.collecting)
            self.collecting = None
        return unanswered, unsent

    def extend_deadlines(self, deadline_ns: int) -> None:
        """Moves earlier deadlines to `deadline_ns`."""
        for batch in self:
            batch.deadline_ns = max(batch.deadline_ns, deadline_ns)

    @property
    def deadline_ns(self) -> int | None:
        """The deadline of the oldest batch with pending futures; None if there is none."""
        return next((batch.deadline_ns for batch in self if batch.futures), None)

    def clear(self) -> list[Batch]:
        """Stops the queue; removes and returns all batches, oldest first."""
        batches = list(self)
        self._returned, self.collecting = [], None
        self.in_flight.clear()
        self.waiting.clear()
        self.flow = Flow.STOPPED
        return batches


def _base_offset_of(sequence: int, recent: Sequence[int]) -> int:
    """The offset of the message with this sequence number; -1 if the broker's latest batches do not hold it."""
    for at in range(0, len(recent) - 2, 3):
        first, rows, base_offset = recent[at : at + 3]
        if first <= sequence < first + rows:
            return base_offset + sequence - first
    return -1
