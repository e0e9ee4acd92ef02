"""Hazard 24, on paper: ten thousand topics with a message a second each. Rounds stay small, no topic is forgotten, and
all wait about as long as the plan says."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import pytest

from icestream import limits
from icestream.model.backlog_messages import Backlog, BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.pipeline.planner import age_limit_us, plan_round
from icestream.pipeline.round_plan import Due, RoundBudget, RoundPlan
from tests.support.offset_log import target

TOPICS = 10_000
SECOND_US = 1_000_000
BEGIN_US = 1_000_000_000_000_000
ROW_BYTES = 100
FILE_US = 2_000  # what a round takes for each of its files (limits.ROUND_FILE_COST_BYTES)
TARGET = target()


class ManyTopics:
    """Topics with one message per second each; their starts are spread over the first second."""

    def __init__(self) -> None:
        self.now_us = BEGIN_US + SECOND_US
        self.committed = dict.fromkeys(range(TOPICS), 0)
        self.oldest_us = {topic: BEGIN_US + topic * SECOND_US // TOPICS for topic in range(TOPICS)}

    def end(self, topic: int) -> int:
        return 1 + (self.now_us - BEGIN_US - topic * SECOND_US // TOPICS) // SECOND_US

    def waiting(self) -> list[int]:
        return [topic for topic in self.committed if self.end(topic) > self.committed[topic]]

    def backlog(self, topics: Iterable[int]) -> Backlog:
        topic_backlogs, stretches = [], []
        for topic in topics:
            start, end = self.committed[topic], self.end(topic)
            size = (end - start) * ROW_BYTES
            shards = [ShardBacklog(0, 1, start, end)]
            topic_backlogs.append(
                TopicBacklog(topic, f"/t/{topic}", 1, shards, end - start, size, self.oldest_us[topic])
            )
            stretches.append(BacklogRange(topic, 0, 1, start, end, size))
        bytes_in_all = sum(stretch.bytes for stretch in stretches)
        marks = [(at, 1 + at) for at in range(0, bytes_in_all, limits.MARK_STRIDE_BYTES)]
        return Backlog(
            "log", "/nowhere", "", "", topic_backlogs, [BacklogFile(1, bytes_in_all, marks, stretches)], is_cut=True
        )

    def plan(self, topics: list[int], budget: RoundBudget) -> RoundPlan:
        positions = {topic: {0: self.committed[topic]} for topic in topics}
        return plan_round(self.backlog(topics), positions, dict.fromkeys(topics, TARGET), budget, self.now_us)

    def oldest(self) -> list[int]:
        """The topics in the order in which the broker reports them (wal/backlog_reader.py)."""
        return heapq.nsmallest(limits.BACKLOG_TOPICS_MAX, self.waiting(), key=self.oldest_us.__getitem__)

    def carry_out(self, plan: RoundPlan) -> None:
        for topic in plan.topics:
            (shard,) = topic.shards
            assert shard.start == self.committed[topic.topic_id]
            self.committed[topic.topic_id] = shard.end
            self.oldest_us[topic.topic_id] = self.now_us
        self.now_us += FILE_US * len(plan.topics)


@pytest.fixture(scope="module")
def all_at_once() -> RoundPlan:
    many = ManyTopics()
    many.now_us += age_limit_us(RoundBudget(), TOPICS)
    return many.plan(list(range(TOPICS)), RoundBudget())


def test_hazard_24_a_round_is_bounded_for_any_number_of_due_topics(all_at_once: RoundPlan) -> None:
    plan = all_at_once
    assert len(plan.topics) == limits.ROUND_COMMITS_MAX
    assert plan.targets.keys() == {topic.topic_id for topic in plan.topics}
    assert sum(len(planned_range.offsets) for planned_range in plan.ranges) <= plan.bundles * limits.ROUND_COMMITS_MAX
    assert plan.bundles <= RoundBudget().tasks_max
    assert limits.ROUND_COMMITS_MAX <= limits.BACKLOG_TOPICS_MAX, "what is told at once fills a round"


def test_hazard_24_files_and_their_writers_are_shared_out(all_at_once: RoundPlan) -> None:
    writers = Counter(topic.writer for topic in all_at_once.topics)
    assert len(writers) == RoundBudget().tasks_max
    assert max(writers.values()) - min(writers.values()) <= 1


def test_hazard_24_a_budget_that_is_too_small_starves_no_topic() -> None:
    """More messages come than a round takes, for ever: the topic that waited longest is first, so each has its turn."""
    many, budget = ManyTopics(), RoundBudget(age_due_ms=0, commits_max=500)
    seen: Counter[int] = Counter()
    for _ in range(2 * TOPICS // 500):
        plan = many.plan(many.oldest(), budget)
        assert len(plan.topics) == 500
        seen.update(topic.topic_id for topic in plan.topics)
        many.carry_out(plan)
    assert set(seen) == set(range(TOPICS))
    assert set(seen.values()) == {2}


def test_hazard_24_all_topics_wait_as_long_as_planned() -> None:
    """The age limit is that of as many topics as the broker tells at once, and it is kept but for the rounds before."""
    many, budget = ManyTopics(), RoundBudget()
    waited_ms: dict[int, list[int]] = {topic: [] for topic in range(TOPICS)}
    limit_ms, rounds = age_limit_us(budget, limits.BACKLOG_TOPICS_MAX) // 1000, 0
    while many.now_us < BEGIN_US + 4 * limit_ms * 1000:
        plan = many.plan(many.oldest(), budget)
        assert plan.age_limit_ms == limit_ms
        assert {topic.due for topic in plan.topics} <= {Due.AGE, Due.COMPANY}
        for topic in plan.topics:
            waited_ms[topic.topic_id].append(topic.waited_ms)
        rounds += bool(plan.topics)
        assert plan.next_due_us is not None
        many.now_us = max(many.now_us, plan.next_due_us if not plan.topics else 0)
        many.carry_out(plan)
    cycle_ms = TOPICS * FILE_US // 1000
    waits_ms = [waited for times in waited_ms.values() for waited in times]
    assert min(map(len, waited_ms.values())) >= 3
    assert max(map(len, waited_ms.values())) <= 4 * 100 // limits.ROUND_COMPANY_PERCENT + 1
    assert min(waits_ms) >= limit_ms * limits.ROUND_COMPANY_PERCENT // 100
    assert max(waits_ms) <= limit_ms + cycle_ms
    assert sum(map(len, waited_ms.values())) / rounds > 100, "many topics share a job"
