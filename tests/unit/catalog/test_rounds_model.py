"""The rules of rounds against a model of every committer: drivers with leases that end, posts that come late or
twice, rewrites that are built again, owners that die, and engines that compact, roll back, delete and expire.

What must hold after every step: each committed offset of each shard is exactly one row of main, or lies in the gap of a
takeover, or in a removal that the catalog recorded; and a round that was reported as committed is in the table.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from icestream import errors
from icestream.catalog.topic_rules.binding import with_takeover
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from tests.support.table_history import Row, SnapshotHistory, rows_of
from tests.support.tables import NOW_MS, point
from tests.support.topic_tables import (
    appending,
    bound,
    claim,
    data_file,
    new_name,
    replacing,
    rewrite_claim,
    settled,
)

SHARDS = 2


@dataclass
class DelayedCommit:
    """A round on its way to the catalog."""

    round_id: int
    lease: int
    ranges: tuple[tuple[int, int, int, int], ...]
    snapshot_id: int
    updates: list[dict[str, Any]]
    files: FileChanges | None = None  # of a rewrite

    @property
    def requirement(self) -> dict[str, Any]:
        if self.files is not None:
            return rewrite_claim(self.round_id, self.files, lease=self.lease)
        return claim(self.round_id, *self.ranges, lease=self.lease)

    @property
    def rows(self) -> list[Row]:
        return [(shard, offset) for shard, _, start, end in self.ranges for offset in range(start, end)]


@dataclass
class RoundModelLog:
    epoch: int = 0
    end: int = 0


class RoundsModel:
    """All committers at once, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state: TableState = bound(SHARDS)
        self.history = SnapshotHistory()
        self.logs = {shard: RoundModelLog() for shard in range(SHARDS)}
        self.gaps: set[Row] = set()
        self.leases = [1]
        self.posts: list[DelayedCommit] = []
        self.answered: list[tuple[DelayedCommit, int]] = []
        self.numbers = self.accepted = self.repeats = self.rewrites = 0

    def step(self) -> None:
        acts: list[Callable[[], None]] = [self.publish_and_plan, self.deliver, self.other_engine, self.plan_rewrite]
        rare: list[Callable[[], None]] = [self.take_lease, self.take_over, self.plan_more_under_the_same_id]
        self.chance.choices([*acts, *rare], [4, 8, 3, 2, 1, 1, 1])[0]()
        self.check()

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- owners ---

    def take_over(self) -> None:
        """The owner dies with its uncommitted messages; the next owner starts above every assigned offset."""
        shard = self.chance.randrange(SHARDS)
        log = self.logs[shard]
        assert self.state.binding is not None
        log.epoch, log.end = log.epoch + 1, log.end + self.chance.randrange(5)
        binding, (start, end) = with_takeover(self.state.binding, shard, log.epoch, log.end)
        self.gaps |= {(shard, offset) for offset in range(start, end)}
        self.state = self.state._replace(binding=binding)

    # --- drivers ---

    def take_lease(self) -> None:
        """Another driver takes the lease; the previous one may still be running."""
        self.leases.append(self.leases[-1] + 1)

    def a_lease(self) -> int:
        return self.leases[-1] if self.chance.random() < 0.8 else self.chance.choice(self.leases)

    def publish_and_plan(self) -> None:
        """A round of everything that is in the logs of some shards."""
        assert self.state.binding is not None
        committed = self.state.binding.committed()
        ranges = []
        for shard in self.chance.sample(range(SHARDS), self.chance.randint(1, SHARDS)):
            log = self.logs[shard]
            log.end += self.chance.randint(1, 5)
            ranges.append((shard, log.epoch, committed[shard], log.end))
        self.add_post(self.next_number(), self.a_lease(), tuple(ranges))

    def add_post(self, round_id: int, lease: int, ranges: tuple[tuple[int, int, int, int], ...]) -> DelayedCommit:
        snapshot_id = 1_000 + self.next_number()
        post = DelayedCommit(round_id, lease, ranges, snapshot_id, appending(self.state, snapshot_id))
        self.posts.append(post)
        return post

    def plan_rewrite(self) -> None:
        """Files of the table are replaced by others with the same rows. Which files those are is not part of this
        model: manifests say that they are there (test_rewritten_rows.py has the rule about rows)."""
        if self.state.table.current_snapshot_id is None:
            return
        number, lease = self.next_number(), self.a_lease()
        added = data_file(new_name(number, lease), 0, 10)
        self.add_rewrite(number, lease, FileChanges([data_file(f"old{number}", 0, 10)], [added]))

    def add_rewrite(self, round_id: int, lease: int, files: FileChanges) -> DelayedCommit:
        snapshot_id = 1_000 + self.next_number()
        post = DelayedCommit(round_id, lease, (), snapshot_id, replacing(self.state, snapshot_id, "replace"), files)
        self.posts.append(post)
        return post

    def some_post(self) -> DelayedCommit | None:
        """Usually one of the last."""
        return self.chance.choice(self.posts[-3:] if self.chance.random() < 0.7 else self.posts) if self.posts else None

    def plan_more_under_the_same_id(self) -> None:
        """A driver that heard nothing and took in what came since."""
        post = self.some_post()
        if post is not None and post.files is None:
            ranges = [(shard, epoch, start, self.logs[shard].end) for shard, epoch, start, _ in post.ranges]
            self.add_post(post.round_id, self.a_lease(), tuple(ranges))

    def deliver(self) -> None:
        """Any post, any number of times: late, or made anew with other files on the present main. Its answer may be
        lost."""
        post = self.some_post()
        if post is None:
            return
        if self.chance.random() < 0.5:
            post = (
                self.add_post(post.round_id, post.lease, post.ranges)
                if post.files is None
                else self.add_rewrite(post.round_id, post.lease, post.files)
            )
        try:
            done = judge_commit(
                self.state,
                CommitRequest([post.requirement], post.updates, file_changes=post.files),
                self.leases[-1],
                NOW_MS + 10_000,
            )
        except errors.InvalidInput:  # refused, or the same snapshot again
            return
        if done.repeated is None:
            assert post.lease == self.leases[-1], "a driver without the lease committed"
            assert all(epoch == self.logs[shard].epoch for shard, epoch, _, _ in post.ranges), "of a deposed owner"
            self.settle(done, post.snapshot_id, post.rows)
            self.accepted += 1
            self.rewrites += post.files is not None
        else:
            self.repeats += 1
            assert sorted(self.history.rows[done.repeated]) == sorted(post.rows), "a repeat of something else"
        if self.chance.random() < 0.5:
            self.answered.append((post, done.repeated or post.snapshot_id))

    def settle(self, done: CommitDecision, snapshot_id: int, rows: list[Row]) -> None:
        assert snapshot_id not in self.history.parents
        self.history.parents[snapshot_id] = self.state.table.current_snapshot_id
        self.history.rows[snapshot_id] = rows
        self.state = settled(done)

    # --- other engines ---

    def foreign(self, *updates: dict[str, Any]) -> CommitDecision:
        return judge_commit(self.state, CommitRequest((), updates), None, NOW_MS + 10_000)

    def other_engine(self) -> None:
        snapshots = [snapshot["snapshot-id"] for snapshot in self.state.table.snapshots]
        what = self.chance.choice(["compact", "delete", "move", "move", "expire"])
        if what in ("compact", "delete"):
            self.rewrite("replace" if what == "compact" else "delete")
        elif what == "move" and snapshots:
            self.state = settled(self.foreign(point("main", self.chance.choice(snapshots))))
        elif snapshots:
            snapshots.remove(self.state.table.current_snapshot_id)
            gone = self.chance.sample(snapshots, min(len(snapshots), 2))
            self.state = settled(self.foreign({"action": "remove-snapshots", "snapshot-ids": gone}))

    def rewrite(self, operation: str) -> None:
        """A compaction keeps every row; a delete takes some of them."""
        snapshot_id = 1_000 + self.next_number()
        rows = self.history.content(self.state.table.current_snapshot_id)
        gone = set() if operation == "replace" else set(rows[self.chance.randrange(5) :: 5])
        counts = {} if operation == "replace" else {"deleted_records": str(len(gone))}
        done = self.foreign(*replacing(self.state, snapshot_id, operation, **counts))
        self.history.deletes[snapshot_id] = gone
        self.settle(done, snapshot_id, [])

    # --- what must hold ---

    def check(self) -> None:
        assert self.state.binding is not None
        content = self.history.content(self.state.table.current_snapshot_id)
        rows = set(content)
        assert len(content) == len(rows), "an offset twice"
        removed = {row for removal in self.state.removals for row in rows_of(removal)}
        for shard, committed in self.state.binding.committed().items():
            missing = {(shard, offset) for offset in range(committed)} - rows - self.gaps - removed
            assert not missing, f"acked and gone: {sorted(missing)}"
            assert all(offset < committed for at, offset in rows if at == shard)
        for removal in self.state.removals:
            assert not removal.is_exact or not rows & rows_of(removal), "told as gone, and there"
        for post, snapshot_id in self.answered:
            assert set(post.rows) <= rows | removed, "told as committed, and gone"
            assert sorted(self.history.rows[snapshot_id]) == sorted(post.rows)


def check_seeds(first: int, count: int, steps: int) -> tuple[int, int, int]:
    """Rounds and rewrites that were taken, how many of them were rewrites, and repeats that were recognised."""
    accepted = rewrites = repeats = 0
    for seed in range(first, first + count):
        model = RoundsModel(seed)
        for number in range(steps):
            try:
                model.step()
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {number}")
                raise
        accepted, rewrites = accepted + model.accepted, rewrites + model.rewrites
        repeats += model.repeats
    return accepted, rewrites, repeats


def test_every_offset_is_in_the_table_exactly_once() -> None:
    accepted, rewrites, repeats = check_seeds(0, 80, 80)
    assert (accepted - rewrites > 200, rewrites > 50, repeats > 20) == (True,) * 3, "a run without rounds proves little"


@pytest.mark.chaos
def test_every_offset_is_in_the_table_exactly_once_in_long_runs() -> None:
    accepted, _, _ = check_seeds(1_000, 2_000, 120)
    assert accepted > 10_000
