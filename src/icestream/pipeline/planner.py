"""Plans a round: which topics are due, which offsets each contributes, which bytes each task reads. Pure, and small
enough that tests search its inputs.

A topic is due by rows, bytes or age. The age limit is stretched when many topics are active (hazard 24), by the same
factor for all of them, and reported. Topics that waited longest come first, so that a budget that is too small delays
topics and never starves one; the first topic always gets its turn.
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


class _WaitingTopic(NamedTuple):
    """A topic with messages, and how long the oldest has waited."""

    topic: TopicBacklog
    share: Share
    waited_us: int

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.share.pieces)

    @property
    def rows(self) -> int:
        return sum(piece.offsets.end - piece.offsets.start for piece in self.share.pieces)


def plan_round(
    backlog: Backlog, positions: Positions, targets: Mapping[int, TableTarget], budget: RoundBudget, now_us: int
) -> RoundPlan:
    """`positions`: the next offset by the catalog, by topic id and shard; a topic without one, or without a target, is
    left for later. `now_us`: the wall clock."""
    files = in_order(backlog.files)
    stretches = by_shard(files)
    waiting: list[_WaitingTopic] = []
    left_out: list[LeftOut] = []
    for topic in backlog.topics:
        if topic.topic_id not in targets or topic.topic_id not in positions:
            continue
        share = share_of(topic, positions[topic.topic_id], stretches)
        if share.pieces:
            waiting.append(_WaitingTopic(topic, share, max(0, now_us - topic.oldest_us)))
        if share.fault:
            left_out.append(LeftOut(topic.topic_id, topic.name, share.fault))
    limit_us = age_limit_us(budget, len(waiting))
    due = _due(waiting, budget, limit_us)
    selected = _within_budget(due, targets, budget)
    due_ids = {entry.topic.topic_id for entry, reason in due if reason is not Due.COMPANY}
    topics = [_topic_plan(entry, reason, pieces, positions) for entry, reason, pieces in selected]
    task_split = split(files, [piece for _, _, pieces in selected for piece in pieces], topics, budget.tasks_max)
    return RoundPlan(
        LogSource(backlog.log_id, backlog.directory, backlog.address, backlog.certificate),
        task_split.topics,
        {topic.topic_id: targets[topic.topic_id] for topic in topics},
        task_split.ranges,
        task_split.bundles,
        task_split.writers,
        limit_us // 1000,
        _next_due_us(waiting, due_ids, selected, limit_us, now_us, is_cut=backlog.is_cut),
        left_out,
    )


def age_limit_us(budget: RoundBudget, active_topics: int) -> int:
    """How long a message may wait when so many topics have messages (hazard 24)."""
    fresh = limits.ROUND_FRESH_TOPICS
    # In proportion to the topics: each costs a commit, so a fixed age would make the commits of a round outlast the
    # age.
    return budget.age_due_ms * 1000 * max(active_topics, fresh) // fresh


def _due(waiting: Sequence[_WaitingTopic], budget: RoundBudget, limit_us: int) -> list[tuple[_WaitingTopic, Due]]:
    """Returns the topics of the round, those that waited longest first. Topics that are nearly due come along only if
    another one is due."""
    due = [(entry, reason) for entry in waiting if (reason := _due_reason(entry, budget, limit_us)) is not None]
    # Topics that are nearly due save a round of their own when they come along, but they do not start one.
    if all(reason is Due.COMPANY for _, reason in due):
        return []
    return sorted(due, key=lambda pair: (pair[1] is Due.COMPANY, pair[0].topic.oldest_us, pair[0].topic.topic_id))


def _due_reason(entry: _WaitingTopic, budget: RoundBudget, limit_us: int) -> Due | None:
    # Rows and bytes before age: they say that a file of the target size is ready, which is the reason to show.
    if entry.rows >= budget.rows_due:
        return Due.ROWS
    if entry.bytes >= budget.bytes_due:
        return Due.BYTES
    if entry.waited_us >= limit_us:
        return Due.AGE
    return Due.COMPANY if entry.waited_us * 100 >= limit_us * limits.ROUND_COMPANY_PERCENT else None


_Selected = tuple[_WaitingTopic, Due, list[Piece]]


def _within_budget(
    due: Sequence[tuple[_WaitingTopic, Due]], targets: Mapping[int, TableTarget], budget: RoundBudget
) -> list[_Selected]:
    """Returns what the budget allows: whole topics while it lasts, the first pieces of the topic where it ends."""
    selected: list[_Selected] = []
    bytes_left, files_left = budget.bytes_max, budget.files_max
    # Those that waited longest come first, so a topic that does not fit now is at the front of the next round.
    for entry, reason in due[: budget.commits_max]:
        pieces: list[Piece] = []
        for piece in entry.share.pieces:
            # The first piece of a round is taken however large it is: a topic whose pieces exceed the budget would
            # otherwise never be written.
            if piece.bytes > bytes_left and (selected or pieces):
                break
            pieces.append(piece)
            bytes_left -= piece.bytes
        # An estimate: each topic writes at least one file, and one more for each target size.
        files_left -= 1 + sum(piece.bytes for piece in pieces) // targets[entry.topic.topic_id].target_bytes
        # The order is kept: a later, smaller topic would fit, but taking it could keep a large one waiting for ever.
        if not pieces or (files_left < 0 and selected):
            break
        selected.append((entry, reason, pieces))
    return selected


def _topic_plan(entry: _WaitingTopic, reason: Due, pieces: Sequence[Piece], positions: Positions) -> TopicPlan:
    """Returns the plan of a topic for these of its pieces."""
    topic = entry.topic
    return TopicPlan(
        topic.topic_id,
        topic.name,
        topic.incarnation,
        reason,
        entry.waited_us // 1000,
        shard_plans(topic, positions[topic.topic_id], pieces),
        sum(piece.bytes for piece in pieces),
    )


def _next_due_us(
    waiting: Sequence[_WaitingTopic],
    due_ids: Collection[int],
    selected: Sequence[_Selected],
    limit_us: int,
    now_us: int,
    *,
    is_cut: bool,
) -> int | None:
    """Returns when the next topic is due: now, if something that is due does not fit this round."""
    complete_ids = {entry.topic.topic_id for entry, _, pieces in selected if len(pieces) == len(entry.share.pieces)}
    times = [
        now_us if entry.topic.topic_id in due_ids else max(entry.topic.oldest_us + limit_us, now_us)
        for entry in waiting
        if entry.topic.topic_id not in complete_ids
    ]
    # The backlog did not fit one answer of the broker: topics that are not in it may be due.
    if selected and is_cut:
        times.append(now_us)
    return min(times, default=None)
