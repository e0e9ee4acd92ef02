"""Plans a round: which topics are due, what each gives, which bytes each task reads. Pure, small enough to be searched.

A topic is due by rows, bytes or age. The age limit is stretched when many topics are active (hazard 24), the same for
all of them, and told. Those that have waited longest come first, so that a budget that is too small makes topics late,
never forgotten; the first one always gets its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from icestream import limits
from icestream.model.backlog_messages import Backlog, TopicBacklog
from icestream.pipeline.round_plan import Due, LeftOut, LogSource, RoundBudget, RoundPlan, TableTarget, TopicPlan
from icestream.pipeline.task_split import split
from icestream.pipeline.topic_share import Piece, Share, by_shard, in_order, shard_plans, share_of

Positions = Mapping[int, Mapping[int, int]]


class _Waiting(NamedTuple):
    topic: TopicBacklog
    share: Share
    waited_us: int

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.share.pieces)

    @property
    def rows(self) -> int:
        return sum(piece.wanted.end - piece.wanted.start for piece in self.share.pieces)


def plan_round(
    backlog: Backlog, positions: Positions, targets: Mapping[int, TableTarget], budget: RoundBudget, now_us: int
) -> RoundPlan:
    """`positions`: per topic and shard the next offset by the catalog; a topic without one, or without a target, waits.
    `now_us`: the wall clock, in microseconds."""
    files = in_order(backlog.files)
    held = by_shard(files)
    waiting: list[_Waiting] = []
    left_out: list[LeftOut] = []
    for topic in backlog.topics:
        if topic.topic_id not in targets or topic.topic_id not in positions:
            continue
        share = share_of(topic, positions[topic.topic_id], held)
        if share.pieces:
            waiting.append(_Waiting(topic, share, max(0, now_us - topic.oldest_us)))
        if share.fault:
            left_out.append(LeftOut(topic.topic_id, topic.name, share.fault))
    limit_us = age_limit_us(budget, len(waiting))
    due = _due(waiting, budget, limit_us)
    chosen = _within(due, targets, budget)
    late = {one.topic.topic_id for one, why in due if why is not Due.COMPANY}
    topics = [_topic_plan(one, why, taken, positions) for one, why, taken in chosen]
    parts = split(files, [piece for _, _, taken in chosen for piece in taken], topics, budget.tasks_max)
    return RoundPlan(
        LogSource(backlog.log_id, backlog.directory, backlog.address, backlog.token),
        parts.topics,
        {one.topic_id: targets[one.topic_id] for one in topics},
        parts.ranges,
        parts.bundles,
        parts.writers,
        limit_us // 1000,
        _next_due_us(waiting, late, chosen, limit_us, now_us, is_cut=backlog.is_cut),
        left_out,
    )


def age_limit_us(budget: RoundBudget, active_topics: int) -> int:
    """How long a message may wait when so many topics have some (hazard 24)."""
    fresh = limits.ROUND_FRESH_TOPICS
    return budget.age_due_ms * 1000 * max(active_topics, fresh) // fresh


def _due(waiting: Sequence[_Waiting], budget: RoundBudget, limit_us: int) -> list[tuple[_Waiting, Due]]:
    """The longest waiting first. Without one that is due there is no company."""
    found = [(one, why) for one in waiting if (why := _reason(one, budget, limit_us)) is not None]
    if all(why is Due.COMPANY for _, why in found):
        return []
    return sorted(found, key=lambda one: (one[1] is Due.COMPANY, one[0].topic.oldest_us, one[0].topic.topic_id))


def _reason(one: _Waiting, budget: RoundBudget, limit_us: int) -> Due | None:
    if one.rows >= budget.rows_due:
        return Due.ROWS
    if one.bytes >= budget.bytes_due:
        return Due.BYTES
    if one.waited_us >= limit_us:
        return Due.AGE
    return Due.COMPANY if one.waited_us * 100 >= limit_us * limits.ROUND_COMPANY_PERCENT else None


_Chosen = tuple[_Waiting, Due, list[Piece]]


def _within(
    due: Sequence[tuple[_Waiting, Due]], targets: Mapping[int, TableTarget], budget: RoundBudget
) -> list[_Chosen]:
    """What the budget allows: whole topics while it lasts, the front of the one where it ends."""
    chosen: list[_Chosen] = []
    bytes_left, files_left = budget.bytes_max, budget.files_max
    for one, why in due[: budget.commits_max]:
        taken: list[Piece] = []
        for piece in one.share.pieces:
            if piece.bytes > bytes_left and (chosen or taken):
                break
            taken.append(piece)
            bytes_left -= piece.bytes
        files_left -= 1 + sum(piece.bytes for piece in taken) // targets[one.topic.topic_id].target_bytes
        if not taken or (files_left < 0 and chosen):
            break
        chosen.append((one, why, taken))
    return chosen


def _topic_plan(one: _Waiting, why: Due, taken: Sequence[Piece], positions: Positions) -> TopicPlan:
    topic = one.topic
    return TopicPlan(
        topic.topic_id,
        topic.name,
        topic.incarnation,
        why,
        one.waited_us // 1000,
        shard_plans(topic, positions[topic.topic_id], taken),
        sum(piece.bytes for piece in taken),
    )


def _next_due_us(
    waiting: Sequence[_Waiting],
    late: Collection[int],
    chosen: Sequence[_Chosen],
    limit_us: int,
    now_us: int,
    *,
    is_cut: bool,
) -> int | None:
    """At once, when something that is due does not fit this round."""
    whole = {one.topic.topic_id for one, _, taken in chosen if len(taken) == len(one.share.pieces)}
    times = [
        now_us if one.topic.topic_id in late else max(one.topic.oldest_us + limit_us, now_us)
        for one in waiting
        if one.topic.topic_id not in whole
    ]
    if chosen and is_cut:
        times.append(now_us)
    return min(times, default=None)
