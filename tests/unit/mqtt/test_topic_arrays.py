"""Topics of many rows at once are those of each row by itself."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.mqtt.topic_arrays import level_counts, match_any, row_topics, topic_levels
from icestream.mqtt.topics import check_filter, check_topic_name, matches, row_topic

NATIVE = "mqtt/messages"
LEVELS = st.sampled_from(["", "a", "b", "$SYS", "$", "a.b", "(x", "ä", "new\nline", "\\d", "^", "[a]", "c$"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
KEYS = st.one_of(
    st.none(),
    st.binary(max_size=6),
    TOPICS.map(str.encode),
    st.sampled_from([
        b"mqtt/messages", b"", b"a\0b", b"a/+", b"#", b"\xff/a", b"\xed\xa0\x80", "/".join("x" * 128).encode(),
        "/".join("x" * 129).encode(), b"x" * limits.MQTT_TEXT_BYTES_MAX, b"x" * (limits.MQTT_TEXT_BYTES_MAX + 1),
    ]),
)  # fmt: skip


@given(st.lists(st.lists(KEYS, max_size=8), max_size=3))
def test_topics_of_columns_are_those_of_rows(chunks: list[list[bytes | None]]) -> None:
    keys = [key for chunk in chunks for key in chunk]
    column = pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in chunks], pa.binary())
    topics, codes = row_topics(column, len(keys), NATIVE)
    assert [topics[code].as_py() for code in codes.tolist()] == [row_topic(key, NATIVE) for key in keys]
    assert len(set(topics.to_pylist())) == len(topics), "each topic once"


def test_rows_without_keys_have_the_native_topic() -> None:
    topics, codes = row_topics(None, 3, NATIVE)
    assert (topics.to_pylist(), codes.tolist()) == ([NATIVE], [0, 0, 0])


@given(st.lists(TOPICS, max_size=8))
def test_levels_are_those_of_a_split(topics: list[str]) -> None:
    array = pa.array(topics, pa.utf8())
    levels = [level.to_pylist() for level in topic_levels(array, 3)]
    for number, topic in enumerate(topics):
        parts: list[str | None] = [*topic.split("/")]
        assert [level[number] for level in levels] == (parts + [None] * 3)[:3]
    assert level_counts(array).tolist() == [len(topic.split("/")) for topic in topics]


FILTERS = st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=5).map("/".join).filter(bool)


@given(st.lists(TOPICS, max_size=10), FILTERS, st.booleans())
def test_filters_match_columns_as_they_match_topics(topics: list[str], topic_filter: str, has_rest: bool) -> None:
    text = f"{topic_filter}/#" if has_rest else topic_filter
    check_filter(text)
    expected = [matches(text, topic) for topic in topics]
    assert match_any(pa.array(topics, pa.utf8()), [text]).tolist() == expected


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/#", "/#", "/+"])
def test_wildcards_alone_match_columns_as_they_match_topics(topic_filter: str) -> None:
    topics = ["a", "a/b", "/", "/a", "$SYS", "$SYS/x", "$", "a\nb", "a\nb/c"]
    expected = [matches(topic_filter, topic) for topic in topics]
    assert match_any(pa.array(topics), [topic_filter]).tolist() == expected


def test_one_of_several_filters_is_enough() -> None:
    assert match_any(pa.array(["a", "b", "c/d"]), ["a", "c/#"]).tolist() == [True, False, True]


def test_the_longest_names_are_names() -> None:
    check_topic_name("/".join("x" * 128))
    with pytest.raises(errors.PacketRefused):
        check_topic_name("/".join("x" * 129))
