"""Deduplication of producers that number their messages: it makes a retry harmless (hazard 7).

A sequence window belongs to (producer id, producer epoch, shard) and holds its last 64 batches: first sequence number,
count, base offset and LSN. `check` classifies a numbered batch before it gets offsets:

    new epoch, or the next number       new          store it
    a batch of the window               Duplicate    answer with its offsets, once its LSN is released
    older than the window               Duplicate    without an offset: "stored, offset no longer known"
    below the first number of the epoch OutOfOrderSequence: it was never stored
    overlaps a stored batch, and more   OutOfOrderSequence
    a jump forward                      OutOfOrderSequence, nothing stored
    an older epoch                      ProducerFenced
    no window and never opened          UnknownProducer: the producer must open again, never a silent new start

A producer opens (`open`) with a new epoch before it sends. Windows are evicted by age and count. An evicted producer is
unknown and must open with a higher epoch than before, because a batch of the old epoch can no longer be told from a new
one. The highest epoch of a producer is valid in every shard, also where it has not sent under it, and outlives its
windows.

How long a window must keep a batch. A checkpoint stores every window as it was at a synced LSN, and batches above that
LSN may be lost with the power. So a batch leaves its window, and the window of an older epoch is dropped, only when
something newer of that producer is synced:
    `sent[0]` is at or below the synced LSN, or no batch of this epoch has left the window yet
    `before` is the window of the epoch before, until a batch of this epoch is synced
The unsynced end of the log is at most one file, which bounds what windows keep beyond their 64 batches. A window whose
batches were all rolled back (hazard 16) stays and expects the first of them again: without it, the batch after a failed
one would be accepted as the first of its epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.block import NOT_NUMBERED, Numbering, new_tuple
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey


class StoredBatch(NamedTuple):
    """One batch in a window."""

    first_sequence: int
    rows: int
    base_offset: int
    lsn: int


class Duplicate(NamedTuple):
    """The batch is stored already. `base_offset` is None if the batch is older than the window."""

    base_offset: int | None
    lsn: int


@dataclass(slots=True)
class SequenceWindow:
    """The last batches of one producer in one shard, under one epoch."""

    producer_epoch: int
    expected: int
    used_us: int
    start: int = 0  # the first number of this epoch: nothing below it was ever stored
    sent: deque[StoredBatch] = field(default_factory=deque)
    before: SequenceWindow | None = None

    def at(self, lsn: int) -> SequenceWindow | None:
        """The newest window of this producer that holds a batch at or below `lsn`."""
        window: SequenceWindow | None = self
        while window is not None and not (window.sent and window.sent[0].lsn <= lsn):
            window = window.before
        return window

    def forget(self, synced_lsn: int) -> None:
        """Drops batches and older epochs that neither a checkpoint nor a retry can need any more."""
        sent = self.sent
        while len(sent) > limits.PRODUCER_WINDOW_BATCHES and sent[1].lsn <= synced_lsn:
            sent.popleft()
        # A batch of this epoch is durable: from now on no checkpoint can need the epoch before.
        if self.before is not None and sent[0].lsn <= synced_lsn:
            self.before = None

    def roll_back(self, lsn: int) -> None:
        """Removes the batches above `lsn`, of every epoch."""
        window: SequenceWindow | None = self
        while window is not None:
            while window.sent and window.sent[-1].lsn > lsn:
                # The producer will resend it under the same number.
                window.expected = window.sent.pop().first_sequence
            if window.sent:
                break
            window = window.before
        if window is not self:
            self.before = window


Key = tuple[ShardKey, int]
NO_PRODUCER: Final = -1
_LSN: Final = StoredBatch._fields.index("lsn")
# How long after its last use a window is moved behind the others: moving it with each batch costs as much as the rest.
_USE_STEP_US: Final = 1_000_000


class ProducerSequences:
    """Every sequence window of the log, least recently used first (to the second), and the epochs of all producers."""

    def __init__(self, count_max: int = limits.PRODUCERS_MAX_DEFAULT) -> None:
        self.count_max = count_max
        self._windows: dict[Key, SequenceWindow] = {}
        self._opened: dict[int, int] = {}  # epochs opened since the start
        self._epochs: dict[int, int] = {}  # the highest epoch of a stored batch: it outlives the windows
        self._evicted: dict[int, int] = {}  # the highest epoch whose window was evicted, in some shard
        self.checkpoint_lsn: int | None = None  # a checkpoint is encoding the windows at this LSN: keep their batches

    def open(self, producer_id: int, producer_epoch: int) -> None:
        """Opens a producer: only this epoch may send from now on. Raises ProducerFenced for an outdated epoch."""
        if producer_epoch < 0:
            raise errors.InvalidInput(f"producer epoch {producer_epoch} is below 0")
        current_epoch = max(self._opened.get(producer_id, 0), self._epochs.get(producer_id, 0))
        if producer_epoch < current_epoch:
            raise _fenced(producer_id, producer_epoch, current_epoch)
        # With its window the log forgot what this epoch has sent: a late retry of it would be stored a second time.
        if producer_epoch <= self._evicted.get(producer_id, -1):
            raise errors.ProducerFenced(
                f"producer {producer_id} epoch {producer_epoch} was used before and its sequence window has expired",
                hint="open with a higher epoch",
            )
        # Popped and set: the dict is in order of use, and the bound below evicts the least recently opened.
        self._opened.pop(producer_id, None)
        self._opened[producer_id] = producer_epoch
        while len(self._opened) > self.count_max:
            del self._opened[next(iter(self._opened))]

    def check(
        self, key: ShardKey, numbering: Numbering, count: int, released_lsn: int | None = None
    ) -> Duplicate | None:
        """Classifies a numbered batch: None if it is to be stored, Duplicate if it is stored already.

        Raises InvalidInput (its subclasses) for a batch that must not be stored, InFlightFull while the whole window is
        still in flight.
        """
        producer_id, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        window = self._windows.get((key, producer_id))
        current_epoch = max(self._opened.get(producer_id, -1), self._epochs.get(producer_id, -1))
        # In every shard, also where the new epoch has not sent yet: the old instance must stop at its first batch
        # anywhere.
        if epoch < current_epoch:
            raise _fenced(producer_id, epoch, current_epoch)
        if window is None or window.producer_epoch < epoch:
            # Without a window a retry cannot be told from a new batch, so only an epoch that opened in this run may
            # begin one.
            if self._opened.get(producer_id) != epoch:
                raise errors.UnknownProducer(
                    f"producer {producer_id} epoch {epoch} is not known here",
                    hint="open the producer again, then resend",
                )
            return None
        if first == window.expected:
            _check_in_flight(window, producer_id, released_lsn)
            return None
        return _find_duplicate(window, numbering, count)

    def record(
        self, key: ShardKey, numbering: Numbering, count: int, base: int, lsn: int, now_us: int, synced_lsn: int
    ) -> None:
        """Adds a batch to its window, when it gets offsets and when recovery replays it."""
        slot = (key, numbering.producer_id)
        window = self._windows.pop(slot, None)
        if window is None or window.producer_epoch < numbering.producer_epoch:
            # A window without batches (all rolled back) says nothing that a checkpoint could need.
            before = window if window is None or window.sent else window.before
            window = SequenceWindow(numbering.producer_epoch, 0, now_us, numbering.first_sequence, before=before)
        window.sent.append(new_tuple(StoredBatch, (numbering.first_sequence, count, base, lsn)))
        # While a checkpoint is being encoded in slices, windows keep what it needs at its LSN.
        window.forget(synced_lsn if self.checkpoint_lsn is None else min(synced_lsn, self.checkpoint_lsn))
        window.expected = numbering.first_sequence + count
        window.used_us = now_us
        self._store_window(slot, window)
        while len(self._windows) > self.count_max:
            self._evict(next(iter(self._windows)))

    def admit_group(
        self,
        keys: Sequence[ShardKey],
        group: BlockGroup,
        bases: Sequence[int],
        lsn: int,
        now_us: int,
        synced_lsn: int,
        released_lsn: int,
    ) -> tuple[dict[int, Duplicate | errors.IcestreamError], int]:
        """`check` and `record` for the batches of a group, in order; batches without numbers pass.

        `keys`, `bases`: of the shards of the group. Returns the result of each batch that must not be stored, by its
        index, and the highest LSN that one of them waits for. In each shard the offsets of the others follow each other
        from its base on.
        """
        rejected: dict[int, Duplicate | errors.IcestreamError] = {}
        lsn_max, offset, shard, shard_end, key = 0, 0, -1, 0, keys[0]
        windows, opened, epochs = self._windows, self._opened, self._epochs
        window_batches = limits.PRODUCER_WINDOW_BATCHES
        forgotten_lsn = synced_lsn if self.checkpoint_lsn is None else min(synced_lsn, self.checkpoint_lsn)
        index, producer, producer_epoch = -1, NO_PRODUCER, 0  # of the batch before, if the next may go on in its window
        window: SequenceWindow | None = None
        for first, rows, producer_id, epoch in zip(
            group.first_sequences, group.rows, group.producer_ids, group.producer_epochs, strict=True
        ):
            index += 1
            if index == shard_end:
                shard += 1
                shard_end, key, offset = group.shard_ends[shard], keys[shard], bases[shard]
                producer = NO_PRODUCER
            if first == NOT_NUMBERED:
                offset += rows
                continue
            # The common case, written out: the next number of an open producer whose window has room.
            if producer_id != producer or epoch != producer_epoch:
                producer, producer_epoch, window = producer_id, epoch, windows.get((key, producer_id))
                if (
                    window is None
                    or window.producer_epoch != epoch
                    or opened.get(producer_id, -1) > epoch
                    or epochs.get(producer_id, -1) > epoch
                    or window.before is not None
                ):
                    producer = NO_PRODUCER
            if (
                producer == producer_id
                and window is not None
                and window.expected == first
                and ((room := len(sent := window.sent) < window_batches) or sent[-window_batches][_LSN] <= released_lsn)
            ):
                sent.append(new_tuple(StoredBatch, (first, rows, offset, lsn)))
                if not room:  # `forget`, written out
                    while len(sent) > window_batches and sent[1][_LSN] <= forgotten_lsn:
                        sent.popleft()
                window.expected = first + rows
                if now_us - window.used_us >= _USE_STEP_US:
                    del windows[key, producer_id]  # used last
                    windows[key, producer_id] = window
                window.used_us = now_us
                offset += rows
                continue
            producer = NO_PRODUCER
            numbering = Numbering(producer_id, epoch, first)
            try:
                duplicate = self.check(key, numbering, rows, released_lsn)
            except (errors.InvalidInput, errors.InFlightFull) as error:
                rejected[index] = error
                continue
            if duplicate is not None:
                rejected[index] = duplicate
                lsn_max = max(lsn_max, duplicate.lsn)
                continue
            self.record(key, numbering, rows, offset, lsn, now_us, synced_lsn)
            offset += rows
        return rejected, lsn_max

    def _store_window(self, slot: Key, window: SequenceWindow) -> None:
        self._windows[slot] = window
        _raise_to(self._epochs, slot[1], window.producer_epoch, self.count_max)

    def roll_back(self, lsn: int) -> None:
        """Removes every batch above `lsn` (hazard 16)."""
        for window in self._windows.values():
            window.roll_back(lsn)

    def expire(self, before_us: int) -> int:
        """Evicts the windows not used since `before_us` and returns their number."""
        expired = [slot for slot, window in self._windows.items() if window.used_us < before_us]
        for slot in expired:
            self._evict(slot)
        return len(expired)

    def _evict(self, slot: Key) -> None:
        window = self._windows.pop(slot)
        # The producer must open again: without its window a retry could not be told from a new batch.
        self._opened.pop(slot[1], None)
        _raise_to(self._evicted, slot[1], window.producer_epoch, self.count_max)

    def last_sequence(self, key: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        """The last sequence number stored by epochs from `since_epoch` on; None if there is none.

        If all of their batches were rolled back: the number before the expected one.
        """
        window = self._newest_stored_window(key, producer_id, since_epoch)
        if window is None and since_epoch:
            newest = self._windows.get((key, producer_id))
            window = newest if newest is not None and newest.producer_epoch >= since_epoch else None
        return window.expected - 1 if window is not None and window.expected else None

    def recent(self, key: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        """(first sequence, messages, base offset) of the last batches stored by epochs from `since_epoch` on."""
        window = self._newest_stored_window(key, producer_id, since_epoch)
        return [batch[:3] for batch in window.sent] if window is not None else []

    def _newest_stored_window(self, key: ShardKey, producer_id: int, since_epoch: int) -> SequenceWindow | None:
        """The newest window that holds a batch, of an epoch from `since_epoch` on."""
        window = self._windows.get((key, producer_id))
        while window is not None and not window.sent:
            window = window.before
        return window if window is not None and window.producer_epoch >= since_epoch else None

    def windows(self) -> Iterator[tuple[ShardKey, int, SequenceWindow]]:
        """Every window with its shard and producer, least recently used first."""
        for (key, producer_id), window in self._windows.items():
            yield key, producer_id, window

    def restore(self, key: ShardKey, producer_id: int, window: SequenceWindow) -> None:
        """Adds a window from a checkpoint."""
        self._store_window((key, producer_id), window)

    def epochs(self) -> list[tuple[int, int, int]]:
        """(producer id, its highest epoch, the highest evicted epoch or -1), for the checkpoint."""
        return [(producer_id, epoch, self._evicted.get(producer_id, -1)) for producer_id, epoch in self._epochs.items()]

    def restore_epoch(self, producer_id: int, epoch: int, evicted: int) -> None:
        """Adds the epochs of a producer from a checkpoint; `evicted` -1 for none."""
        _raise_to(self._epochs, producer_id, epoch, self.count_max)
        if evicted >= 0:
            _raise_to(self._evicted, producer_id, evicted, self.count_max)

    def __len__(self) -> int:
        return len(self._windows)


def _raise_to(epochs: dict[int, int], producer_id: int, epoch: int, count_max: int) -> None:
    """Raises a producer's entry to `epoch`, marks it as used last, and evicts the least recently used entries."""
    current = epochs.get(producer_id, -1)
    # Runs for every batch: while less than half of the room is used, the order of use does not matter.
    if current >= epoch and 2 * len(epochs) <= count_max:
        return
    epochs.pop(producer_id, None)
    epochs[producer_id] = max(current, epoch)
    while len(epochs) > count_max:
        del epochs[next(iter(epochs))]


