"""What of a round may be committed when some of it failed: the longest part without a hole (hazard 29)."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.round_judgement import OffsetClaim, TopicVerdict, judge_round
from icestream.pipeline.round_plan import Due, LogSource, RoundPlan, ShardPlan, TopicPlan
from tests.support.offset_log import written_file

BAD = TaskError(TaskErrorKind.DAMAGED, "a CRC does not fit")


def plan_of(*shards: ShardPlan) -> RoundPlan:
    topic = TopicPlan(1, "/t/one", 1, Due.AGE, 0, list(shards), 0)
    return RoundPlan(LogSource("", "", "", ""), [topic], {}, [], 1, 0, 5000, None)


def result(number: int, *covered: CoveredRange, rows: int | None = None) -> TopicTaskResult:
    count = sum(stretch.end - stretch.start for stretch in covered) if rows is None else rows
    return TopicTaskResult(1, number, list(covered), [written_file(1, f"file-{number}", count, list(covered))])


def failed(number: int) -> TopicTaskResult:
    return TopicTaskResult(1, number, [], [], BAD)


def judged(plan: RoundPlan, *written: TopicTaskResult) -> TopicVerdict:
    (judgement,) = judge_round(plan, written)
    return judgement


@given(st.sets(st.integers(0, 4)), st.permutations(range(5)))
def test_of_five_ranges_those_before_the_first_failure_are_committed(bad: set[int], order: list[int]) -> None:
    written = [
        failed(number) if number in bad else result(number, CoveredRange(0, 10 * number, 10 * number + 10))
        for number in order
    ]
    judgement = judged(plan_of(ShardPlan(0, 3, 0, 50)), *written)
    good = min(bad, default=5)
    assert judgement.claims == ([OffsetClaim(0, 3, 0, 10 * good)] if good else [])
    assert sorted(file.location for file in judgement.files) == [f"file-{number}" for number in range(good)]
    assert len(judgement.left_over) == 5 - len(bad) - good
    assert judgement.is_complete == (not bad)


def test_shards_of_one_result_are_committed_together_or_not_at_all() -> None:
    plan = plan_of(ShardPlan(0, 1, 0, 20), ShardPlan(1, 1, 0, 20))
    first = result(0, CoveredRange(0, 0, 10))
    second = result(1, CoveredRange(0, 10, 20), CoveredRange(1, 10, 20))
    judgement = judged(plan, first, second)
    assert judgement.claims == [OffsetClaim(0, 1, 0, 10)]
    assert [file.location for file in judgement.left_over] == ["file-1"]
    assert judgement.errors[0].trouble is TaskErrorKind.STALE
    assert "shard 1 ends at 0 instead of 20" in judgement.errors[0].message


def test_declared_gaps_are_skipped_and_one_at_the_end_is_committed_with_the_rows() -> None:
    plan = plan_of(ShardPlan(0, 1, 5, 33, [(5, 8), (20, 25), (30, 33)]))
    judgement = judged(plan, result(1, CoveredRange(0, 25, 30)), result(0, CoveredRange(0, 8, 20)))
    assert judgement.claims == [OffsetClaim(0, 1, 5, 33)]
    assert judgement.is_complete
    inside = judged(plan, result(0, CoveredRange(0, 8, 30), rows=17))
    assert inside.claims == [OffsetClaim(0, 1, 5, 33)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (result(0, CoveredRange(0, 0, 10), rows=9), "10 offsets and 9 rows"),
        (result(0, CoveredRange(0, 0, 11)), "not planned"),
        (result(0, CoveredRange(0, 4, 4)), "not planned"),
        (result(0, CoveredRange(9, 0, 10)), "not planned"),
        (result(0, CoveredRange(0, 0, 5), CoveredRange(0, 5, 10)), "twice"),
    ],
)
def test_an_impossible_result_is_never_committed(bad: TopicTaskResult, reason: str) -> None:
    judgement = judged(plan_of(ShardPlan(0, 1, 0, 10)), bad)
    assert not judgement.claims
    assert not judgement.files
    assert reason in judgement.errors[0].message
    assert judgement.errors[0].trouble is TaskErrorKind.FAILED
    assert len(judgement.left_over) == 1


def test_a_repeated_result_is_committed_once() -> None:
    first, again = result(0, CoveredRange(0, 0, 10)), result(1, CoveredRange(0, 0, 10))
    judgement = judged(plan_of(ShardPlan(0, 1, 0, 10)), first, again)
    assert [file.location for file in judgement.files] == ["file-0"]
    assert [file.location for file in judgement.left_over] == ["file-1"]


def test_a_result_with_an_error_and_rows_counts_with_its_rows() -> None:
    """A gathered topic tells the good front and what ended it."""
    part = msgspec.structs.replace(result(-1, CoveredRange(0, 0, 4)), error=BAD)
    judgement = judged(plan_of(ShardPlan(0, 1, 0, 10)), part)
    assert judgement.claims == [OffsetClaim(0, 1, 0, 4)]
    assert judgement.errors == [BAD]


def test_an_empty_result_is_an_error() -> None:
    judgement = judged(plan_of(ShardPlan(0, 1, 0, 10)))
    assert not judgement.claims
    assert judgement.errors[0].trouble is TaskErrorKind.STALE


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 6)), max_size=6))
def test_a_claim_never_has_a_hole_or_a_row_twice(spans: list[tuple[int, int, int]]) -> None:
    """Whatever tasks say: the files that are taken hold exactly the offsets that are claimed."""
    plan = plan_of(ShardPlan(0, 1, 0, 18), ShardPlan(1, 1, 0, 18))
    written = [
        result(number, CoveredRange(shard, start, start + size)) for number, (shard, start, size) in enumerate(spans)
    ]
    judgement = judged(plan, *written)
    row_offsets = sorted(
        itertools.chain.from_iterable(
            [(stretch.shard, offset) for offset in range(stretch.start, stretch.end)]
            for file in judgement.files
            for stretch in file.covered
        )
    )
    claimed = [(claim.shard, offset) for claim in judgement.claims for offset in range(claim.start, claim.end)]
    assert row_offsets == sorted(claimed)
    starts = {(shard, start) for shard, start, _ in spans}
    for shard in (0, 1):
        end = next((claim.end for claim in judgement.claims if claim.shard == shard), 0)
        assert (shard, end) not in starts  # nothing more could have been taken
