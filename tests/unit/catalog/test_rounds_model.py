"""The rules of rounds against a model of everybody who commits: drivers with leases that end, posts that come late or
twice, owners that die, and engines that compact, roll back, delete and expire.

What must hold after every step: each committed offset of each shard is exactly one row of main, or lies in the gap of a
takeover, or in a removal that the catalog recorded; and whoever was told that a round is in the table finds it there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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

from icestream import errors
from icestream.catalog.topic.binding import with_takeover
from icestream.catalog.topic.commit import Outcome, Request, State, judge_commit
from icestream.catalog.topic.removal import Removal
from tests.support.effort import HALF
from tests.support.tables import NOW_MS, point
from tests.support.topic_tables import appending, bound, claim, replacing, settled

SHARDS = 2
DRIVERS = st.sampled_from([1, 1, 1, 2])  # the one that has the lease, or the one before
Row = tuple[int, int]  # shard, offset


@dataclass
class Post:
    """A round on its way to the catalog."""

    round_id: int
    lease: int
    ranges: tuple[tuple[int, int, int, int], ...]
    snapshot_id: int
    updates: list[dict[str, Any]]

    @property
    def rows(self) -> list[Row]:
        return [(shard, offset) for shard, _, start, end in self.ranges for offset in range(start, end)]


@dataclass
class Log:
    epoch: int = 0
    end: int = 0


@dataclass
class History:
    """What snapshots are made of, also of those that were expired."""

    parents: dict[int, int | None] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    deletes: dict[int, set[Row]] = field(default_factory=dict)

    def lineage(self, snapshot_id: int | None) -> list[int]:
        found = []
        while snapshot_id is not None:
            found.append(snapshot_id)
            snapshot_id = self.parents[snapshot_id]
        return found

    def content(self, snapshot_id: int | None) -> list[Row]:
        made: list[Row] = []
        for one in reversed(self.lineage(snapshot_id)):
            gone = self.deletes.get(one, set())
            made = [row for row in made if row not in gone] + self.rows.get(one, [])
        return made


class Rounds(RuleBasedStateMachine):
    accepted = repeats = 0  # over all runs of a test

    @initialize()
    def begin(self) -> None:
        self.state: State = bound(SHARDS)
        self.history = History()
        self.logs = {shard: Log() for shard in range(SHARDS)}
        self.gaps: set[Row] = set()
        self.leases = [1]
        self.posts: list[Post] = []
        self.told: list[tuple[Post, int]] = []
        self.numbers = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- owners ---

    @rule(shard=st.integers(0, SHARDS - 1), ahead=st.integers(0, 5))
    def take_over(self, shard: int, ahead: int) -> None:
        """The owner dies with what is not committed; the next one begins where it never was."""
        log = self.logs[shard]
        assert self.state.binding is not None
        log.epoch, log.end = log.epoch + 1, log.end + ahead
        binding, (start, end) = with_takeover(self.state.binding, shard, log.epoch, log.end)
        self.gaps |= {(shard, offset) for offset in range(start, end)}
        self.state = self.state._replace(binding=binding)

    # --- drivers ---

    @rule()
    def take_lease(self) -> None:
        """Another driver; the one before may still be at work."""
        self.leases.append(self.leases[-1] + 1)

    @rule(driver=DRIVERS, count=st.integers(1, 9), shards=st.integers(1, 2**SHARDS - 1))
    def publish_and_plan(self, driver: int, count: int, shards: int) -> None:
        """A round of everything that is in the logs of some shards."""
        assert self.state.binding is not None
        committed = self.state.binding.committed()
        ranges = []
        for shard, log in self.logs.items():
            if shards >> shard & 1:
                log.end += count
                ranges.append((shard, log.epoch, committed[shard], log.end))
        self.add_post(self.next_number(), self.leases[-driver:][0], tuple(ranges))

    def add_post(self, round_id: int, lease: int, ranges: tuple[tuple[int, int, int, int], ...]) -> Post:
        snapshot_id = 1_000 + self.next_number()
        post = Post(round_id, lease, ranges, snapshot_id, appending(self.state, snapshot_id))
        self.posts.append(post)
        return post

    @precondition(lambda self: self.posts)
    @rule(data=st.data(), driver=DRIVERS)
    def plan_more_under_the_same_id(self, data: st.DataObject, driver: int) -> None:
        """A driver that heard nothing and took in what came since."""
        post = self.some_post(data)
        ranges = [(shard, epoch, start, self.logs[shard].end) for shard, epoch, start, _ in post.ranges]
        self.add_post(post.round_id, self.leases[-driver:][0], tuple(ranges))

    def some_post(self, data: st.DataObject) -> Post:
        """Usually one of the last."""
        return data.draw(st.sampled_from(self.posts[-3:]) | st.sampled_from(self.posts))

    @precondition(lambda self: self.posts)
    @rule(data=st.data(), is_heard=st.booleans())
    def deliver_anew(self, data: st.DataObject, is_heard: bool) -> None:
        self.deliver(data, True, is_heard)

    @precondition(lambda self: self.posts)
    @rule(data=st.data(), is_anew=st.booleans(), is_heard=st.booleans())
    def deliver(self, data: st.DataObject, is_anew: bool, is_heard: bool) -> None:
        """Any post, any number of times: late, or made anew with other files on the present main. Its answer may be
        lost."""
        post = self.some_post(data)
        if is_anew:
            post = self.add_post(post.round_id, post.lease, post.ranges)
        requirement = claim(post.round_id, *post.ranges, lease=post.lease)
        try:
            done = judge_commit(self.state, Request([requirement], post.updates), self.leases[-1], NOW_MS + 10_000)
        except errors.InvalidInput:  # refused, or the same snapshot again
            return
        if done.repeated is None:
            assert post.lease == self.leases[-1], "a driver without the lease committed"
            assert all(epoch == self.logs[shard].epoch for shard, epoch, _, _ in post.ranges), "of a deposed owner"
            self.settle(done, post.snapshot_id, post.rows)
            Rounds.accepted += 1
        else:
            Rounds.repeats += 1
            assert sorted(self.history.rows[done.repeated]) == sorted(post.rows), "a repeat of something else"
        if is_heard:
            self.told.append((post, done.repeated or post.snapshot_id))

    def settle(self, done: Outcome, snapshot_id: int, rows: list[Row]) -> None:
        assert snapshot_id not in self.history.parents
        self.history.parents[snapshot_id] = self.state.table.current_snapshot_id
        self.history.rows[snapshot_id] = rows
        self.state = settled(done)

    # --- other engines ---

    def foreign(self, *updates: dict[str, Any]) -> Outcome:
        return judge_commit(self.state, Request((), updates), None, NOW_MS + 10_000)

    @rule(data=st.data(), what=st.sampled_from(["compact", "delete", "move", "expire"]), share=st.integers(0, 4))
    def other_engine(self, data: st.DataObject, what: str, share: int) -> None:
        snapshots = [one["snapshot-id"] for one in self.state.table.snapshots]
        if what in ("compact", "delete"):
            self.rewrite("replace" if what == "compact" else "delete", share)
        elif what == "move" and snapshots:
            self.state = settled(self.foreign(point("main", data.draw(st.sampled_from(snapshots)))))
        elif snapshots:
            snapshots.remove(self.state.table.current_snapshot_id)
            gone = snapshots[:share]
            self.state = settled(self.foreign({"action": "remove-snapshots", "snapshot-ids": gone}))

    def rewrite(self, operation: str, share: int) -> None:
        """A compaction keeps every row; a delete takes some of them."""
        snapshot_id = 1_000 + self.next_number()
        rows = self.history.content(self.state.table.current_snapshot_id)
        gone = set() if operation == "replace" else set(rows[share::5])
        counts = {} if operation == "replace" else {"deleted_records": str(len(gone))}
        done = self.foreign(*replacing(self.state, snapshot_id, operation, **counts))
        self.history.deletes[snapshot_id] = gone
        self.settle(done, snapshot_id, [])

    # --- what must hold ---

    @invariant()
    def every_offset_once(self) -> None:
        assert self.state.binding is not None
        content = self.history.content(self.state.table.current_snapshot_id)
        assert len(content) == len(set(content)), "an offset twice"
        rows = set(content)
        removed = {row for one in self.state.removals for row in self.rows_of(one)}
        for shard, committed in self.state.binding.committed().items():
            missing = {(shard, offset) for offset in range(committed)} - rows - self.gaps - removed
            assert not missing, f"acked and gone: {sorted(missing)}"
            assert all(offset < committed for at, offset in rows if at == shard)

    @invariant()
    def exact_removals_are_exact(self) -> None:
        rows = set(self.history.content(self.state.table.current_snapshot_id))
        for one in self.state.removals:
            assert not one.is_exact or not rows & self.rows_of(one), "told as gone, and there"

    @invariant()
    def whoever_was_told_finds_it(self) -> None:
        rows = set(self.history.content(self.state.table.current_snapshot_id))
        removed = {row for one in self.state.removals for row in self.rows_of(one)}
        for post, snapshot_id in self.told:
            assert set(post.rows) <= rows | removed
            assert sorted(self.history.rows[snapshot_id]) == sorted(post.rows)

    def rows_of(self, removal: Removal) -> set[Row]:
        return {(shard, offset) for shard, (start, end) in removal.ranges.items() for offset in range(start, end)}


def test_every_offset_is_in_the_table_exactly_once() -> None:
    Rounds.accepted = Rounds.repeats = 0
    run_state_machine_as_test(Rounds, settings=settings(HALF, stateful_step_count=40))
    assert Rounds.accepted > 50, "a run without rounds proves little"
    assert Rounds.repeats > 10
