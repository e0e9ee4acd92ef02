"""What of a round may be committed: per topic the longest part that goes on where its table ends, without a hole.

Every result is looked at as it is; which task wrote it, and in which order, does not matter. One is taken when all of
its shards begin where the table, or what was taken before, ends (declared gaps stepped over), and its files hold
as many rows as its offsets. All shards of a result go together, because they share files (hazard 29).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult, WrittenFile
from icestream.pipeline import offset_gaps
from icestream.pipeline.round_plan import RoundPlan, ShardPlan, TopicPlan


class OffsetClaim(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one shard, which one commit adds to its run."""

    shard: int
    epoch: int
    start: int
    end: int


class TopicVerdict(msgspec.Struct, frozen=True):
    topic: TopicPlan
    claims: list[OffsetClaim]  # of the shards that go on
    files: list[WrittenFile]  # what is to be committed
    left_over: list[WrittenFile]  # what was written and is not: for the clean-up (hazard 1)
    errors: list[TaskError]  # why it is not everything that was planned
    is_cut: bool = False  # it had too many partition values: the rest comes with another round

    @property
    def is_whole(self) -> bool:
        return not self.errors


def judge_round(plan: RoundPlan, written: Iterable[TopicTaskResult]) -> list[TopicVerdict]:
    """One for each topic of the plan, in its order."""
    found: dict[int, list[TopicTaskResult]] = {topic.topic_id: [] for topic in plan.topics}
    for one in written:
        found[one.topic_id].append(one)
    return [_judge_topic(topic, found[topic.topic_id]) for topic in plan.topics]


def _judge_topic(topic: TopicPlan, written: Sequence[TopicTaskResult]) -> TopicVerdict:
    shards = {shard.shard: shard for shard in topic.shards}
    errors = [one.error for one in written if one.error is not None]
    waiting = []
    for one in written:
        fault = _fault(one, shards)
        if fault:
            errors.append(TaskError(TaskErrorKind.FAILED, f"range {one.range_number} of {topic.name}: {fault}"))
        elif one.covered:
            waiting.append(one)
    ends = {shard.shard: shard.start for shard in topic.shards}
    taken: list[TopicTaskResult] = []
    while (fitting := next((one for one in waiting if _goes_on(one, ends, shards)), None)) is not None:
        waiting.remove(fitting)
        taken.append(fitting)
        ends.update((one.shard, one.end) for one in fitting.covered)
    claims = [claim for shard in topic.shards if (claim := _claim(shard, ends[shard.shard])) is not None]
    used = [file for one in taken for file in one.files]
    names = {file.location for file in used}
    left_over = [file for one in written for file in one.files if file.location not in names]
    if any(one.is_cut for one in taken):  # whatever lies behind is not reached yet, and comes again
        return TopicVerdict(topic, claims, used, left_over, [], is_cut=True)
    missing = _missing(topic, ends)
    if missing and not errors:
        errors.append(TaskError(TaskErrorKind.STALE, f"not all of {topic.name} was found: {missing}"))
    return TopicVerdict(topic, claims, used, left_over, errors)


def _fault(one: TopicTaskResult, shards: dict[int, ShardPlan]) -> str:
    """What is wrong with a result by itself."""
    numbers = [covered.shard for covered in one.covered]
    if len(set(numbers)) < len(numbers):
        return "a shard is there twice"
    for covered in one.covered:
        shard = shards.get(covered.shard)
        if shard is None or not shard.start <= covered.start < covered.end <= shard.end:
            return f"offsets {covered.start} to {covered.end} of shard {covered.shard} were not asked for"
    rows = sum(offset_gaps.rows_between(shards[one.shard].gaps, one.start, one.end) for one in one.covered)
    if rows != (held := sum(file.rows for file in one.files)):
        return f"{rows} offsets and {held} rows"
    return ""


def _goes_on(one: TopicTaskResult, ends: dict[int, int], shards: dict[int, ShardPlan]) -> bool:
    return all(_follows(covered, ends[covered.shard], shards[covered.shard]) for covered in one.covered)


def _follows(covered: CoveredRange, end: int, shard: ShardPlan) -> bool:
    return covered.start == offset_gaps.past(shard.gaps, end)


def _end(shard: ShardPlan, end: int) -> int:
    """A gap behind the last row goes with it, so that the next round begins behind it."""
    return max(end, min(offset_gaps.past(shard.gaps, end), shard.end))


def _claim(shard: ShardPlan, end: int) -> OffsetClaim | None:
    return None if end == shard.start else OffsetClaim(shard.shard, shard.epoch, shard.start, _end(shard, end))


def _missing(topic: TopicPlan, ends: dict[int, int]) -> str:
    return ", ".join(
        f"shard {shard.shard} ends at {ends[shard.shard]} instead of {shard.end}"
        for shard in topic.shards
        if _end(shard, ends[shard.shard]) < shard.end
    )
