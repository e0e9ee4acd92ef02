"""Producers that number their messages: each number is stored once and in order, whatever is retried (hazard 7)."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icestream import errors, limits
from icestream.model.block import NOT_NUMBERED, Numbering
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey
from icestream.wal.producer_sequences import Duplicate, ProducerSequences, SequenceWindow, StoredBatch
from tests.support.hypothesis_effort import HALF

KEY, OTHER = ShardKey(1, 0), ShardKey(1, 1)
WINDOW = limits.PRODUCER_WINDOW_BATCHES


def opened(*, batches: int = 0, rows: int = 1, count_max: int = 100) -> ProducerSequences:
    """Producer 7 in epoch 1, with this many batches stored and synced: batch n has LSN n + 1 and base offset
    100 + n * rows."""
    producers = ProducerSequences(count_max)
    producers.open(7, 1)
    for number in range(batches):
        producers.record(KEY, Numbering(7, 1, number * rows), rows, 100 + number * rows, number + 1, number, number)
    return producers


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_producer_opens_before_it_sends() -> None:
    producers = ProducerSequences()
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 1, 0), 1)
    producers.open(7, 1)
    assert producers.check(KEY, Numbering(7, 1, 0), 1) is None
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 2, 0), 1)


def test_the_first_number_of_an_epoch_is_arbitrary() -> None:
    """A producer that connects gets the last stored sequence and continues from there."""
    assert opened().check(KEY, Numbering(7, 1, 12_345), 1) is None


def test_hazard_07_a_retry_gets_the_offset_of_the_original_and_the_lsn_it_waits_for() -> None:
    producers = opened(batches=5, rows=10)
    assert producers.check(KEY, Numbering(7, 1, 20), 10) == Duplicate(120, 3)
    assert producers.check(KEY, Numbering(7, 1, 23), 4) == Duplicate(123, 3)
    assert producers.check(KEY, Numbering(7, 1, 50), 10) is None


def test_hazard_07_a_retry_below_the_window_is_stored_but_its_offset_is_forgotten() -> None:
    producers = opened(batches=WINDOW + 2, rows=2)
    assert producers.check(KEY, Numbering(7, 1, 2), 2) == Duplicate(None, 0)
    assert producers.check(KEY, Numbering(7, 1, 0), 4) == Duplicate(None, 0)
    assert producers.check(KEY, Numbering(7, 1, 4), 2) == Duplicate(104, 3)


@pytest.mark.parametrize(
    ("first", "rows"),
    [(51, 1), (10**12, 1), (45, 10), (49, 2), (5, 10), (0, 51), (0, 50)],
    ids=["one skipped", "far ahead", "half new", "one new", "across two", "all and more", "all in one"],
)
def test_hazard_07_numbers_that_fit_no_stored_batch_are_out_of_order(first: int, rows: int) -> None:
    producers = opened(batches=5, rows=10)
    with pytest.raises(errors.OutOfOrderSequence, match="expected 50"):
        producers.check(KEY, Numbering(7, 1, first), rows)
    assert producers.check(KEY, Numbering(7, 1, 50), 10) is None


def test_a_batch_across_the_edge_of_the_window_is_out_of_order() -> None:
    producers = opened(batches=WINDOW + 2, rows=2)
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 1, 3), 2)


def test_hazard_07_a_restart_numbers_from_its_own_beginning() -> None:
    """Scenario (b): the new process begins at 0 again; with a new epoch nothing of it is taken for a duplicate."""
    producers = opened(batches=3)
    producers.open(7, 2)
    assert producers.check(KEY, Numbering(7, 2, 0), 1) is None
    producers.record(KEY, Numbering(7, 2, 0), 1, 103, 4, 0, 0)
    assert producers.check(KEY, Numbering(7, 2, 0), 1) == Duplicate(103, 4)
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 2, 2), 1)


def test_hazard_07_an_older_epoch_is_fenced_on_all_shards() -> None:
    producers = opened(batches=3)
    producers.open(7, 2)
    for key in (KEY, OTHER):
        with pytest.raises(errors.ProducerFenced, match="replaced by epoch 2"):
            producers.check(key, Numbering(7, 1, 3), 1)
    with pytest.raises(errors.ProducerFenced):
        producers.open(7, 1)
    producers.open(7, 2)
    assert producers.check(KEY, Numbering(7, 2, 0), 1) is None


def test_hazard_07_an_older_epoch_is_fenced_after_a_start_too() -> None:
    """After a start only the windows are known: they say that epoch 5 has sent, so epoch 3 may not come back."""
    producers = ProducerSequences()
    producers.restore(KEY, 7, SequenceWindow(5, 1, 0))
    with pytest.raises(errors.ProducerFenced):
        producers.check(KEY, Numbering(7, 3, 0), 1)
    with pytest.raises(errors.ProducerFenced):
        producers.open(7, 3)


@pytest.mark.parametrize("epoch", [-1, -(2**31)])
def test_an_epoch_below_zero_is_refused(epoch: int) -> None:
    with pytest.raises(errors.InvalidInput):
        ProducerSequences().open(7, epoch)


def test_shards_are_counted_apart() -> None:
    producers = opened(batches=3)
    assert producers.check(OTHER, Numbering(7, 1, 0), 1) is None
    producers.record(OTHER, Numbering(7, 1, 0), 1, 500, 9, 0, 0)
    assert producers.check(OTHER, Numbering(7, 1, 0), 1) == Duplicate(500, 9)
    assert (producers.last_sequence(KEY, 7), producers.last_sequence(OTHER, 7)) == (2, 0)
    assert producers.last_sequence(KEY, 8) is None


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_hazard_07_a_producer_evicted_by_age_is_unknown_and_never_new() -> None:
    producers = opened(batches=3)
    assert producers.expire(2) == 0
    assert producers.expire(3) == 1
    assert len(producers) == 0
    for first in (0, 2, 3):
        with pytest.raises(errors.UnknownProducer):
            producers.check(KEY, Numbering(7, 1, first), 1)
    producers.open(7, 2)
    assert producers.check(KEY, Numbering(7, 2, 3), 1) is None


def test_hazard_07_a_producer_evicted_by_count_is_unknown_and_never_new() -> None:
    producers = opened(batches=1, count_max=3)
    for other in range(8, 11):
        producers.open(other, 1)
        producers.record(OTHER, Numbering(other, 1, 0), 1, other, other, 0, 0)
    assert len(producers) == 3
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 1, 0), 1)


def test_hazard_07_one_shard_evicted_by_count_is_unknown_while_the_producer_sends_to_others() -> None:
    """The producer stays in use, its window of one shard goes: a retry there must not be stored again."""
    producers = opened(batches=1, count_max=3)
    for number in range(1, 4):
        producers.record(ShardKey(1, number), Numbering(7, 1, 0), 1, 0, 9, 0, 0)
    assert len(producers) == 3
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 1, 0), 1)


def test_the_least_recently_used_is_evicted_first() -> None:
    producers = ProducerSequences(2)
    for producer_id in (1, 2, 1, 3):
        producers.record(KEY, Numbering(producer_id, 1, 0), 1, 0, 1, 0, 0)
    assert [producer_id for _, producer_id, _ in producers.windows()] == [1, 3]


def test_a_group_moves_a_window_behind_the_others_a_second_after_its_last_use() -> None:
    producers = ProducerSequences()
    for producer_id in (1, 2, 3):
        producers.record(KEY, Numbering(producer_id, 1, 0), 1, 0, 1, 0, 0)
    for sequence, now_us, order in ((1, 999_999, [1, 2, 3]), (2, 1_999_998, [1, 2, 3]), (3, 2_999_998, [2, 3, 1])):
        group = BlockGroup((9,), (1,), (1,), (1,), (sequence,), (1,))
        assert producers.admit_group([KEY], group, [0], 2, now_us, 0, 2) == ({}, 0)
        assert [producer_id for _, producer_id, _ in producers.windows()] == order


@pytest.mark.parametrize("seed", range(20))
def test_hazard_07_a_group_is_judged_as_its_batches_one_by_one(seed: int) -> None:
    """Runs of one producer, epochs that end, retries, holes, full windows and batches without numbers."""
    chance = random.Random(seed)
    by_group, one_by_one = ProducerSequences(), ProducerSequences()
    expected: dict[tuple[ShardKey, int], int] = {}
    for lsn in range(1, 60):
        released_lsn = max(0, lsn - chance.choice([1, 1, 30]))
        if chance.random() < 0.2:
            producer_id, epoch = chance.randrange(3), chance.randrange(1, 4)
            for producers in (by_group, one_by_one):
                with contextlib.suppress(errors.ProducerFenced):
                    producers.open(producer_id, epoch)
        keys, batches, ends = [KEY, OTHER], list[tuple[int, int, int, int]](), list[int]()
        for key in keys:
            producer_id, epoch = chance.randrange(3), chance.randrange(1, 4)
            for _ in range(chance.randrange(1, 30)):
                if chance.random() < 0.2:
                    producer_id, epoch = chance.randrange(3), chance.randrange(1, 4)
                rows = chance.randrange(1, 4)
                first = max(0, expected.get((key, producer_id), 0) + chance.choice([0] * 20 + [-1, -30, 2]))
                if chance.random() < 0.05:
                    first = NOT_NUMBERED
                else:
                    expected[key, producer_id] = first + rows
                batches.append((rows, producer_id, epoch, first))
            ends.append(len(batches))
        rows_column, ids, epochs, sequences = zip(*batches, strict=True)
        group = BlockGroup(range(len(batches)), rows_column, ids, epochs, sequences, ends)
        rejected, _ = by_group.admit_group(keys, group, [1_000 * lsn, 0], lsn, lsn, lsn - 1, released_lsn)
        offsets = dict(zip(keys, [1_000 * lsn, 0], strict=True))
        for index, (rows, producer_id, epoch, first) in enumerate(batches):
            key, outcome = keys[index >= ends[0]], rejected.get(index)
            if first != NOT_NUMBERED:
                numbering = Numbering(producer_id, epoch, first)
                verdict: object
                try:
                    verdict = one_by_one.check(key, numbering, rows, released_lsn)
                except (errors.InvalidInput, errors.InFlightFull) as error:
                    verdict = error
                assert repr(outcome) == repr(verdict)
                if verdict is not None:
                    continue
                one_by_one.record(key, numbering, rows, offsets[key], lsn, lsn, lsn - 1)
            offsets[key] += rows
        stored = [{(key, number): window for key, number, window in each.windows()} for each in (by_group, one_by_one)]
        assert stored[0] == stored[1]


def test_use_keeps_a_window_young() -> None:
    producers = opened(batches=3)
    producers.record(KEY, Numbering(7, 1, 3), 1, 103, 4, 1_000, 3)
    assert producers.expire(1_000) == 0


def test_windows_are_bounded() -> None:
    producers = opened(batches=WINDOW + 10)
    ((_, _, window),) = producers.windows()
    assert len(window.sent) == WINDOW
    assert (window.sent[0], window.expected) == (StoredBatch(10, 1, 110, 11), WINDOW + 10)


# --- going back -------------------------------------------------------------------------------------------------------


def test_hazard_16_a_failed_append_is_reverted_and_the_retry_is_stored() -> None:
    producers = opened(batches=5)
    producers.roll_back(3)
    assert producers.check(KEY, Numbering(7, 1, 2), 1) == Duplicate(102, 3)
    assert producers.check(KEY, Numbering(7, 1, 3), 1) is None
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 1, 4), 1)


def test_hazard_16_a_producer_without_stored_batches_starts_again() -> None:
    producers = opened(batches=2)
    producers.roll_back(0)
    assert producers.last_sequence(KEY, 7) is None
    assert producers.check(KEY, Numbering(7, 1, 0), 1) is None
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 1, 1), 1)


def test_hazard_16_an_epoch_without_stored_batches_restores_the_one_before() -> None:
    producers = opened(batches=2)
    producers.open(7, 2)
    producers.record(KEY, Numbering(7, 2, 0), 1, 102, 3, 9, 2)
    producers.roll_back(2)
    assert producers.last_sequence(KEY, 7) == 1
    assert producers.check(KEY, Numbering(7, 2, 0), 1) is None


@pytest.mark.parametrize("first", [0, 2])
def test_hazard_16_reverting_a_whole_window_keeps_older_batches(first: int) -> None:
    """64 batches in flight fail; the batch before them is stored and must neither be stored again nor skipped."""
    producers = opened(batches=WINDOW + 1)
    producers.roll_back(1)
    assert producers.check(KEY, Numbering(7, 1, 1), 1) is None
    if first == 0:
        assert isinstance(producers.check(KEY, Numbering(7, 1, 0), 1), Duplicate)
    else:
        with pytest.raises(errors.OutOfOrderSequence):
            producers.check(KEY, Numbering(7, 1, first), 1)


# --- the model --------------------------------------------------------------------------------------------------------

SMALL_WINDOW = 3
PRODUCERS = st.integers(1, 2)
SHARDS = st.sampled_from([KEY, OTHER])


@dataclass
class ProducerHistory:
    """What the oracle knows of one (shard, producer): every batch of its epoch that is stored, and the epoch before."""

    epoch: int
    start: int
    before: ProducerHistory | None
    batches: list[StoredBatch] = field(default_factory=list)
    used: int = 0

    @property
    def expected(self) -> int:
        return self.batches[-1].first_sequence + self.batches[-1].rows if self.batches else self.start

    def last_at(self, lsn: int) -> tuple[int, StoredBatch] | None:
        """The last batch at or below an LSN, with its epoch."""
        history: ProducerHistory | None = self
        while history is not None:
            for sent in reversed(history.batches):
                if sent.lsn <= lsn:
                    return history.epoch, sent
            history = history.before
        return None

    def roll_back(self, lsn: int) -> list[tuple[int, StoredBatch]]:
        undone = [(self.epoch, sent) for sent in self.batches if sent.lsn > lsn]
        del self.batches[len(self.batches) - len(undone) :]
        return undone + (self.before.roll_back(lsn) if self.before else [])


class ProducerModel(RuleBasedStateMachine):
    """One log with two producers and two shards. The oracle keeps every batch; the code keeps three."""

    @initialize()
    def begin(self) -> None:
        self.producers = ProducerSequences(1_000)
        self.stored: dict[tuple[ShardKey, int], ProducerHistory] = {}
        self.epochs: dict[int, int] = {}  # opened
        self.left: dict[tuple[ShardKey, int], int] = {}  # windows that were evicted, and the epoch they had
        self.forgotten: dict[int, int] = {}  # the highest epoch of a producer that had such a window
        self.sent_epochs: dict[int, int] = {}  # the highest that ever sent, in any shard
        self.offsets: dict[ShardKey, int] = {KEY: 0, OTHER: 0}
        self.lsn = self.synced = self.now = 0
        self.seen: dict[tuple[ShardKey, int, int, int], int] = {}  # each number that is stored, and where

    def send(self, key: ShardKey, producer_id: int, epoch: int, first: int, rows: int) -> None:
        """Judges and stores as the appender does, and compares both with the oracle."""
        numbering = Numbering(producer_id, epoch, first)
        expected = self.verdict(key, producer_id, epoch, first, rows)
        try:
            outcome: Duplicate | str | None = self.producers.check(key, numbering, rows)
        except errors.InvalidInput as error:
            outcome = error.code
        if isinstance(expected, set):
            assert outcome in expected
        else:
            assert outcome == expected
        if outcome is None:
            self.store(key, numbering, rows)

    def verdict(
        self, key: ShardKey, producer_id: int, epoch: int, first: int, rows: int
    ) -> Duplicate | str | set[str | None] | None:
        history = self.stored.get((key, producer_id))
        sent = [history.epoch for (_, other), history in self.stored.items() if other == producer_id]
        newest = max([self.epochs.get(producer_id, -1), self.sent_epochs.get(producer_id, -1), *sent])
        if epoch < newest:
            return {"fenced", "unknown_producer"} if self.has_left(producer_id) else "fenced"
        if history is None or history.epoch < epoch:
            if self.epochs.get(producer_id) != epoch or self.left.get((key, producer_id)) == epoch:
                return "unknown_producer"
            # a shard that never saw it: to ask for a new `open` there, because another one left, is safe too
            return {None, "unknown_producer"} if self.has_left(producer_id) else None
        if first == history.expected:
            return None
        window = history.batches[len(history.batches) - self.window_batches(key, producer_id) :]
        for sent in window:
            if sent.first_sequence <= first and first + rows <= sent.first_sequence + sent.rows:
                return Duplicate(sent.base_offset + first - sent.first_sequence, sent.lsn)
        oldest = window[0].first_sequence if window else history.expected
        was_stored = history.start <= first and first + rows <= oldest
        return Duplicate(None, 0) if was_stored else "out_of_order"

    def window_batches(self, key: ShardKey, producer_id: int) -> int:
        """How many batches are in the window: how few it may be is an invariant below."""
        return next(len(window.sent) for *name, window in self.producers.windows() if name == [key, producer_id])

    def has_left(self, producer_id: int) -> bool:
        return any(producer == producer_id for _, producer in self.left)

    def store(self, key: ShardKey, numbering: Numbering, rows: int) -> None:
        producer_id, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        history = self.stored.get((key, producer_id))
        base = self.offsets[key]
        self.offsets[key] += rows
        self.lsn += 1
        self.producers.record(key, numbering, rows, base, self.lsn, self.now, self.synced)
        self.sent_epochs[producer_id] = max(self.sent_epochs.get(producer_id, -1), epoch)
        if history is None or history.epoch < epoch:
            history = self.stored[key, producer_id] = ProducerHistory(epoch, first, history)
        history.batches.append(StoredBatch(first, rows, base, self.lsn))
        history.used = self.now
        for number in range(rows):
            name = (key, producer_id, epoch, first + number)
            assert name not in self.seen, f"{name} is stored twice"
            self.seen[name] = base + number

    @rule(producer_id=PRODUCERS, step=st.integers(-1, 2))
    def open(self, producer_id: int, step: int) -> None:
        epoch = max(0, self.epochs.get(producer_id, 0) + step)
        newest_sent = max(
            (history.epoch for (_, other), history in self.stored.items() if other == producer_id), default=0
        )
        newest = max(self.epochs.get(producer_id, 0), newest_sent)
        forgotten = max((left for (_, other), left in self.left.items() if other == producer_id), default=-1)
        self.forgotten[producer_id] = max(self.forgotten.get(producer_id, -1), forgotten)
        try:
            self.producers.open(producer_id, epoch)
        except errors.ProducerFenced:
            assert epoch < newest or epoch <= self.forgotten[producer_id]
            return
        assert epoch > self.forgotten[producer_id], "what it sent under that one is forgotten"
        assert epoch >= newest_sent
        assert epoch >= newest or self.has_left(producer_id)
        self.epochs[producer_id] = epoch
        for key in (KEY, OTHER):  # it was told that it is not known and opened again: it begins anew there
            if self.left.pop((key, producer_id), None) is not None:
                self.seen = {name: at for name, at in self.seen.items() if name[:2] != (key, producer_id)}

    @rule(key=SHARDS, producer_id=PRODUCERS, rows=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def go_on(self, key: ShardKey, producer_id: int, rows: list[int]) -> None:
        """The next numbers, some batches in flight at once."""
        for count in rows:
            self.send(key, producer_id, self.epochs.get(producer_id, 0), self.next_number(key, producer_id), count)

    @rule(key=SHARDS, producer_id=PRODUCERS, ahead=st.integers(1, 5))
    def jump(self, key: ShardKey, producer_id: int, ahead: int) -> None:
        self.send(key, producer_id, self.epochs.get(producer_id, 0), self.next_number(key, producer_id) + ahead, 1)

    def next_number(self, key: ShardKey, producer_id: int) -> int:
        history = self.stored.get((key, producer_id))
        return history.expected if history and history.epoch == self.epochs.get(producer_id, 0) else 0

    @rule(key=SHARDS, producer_id=PRODUCERS, data=st.data())
    def retry(self, key: ShardKey, producer_id: int, data: st.DataObject) -> None:
        """Sends a range near a stored batch again, most often a whole batch, also of unsynced records."""
        history = self.stored.get((key, producer_id))
        if history is None or not history.batches:
            return
        sent = data.draw(st.sampled_from(history.batches))
        first = max(0, sent.first_sequence + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        rows = max(1, sent.rows + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        self.send(key, producer_id, history.epoch, first, rows)

    @rule(key=SHARDS, producer_id=PRODUCERS, epoch=st.integers(0, 6), first=st.integers(0, 6))
    def send_from_any_epoch(self, key: ShardKey, producer_id: int, epoch: int, first: int) -> None:
        self.send(key, producer_id, epoch, first, 1)

    @rule()
    def sync(self) -> None:
        self.synced = self.lsn

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A write failed: records that were not acked are discarded."""
        keep = data.draw(st.integers(self.synced, self.lsn))
        self.producers.roll_back(keep)
        for (key, producer_id), history in self.stored.items():
            for epoch, sent in history.roll_back(keep):
                for number in range(sent.rows):
                    self.seen.pop((key, producer_id, epoch, sent.first_sequence + number), None)
        self.lsn = keep

    @precondition(lambda self: self.stored)
    @rule(age=st.integers(0, 3))
    def expire(self, age: int) -> None:
        self.now += 2
        old = {name for name, history in self.stored.items() if history.used < self.now - age}
        assert self.producers.expire(self.now - age) == len(old)
        for name in old:
            self.left[name] = self.stored.pop(name).epoch

    @invariant()
    def windows_are_those_of_the_oracle(self) -> None:
        windows = {(key, producer_id): window for key, producer_id, window in self.producers.windows()}
        assert windows.keys() == self.stored.keys()
        for name, window in windows.items():
            history = self.stored[name]
            assert (window.producer_epoch, window.expected) == (history.epoch, history.expected)
            assert list(window.sent) == history.batches[len(history.batches) - len(window.sent) :]
            assert bool(window.sent) == bool(history.batches), "what was pushed out and not taken back is synced"

    @rule()
    def nothing_is_kept_for_ever(self) -> None:
        """Once everything is synced, the next batch leaves a window of its size, and no epoch before it."""
        self.sync()
        for key, producer_id in list(self.stored):
            self.go_on(key, producer_id, [1, 1])
            self.sync()
            self.go_on(key, producer_id, [1])
        for key, producer_id, window in self.producers.windows():
            if self.epochs.get(producer_id) == window.producer_epoch and not self.has_left(producer_id):
                assert len(window.sent) <= SMALL_WINDOW + 1, (key, producer_id)
                assert window.before is None

    @invariant()
    def a_checkpoint_now_would_know_the_last_number_that_is_synced(self) -> None:
        for key, producer_id, window in self.producers.windows():
            last = self.stored[key, producer_id].last_at(self.synced)
            restored = window.at(self.synced)
            assert (last is None) == (restored is None)
            if last is not None and restored is not None:
                epoch, sent = last
                assert restored.producer_epoch == epoch
                assert [batch for batch in restored.sent if batch.lsn <= self.synced][-1] == sent

    @invariant()
    def numbers_are_in_order(self) -> None:
        """Within an epoch and a shard a higher number never has a lower offset."""
        by_epoch: dict[tuple[ShardKey, int, int], list[tuple[int, int]]] = {}
        for (key, producer_id, epoch, number), offset in self.seen.items():
            by_epoch.setdefault((key, producer_id, epoch), []).append((number, offset))
        for pairs in by_epoch.values():
            assert sorted(pairs) == sorted(pairs, key=lambda pair: pair[1])


def test_hazard_07_any_history_of_sends_retries_restarts_failures_and_evictions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PRODUCER_WINDOW_BATCHES", SMALL_WINDOW)
    run_state_machine_as_test(ProducerModel, settings=settings(HALF, stateful_step_count=40))
    assert limits.PRODUCER_WINDOW_BATCHES == SMALL_WINDOW
