"""bind, detach, adopt, rewind and recreate in any order, among rounds, other engines and a log that is recycled.

What must hold after every step, whatever an operator agreed to:
    main has no offset twice, and nothing at or behind committed
    each offset below committed is a row of main, or lies in a removal that the catalog recorded
    the log has everything from committed on
and without accept-gap no operation gives up a row that main has, or an offset that is not committed yet. (What others
deleted or rolled back is given up already, although the log may still have it.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors
from icestream.catalog.topic_rules import adopt, bind, recreate, rewind
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable, Rebinding
from tests.support.table_history import Row, SnapshotHistory, rows_of
from tests.support.tables import FILE, LOCATION, NOW_MS, point, table
from tests.support.topic_tables import ENVELOPE, LEASE, TOPIC, TOPIC_ID, appending, claim, replacing, settled

SHARDS = 2
NOW = NOW_MS + 10_000
CONSENTS = (frozenset[Consent](), *(frozenset({consent}) for consent in Consent), frozenset(Consent))


@dataclass
class OperationModelLog:
    earliest: int = 0
    end: int = 0


class OperationsModel:
    """Operations on a topic's table; each takes two random numbers, and does nothing where it does not apply."""

    def __init__(self) -> None:
        self.numbers = 0
        self.logs = [OperationModelLog() for _ in range(SHARDS)]
        self.former: FormerTable = NO_FORMER_TABLE
        self.history = SnapshotHistory()
        self.state: TableState | None = None  # None: the topic's table is gone
        self.posts: list[tuple[int, tuple[tuple[int, int, int, int], ...]]] = []
        self.done: list[str] = []
        self.picked: set[int] = set()  # snapshots that a cherry-pick made
        self.recreate(0, 0)
        for count in (2, 3, 1):
            self.ingest(count, 0)

    def act(self, name: str, first: int, other: int) -> None:
        getattr(self, name)(first, other)
        self.check()

    def next_number(self) -> int:
        self.numbers += 1
        return 1_000 + self.numbers

    @property
    def log(self) -> TopicLog:
        return TopicLog(
            TOPIC,
            TOPIC_ID,
            {shard: ShardLog(0, shard_log.earliest, shard_log.end) for shard, shard_log in enumerate(self.logs)},
        )

    @property
    def binding(self) -> Binding | None:
        return None if self.state is None else self.state.binding

    def rows(self) -> list[Row]:
        return [] if self.state is None else self.history.content(self.state.table.current_snapshot_id)

    def snapshots(self) -> list[int]:
        return [] if self.state is None else [snapshot["snapshot-id"] for snapshot in self.state.table.snapshots]

    def committed(self) -> dict[int, int]:
        """The offsets that the log may free."""
        return dict(self.former.committed) if self.binding is None else self.binding.committed()

    def owed(self) -> set[Row]:
        """The offsets that no operation may lose without consent."""
        committed = self.committed()
        waiting = {
            (shard, at)
            for shard, shard_log in enumerate(self.logs)
            for at in range(max(shard_log.earliest, committed.get(shard, 0)), shard_log.end)
        }
        return {*self.rows(), *waiting}

    # --- the pipeline and the log ---

    def publish(self, count: int, shard: int) -> None:
        self.logs[shard % SHARDS].end += 1 + count % 4

    def recycle(self, count: int, shard: int) -> None:
        """The log frees what the topic committed, never more."""
        log = self.logs[shard % SHARDS]
        log.earliest = min(log.earliest + 1 + count % 8, max(self.committed().get(shard % SHARDS, 0), log.earliest))

    def ingest(self, count: int, shard: int) -> None:
        """A round of all that is not committed."""
        if self.binding is None:
            return
        self.publish(count, shard)
        committed = self.committed()
        ranges = tuple((at, 0, committed[at], log.end) for at, log in enumerate(self.logs) if log.end > committed[at])
        self.posts.append((self.next_number(), ranges))
        self.post(*self.posts[-1])

    def ingest_again(self, pick: int, _: int) -> None:
        """A driver that heard nothing: one of the last rounds once more, with other files on the present main."""
        if self.binding is not None:
            self.post(*self.posts[-4:][pick % len(self.posts[-4:])])

    def post(self, number: int, ranges: tuple[tuple[int, int, int, int], ...]) -> None:
        assert self.state is not None
        snapshot_id = self.next_number()
        request = CommitRequest([claim(number, *ranges)], appending(self.state, snapshot_id))
        try:
            done = judge_commit(self.state, request, LEASE, NOW)
        except errors.RangeRefused:
            return
        rows = [(shard, at) for shard, _, start, end in ranges for at in range(start, end)]
        if done.repeated is None:
            assert all(self.logs[shard].earliest <= at for shard, at in rows), "the log has it"
            self.settle(done, snapshot_id, rows)
        else:
            removed = {row for removal in self.state.removals for row in rows_of(removal)}
            assert set(rows) <= {*self.rows(), *removed}, "told as committed, and gone"

    def settle(self, done: CommitDecision, snapshot_id: int, rows: list[Row]) -> None:
        assert self.state is not None
        self.history.parents[snapshot_id] = self.state.table.current_snapshot_id
        self.history.rows[snapshot_id] = rows
        self.state = settled(done)

    # --- other engines ---

    def foreign(self, *updates: dict[str, Any]) -> bool:
        assert self.state is not None
        try:
            self.state = settled(judge_commit(self.state, CommitRequest((), updates), None, NOW))
        except errors.TopicTableConflict:
            return False
        return True

    def move_main(self, pick: int, _: int) -> None:
        if snapshots := self.snapshots():
            self.foreign(point("main", snapshots[pick % len(snapshots)]))

    def expire(self, every: int, first: int) -> None:
        current = None if self.state is None else self.state.table.current_snapshot_id
        gone = [snapshot for snapshot in self.snapshots()[first % 3 :: 1 + every % 3] if snapshot != current]
        if gone:
            self.foreign({"action": "remove-snapshots", "snapshot-ids": gone})

    def rewrite(self, kind: int, pick: int) -> None:
        """A compaction keeps every row; a delete takes some of them."""
        if self.state is None or self.state.table.current_snapshot_id is None:
            return
        base, snapshot_id, rows = self.state.table.current_snapshot_id, self.next_number(), self.rows()
        gone = set(rows[pick % 3 :: 3]) if kind % 3 == 0 else set()
        words = {"deleted_records": str(len(gone))} if gone else {}
        assert self.foreign(*replacing(self.state, snapshot_id, "delete" if gone else "replace", **words))
        self.history.parents[snapshot_id], self.history.deletes[snapshot_id] = base, gone

    def cherry_pick(self, pick: int, _: int) -> None:
        """A round that main lost is put on it again, as Spark's `cherrypick_snapshot` does."""
        if self.state is None or self.state.table.current_snapshot_id is None:
            return
        there, rows_by_snapshot = {*self.rows()}, self.history.rows
        rounds = [
            snapshot for snapshot in self.snapshots() if rows_by_snapshot.get(snapshot) and snapshot not in self.picked
        ]
        lost = [snapshot for snapshot in rounds if not there & {*rows_by_snapshot[snapshot]}]
        if not lost:
            return
        source, base, snapshot_id = lost[pick % len(lost)], self.state.table.current_snapshot_id, self.next_number()
        count = str(len(self.history.rows[source]))
        updates = replacing(self.state, snapshot_id, "append", added_records=count, source_snapshot_id=str(source))
        if not self.foreign(*updates):
            return  # refused: the topic was rewound to before that round
        self.picked.add(snapshot_id)
        self.history.parents[snapshot_id], self.history.rows[snapshot_id] = base, self.history.rows[source]

    # --- operators ---

    def agreed(self, number: int) -> frozenset[Consent]:
        """Behind a cherry-pick rows may really come twice: this operator does not agree to that."""
        return CONSENTS[number % 4] - ({Consent.DUPLICATES} if self.picked else set())

    def operate(self, consents: Collection[Consent], decide: Callable[[], Rebinding]) -> None:
        """An operation loses messages only with the operator's consent."""
        before = self.owed()
        try:
            done = decide()
        except (errors.TopicTableConflict, errors.AlreadyExists):
            return
        self.state = settled(done.decision)
        self.done.append(done.preview.operation)
        assert done.preview.needed <= set(consents), "done without being asked"
        if Consent.GAP not in consents:
            assert not any(fate.missing for fate in done.preview.shards)
            assert before <= self.owed(), "messages were lost without consent"

    def detach(self, _: int, __: int) -> None:
        if self.state is not None and self.binding is not None:
            self.former = FormerTable(self.binding.committed(), 0)
            self.state = settled(bind.detach(self.state, NOW))

    def drop(self, sure: int, _: int) -> None:
        if sure % 4 == 0:
            self.detach(0, 0)
            self.state = None

    def adopt(self, agreed: int, by_hand: int) -> None:
        """Positions that the operator gives are the true ones."""
        state, consents = self.state, self.agreed(agreed)
        if state is None:
            return
        ends = {shard: 1 + max((at for on, at in self.rows() if on == shard), default=-1) for shard in range(SHARDS)}
        positions = None if by_hand % 3 else ends
        self.operate(consents, lambda: adopt.adopt(state, self.log, self.former, consents, NOW, positions))

    def rewind(self, agreed: int, pick: int) -> None:
        state, consents = self.state, self.agreed(agreed)
        if state is None:
            return
        snapshots = self.snapshots()
        target = snapshots[pick // 2 % len(snapshots)] if pick % 2 and snapshots else None
        self.operate(consents, lambda: rewind.rewind(state, self.log, consents, NOW, target))

    def begin(self, agreed: int, sure: int) -> None:
        """Starts with another table without rows; the old table is not touched."""
        if self.state is None or self.binding is not None or sure % 4:
            return
        empty, consents = TableState(table(schema=ENVELOPE), FILE), CONSENTS[agreed % 4]
        old, self.state = self.state, empty
        self.operate(consents, lambda: bind.begin(empty, self.log, self.former, consents, NOW))
        if self.binding is None:
            self.state = old

    def recreate(self, agreed: int, _: int) -> None:
        if self.state is None:
            consents, uuid = CONSENTS[agreed % 4], f"00000000-0000-4000-8000-{self.next_number():012d}"
            self.operate(consents, lambda: recreate.recreate(self.log, self.former, consents, LOCATION, uuid, NOW))

    # --- what must hold ---

    def check(self) -> None:
        content = self.rows()
        assert len(content) == len(set(content)), "an offset twice"
        if self.state is None or self.binding is None:
            return
        removed = {row for removal in self.state.removals for row in rows_of(removal)}
        for shard, committed in self.binding.committed().items():
            missing = {(shard, at) for at in range(committed)} - set(content) - removed
            assert not missing, f"gone and not told: {sorted(missing)}"
            assert all(at < committed for there, at in content if there == shard), "it would be written again"
            assert self.logs[shard].earliest <= committed, "neither in the table nor in the log"
        for removal in self.state.removals:
            assert not removal.is_exact or not rows_of(removal) & set(content), "told as gone, and there"


ACTS = {
    "publish": 1, "recycle": 2, "ingest": 5, "ingest_again": 2, "move_main": 3, "expire": 1, "rewrite": 2,
    "cherry_pick": 1, "detach": 1, "drop": 1, "adopt": 4, "rewind": 3, "begin": 1, "recreate": 2,
}  # fmt: skip


def check_seeds(first: int, count: int, steps: int) -> set[str]:
    """The operations that were done."""
    done: set[str] = set()
    for seed in range(first, first + count):
        chance, model, history = random.Random(seed), OperationsModel(), []
        for _ in range(steps):
            act = chance.choices([*ACTS], [*ACTS.values()])[0], chance.randrange(24), chance.randrange(24)
            history.append(act)
            try:
                model.act(*act)
            except AssertionError as error:
                error.add_note(f"seed {seed}: {history}")
                raise
        done |= {*model.done}
    return done


def test_no_operation_doubles_an_offset_or_loses_one_unsaid() -> None:
    assert check_seeds(0, 150, 60) == {"bind", "adopt", "rewind", "recreate"}


NUMBER = st.integers(0, 23)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([*ACTS]), NUMBER, NUMBER), max_size=40))
def test_no_short_list_of_operations_does_either(acts: list[tuple[str, int, int]]) -> None:
    """The same with short lists, so that a failure is shown in as few steps as possible."""
    model = OperationsModel()
    for act in acts:
        model.act(*act)
    assert model.done[0] == "recreate"


@pytest.mark.chaos
def test_no_operation_duplicates_or_silently_loses_an_offset_in_long_runs() -> None:
    assert len(check_seeds(10_000, 3_000, 100)) == 4
