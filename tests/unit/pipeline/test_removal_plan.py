"""Which files a retention removes, and which offsets were committed when: pure rules (hazards 85, 86)."""

from __future__ import annotations

import random

import pytest

from icestream.catalog.topic_rules.rewritten_rows import Bounds, DataFile
from icestream.pipeline.retention.commit_times import DAY_MS, CommitPoint, RetentionIndex, interval_ms
from icestream.pipeline.retention.removal_plan import (
    RetentionLimits,
    RetentionPlan,
    RetentionState,
    StoredFile,
    plan_removal,
)

HOUR_MS = 3_600_000


def stored(
    low: int, end: int, shard: int | tuple[int, int] = 0, newest_us: int | None = 0, is_ours: bool = True
) -> StoredFile:
    """A file of the offsets [low, end), of one byte for each row."""
    shards = Bounds(shard, shard) if isinstance(shard, int) else Bounds(*shard)
    file = DataFile(f"{shards.low}-{low}-{end}", end - low, shards, Bounds(low, end - 1), low)
    return StoredFile(file, end - low, newest_us, is_ours)


def planned(kept: RetentionLimits, files: list[StoredFile], **state: object) -> RetentionPlan | None:
    committed: dict[int, int] = {}
    for entry in files:
        if entry.file.shards is None or entry.file.offsets is None:
            continue
        for shard in range(entry.file.shards.low, entry.file.shards.high + 1):
            committed[shard] = max(committed.get(shard, 0), entry.file.offsets.high + 1)
    values: dict[str, object] = {
        "files": files,
        "committed": committed,
        "first": {},
        "expired": {},
        "now_us": 0,
        "rows_by_age_max": 2**60,
    }
    return plan_removal(kept, RetentionState(**values | state))  # type: ignore[arg-type]


def names(plan: RetentionPlan | None) -> list[str]:
    return [] if plan is None else [entry.file.location for entry in plan.removed]


THREE = [stored(0, 10), stored(10, 20), stored(20, 30)]


@pytest.mark.parametrize("kept", [RetentionLimits(bytes_max=15), RetentionLimits(messages_max=15)])
def test_the_rest_is_at_least_what_is_kept(kept: RetentionLimits) -> None:
    plan = planned(kept, THREE)
    assert names(plan) == ["0-0-10"]
    assert plan is not None
    assert plan.first == {0: 10}
    assert planned(RetentionLimits(messages_max=21), THREE) is None


def test_a_topic_may_keep_nothing_but_its_last_file() -> None:
    plan = planned(RetentionLimits(messages_max=1), THREE)
    assert plan is not None
    assert (names(plan), plan.first) == (["0-0-10", "0-10-20"], {0: 20})


def test_age_asks_for_commit_time_and_append_time() -> None:
    kept = RetentionLimits(age_ms=1_000)
    old = {"now_us": 2_000_000}
    assert names(planned(kept, THREE, expired={0: 20}, **old)) == ["0-0-10", "0-10-20"]
    assert names(planned(kept, THREE, expired={0: 19}, **old)) == ["0-0-10"]
    assert planned(kept, THREE, expired={0: 30}, now_us=999_999) is None
    assert planned(kept, [stored(0, 10, newest_us=None)], expired={0: 30}, **old) is None


def test_a_day_removes_a_share_by_age_and_one_file_at_least() -> None:
    kept, old = RetentionLimits(age_ms=1), {"now_us": 2_000_000, "expired": {0: 30}}
    plan = planned(kept, THREE, rows_by_age_max=20, **old)
    assert names(plan) == ["0-0-10", "0-10-20"]
    assert plan is not None
    assert plan.is_held_back
    assert plan.rows_by_age == 20
    assert names(planned(kept, THREE, rows_by_age_max=3, **old)) == ["0-0-10"]
    assert planned(kept, THREE, rows_by_age_max=3, is_one_allowed=False, **old) is None


def test_a_file_that_cannot_go_keeps_what_is_above_it() -> None:
    blocked = [stored(0, 10, is_ours=False), *THREE[1:]]
    assert planned(RetentionLimits(messages_max=1), blocked) is None
    no_bounds = StoredFile(DataFile("x", 5, None, None, 0), 5, 0, True)
    assert planned(RetentionLimits(messages_max=1), [no_bounds, *THREE]) is None


def test_a_file_of_two_shards_goes_only_if_it_is_below_both() -> None:
    both = stored(0, 10, (0, 1))
    assert names(planned(RetentionLimits(messages_max=15), [both, stored(10, 20), stored(10, 20, 1)])) == ["0-0-10"]
    overlapping = stored(5, 20, 1)
    assert planned(RetentionLimits(messages_max=15), [both, stored(10, 20), overlapping]) is None


