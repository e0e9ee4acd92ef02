"""Row groups are left out by bounds only if none of their topics can match."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.mqtt.topics import matches
from icestream.readers.level_bounds import LevelBounds, known_levels
from icestream.readers.offset_windows import OffsetSpan, SpanIndex
from icestream.readers.topic_filters import TopicFilters, filters_of

LEVELS = st.sampled_from(["", "a", "b", "c", "$x", "$y", "1", "2"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=10).map("/".join).filter(bool)
FILTERS = st.one_of(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=10).map("/".join).filter(bool),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=9).map(lambda levels: "/".join([*levels, "#"])),
)


def bounds_of(topics: list[str]) -> tuple[LevelBounds, ...] | None:
    columns: list[LevelBounds | None] = []
    for number in range(limits.MQTT_LEVEL_COLUMNS):
        levels = [parts[number].encode() for topic in topics if len(parts := topic.split("/")) > number]
        has_nulls = len(levels) < len(topics)
        columns.append(LevelBounds(min(levels), max(levels), True, has_nulls) if levels else None)
    return known_levels(columns)


@given(st.lists(TOPICS, min_size=1, max_size=5), FILTERS)
def test_a_group_with_a_matching_topic_is_never_left_out(topics: list[str], topic_filter: str) -> None:
    filters = TopicFilters([topic_filter], "/default/orders")
    assert filters.may_match(bounds_of(topics)) or not any(matches(topic_filter, topic) for topic in topics)


@given(TOPICS, FILTERS)
def test_a_group_of_one_topic_is_left_out_exactly(topic: str, topic_filter: str) -> None:
    """As far as there are columns."""
    is_within = max(topic.count("/"), topic_filter.count("/")) < limits.MQTT_LEVEL_COLUMNS
    may_match = TopicFilters([topic_filter], "/t/t").may_match(bounds_of([topic]))
    assert may_match == matches(topic_filter, topic) or not is_within


@pytest.mark.parametrize(
    "levels",
    [[], [None], [LevelBounds(b"a", b"a", True, True)], [None, LevelBounds(b"a", b"a", True, False)]],
)
def test_nothing_is_known_without_level_1_in_every_row(levels: list[LevelBounds | None]) -> None:
    assert known_levels(levels) is None
    assert TopicFilters(["z"], "/t/t").may_match(None)


def test_unknown_bounds_of_a_level_are_read() -> None:
    levels = known_levels([LevelBounds(None, None, True, False), LevelBounds()])
    assert all(TopicFilters([text], "/t/t").may_match(levels) for text in ("a", "a/b", "a/+", "#"))


def test_rows_are_selected_by_their_topics() -> None:
    rows = pa.table({"key": pa.array([b"a/b", None, b"\xff", b"a/c"]), "offset": pa.array([1, 2, 3, 4])})
    assert TopicFilters(["a/c", "default/+"], "/default/orders").select(rows)["offset"].to_pylist() == [2, 3, 4]
    assert len(TopicFilters(["x"], "/t/t").select(rows.drop_columns(["key"]))) == 0


def test_too_many_filters_read_everything() -> None:
    assert filters_of([], "/t/t") is None
    assert filters_of(["a"] * limits.SCAN_FILTERS_MAX, "/t/t") is not None
    assert filters_of(["a"] * (limits.SCAN_FILTERS_MAX + 1), "/t/t") is None


# --- windows ----------------------------------------------------------------------------------------------------------


def spans(*bounds: tuple[int, int], size: int = 10) -> SpanIndex[int]:
    return SpanIndex(OffsetSpan(low, high, high - low + 1, size, number) for number, (low, high) in enumerate(bounds))


def test_overlapping_spans_that_fit_are_one_window() -> None:
    index = spans((0, 90), (3, 99), (5, 80), (100, 150))
    window = index.next_window(0, 1_000, joined_bytes=1_000)
    assert window is not None
    assert (window.start, window.stop, [span.source for span in window.spans]) == (0, 100, [0, 1, 2])
    apart = index.next_window(0, 1_000)
    assert apart is not None
    assert (apart.start, apart.stop) == (0, 3)
    small = index.next_window(0, 1_000, joined_bytes=25)
    assert small is not None
    assert (small.stop, len(small.spans)) == (5, 2)


def test_spans_that_are_not_wanted_are_passed_over() -> None:
    index = spans((0, 9), (10, 19), (20, 29))
    window = index.next_window(0, 1_000, is_wanted=lambda number: number != 0)
    assert window is not None
    assert (window.start, window.stop) == (10, 20)
    assert index.next_window(0, 1_000, is_wanted=lambda _: False) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=6), st.integers(0, 30), st.integers(0, 40))
def test_uncovered_offsets_are_in_no_span(bounds: list[tuple[int, int]], start: int, end: int) -> None:
    ranges = [(low, low + size) for low, size in bounds]
    uncovered = [at for low, high in spans(*ranges).uncovered(start, end) for at in range(low, high)]
    assert uncovered == [at for at in range(start, end) if not any(low <= at <= high for low, high in ranges)]
