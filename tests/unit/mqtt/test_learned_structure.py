"""The learned structure of topics: literal before +, thresholds, the rest, and streams that never change."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.mqtt.learned_structure import LearnedStructure, TopicStream


def learned(topics: Iterable[str]) -> LearnedStructure:
    structure = LearnedStructure()
    for topic in topics:
        structure.learn(topic)
    return structure


def key(structure: LearnedStructure, topic: str) -> str | None:
    stream = structure.resolve(topic)
    return None if stream is None else stream.key


def test_topics_are_literal_until_the_threshold_of_their_level_is_reached() -> None:
    structure = learned(f"devices/{number}/heat" for number in range(11))
    assert structure.resolve("devices/9/heat") == TopicStream("devices/9/heat", ())
    assert structure.resolve("devices/10/heat") == TopicStream("devices/+/heat", ("10",))
    assert structure.resolve("devices/unseen/heat") == TopicStream("devices/+/heat", ("unseen",))


def test_the_first_level_has_a_threshold_of_its_own() -> None:
    structure = learned(f"{number}/a/b/c/d" for number in range(101))
    assert key(structure, "99/a/b/c/d") == "99/a/b/c/d"
    assert structure.resolve("100/a/b/c/d") == TopicStream("+/a/b/c/d", ("100",))


def test_varying_levels_are_those_that_a_plus_took() -> None:
    structure = learned(f"site/{number}/line/{line}/heat" for number in range(12) for line in range(12))
    assert structure.resolve("site/new/line/other/heat") == TopicStream("site/+/line/+/heat", ("new", "other"))


@pytest.mark.parametrize(("topics", "streams"), [(100_000, 11)])
def test_a_hundred_thousand_topics_are_few_streams(topics: int, streams: int) -> None:
    structure = learned(f"devices/{number}/temperature" for number in range(topics))
    keys = {key(structure, f"devices/{number}/temperature") for number in range(topics)}
    assert len(keys) == streams
    assert structure.node_count < 100


def test_a_topic_without_edges_has_no_stream_yet() -> None:
    structure = learned(["a/b"])
    assert structure.resolve("a/c") is None
    assert structure.resolve("other") is None


def test_the_end_of_a_topic_is_a_stream_of_its_own() -> None:
    structure = learned(["a/b/c"])
    assert [key(structure, topic) for topic in ("a", "a/b", "a/b/c")] == ["a", "a/b", "a/b/c"]


def test_dollar_topics_have_a_root_of_their_own() -> None:
    structure = learned([*(f"{number}/x" for number in range(100)), "$SYS/uptime"])
    assert key(structure, "unseen/x") is None, "the edge + of the root has no edge x yet"
    structure.learn("unseen/x")
    assert key(structure, "another/x") == "+/x"
    assert key(structure, "$SYS/uptime") == "$SYS/uptime"
    assert key(structure, "$other/uptime") is None
    for number in range(101):
        structure.learn(f"${number}/x")
    assert key(structure, "$unseen/x") == "$+/x"
    assert key(structure, "$" + "x" * 100) == "$#"


def test_empty_levels_are_levels() -> None:
    structure = learned(["/", "//", "/a"])
    assert [key(structure, topic) for topic in ("/", "//", "/a")] == ["/", "//", "/a"]


def test_levels_beyond_the_columns_are_the_rest() -> None:
    levels = [f"l{number}" for number in range(limits.MQTT_LEVEL_COLUMNS + 3)]
    structure = learned(["/".join(levels)])
    assert key(structure, "/".join(levels)) == "/".join([*levels[: limits.MQTT_LEVEL_COLUMNS], "#"])
    assert key(structure, "/".join([*levels[: limits.MQTT_LEVEL_COLUMNS], "other"])) == key(structure, "/".join(levels))


def test_a_long_level_is_the_rest_before_and_after_a_plus_was_learned() -> None:
    long = "a/" + "ä" * limits.STRUCTURE_TOKEN_BYTES_MAX
    structure = learned(["a/b", long])
    assert key(structure, long) == "a/#"
    for number in range(20):
        structure.learn(f"a/{number}")
    assert key(structure, long) == "a/#"


def test_a_full_structure_stays_full_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRUCTURE_NODES_MAX", 50)
    structure = learned(f"{number % 30}/{number % 7}/{number}" for number in range(500))
    assert structure.is_full
    assert structure.node_count <= 50
    assert not structure.learn("never/seen")
    assert key(structure, "never/seen") == "#"
    restored = LearnedStructure.decode(structure.encode())
    monkeypatch.setattr(limits, "STRUCTURE_NODES_MAX", 5_000)
    assert not restored.learn("never/seen")
    assert key(restored, "never/seen") == "#"


def test_the_largest_structure_fits_a_value_of_the_metadata_store() -> None:
    structure = learned(
        f"{first:02}{'x' * 40}/{second:02}{'y' * 40}/{third}"
        for first in range(99)
        for second in range(9)
        for third in "ab"
    )
    assert structure.is_full
    assert structure.size_bytes <= limits.STRUCTURE_BYTES_MAX
    assert len(structure.encode()) <= limits.METADATA_VALUE_BYTES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        LearnedStructure().encode()[:-1],
        b"\x95\x02\x00\xc2\x90\x90",  # another format
        b"\x95\x01\x00\xc2\x91\x05\x91\xa1a",  # a parent that comes later
        b"\x95\x01\x00\xc2\x92\x00\x00\x92\xa1a\xa1a",  # the same level twice
        b"\x95\x01\x00\xc2\x92\x00\x00\x92\xc0\xc0",  # two edges +
        b"\x95\x01\x00\xc2\x91\x00\x90",  # a parent without a level
        b"\x95\x01\x00\xc2\x91\x00\x91\xa3a/b",
    ],
)
def test_bytes_that_are_not_a_structure_are_refused(data: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        LearnedStructure.decode(data)


TOKENS = st.sampled_from(["", "a", "b", "$x", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "l" * 70])
TOPICS = st.lists(TOKENS, min_size=1, max_size=10).map("/".join).filter(bool)


@given(
    st.lists(TOPICS, max_size=80), st.lists(TOPICS, max_size=40), st.sampled_from([8, 20, limits.STRUCTURE_NODES_MAX])
)
def test_hazard_70_a_topic_never_changes_its_stream(topics: list[str], others: list[str], nodes_max: int) -> None:
    """Whatever is learned later, also behind a restart, and when the structure becomes full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STRUCTURE_NODES_MAX", nodes_max)
        patch.setattr(limits, "STRUCTURE_THRESHOLDS", (4, 2))
        structure = LearnedStructure()
        streams: dict[str, TopicStream] = {}
        for topic in [*topics, *others]:
            structure.learn(topic)
            structure = LearnedStructure.decode(structure.encode())
            for seen in [*topics, *others]:
                stream = structure.resolve(seen)
                assert streams.setdefault(seen, stream) == stream if stream is not None else seen not in streams
            assert structure.resolve(topic) is not None, "whatever was learned has a stream"
            assert structure.node_count <= nodes_max


@given(st.lists(TOPICS, max_size=60))
def test_a_stream_matches_its_topics(topics: list[str]) -> None:
    """The levels of a topic are its stream's, with the varying ones in place of +."""
    structure = learned(topics)
    for topic in topics:
        stream = structure.resolve(topic)
        assert stream is not None
        varying = iter(stream.varying)
        levels = topic.split("/")
        pattern = stream.key.split("/")
        assert len(pattern) == len(levels) or pattern[-1] in ("#", "$#")
        for level, part in zip(levels, pattern, strict=False):
            if part in ("#", "$#"):
                break
            assert level == (next(varying) if part in ("+", "$+") else part)
        assert next(varying, None) is None
