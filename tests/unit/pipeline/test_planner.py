"""What a round takes, which task reads it, and that all planned rows are read: on logs in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.model.backlog_messages import Backlog
from icestream.pipeline import offset_gaps
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_judgement import judge_round
from icestream.pipeline.round_plan import Due, RoundBudget, RoundPlan
from tests.support.hypothesis_effort import HALF
from tests.support.offset_log import NOW_US, ROW_BYTES, OffsetLog, logs, target

AT_ONCE = RoundBudget(age_due_ms=0)


def positions_of(log: OffsetLog, floors: dict[tuple[int, int], int]) -> dict[int, dict[int, int]]:
    positions: dict[int, dict[int, int]] = {}
    for topic, shard in log.ends:
        positions.setdefault(topic, {})[shard] = floors.get((topic, shard), 0)
    return positions


def planned(
    log: OffsetLog,
    budget: RoundBudget = AT_ONCE,
    floors: dict[tuple[int, int], int] | None = None,
    oldest_us: dict[int, int] | None = None,
    marks_every: int = 1,
) -> RoundPlan:
    floors = floors or {}
    backlog = log.backlog(oldest_us or {}, floors, marks_every)
    positions = positions_of(log, floors)
    return plan_round(backlog, positions, {topic: target() for topic in positions}, budget, NOW_US)


def rows_left(log: OffsetLog, floors: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """The number of uncommitted rows of each shard that has any."""
    left_rows = {
        key: offset_gaps.rows_between(log.gaps.get(key, []), min(floors.get(key, 0), end), end)
        for key, end in log.ends.items()
    }
    return {key: rows for key, rows in left_rows.items() if rows}


@st.composite
def half_committed(draw: st.DrawFn) -> tuple[OffsetLog, dict[tuple[int, int], int]]:
    log = draw(logs())
    return log, {key: draw(st.integers(0, end)) for key, end in log.ends.items()}


@HALF
@given(half_committed(), st.integers(1, 4), st.integers(1, 5), st.integers(100, 3000))
def test_rounds_plan_every_row_once_for_any_budget(
    log_and_floors: tuple[OffsetLog, dict[tuple[int, int], int]], tasks: int, marks_every: int, task_bytes: int
) -> None:
    log, floors = log_and_floors
    budget = RoundBudget(age_due_ms=0, tasks_max=tasks, task_bytes_max=task_bytes, commits_max=2)
    rows = dict.fromkeys(log.ends, 0)
    expected = rows_left(log, floors)
    for _ in range(100):
        plan = planned(log, budget, floors, marks_every=marks_every)
        if not plan.topics:
            break
        for judged in judge_round(plan, log.written(plan)):
            assert judged.is_complete
            assert judged.claims
            assert not judged.left_over
            for claim in judged.claims:
                key = judged.topic.topic_id, claim.shard
                assert claim.start == floors[key]
                rows[key] += offset_gaps.rows_between(log.gaps.get(key, []), claim.start, claim.end)
                floors[key] = claim.end
    assert {key: count for key, count in rows.items() if count} == expected
    assert rows_left(log, floors) == {}


@HALF
@given(half_committed(), st.integers(1, 4), st.integers(1, 5))
def test_ranges_are_between_marks_and_disjoint(
    log_and_floors: tuple[OffsetLog, dict[tuple[int, int], int]], tasks: int, marks_every: int
) -> None:
    log, floors = log_and_floors
    plan = planned(log, RoundBudget(age_due_ms=0, tasks_max=tasks), floors, marks_every=marks_every)
    files = {file.number: file for file in log.backlog({}, floors, marks_every).files}
    ends: dict[int, int] = {}
    for number, planned_range in enumerate(plan.ranges):
        assert planned_range.number == number
        marks = dict(files[planned_range.file].marks)
        assert marks[planned_range.start] == planned_range.lsn
        assert planned_range.end in marks or planned_range.end == files[planned_range.file].end
        assert planned_range.start == ends.get(planned_range.file, planned_range.start)
        ends[planned_range.file] = planned_range.end
    assert all(files[number].end == end for number, end in ends.items())
    assert sorted({planned_range.bundle for planned_range in plan.ranges}) == list(range(plan.bundles))
    assert plan.bundles <= tasks
    assert [planned_range.bundle for planned_range in plan.ranges] == sorted(
        planned_range.bundle for planned_range in plan.ranges
    )
    assert plan.files == sorted(ends)


def even_log(records: int, topics: int, rows: int = 100, per_file: int = 1000) -> OffsetLog:
    log = OffsetLog()
    for number in range(records):
        log.append([(number % topics + 1, 0, rows)], new_file=number % per_file == 0)
    return log


def test_large_rounds_are_shared_out_evenly() -> None:
    log = even_log(records=600, topics=1, rows=1000)  # 60 MB
    plan = planned(log, RoundBudget(age_due_ms=0, tasks_max=4))
    sizes = [
        sum(planned_range.end - planned_range.start for planned_range in plan.ranges if planned_range.bundle == bundle)
        for bundle in range(4)
    ]
    assert plan.bundles == 4
    assert max(sizes) - min(sizes) <= 2 * 1000 * ROW_BYTES + 128


def test_a_small_round_is_one_task() -> None:
    plan = planned(even_log(records=10, topics=1), RoundBudget(age_due_ms=0, tasks_max=4))
    assert (plan.bundles, plan.writers) == (1, 0)


def test_small_topics_all_over_the_log_are_gathered_and_shared_out() -> None:
    plan = planned(even_log(records=800, topics=200), RoundBudget(age_due_ms=0, tasks_max=2))
    assert (plan.bundles, plan.writers) == (2, 2)
    writers = [topic.writer for topic in plan.topics]
    assert writers.count(0) == writers.count(1) == 100


def test_a_large_topic_is_written_where_it_is_read() -> None:
    plan = planned(even_log(records=400, topics=1, rows=1000), RoundBudget(age_due_ms=0, tasks_max=2))
    assert plan.bundles == 2
    assert [topic.writer for topic in plan.topics] == [None]


def test_reading_starts_at_the_mark_before_the_first_offset() -> None:
    log = even_log(records=100, topics=1)
    plan = planned(log, floors={(1, 0): 9_000})
    (planned_range,) = plan.ranges
    assert planned_range.start == log.files[0][90].position
    (planned_range,) = planned(log, floors={(1, 0): 9_000}, marks_every=7).ranges
    assert planned_range.start == log.files[0][84].position


def due(log: OffsetLog, budget: RoundBudget, oldest_us: dict[int, int]) -> dict[int, Due]:
    return {topic.topic_id: topic.due for topic in planned(log, budget, oldest_us=oldest_us).topics}


def test_a_topic_is_due_by_rows_bytes_or_age_and_nearly_due_ones_are_included() -> None:
    log = OffsetLog()
    log.append([(1, 0, 10), (2, 0, 9), (3, 0, 9), (4, 0, 9)], new_file=True)
    never = NOW_US
    aged = {1: never, 2: NOW_US - 5_000_000, 3: NOW_US - 4_000_000, 4: NOW_US - 3_000_000}
    assert due(log, RoundBudget(rows_due=10), dict.fromkeys(aged, never)) == {1: Due.ROWS}
    assert due(log, RoundBudget(bytes_due=1000), dict.fromkeys(aged, never)) == {1: Due.BYTES}
    assert due(log, RoundBudget(), aged) == {2: Due.AGE, 3: Due.COMPANY}
    assert due(log, RoundBudget(), aged | {2: never}) == {}


def test_the_plan_returns_the_time_of_the_next_check() -> None:
    log = OffsetLog()
    log.append([(1, 0, 10), (2, 0, 9)], new_file=True)
    oldest = {1: NOW_US - 1_000_000, 2: NOW_US - 2_000_000}
    assert planned(log, RoundBudget(), oldest_us=oldest).next_due_us == NOW_US + 3_000_000
    both = planned(log, RoundBudget(age_due_ms=0, commits_max=1), oldest_us=oldest)
    assert [topic.topic_id for topic in both.topics] == [2]
    assert both.next_due_us == NOW_US
    assert planned(log).next_due_us is None


def test_hazard_24_many_topics_wait_longer_as_planned() -> None:
    log = OffsetLog()
    log.append([(topic, 0, 1) for topic in range(200)], new_file=True)
    oldest = dict.fromkeys(range(200), NOW_US - 19_000_000) | {7: NOW_US - 20_000_000}
    plan = planned(log, RoundBudget(), oldest_us=oldest)
    assert plan.age_limit_ms == 20_000
    assert plan.topics[0].topic_id == 7
    assert {topic.due for topic in plan.topics[1:]} == {Due.COMPANY}


def test_the_longest_waiting_topic_is_first_and_always_included() -> None:
    log = even_log(records=30, topics=3, rows=1000)
    oldest = {1: NOW_US - 6_000_000, 2: NOW_US - 8_000_000, 3: NOW_US - 7_000_000}
    plan = planned(log, RoundBudget(tasks_max=1, task_bytes_max=1), oldest_us=oldest)
    assert [topic.topic_id for topic in plan.topics] == [2]
    plan = planned(log, RoundBudget(files_max=2), oldest_us=oldest)
    assert [topic.topic_id for topic in plan.topics] == [2, 3]


def test_a_large_backlog_takes_several_rounds() -> None:
    log = even_log(records=40, topics=1, rows=1000, per_file=10)
    plan = planned(log, RoundBudget(age_due_ms=0, tasks_max=1, task_bytes_max=2_500_000))
    assert plan.files == [1, 2]
    assert plan.topics[0].shards[0].end == 20_000
    assert plan.next_due_us == NOW_US


def test_a_commit_is_of_one_epoch() -> None:
    log = OffsetLog()
    log.append([(1, 0, 10)], new_file=True)
    log.epochs[1, 0] = 2
    log.append([(1, 0, 5)], new_file=False)
    (shard,) = planned(log).topics[0].shards
    assert (shard.epoch, shard.start, shard.end) == (1, 0, 10)
    (shard,) = planned(log, floors={(1, 0): 10}).topics[0].shards
    assert (shard.epoch, shard.start, shard.end) == (2, 10, 15)


def test_a_log_that_starts_after_the_table_is_excluded_and_named() -> None:
    log = even_log(records=4, topics=1, per_file=2)
    backlog = log.backlog({}, {})
    cut = Backlog("log", "/", "", "", backlog.topics, backlog.files[1:])
    plan = plan_round(cut, {1: {0: 100}}, {1: target()}, AT_ONCE, NOW_US)
    assert not plan.topics
    assert "ends at 100" in plan.left_out[0].reason
    plan = plan_round(cut, {1: {}}, {1: target()}, AT_ONCE, NOW_US)
    assert "no position of shard 0" in plan.left_out[0].reason


def test_topics_without_a_table_wait() -> None:
    backlog = even_log(records=4, topics=2).backlog({}, {})
    plan = plan_round(backlog, {1: {0: 0}, 2: {0: 0}}, {2: target()}, AT_ONCE, NOW_US)
    assert [topic.topic_id for topic in plan.topics] == [2]
    assert list(plan.targets) == [2]


def test_a_lease_is_kept_in_the_plan() -> None:
    leased = planned(even_log(records=4, topics=1)).leased("abc", "token", 7)
    assert (leased.source.lease, leased.source.token) == ("abc", "token")
    assert {target.epoch for target in leased.targets.values()} == {7}


def test_hazard_24_the_stretched_age_is_in_proportion() -> None:
    assert limits.ROUND_FRESH_TOPICS == 50
    assert planned(even_log(records=60, topics=60, rows=1), RoundBudget()).age_limit_ms == 6_000
