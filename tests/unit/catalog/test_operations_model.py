"""bind, detach, adopt, rewind and recreate in any order, among rounds, other engines and a log that is recycled.

What must hold after every step, whatever an operator agreed to:
    main has no offset twice, and nothing at or behind committed
    each offset below committed is a row of main, or lies in a removal that the catalog recorded
    the log has everything from committed on
and without accept-gap no operation gives up a row that main has, or an offset that is not committed yet. (What others
deleted or rolled back is given up already, although the log may still have it.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from icestream import errors
from icestream.catalog.topic import adopt, bind, recreate, rewind
from icestream.catalog.topic.binding import Binding
from icestream.catalog.topic.commit import Outcome, Request, State, judge_commit
from icestream.catalog.topic.consequence import Consent, ShardLog, TopicLog
from icestream.catalog.topic.rebound import NO_FORMER, Former, Rebound
from tests.support.table_history import History, Row, rows_of
from tests.support.tables import FILE, LOCATION, NOW_MS, point, table
from tests.support.topic_tables import ENVELOPE, LEASE, TOPIC, TOPIC_ID, appending, claim, replacing, settled

SHARDS = 2
NOW = NOW_MS + 10_000
SHARD = st.integers(0, SHARDS - 1)
FEW = st.integers(1, 4)
CONSENTS = st.sets(st.sampled_from(Consent))
PICK = st.integers(0, 7)


@dataclass
class Log:
    earliest: int = 0
    end: int = 0


class Operations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        self.logs = [Log() for _ in range(SHARDS)]
        self.former: Former = NO_FORMER
        self.history = History()
        self.state: State | None = None  # None: the topic's table is gone
        self.is_bound = False
        self.posts: list[tuple[int, tuple[tuple[int, int, int, int], ...]]] = []
        self.recreated(frozenset())
        for count in (2, 3, 1):
            self.ingest(0, count)

    def next_number(self) -> int:
        self.numbers += 1
        return 1_000 + self.numbers

    @property
    def log(self) -> TopicLog:
        return TopicLog(
            TOPIC, TOPIC_ID, {shard: ShardLog(0, one.earliest, one.end) for shard, one in enumerate(self.logs)}
        )

    def rows(self) -> list[Row]:
        return [] if self.state is None else self.history.content(self.state.table.current_snapshot_id)

    def committed(self) -> dict[int, int]:
        """What the log may free."""
        return {**self.former.committed} if not self.is_bound else self.binding.committed()

    @property
    def binding(self) -> Binding:
        assert self.state is not None
        assert self.state.binding is not None
        return self.state.binding

    def owed(self) -> set[Row]:
        """What nobody may lose."""
        committed = self.committed()
        waiting = {
            (shard, at)
            for shard, one in enumerate(self.logs)
            for at in range(max(one.earliest, committed.get(shard, 0)), one.end)
        }
        return {*self.rows(), *waiting}

    # --- the pipeline and the log ---

    @rule(shard=SHARD, count=FEW)
    def publish(self, shard: int, count: int) -> None:
        self.logs[shard].end += count

    @rule(shard=SHARD, count=FEW)
    def recycle(self, shard: int, count: int) -> None:
        """The log frees what the topic committed, never more."""
        log = self.logs[shard]
        log.earliest = min(log.earliest + count, max(self.committed().get(shard, 0), log.earliest))

    @precondition(lambda self: self.is_bound)
    @rule(shard=SHARD, count=FEW)
    def ingest(self, shard: int, count: int) -> None:
        """A round of all that is not committed."""
        self.publish(shard, count)
        committed = self.committed()
        ranges = tuple(
            (shard, 0, committed[shard], log.end) for shard, log in enumerate(self.logs) if log.end > committed[shard]
        )
        self.posts.append((self.next_number(), ranges))
        self.post(*self.posts[-1])

    @precondition(lambda self: self.is_bound and self.posts)
    @rule(pick=st.integers(0, 3))
    def ingest_again(self, pick: int) -> None:
        """A driver that heard nothing: one of the last rounds once more, with other files on the present main."""
        self.post(*self.posts[-4:][pick % len(self.posts[-4:])])

    def post(self, number: int, ranges: tuple[tuple[int, int, int, int], ...]) -> None:
        assert self.state is not None
        snapshot_id = self.next_number()
        request = Request([claim(number, *ranges)], appending(self.state, snapshot_id))
        try:
            done = judge_commit(self.state, request, LEASE, NOW)
        except errors.RangeRefused:
            return
        rows = [(shard, at) for shard, _, start, end in ranges for at in range(start, end)]
        if done.repeated is None:
            assert all(self.logs[shard].earliest <= at for shard, at in rows), "the log has it"
            self.settle(done, snapshot_id, rows)
        else:
            removed = {row for one in self.state.removals for row in rows_of(one)}
            assert set(rows) <= {*self.rows(), *removed}, "told as committed, and gone"

    def settle(self, done: Outcome, snapshot_id: int, rows: list[Row]) -> None:
        assert self.state is not None
        self.history.parents[snapshot_id] = self.state.table.current_snapshot_id
        self.history.rows[snapshot_id] = rows
        self.state = settled(done)

    # --- other engines ---

    def foreign(self, *updates: dict[str, Any]) -> Outcome | None:
        assert self.state is not None
        try:
            return judge_commit(self.state, Request((), updates), None, NOW)
        except errors.TopicTable:
            return None

    @precondition(lambda self: self.state is not None)
    @rule(pick=PICK)
    def move_main(self, pick: int) -> None:
        assert self.state is not None
        snapshots = [one["snapshot-id"] for one in self.state.table.snapshots]
        if snapshots and (done := self.foreign(point("main", snapshots[pick % len(snapshots)]))):
            self.state = settled(done)

    @precondition(lambda self: self.state is not None)
    @rule(every=st.integers(2, 4))
    def expire(self, every: int) -> None:
        assert self.state is not None
        snapshots = [one["snapshot-id"] for one in self.state.table.snapshots]
        gone = [one for one in snapshots[::every] if one != self.state.table.current_snapshot_id]
        if gone and (done := self.foreign({"action": "remove-snapshots", "snapshot-ids": gone})):
            self.state = settled(done)

    @precondition(lambda self: self.state is not None and self.state.table.current_snapshot_id is not None)
    @rule(deletes=st.booleans(), pick=PICK)
    def rewrite(self, deletes: bool, pick: int) -> None:
        assert self.state is not None
        snapshot_id, rows = self.next_number(), self.rows()
        gone = set(rows[pick % 3 :: 3]) if deletes else set()
        words = {"deleted_records": str(len(gone))} if deletes else {}
        done = self.foreign(*replacing(self.state, snapshot_id, "delete" if deletes else "replace", **words))
        assert done is not None
        self.history.deletes[snapshot_id] = gone
        self.settle(done, snapshot_id, [])

    # --- operators ---

    def operate(self, consents: Collection[Consent], decide: Callable[[], Rebound]) -> None:
        """Nobody who did not agree to it loses anything."""
        before = self.owed()
        try:
            done = decide()
        except (errors.TopicTable, errors.AlreadyExists):
            return
        self.state = settled(done.outcome)
        self.is_bound = True
        assert done.consequence.needed <= set(consents), "done without being asked"
        if Consent.GAP not in consents:
            assert not any(fate.missing for fate in done.consequence.fates)
            assert before <= self.owed(), "lost, and nobody agreed"

    @precondition(lambda self: self.is_bound)
    @rule()
    def detach(self) -> None:
        assert self.state is not None
        self.former = Former(self.binding.committed(), 0)
        self.state = settled(bind.detach(self.state, NOW))
        self.is_bound = False

    @precondition(lambda self: self.state is not None and not self.is_bound)
    @rule(consents=CONSENTS, by_hand=st.booleans())
    def adopted(self, consents: set[Consent], by_hand: bool) -> None:
        """An operator who says positions says true ones."""
        state = self.state
        assert state is not None
        ends = {
            shard: 1 + max((at for there, at in self.rows() if there == shard), default=-1) for shard in range(SHARDS)
        }
        positions = ends if by_hand else None
        self.operate(consents, lambda: adopt.adopt(state, self.log, self.former, consents, NOW, positions))

    @precondition(lambda self: self.is_bound)
    @rule(consents=CONSENTS, pick=PICK, there=st.booleans())
    def rewound(self, consents: set[Consent], pick: int, there: bool) -> None:
        state = self.state
        assert state is not None
        snapshots = [one["snapshot-id"] for one in state.table.snapshots]
        target = snapshots[pick % len(snapshots)] if there and snapshots else None
        self.operate(consents, lambda: rewind.rewind(state, self.log, consents, NOW, target))

    @precondition(lambda self: self.state is not None and not self.is_bound)
    @rule(consents=CONSENTS)
    def begun(self, consents: set[Consent]) -> None:
        """Another table, without rows: the old one is left to itself."""
        empty = State(table(schema=ENVELOPE), FILE)
        old, self.state = self.state, empty
        self.operate(consents, lambda: bind.begin(empty, self.log, self.former, consents, NOW))
        if not self.is_bound:
            self.state = old

    @precondition(lambda self: self.state is not None)
    @rule(sure=st.integers(0, 3))
    def drop(self, sure: int) -> None:
        if sure != 3:
            return
        if self.is_bound:
            self.former = Former(self.binding.committed(), 0)
        self.state, self.is_bound = None, False

    @precondition(lambda self: self.state is None)
    @rule(consents=CONSENTS)
    def recreated(self, consents: Collection[Consent]) -> None:
        uuid = f"00000000-0000-4000-8000-{self.next_number():012d}"
        self.operate(consents, lambda: recreate.recreate(self.log, self.former, consents, LOCATION, uuid, NOW))

    # --- what must hold ---

    @invariant()
    def each_offset_once(self) -> None:
        content = self.rows()
        assert len(content) == len(set(content)), "an offset twice"
        if self.state is None or not self.is_bound:
            return
        removed = {row for one in self.state.removals for row in rows_of(one)}
        for shard, committed in self.binding.committed().items():
            missing = {(shard, at) for at in range(committed)} - set(content) - removed
            assert not missing, f"gone and not told: {sorted(missing)}"
            assert all(at < committed for there, at in content if there == shard), "it would be written again"
            assert self.logs[shard].earliest <= committed, "neither in the table nor in the log"
        for one in self.state.removals:
            assert not one.is_exact or not rows_of(one) & set(content), "told as gone, and there"


def check_operations(examples: int, steps: int) -> None:
    run_state_machine_as_test(Operations, settings=settings(max_examples=examples, stateful_step_count=steps))


def test_no_operation_doubles_an_offset_or_loses_one_unsaid() -> None:
    check_operations(100, 25)


@pytest.mark.chaos
def test_no_operation_doubles_an_offset_or_loses_one_unsaid_for_long() -> None:
    check_operations(5_000, 50)
