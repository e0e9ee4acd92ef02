"""Producers that number their messages: what makes a retry harmless (hazard 7).

Identity is (producer id, producer epoch, shard). For each the last 64 batches are kept: first sequence, count, base
offset and the LSN that holds them. `judge` decides what a numbered batch is, before it gets offsets:

    new epoch, or the next number       NEW          store it
    a batch of the window               Duplicate    answer with its offsets, once its LSN may be acked
    older than the window               Duplicate    with no offset: "stored, offset no longer known"
    below the first number of the epoch OutOfOrderSequence: that one was never stored
    part of a known batch and more      OutOfOrderSequence
    a jump forward                      OutOfOrderSequence, nothing stored
    an older epoch                      ProducerFenced
    no window and never opened          UnknownProducer: open again, never a silent new start

A producer opens (`open`) with a new epoch before it sends. Windows leave by age and count: it is then unknown, and must
open with a higher epoch than it had, because what it sent under that one cannot be told from new any more. The highest
epoch of a producer counts in every shard, also where it has not sent under it, and outlives its windows.

What a window must still know. A checkpoint holds every window as it was at a synced LSN, and batches above that LSN may
vanish with the power. So a batch leaves its window, and the window of an older epoch leaves with its successor's, only
when something newer of that producer is synced:
    `sent[0]` is at or below the synced LSN, or nothing of this epoch ever left
    `before` is the window of the epoch before, until a batch of this epoch is synced
The unsynced end of the log is at most one file, and so is what windows keep beyond their 64 batches.
A window whose batches were all taken back (hazard 16) stays, and expects the first of them again: without it the batch
behind a failed one would be the first of its epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.block import Numbering, new_tuple
from icestream.model.shard import ShardKey


class Sent(NamedTuple):
    """One batch in a window."""

    first_sequence: int
    rows: int
    base_offset: int
    lsn: int


class Duplicate(NamedTuple):
    """The batch is stored already. `base_offset` is None when it is older than the window."""

    base_offset: int | None
    lsn: int


@dataclass(slots=True)
class Window:
    producer_epoch: int
    expected: int
    used_us: int
    start: int = 0  # the first number of this epoch: nothing below it was ever stored
    sent: deque[Sent] = field(default_factory=deque)
    before: Window | None = None

    def at(self, lsn: int) -> Window | None:
        """The newest window of this producer that holds a batch at or below `lsn`."""
        window: Window | None = self
        while window is not None and not (window.sent and window.sent[0].lsn <= lsn):
            window = window.before
        return window

    def forget(self, synced_lsn: int) -> None:
        """Drops what no checkpoint and no retry can ask for any more."""
        sent = self.sent
        while len(sent) > limits.PRODUCER_WINDOW_BATCHES and sent[1].lsn <= synced_lsn:
            sent.popleft()
        if self.before is not None and sent[0].lsn <= synced_lsn:
            self.before = None

    def roll_back(self, lsn: int) -> None:
        """Forgets the batches above `lsn`, of every epoch."""
        window: Window | None = self
        while window is not None:
            while window.sent and window.sent[-1].lsn > lsn:
                window.expected = window.sent.pop().first_sequence
            if window.sent:
                break
            window = window.before
        if window is not self:
            self.before = window


Key = tuple[ShardKey, int]


class Producers:
    """Every window of the log, least recently used first."""

    def __init__(self, count_max: int = limits.PRODUCERS_MAX_DEFAULT) -> None:
        self.count_max = count_max
        self._windows: dict[Key, Window] = {}
        self._opened: dict[int, int] = {}  # epochs announced since the start
        self._epochs: dict[int, int] = {}  # the highest found in a batch: it outlives the windows
        self._forgotten: dict[int, int] = {}  # the highest whose window has left, in some shard
        self.held_lsn: int | None = None  # a checkpoint is being made of the windows at this LSN

    def open(self, producer_id: int, producer_epoch: int) -> None:
        """A producer announces itself: only this epoch may send from now on."""
        if producer_epoch < 0:
            raise errors.InvalidInput(f"producer epoch {producer_epoch} is below 0")
        known = max(self._opened.get(producer_id, 0), self._epochs.get(producer_id, 0))
        if producer_epoch < known:
            raise _fenced(producer_id, producer_epoch, known)
        if producer_epoch <= self._forgotten.get(producer_id, -1):
            raise errors.ProducerFenced(
                f"producer {producer_id} epoch {producer_epoch} was used before, and what it sent is forgotten",
                hint="open with a higher epoch",
            )
        self._opened.pop(producer_id, None)
        self._opened[producer_id] = producer_epoch
        while len(self._opened) > self.count_max:
            del self._opened[next(iter(self._opened))]

    def judge(
        self, key: ShardKey, numbering: Numbering, count: int, released_lsn: int | None = None
    ) -> Duplicate | None:
        """None: store it. Raises for what must not be stored, and when the whole window is still in flight."""
        who, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        window = self._windows.get((key, who))
        known = max(self._opened.get(who, -1), self._epochs.get(who, -1))
        if epoch < known:
            raise _fenced(who, epoch, known)
        if window is None or window.producer_epoch < epoch:
            if self._opened.get(who) != epoch:
                raise errors.UnknownProducer(
                    f"producer {who} epoch {epoch} is not known here", hint="open the producer again, then resend"
                )
            return None
        if first == window.expected:
            _check_in_flight(window, who, released_lsn)
            return None
        return _judge_past(window, numbering, count)

    def record(
        self, key: ShardKey, numbering: Numbering, count: int, base: int, lsn: int, now_us: int, synced_lsn: int
    ) -> None:
        """The batch was given offsets (or was found in the log)."""
        slot = (key, numbering.producer_id)
        window = self._windows.pop(slot, None)
        if window is None or window.producer_epoch < numbering.producer_epoch:
            before = window if window is None or window.sent else window.before
            window = Window(numbering.producer_epoch, 0, now_us, numbering.first_sequence, before=before)
        window.sent.append(new_tuple(Sent, (numbering.first_sequence, count, base, lsn)))
        window.forget(synced_lsn if self.held_lsn is None else min(synced_lsn, self.held_lsn))
        window.expected = numbering.first_sequence + count
        window.used_us = now_us
        self._keep(slot, window)
        while len(self._windows) > self.count_max:
            self._evict(next(iter(self._windows)))

    def _keep(self, slot: Key, window: Window) -> None:
        self._windows[slot] = window
        _raise_to(self._epochs, slot[1], window.producer_epoch, self.count_max)

    def roll_back(self, lsn: int) -> None:
        """Forgets everything above `lsn` (hazard 16)."""
        for window in self._windows.values():
            window.roll_back(lsn)

    def expire(self, before_us: int) -> int:
        """Drops windows not used since `before_us`; how many."""
        old = [slot for slot, window in self._windows.items() if window.used_us < before_us]
        for slot in old:
            self._evict(slot)
        return len(old)

    def _evict(self, slot: Key) -> None:
        window = self._windows.pop(slot)
        self._opened.pop(slot[1], None)
        _raise_to(self._forgotten, slot[1], window.producer_epoch, self.count_max)

    def last_sequence(self, key: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        """The last number that epochs from `since_epoch` on have stored. Where all of theirs was taken back, the one
        before the number that is expected."""
        window = self._stored(key, producer_id, since_epoch)
        if window is None and since_epoch:
            newest = self._windows.get((key, producer_id))
            window = newest if newest is not None and newest.producer_epoch >= since_epoch else None
        return window.expected - 1 if window is not None and window.expected else None

    def recent(self, key: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        """(first number, messages, base offset) of the last batches that one of these epochs has stored."""
        window = self._stored(key, producer_id, since_epoch)
        return [sent[:3] for sent in window.sent] if window is not None else []

    def _stored(self, key: ShardKey, producer_id: int, since_epoch: int) -> Window | None:
        """The newest window that holds a batch, of an epoch from `since_epoch` on."""
        window = self._windows.get((key, producer_id))
        while window is not None and not window.sent:
            window = window.before
        return window if window is not None and window.producer_epoch >= since_epoch else None

    def windows(self) -> Iterator[tuple[ShardKey, int, Window]]:
        for (key, producer_id), window in self._windows.items():
            yield key, producer_id, window

    def restore(self, key: ShardKey, producer_id: int, window: Window) -> None:
        self._keep((key, producer_id), window)

    def epochs(self) -> list[tuple[int, int, int]]:
        """(producer, its highest epoch, the highest that is forgotten or -1), for the checkpoint."""
        return [(who, epoch, self._forgotten.get(who, -1)) for who, epoch in self._epochs.items()]

    def restore_epoch(self, producer_id: int, epoch: int, forgotten: int) -> None:
        _raise_to(self._epochs, producer_id, epoch, self.count_max)
        if forgotten >= 0:
            _raise_to(self._forgotten, producer_id, forgotten, self.count_max)

    def __len__(self) -> int:
        return len(self._windows)


def _raise_to(epochs: dict[int, int], producer_id: int, epoch: int, count_max: int) -> None:
    """Notes an epoch of a producer, which is now the one used last; the least recently used leave. Who was used last
    is of no interest while there is room for as many again: this is done for every batch."""
    known = epochs.get(producer_id, -1)
    if known >= epoch and 2 * len(epochs) <= count_max:
        return
    epochs.pop(producer_id, None)
    epochs[producer_id] = max(known, epoch)
    while len(epochs) > count_max:
        del epochs[next(iter(epochs))]


def _check_in_flight(window: Window, producer_id: int, released_lsn: int | None) -> None:
    """A retry may ask for everything that is in flight, so no more may be than a window holds."""
    count = limits.PRODUCER_WINDOW_BATCHES
    if released_lsn is not None and len(window.sent) >= count and window.sent[-count].lsn > released_lsn:
        raise errors.InFlightFull(
            f"producer {producer_id} has {count} batches in flight", hint="wait for acks before sending more"
        )


def _judge_past(window: Window, numbering: Numbering, count: int) -> Duplicate:
    first = numbering.first_sequence
    if window.start <= first and first + count <= window.expected:
        oldest = window.sent[0].first_sequence if window.sent else window.expected
        for sent in window.sent:
            if sent.first_sequence <= first and first + count <= sent.first_sequence + sent.rows:
                return Duplicate(sent.base_offset + first - sent.first_sequence, sent.lsn)
        if first + count <= oldest:
            return Duplicate(None, 0)
    raise errors.OutOfOrderSequence(
        f"producer {numbering.producer_id} sent {first}..{first + count - 1}, expected {window.expected}",
        hint="resend from the expected number; nothing was stored",
    )


def _fenced(producer_id: int, epoch: int, known: int) -> errors.ProducerFenced:
    return errors.ProducerFenced(
        f"producer {producer_id} epoch {epoch} was replaced by epoch {known}", hint="this instance must stop sending"
    )