def test_rows_that_a_rollback_brought_back_go_again() -> None:
    plan = planned(RetentionLimits(messages_max=100), THREE, first={0: 10})
    assert (names(plan), plan and plan.first) == (["0-0-10"], {0: 10})


def test_no_row_above_the_first_kept_offset_is_ever_removed() -> None:
    """Random tables of disjoint and overlapping files: what goes is a prefix of each shard, and what stays is above."""
    seed = random.Random(86)
    for _ in range(500):
        files = []
        for shard in range(seed.choice([1, 2])):
            low = seed.randrange(3)
            for _ in range(seed.randrange(6)):
                end = low + seed.randrange(1, 9)
                files.append(stored(low, end, shard, seed.randrange(100), seed.random() < 0.9))
                low = end - seed.choice([0, 0, 0, 1])
        kept = RetentionLimits(seed.choice([0, 5]), seed.choice([0, 7]), seed.choice([0, 1]))
        expired = {0: seed.randrange(20), 1: seed.randrange(20)}
        first = {0: seed.randrange(6)}
        plan = planned(kept, files, expired=expired, first=first, now_us=seed.randrange(3_000), rows_by_age_max=20)
        if plan is None:
            continue
        after = {**first, **plan.first}
        assert all(offset >= first.get(shard, 0) for shard, offset in plan.first.items())
        for entry in files:
            assert entry.file.offsets is not None
            assert entry.file.shards is not None
            if entry in plan.removed:
                assert entry.is_removable
                assert entry.file.offsets.high < after[entry.file.shards.low]
            elif entry.file.shards.low in plan.first:
                rises = plan.first[entry.file.shards.low] > first.get(entry.file.shards.low, 0)
                assert not rises or entry.file.offsets.low >= plan.first[entry.file.shards.low]


# --- the index of commit times ----------------------------------------------------------------------------------------


def test_offsets_expire_by_the_time_at_which_they_were_noted() -> None:
    index = RetentionIndex()
    for hour in range(5):
        index = index.with_point({0: 100 * hour}, 3 * HOUR_MS, hour * HOUR_MS)
    assert index.expired(3 * HOUR_MS, 4 * HOUR_MS) == {0: 100}
    assert index.expired(3 * HOUR_MS, 7 * HOUR_MS) == {0: 400}
    assert index.expired(3 * HOUR_MS, 2 * HOUR_MS) == {}


def test_a_clock_that_was_ahead_keeps_rows_longer() -> None:
    index = RetentionIndex().with_point({0: 10}, HOUR_MS, 100 * DAY_MS).with_point({0: 20}, HOUR_MS, 5 * HOUR_MS)
    assert index.expired(HOUR_MS, 10 * HOUR_MS) == {}
    assert index.expired(HOUR_MS, 101 * DAY_MS) == {0: 20}


def test_a_rewound_table_commits_its_offsets_again_later() -> None:
    index = RetentionIndex().with_point({0: 50}, HOUR_MS, 0).with_point({0: 20}, HOUR_MS, 2 * HOUR_MS)
    assert index.points[0] == CommitPoint(0, {0: 20})
    assert index.expired(HOUR_MS, 2 * HOUR_MS) == {0: 20}


def test_the_index_is_bounded_and_an_idle_topic_needs_no_points() -> None:
    index, age_ms = RetentionIndex(), 10 * DAY_MS
    now_ms = 0
    for number in range(5_000):
        now_ms += 600_000
        if not index.is_noted({0: number}, age_ms, now_ms):
            index = index.with_point({0: number}, age_ms, now_ms)
    assert 30 < len(index.points) <= 64
    assert now_ms - index.points[0].time_ms < age_ms + 2 * interval_ms(age_ms, 1)
    assert index.is_noted(index.points[-1].ends, age_ms, now_ms + 100 * DAY_MS)
    assert interval_ms(age_ms, 256) == age_ms // 8


def test_a_day_may_remove_a_tenth_or_twice_what_a_day_brings() -> None:
    slow = RetentionIndex()
    assert slow.rows_allowed(1_000, 0) == 100
    assert slow.with_removal(60, 0).rows_allowed(1_000, HOUR_MS) == 40
    assert slow.with_removal(60, 0).rows_allowed(1_000, DAY_MS) == 100
    usual = slow.with_point({0: 0}, 9 * DAY_MS, 0).with_point({0: 4_000}, 9 * DAY_MS, 2 * DAY_MS)
    assert usual.rows_allowed(1_000, 2 * DAY_MS) == 4_000
    many = slow
    for hour in range(100):
        many = many.with_removal(1, hour * HOUR_MS)
    assert len(many.removals) == 24
