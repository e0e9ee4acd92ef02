"""Producers that number their messages: each number is stored once and in order, whatever is retried (hazard 7)."""

from __future__ import annotations

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
from icestream.model.block import Numbering
from icestream.model.shard import ShardKey
from icestream.wal.producer_sequences import Duplicate, ProducerSequences, SequenceWindow, StoredBatch
from tests.support.effort import HALF

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


def test_the_first_number_of_an_epoch_may_be_any() -> None:
    """A connect gets the last stored sequence and goes on from there."""
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
def test_hazard_07_what_fits_no_stored_batch_is_out_of_order(first: int, rows: int) -> None:
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


def test_hazard_07_an_older_epoch_is_fenced_everywhere_at_once() -> None:
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


def test_hazard_07_a_producer_that_left_by_age_is_unknown_and_never_begins_silently() -> None:
    producers = opened(batches=3)
    assert producers.expire(2) == 0
    assert producers.expire(3) == 1
    assert len(producers) == 0
    for first in (0, 2, 3):
        with pytest.raises(errors.UnknownProducer):
            producers.check(KEY, Numbering(7, 1, first), 1)
    producers.open(7, 2)
    assert producers.check(KEY, Numbering(7, 2, 3), 1) is None


def test_hazard_07_a_producer_that_left_by_count_is_unknown_and_never_begins_silently() -> None:
    producers = opened(batches=1, count_max=3)
    for other in range(8, 11):
        producers.open(other, 1)
        producers.record(OTHER, Numbering(other, 1, 0), 1, other, other, 0, 0)
    assert len(producers) == 3
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 1, 0), 1)


def test_hazard_07_one_shard_that_left_by_count_is_unknown_while_the_producer_sends_elsewhere() -> None:
    """The producer stays in use, its window of one shard goes: a retry there must not be stored again."""
    producers = opened(batches=1, count_max=3)
    for number in range(1, 4):
        producers.record(ShardKey(1, number), Numbering(7, 1, 0), 1, 0, 9, 0, 0)
    assert len(producers) == 3
    with pytest.raises(errors.UnknownProducer):
        producers.check(KEY, Numbering(7, 1, 0), 1)


def test_the_least_recently_used_leaves_first() -> None:
    producers = ProducerSequences(2)
    for who in (1, 2, 1, 3):
        producers.record(KEY, Numbering(who, 1, 0), 1, 0, 1, 0, 0)
    assert [who for _, who, _ in producers.windows()] == [1, 3]


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


def test_hazard_16_a_failed_append_goes_back_and_the_retry_is_stored() -> None:
    producers = opened(batches=5)
    producers.roll_back(3)
    assert producers.check(KEY, Numbering(7, 1, 2), 1) == Duplicate(102, 3)
    assert producers.check(KEY, Numbering(7, 1, 3), 1) is None
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 1, 4), 1)


def test_hazard_16_a_producer_of_which_nothing_is_left_begins_again() -> None:
    producers = opened(batches=2)
    producers.roll_back(0)
    assert producers.last_sequence(KEY, 7) is None
    assert producers.check(KEY, Numbering(7, 1, 0), 1) is None
    with pytest.raises(errors.OutOfOrderSequence):
        producers.check(KEY, Numbering(7, 1, 1), 1)


def test_hazard_16_an_epoch_of_which_nothing_is_left_leaves_the_one_before_it_known() -> None:
    producers = opened(batches=2)
    producers.open(7, 2)
    producers.record(KEY, Numbering(7, 2, 0), 1, 102, 3, 9, 2)
    producers.roll_back(2)
    assert producers.last_sequence(KEY, 7) == 1
    assert producers.check(KEY, Numbering(7, 2, 0), 1) is None


