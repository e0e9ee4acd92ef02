"""Topics and filters: matching, covering and the index agree with a model that tries every topic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.mqtt import topics
from icestream.mqtt.topic_index import TopicIndex
from tests.support.mqtt_packets import TOPICS, topic_filters

EVERY_TOPIC = [
    "/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(["", "a", "b", "$x"], repeat=depth)
]


def brute_force(levels: list[str], parts: list[str]) -> bool:
    """The text of section 4.7, as a recursion over levels."""
    if levels == ["#"]:
        return True
    if not levels or not parts:
        return not levels and not parts
    return levels[0] in ("+", parts[0]) and (levels[1:] == ["#"] or brute_force(levels[1:], parts[1:]))


def model_matches(topic_filter: str, topic: str) -> bool:
    hidden = topic.startswith("$") and topic_filter[0] in "+#" if topic_filter else False
    return not hidden and brute_force(topic_filter.split("/"), topic.split("/"))


@given(topic_filters(), TOPICS)
def test_matching_agrees_with_the_model(topic_filter: str, topic: str) -> None:
    assert topics.matches(topic_filter, topic) == model_matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/#", "sport", True),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/uptime", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/$x/+", "a/$x/b", True),
    ],
)
def test_the_examples_of_the_specification(topic_filter: str, topic: str, expected: bool) -> None:
    index: TopicIndex[int, int] = TopicIndex()
    index.put(topic_filter, 1, 1)
    assert topics.matches(topic_filter, topic) is expected
    assert index.has_match(topic) is expected


@given(topic_filters(), topic_filters())
def test_a_covering_filter_matches_every_topic_of_the_covered_one(wide: str, narrow: str) -> None:
    if topics.covers(wide, narrow):
        assert all(topics.matches(wide, topic) for topic in EVERY_TOPIC if topics.matches(narrow, topic))
    assert topics.covers(wide, wide)


def test_a_wildcard_subscription_is_not_covered_by_the_grant_that_its_text_matches() -> None:
    """CVE-2026-49186: matching a filter as if it were a topic let `#` pass a grant for one level."""
    assert not topics.covers("tenant/+", "tenant/#")
    assert not topics.covers("+", "#")
    assert not topics.covers("#", "$SYS/#")
    assert topics.covers("tenant/#", "tenant/+/temperature")


@given(st.lists(st.tuples(topic_filters(), st.integers(0, 5), st.booleans()), max_size=40))
def test_the_index_agrees_with_matching_every_filter(changes: list[tuple[str, int, bool]]) -> None:
    index: TopicIndex[int, str] = TopicIndex()
    pairs: set[tuple[str, int]] = set()
    for topic_filter, subscriber, is_added in changes:
        if is_added:
            assert index.put(topic_filter, subscriber, topic_filter) == ((topic_filter, subscriber) not in pairs)
            pairs.add((topic_filter, subscriber))
        else:
            assert index.remove(topic_filter, subscriber) == ((topic_filter, subscriber) in pairs)
            pairs.discard((topic_filter, subscriber))
    assert len(index) == len(pairs)
    for topic in EVERY_TOPIC:
        if topic:
            expected = sorted((number, text) for text, number in pairs if model_matches(text, topic))
            assert sorted(index.match(topic)) == expected
    for topic_filter, subscriber in pairs:
        index.remove(topic_filter, subscriber)
    assert len(list(index.nodes())) == 1  # nothing is left of the trie


def test_a_full_index_refuses_new_pairs_and_takes_changes() -> None:
    index: TopicIndex[int, int] = TopicIndex(pairs_max=2)
    index.put("a", 1, 0)
    index.put("+", 1, 0)
    with pytest.raises(errors.PolicyReached):
        index.put("b/#", 1, 0)
    index.put("+", 1, 5)
    assert index.match("x") == [(1, 5)]
    assert len(list(index.nodes())) == 2  # the refused filter left no node


def test_shared_and_replay_filters_are_taken_apart() -> None:
    shared = topics.parse_filter("$share/group/a/#")
    assert (shared.is_shared, shared.share_group, shared.filter) == (True, "group", "a/#")
    replay = topics.parse_filter("$replay/-24h/+/b")
    assert (replay.is_replay, replay.replay_from, replay.filter) == (True, "-24h", "+/b")
    plain = topics.parse_filter("$share")
    assert (plain.is_shared, plain.filter) == (False, "$share")


@pytest.mark.parametrize("check", [topics.check_topic_name, topics.check_filter])
def test_topics_have_a_bound_of_levels(check: object) -> None:
    assert callable(check)
    check("/".join(["a"] * limits.MQTT_TOPIC_LEVELS_MAX))
    with pytest.raises(errors.PacketRefused):
        check("/".join(["a"] * (limits.MQTT_TOPIC_LEVELS_MAX + 1)))


def test_a_match_of_the_deepest_topic_visits_existing_nodes_only() -> None:
    """`+/+/+/…` beside literals doubles paths at every level, bounded by the nodes that exist."""
    index: TopicIndex[int, int] = TopicIndex()
    depth = limits.MQTT_TOPIC_LEVELS_MAX
    index.put("/".join(["+"] * depth), 1, 1)
    index.put("/".join(["a"] * (depth - 1) + ["+"]), 2, 2)
    assert sorted(index.match("/".join(["a"] * depth))) == [(1, 1), (2, 2)]
