"""What of a round may be committed: per topic the longest part that continues its table without a hole. Pure.

Every task result is judged by itself; which task wrote it, and in which order, does not matter. A result is accepted if
all of its shards start where the table, or the results accepted before, end (declared gaps are stepped over), and its
files hold as many rows as its offsets. All shards of a result go together, because they share files (hazard 29).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult, WrittenFile
from icestream.pipeline import offset_gaps
from icestream.pipeline.round_plan import RoundPlan, ShardPlan, TopicPlan


class OffsetClaim(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one shard, which one commit adds to its table."""

    shard: int
    epoch: int
    start: int
    end: int


class TopicVerdict(msgspec.Struct, frozen=True):
    """What of a topic may be committed."""

    topic: TopicPlan
    claims: list[OffsetClaim]  # of the shards with accepted results
    files: list[WrittenFile]  # to be committed
    left_over: list[WrittenFile]  # written and not committed: for the clean-up (hazard 1)
    errors: list[TaskError]  # why not everything that was planned is committed
    is_cut: bool = False  # it had too many partition values: the rest follows with the next round

    @property
    def is_complete(self) -> bool:
        return not self.errors


def judge_round(plan: RoundPlan, results: Iterable[TopicTaskResult]) -> list[TopicVerdict]:
    """Returns a verdict for each topic of the plan, in its order."""
    results_by_topic: dict[int, list[TopicTaskResult]] = {topic.topic_id: [] for topic in plan.topics}
    for result in results:
        results_by_topic[result.topic_id].append(result)
    return [_judge_topic(topic, results_by_topic[topic.topic_id]) for topic in plan.topics]


def _judge_topic(topic: TopicPlan, results: Sequence[TopicTaskResult]) -> TopicVerdict:
    """Returns the verdict about one topic: the results that continue its table, and why the others do not."""
    shards = {shard.shard: shard for shard in topic.shards}
    errors = [result.error for result in results if result.error is not None]
    pending = []
    for result in results:
        fault = _fault(result, shards)
        if fault:
            errors.append(TaskError(TaskErrorKind.FAILED, f"range {result.range_number} of {topic.name}: {fault}"))
        elif result.covered:
            pending.append(result)
    ends = {shard.shard: shard.start for shard in topic.shards}
    accepted: list[TopicTaskResult] = []
    # Results come in any order, and each may be the continuation of another: take what continues the table until
    # nothing does. What is left starts behind a hole.
    while (following := next((result for result in pending if _continues(result, ends, shards)), None)) is not None:
        pending.remove(following)
        accepted.append(following)
        ends.update((covered.shard, covered.end) for covered in following.covered)
    claims = [claim for shard in topic.shards if (claim := _claim(shard, ends[shard.shard])) is not None]
    files = [file for result in accepted for file in result.files]
    locations = {file.location for file in files}
    left_over = [file for result in results for file in result.files if file.location not in locations]
    if any(result.is_cut for result in accepted):
        # What lies behind the cut was written by no task yet: it is planned again, and is no error.
        return TopicVerdict(topic, claims, files, left_over, [], is_cut=True)
    missing = _missing(topic, ends)
    # With an error of a task the reason is known already. Without one a result is missing: the plan is out of date.
    if missing and not errors:
        errors.append(TaskError(TaskErrorKind.STALE, f"not all offsets of {topic.name} were read: {missing}"))
    return TopicVerdict(topic, claims, files, left_over, errors)


def _fault(result: TopicTaskResult, shards: dict[int, ShardPlan]) -> str:
    """Returns what is wrong with a result by itself; empty if nothing is."""
    # A result is judged whole: its files hold rows of all its shards, and a file is committed with all of its rows or
    # not.
    numbers = [covered.shard for covered in result.covered]
    if len(set(numbers)) < len(numbers):
        return "a shard occurs twice"
    for covered in result.covered:
        shard = shards.get(covered.shard)
        if shard is None or not shard.start <= covered.start < covered.end <= shard.end:
            return f"offsets {covered.start} to {covered.end} of shard {covered.shard} were not planned"
    expected_rows = sum(
        offset_gaps.rows_between(shards[covered.shard].gaps, covered.start, covered.end) for covered in result.covered
    )
    file_rows = sum(file.rows for file in result.files)
    # The last guard before the commit: a task that lost or doubled a row would otherwise do so for good.
    if expected_rows != file_rows:
        return f"{expected_rows} offsets and {file_rows} rows"
    return ""


def _continues(result: TopicTaskResult, ends: dict[int, int], shards: dict[int, ShardPlan]) -> bool:
    return all(_follows(covered, ends[covered.shard], shards[covered.shard]) for covered in result.covered)


def _follows(covered: CoveredRange, end: int, shard: ShardPlan) -> bool:
    return covered.start == offset_gaps.past(shard.gaps, end)


def _end_past_gap(shard: ShardPlan, end: int) -> int:
    """Returns the end of a claim: a gap behind the last row is claimed with it, so that the next round starts behind
    it."""
    return max(end, min(offset_gaps.past(shard.gaps, end), shard.end))


def _claim(shard: ShardPlan, end: int) -> OffsetClaim | None:
    if end == shard.start:
        return None
    return OffsetClaim(shard.shard, shard.epoch, shard.start, _end_past_gap(shard, end))


def _missing(topic: TopicPlan, ends: dict[int, int]) -> str:
    return ", ".join(
        f"shard {shard.shard} ends at {ends[shard.shard]} instead of {shard.end}"
        for shard in topic.shards
        if _end_past_gap(shard, ends[shard.shard]) < shard.end
    )
