"""Sizes, times and topics of what feeds have read: within their bounds, and right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.broker.mqtt.feed_marks import FeedMarks
from icestream.broker.mqtt.seen_topics import SeenTopics
from icestream.durable.session_records import RetainedValue
from icestream.model.shard import ShardKey

SHARD = ShardKey(7, 0)
SECOND = 1_000_000


def steady_marks(sections: int, marks_max: int) -> FeedMarks:
    """A section of 10 rows and 70,000 bytes each second, from offset 100 on."""
    marks = FeedMarks(marks_max)
    for number in range(sections):
        marks.add(100 + 10 * number, 10, 70_000, number * SECOND)
    return marks


def test_bytes_and_times_of_a_steady_shard_are_those_of_its_sections() -> None:
    marks = steady_marks(50, marks_max=64)
    assert len(marks) == 50
    assert [marks.size(100 + 10 * number, 600) for number in (0, 25, 49)] == [50 * 70_000, 25 * 70_000, 70_000]
    assert (marks.size(595, 600), marks.size(600, 600), marks.size(200, 300)) == (35_000, 0, 10 * 70_000)
    assert [marks.time_us(100 + 10 * number) for number in (0, 25, 49)] == [0, 25 * SECOND, 49 * SECOND]


@given(sections=st.integers(1, 2_000), marks_max=st.integers(2, 20), row=st.integers(0, 19_999))
def test_marks_stay_within_their_bound_and_a_steady_shard_exact(sections: int, marks_max: int, row: int) -> None:
    marks = steady_marks(sections, marks_max)
    assert len(marks) <= marks_max
    offset = 100 + row % (10 * sections)
    end = 100 + 10 * sections
    assert abs(marks.size(offset, end) - 7_000 * (end - offset)) <= 2
    time_us = marks.time_us(offset)
    assert time_us is not None
    assert abs(time_us - (offset - 100) * SECOND // 10) <= 2 * SECOND


@pytest.mark.parametrize(
    "sizes",
    [
        [1_000] * 400 + [400_000] * 400,
        [400_000] * 300 + [70_000] * 2_000,
        [70_000] * 200 + [400_000] * 200 + [1_000] * 2_000,
    ],
    ids=["growing", "shrinking", "peak"],
)
def test_the_error_is_a_fixed_part_of_what_the_marks_span(sizes: list[int]) -> None:
    marks = FeedMarks(marks_max=16)
    for number, size in enumerate(sizes):
        marks.add(number, 1, size, 0)
    errors = [abs(marks.size(offset, len(sizes)) - sum(sizes[offset:])) for offset in range(0, len(sizes), 10)]
    assert max(errors) < sum(sizes) / 6


def test_rows_outside_of_the_marks_have_the_mean_size_and_a_lower_bound_of_age() -> None:
    marks = steady_marks(10, marks_max=64)
    assert marks.size(0, 200) == 10 * 70_000 + 100 * 7_000
    assert marks.size(150, 1_000) == 850 * 7_000
    assert marks.time_us(0) == 0
    assert (FeedMarks().size(5, 10), FeedMarks().time_us(5)) == (0, None)


def test_a_jump_of_the_offsets_counts_as_rows_of_the_mean_size() -> None:
    marks = FeedMarks()
    marks.add(0, 10, 1_000, 0)
    marks.add(1_010, 10, 1_000, 100 * SECOND)
    assert marks.size(10, 1_020) == 100_000 + 1_000
    assert marks.size(0, 1_020) == 102_000
    assert marks.time_us(505) == 50 * SECOND


def test_a_section_that_overlaps_the_one_before_moves_no_mark() -> None:
    """The tiers divide the rows of a shard into other sections."""
    marks = FeedMarks()
    for base, rows in ((0, 10), (10, 100), (5, 200)):
        marks.add(base, rows, 1_000_000, 0)
    assert (marks.size(0, 10), marks.size(10, 110)) == (1_000_000, 1_000_000)


def test_a_section_that_is_read_again_changes_nothing() -> None:
    marks = steady_marks(5, marks_max=64)
    marks.add(100, 10, 70_000, 0)
    assert marks.size(100, 150) == 5 * 70_000


def test_seen_topics_count_messages_and_know_the_last() -> None:
    seen = SeenTopics()
    seen.add_stored(SHARD, 40, ["a", "b", "a"], 1)
    seen.add_stored(SHARD, 43, ["b"], 2)
    seen.add_live(SHARD, "c", 3)
    rows = [(entry.topic, entry.messages, entry.last_us, entry.offset, entry.number) for entry in seen]
    assert rows == [("a", 2, 1, 42, 1), ("b", 2, 2, 43, 2), ("c", 1, 3, None, 3)]


def test_a_topic_without_a_later_message_is_forgotten_first() -> None:
    seen = SeenTopics(topics_max=2)
    for time_us, topic in enumerate(["a", "b", "a", "c"]):
        seen.add_stored(SHARD, time_us, [topic], time_us)
    assert (sorted(entry.topic for entry in seen), seen.forgotten) == (["a", "c"], 1)
    assert seen.get("b") is None


def test_long_topics_take_the_room_of_many() -> None:
    seen = SeenTopics(topics_max=100, bytes_max=1_000)
    for number in range(10):
        seen.add_stored(SHARD, number, [str(number) * 300], number)
    assert ([entry.topic[0] for entry in seen], seen.forgotten) == (["7", "8", "9"], 7)


def test_topics_of_retained_messages_are_known_without_a_count() -> None:
    seen = SeenTopics()
    seen.add_retained([RetainedValue(0, 0, "a", *SHARD, 9, b"x", 1, append_time_us=5)])
    (entry,) = seen
    assert (entry.topic, entry.messages, entry.offset, entry.last_us) == ("a", 0, 9, 5)
