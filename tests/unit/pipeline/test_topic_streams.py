"""Streams of many topics at once are those of each by itself, and unlearned topics are ordered as learned ones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.topic_arrays import level_counts, topic_levels
from icestream.pipeline.rows.topic_streams import NO_STREAM, DistinctTopics, TopicOrder, order_of_topics, resolve_topics

TOKENS = st.sampled_from(["", "a", "b", "c", "$x", "1", "2", "3", "4", "5", "6", "l" * 70, "ä" * 33])
TOPICS = st.lists(TOKENS, min_size=1, max_size=10).map("/".join).filter(bool)


def distinct_of(topics: list[str]) -> DistinctTopics:
    array = pa.array(topics, pa.utf8())
    return DistinctTopics(array, topic_levels(array, limits.MQTT_LEVEL_COLUMNS), level_counts(array))


def ordered(structure: LearnedStructure, topics: list[str]) -> TopicOrder:
    distinct = distinct_of(topics)
    return order_of_topics(structure, distinct, resolve_topics(structure, distinct))


@given(st.lists(TOPICS, max_size=40), st.lists(TOPICS, max_size=20, unique=True), st.sampled_from([12, 4_096]))
def test_streams_of_columns_are_those_of_topics(learned: list[str], topics: list[str], nodes_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STRUCTURE_NODES_MAX", nodes_max)
        patch.setattr(limits, "STRUCTURE_THRESHOLDS", (4, 2))
        structure = LearnedStructure()
        for topic in learned:
            structure.learn(topic)
        keys, codes = resolve_topics(structure, distinct_of(topics))
        resolved = [structure.resolve(topic) for topic in topics]
    assert [None if code == NO_STREAM else keys[code] for code in codes.tolist()] == [
        None if stream is None else stream.key for stream in resolved
    ]
    assert len(set(keys)) == len(keys)


@given(st.lists(TOPICS, max_size=30), st.lists(TOPICS, max_size=30, unique=True))
def test_new_topics_learned_by_the_owner_give_every_topic_its_stream(learned: list[str], topics: list[str]) -> None:
    structure = LearnedStructure()
    for topic in learned:
        structure.learn(topic)
    before = structure.encode()
    order = ordered(structure, topics)
    assert structure.encode() == before, "the structure of a round does not change in its tasks"
    for topic in order.new_topics:
        assert structure.learn(topic)
    resolved = [structure.resolve(topic) for topic in topics]
    assert None not in resolved
    by_place = [
        topic for _, _, topic in sorted(zip(order.streams.tolist(), order.topics.tolist(), topics, strict=True))
    ]
    keys = {topic: stream.key for topic, stream in zip(topics, resolved, strict=True) if stream is not None}
    assert by_place == sorted(topics, key=lambda topic: (keys[topic], topic.encode()))


def test_a_task_learns_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEARNED_TOPICS_MAX", 3)
    order = ordered(LearnedStructure(), [f"t{number}" for number in range(50)])
    assert len(order.new_topics) == 3
    assert len(order.topics) == 50


def test_a_hundred_thousand_new_topics_need_few_reports() -> None:
    order = ordered(LearnedStructure(), [f"{number}/a/b/c/d" for number in range(100_000)])
    assert len(order.new_topics) == 101
    assert len(set(order.streams.tolist())) == 101