def _check_in_flight(window: SequenceWindow, producer_id: int, released_lsn: int | None) -> None:
    """Raises InFlightFull if a full window is unacknowledged: a retry of all of it must find every batch in it."""
    count = limits.PRODUCER_WINDOW_BATCHES
    if released_lsn is not None and len(window.sent) >= count and window.sent[-count].lsn > released_lsn:
        raise errors.InFlightFull(
            f"producer {producer_id} has {count} batches in flight", hint="wait for acks before sending more"
        )


def _find_duplicate(window: SequenceWindow, numbering: Numbering, count: int) -> Duplicate:
    """The stored batch that contains these sequence numbers. Raises OutOfOrderSequence if there is none."""
    first = numbering.first_sequence
    if window.start <= first and first + count <= window.expected:
        oldest = window.sent[0].first_sequence if window.sent else window.expected
        for batch in window.sent:
            if batch.first_sequence <= first and first + count <= batch.first_sequence + batch.rows:
                return Duplicate(batch.base_offset + first - batch.first_sequence, batch.lsn)
        if first + count <= oldest:
            # Older than everything in the window: stored, but its offset is forgotten. The ack needs none.
            return Duplicate(None, 0)
    raise errors.OutOfOrderSequence(
        f"producer {numbering.producer_id} sent {first}..{first + count - 1}, expected {window.expected}",
        hint="resend from the expected sequence number; nothing was stored",
    )


def _fenced(producer_id: int, epoch: int, current_epoch: int) -> errors.ProducerFenced:
    return errors.ProducerFenced(
        f"producer {producer_id} epoch {epoch} was replaced by epoch {current_epoch}",
        hint="this instance must stop sending",
    )