@pytest.mark.parametrize("first", [0, 2])
def test_hazard_16_going_back_by_a_whole_window_does_not_forget_what_is_older(first: int) -> None:
    """64 batches in flight fail; the one before them is stored and must neither be stored again nor jumped over."""
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
class Stored:
    """What the oracle knows of one (shard, producer): every batch of its epoch that is stored, and the epoch before."""

    epoch: int
    start: int
    before: Stored | None
    batches: list[StoredBatch] = field(default_factory=list)
    used: int = 0

    @property
    def expected(self) -> int:
        return self.batches[-1].first_sequence + self.batches[-1].rows if self.batches else self.start

    def last_at(self, lsn: int) -> tuple[int, StoredBatch] | None:
        """The last batch at or below an LSN, with its epoch."""
        known: Stored | None = self
        while known is not None:
            for sent in reversed(known.batches):
                if sent.lsn <= lsn:
                    return known.epoch, sent
            known = known.before
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
        self.stored: dict[tuple[ShardKey, int], Stored] = {}
        self.epochs: dict[int, int] = {}  # opened
        self.left: dict[tuple[ShardKey, int], int] = {}  # windows that were evicted, and the epoch they had
        self.forgotten: dict[int, int] = {}  # the highest epoch of a producer that had such a window
        self.sent_epochs: dict[int, int] = {}  # the highest that ever sent, in any shard
        self.offsets: dict[ShardKey, int] = {KEY: 0, OTHER: 0}
        self.lsn = self.synced = self.now = 0
        self.seen: dict[tuple[ShardKey, int, int, int], int] = {}  # each number that is stored, and where

    def send(self, key: ShardKey, who: int, epoch: int, first: int, rows: int) -> None:
        """Judges and stores as the appender does, and compares both with the oracle."""
        numbering = Numbering(who, epoch, first)
        expected = self.verdict(key, who, epoch, first, rows)
        try:
            found: Duplicate | str | None = self.producers.check(key, numbering, rows)
        except errors.InvalidInput as error:
            found = error.code
        if isinstance(expected, set):
            assert found in expected
        else:
            assert found == expected
        if found is None:
            self.store(key, numbering, rows)

    def verdict(
        self, key: ShardKey, who: int, epoch: int, first: int, rows: int
    ) -> Duplicate | str | set[str | None] | None:
        known = self.stored.get((key, who))
        sent = [one.epoch for (_, other), one in self.stored.items() if other == who]
        newest = max([self.epochs.get(who, -1), self.sent_epochs.get(who, -1), *sent])
        if epoch < newest:
            return {"fenced", "unknown_producer"} if self.has_left(who) else "fenced"
        if known is None or known.epoch < epoch:
            if self.epochs.get(who) != epoch or self.left.get((key, who)) == epoch:
                return "unknown_producer"
            # a shard that never saw it: to ask for a new `open` there, because another one left, is safe too
            return {None, "unknown_producer"} if self.has_left(who) else None
        if first == known.expected:
            return None
        window = known.batches[len(known.batches) - self.kept(key, who) :]
        for sent in window:
            if sent.first_sequence <= first and first + rows <= sent.first_sequence + sent.rows:
                return Duplicate(sent.base_offset + first - sent.first_sequence, sent.lsn)
        oldest = window[0].first_sequence if window else known.expected
        was_stored = known.start <= first and first + rows <= oldest
        return Duplicate(None, 0) if was_stored else "out_of_order"

    def kept(self, key: ShardKey, who: int) -> int:
        """How many batches are in the window: how few it may be is an invariant below."""
        return next(len(window.sent) for *name, window in self.producers.windows() if name == [key, who])

    def has_left(self, who: int) -> bool:
        return any(producer == who for _, producer in self.left)

    def store(self, key: ShardKey, numbering: Numbering, rows: int) -> None:
        who, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        known = self.stored.get((key, who))
        base = self.offsets[key]
        self.offsets[key] += rows
        self.lsn += 1
        self.producers.record(key, numbering, rows, base, self.lsn, self.now, self.synced)
        self.sent_epochs[who] = max(self.sent_epochs.get(who, -1), epoch)
        if known is None or known.epoch < epoch:
            known = self.stored[key, who] = Stored(epoch, first, known)
        known.batches.append(StoredBatch(first, rows, base, self.lsn))
        known.used = self.now
        for number in range(rows):
            name = (key, who, epoch, first + number)
            assert name not in self.seen, f"{name} is stored twice"
            self.seen[name] = base + number

    @rule(who=PRODUCERS, step=st.integers(-1, 2))
    def open(self, who: int, step: int) -> None:
        epoch = max(0, self.epochs.get(who, 0) + step)
        newest_sent = max((known.epoch for (_, other), known in self.stored.items() if other == who), default=0)
        newest = max(self.epochs.get(who, 0), newest_sent)
        forgotten = max((left for (_, other), left in self.left.items() if other == who), default=-1)
        self.forgotten[who] = max(self.forgotten.get(who, -1), forgotten)
        try:
            self.producers.open(who, epoch)
        except errors.ProducerFenced:
            assert epoch < newest or epoch <= self.forgotten[who]
            return
        assert epoch > self.forgotten[who], "what it sent under that one is forgotten"
        assert epoch >= newest_sent
        assert epoch >= newest or self.has_left(who)
        self.epochs[who] = epoch
        for key in (KEY, OTHER):  # it was told that it is not known and opened again: it begins anew there
            if self.left.pop((key, who), None) is not None:
                self.seen = {name: at for name, at in self.seen.items() if name[:2] != (key, who)}

    @rule(key=SHARDS, who=PRODUCERS, rows=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def go_on(self, key: ShardKey, who: int, rows: list[int]) -> None:
        """The next numbers, some batches in flight at once."""
        for count in rows:
            self.send(key, who, self.epochs.get(who, 0), self.next_number(key, who), count)

    @rule(key=SHARDS, who=PRODUCERS, ahead=st.integers(1, 5))
    def jump(self, key: ShardKey, who: int, ahead: int) -> None:
        self.send(key, who, self.epochs.get(who, 0), self.next_number(key, who) + ahead, 1)

    def next_number(self, key: ShardKey, who: int) -> int:
        known = self.stored.get((key, who))
        return known.expected if known and known.epoch == self.epochs.get(who, 0) else 0

    @rule(key=SHARDS, who=PRODUCERS, data=st.data())
    def retry(self, key: ShardKey, who: int, data: st.DataObject) -> None:
        """Something near what was stored, most often a whole batch: also of records that are not synced yet."""
        known = self.stored.get((key, who))
        if known is None or not known.batches:
            return
        sent = data.draw(st.sampled_from(known.batches))
        first = max(0, sent.first_sequence + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        rows = max(1, sent.rows + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        self.send(key, who, known.epoch, first, rows)

    @rule(key=SHARDS, who=PRODUCERS, epoch=st.integers(0, 6), first=st.integers(0, 6))
    def send_from_any_epoch(self, key: ShardKey, who: int, epoch: int, first: int) -> None:
        self.send(key, who, epoch, first, 1)

    @rule()
    def sync(self) -> None:
        self.synced = self.lsn

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A write failed: what was not acked never was."""
        keep = data.draw(st.integers(self.synced, self.lsn))
        self.producers.roll_back(keep)
        for (key, who), known in self.stored.items():
            for epoch, sent in known.roll_back(keep):
                for number in range(sent.rows):
                    self.seen.pop((key, who, epoch, sent.first_sequence + number), None)
        self.lsn = keep

    @precondition(lambda self: self.stored)
    @rule(age=st.integers(0, 3))
    def expire(self, age: int) -> None:
        self.now += 2
        old = {name for name, known in self.stored.items() if known.used < self.now - age}
        assert self.producers.expire(self.now - age) == len(old)
        for name in old:
            self.left[name] = self.stored.pop(name).epoch

    @invariant()
    def windows_are_those_of_the_oracle(self) -> None:
        found = {(key, who): window for key, who, window in self.producers.windows()}
        assert found.keys() == self.stored.keys()
        for name, window in found.items():
            known = self.stored[name]
            assert (window.producer_epoch, window.expected) == (known.epoch, known.expected)
            assert list(window.sent) == known.batches[len(known.batches) - len(window.sent) :]
            assert bool(window.sent) == bool(known.batches), "what was pushed out and not taken back is synced"

    @rule()
    def nothing_is_kept_for_ever(self) -> None:
        """Once everything is synced, the next batch leaves a window of its size, and no epoch before it."""
        self.sync()
        for key, who in list(self.stored):
            self.go_on(key, who, [1, 1])
            self.sync()
            self.go_on(key, who, [1])
        for key, who, window in self.producers.windows():
            if self.epochs.get(who) == window.producer_epoch and not self.has_left(who):
                assert len(window.sent) <= SMALL_WINDOW + 1, (key, who)
                assert window.before is None

    @invariant()
    def a_checkpoint_now_would_know_the_last_number_that_is_synced(self) -> None:
        for key, who, window in self.producers.windows():
            last = self.stored[key, who].last_at(self.synced)
            found = window.at(self.synced)
            assert (last is None) == (found is None)
            if last is not None and found is not None:
                epoch, sent = last
                assert found.producer_epoch == epoch
                assert [one for one in found.sent if one.lsn <= self.synced][-1] == sent

    @invariant()
    def numbers_are_in_order(self) -> None:
        """Within an epoch and a shard a higher number never has a lower offset."""
        by_epoch: dict[tuple[ShardKey, int, int], list[tuple[int, int]]] = {}
        for (key, who, epoch, number), offset in self.seen.items():
            by_epoch.setdefault((key, who, epoch), []).append((number, offset))
        for pairs in by_epoch.values():
            assert sorted(pairs) == sorted(pairs, key=lambda pair: pair[1])


def test_hazard_07_any_history_of_sends_retries_restarts_failures_and_evictions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PRODUCER_WINDOW_BATCHES", SMALL_WINDOW)
    run_state_machine_as_test(ProducerModel, settings=settings(HALF, stateful_step_count=40))
    assert limits.PRODUCER_WINDOW_BATCHES == SMALL_WINDOW
