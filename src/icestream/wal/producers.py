"""Producers that number their messages: what makes a retry harmless (hazard 7).

Identity is (producer id, producer epoch, shard). For each the last 64 batches are kept: first sequence, count, base
offset and the LSN that holds them. `judge` decides what a numbered batch is, before it gets offsets:

    new epoch, or the next number       NEW          store it
    a batch of the window               Duplicate    answer with its offsets, once its LSN may be acked
    older than the window               Duplicate    with no offset: "stored, offset no longer known"
    part of a known batch and more      OutOfOrderSequence
    a jump forward                      OutOfOrderSequence, nothing stored
    an older epoch                      ProducerFenced
    no window and never opened          UnknownProducer: open again, never a silent new start

A producer opens (`open`) with a new epoch before it sends. Windows leave by age and count: it is then unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.wal.block import Numbering


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
    sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=limits.PRODUCER_WINDOW_BATCHES))


Key = tuple[ShardKey, int]


class Producers:
    """Every window of the log, least recently used first."""

    def __init__(self, count_max: int = limits.PRODUCERS_MAX_DEFAULT) -> None:
        self.count_max = count_max
        self._windows: dict[Key, Window] = {}
        self._opened: dict[int, int] = {}

    def open(self, producer_id: int, producer_epoch: int) -> None:
        """A producer announces itself: only this epoch may send from now on."""
        if producer_epoch < self._opened.get(producer_id, 0):
            raise _fenced(producer_id, producer_epoch, self._opened[producer_id])
        self._opened.pop(producer_id, None)
        self._opened[producer_id] = producer_epoch
        while len(self._opened) > self.count_max:
            del self._opened[next(iter(self._opened))]

    def judge(self, key: ShardKey, numbering: Numbering, count: int) -> Duplicate | None:
        """None: store it. Raises for what must not be stored."""
        who, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        window = self._windows.get((key, who))
        known = max(self._opened.get(who, -1), window.producer_epoch if window else -1)
        if epoch < known:
            raise _fenced(who, epoch, known)
        if window is None or window.producer_epoch < epoch:
            if self._opened.get(who) != epoch:
                raise errors.UnknownProducer(
                    f"producer {who} epoch {epoch} is not known here", hint="open the producer again, then resend"
                )
            return None
        if first == window.expected:
            return None
        return _judge_past(window, numbering, count)

    def record(self, key: ShardKey, numbering: Numbering, count: int, base: int, lsn: int, now_us: int) -> None:
        """The batch was given offsets (or was found in the log)."""
        slot = (key, numbering.producer_id)
        window = self._windows.pop(slot, None)
        if window is None or window.producer_epoch < numbering.producer_epoch:
            window = Window(numbering.producer_epoch, 0, now_us)
        window.sent.append(Sent(numbering.first_sequence, count, base, lsn))
        window.expected = numbering.first_sequence + count
        window.used_us = now_us
        self._windows[slot] = window
        while len(self._windows) > self.count_max:
            del self._windows[next(iter(self._windows))]

    def roll_back(self, lsn: int) -> None:
        """Forgets everything above `lsn` (hazard 16)."""
        for slot, window in list(self._windows.items()):
            while window.sent and window.sent[-1].lsn > lsn:
                window.expected = window.sent.pop().first_sequence
            if not window.sent:
                del self._windows[slot]

    def expire(self, before_us: int) -> int:
        """Drops windows not used since `before_us`; how many."""
        old = [slot for slot, window in self._windows.items() if window.used_us < before_us]
        for slot in old:
            del self._windows[slot]
        return len(old)

    def last_sequence(self, key: ShardKey, producer_id: int) -> int | None:
        window = self._windows.get((key, producer_id))
        return window.expected - 1 if window else None

    def windows(self) -> Iterator[tuple[ShardKey, int, Window]]:
        for (key, producer_id), window in self._windows.items():
            yield key, producer_id, window

    def restore(self, key: ShardKey, producer_id: int, window: Window) -> None:
        self._windows[key, producer_id] = window

    def __len__(self) -> int:
        return len(self._windows)


def _judge_past(window: Window, numbering: Numbering, count: int) -> Duplicate:
    first = numbering.first_sequence
    if first + count <= window.expected:
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
