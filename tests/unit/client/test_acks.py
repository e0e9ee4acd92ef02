"""The acks of a tick become as few ranges as possible, and say exactly what was acked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.client.acks import PendingAcks, merge_ranges

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=30)


@given(SPANS)
def test_ranges_are_ascending_and_disjoint_and_cover_the_acks(spans: list[tuple[int, int]]) -> None:
    book = PendingAcks()
    for start, rows in spans:
        book.ack(3, 1, start, start + rows)
    ranges = [pair for acks in book.take_acks() for pair in acks.ranges]
    assert {offset for low, high in ranges for offset in range(low, high)} == {
        offset for start, rows in spans for offset in range(start, start + rows)
    }
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert not book


def test_shards_generations_and_delays_are_kept_apart() -> None:
    book = PendingAcks()
    book.ack(0, 1, 5, 6)
    book.ack(0, 2, 6, 7)
    book.ack(1, 1, 7, 8)
    book.nack(0, 1, 100, 9, 10)
    book.nack(0, 1, 200, 10, 11)
    assert sorted(book.take_acks()) == [(0, 1, [(5, 6)]), (0, 2, [(6, 7)]), (1, 1, [(7, 8)])]
    assert sorted(book.take_nacks()) == [(0, 1, 100, [(9, 10)]), (0, 1, 200, [(10, 11)])]


def test_a_frame_never_gets_too_many_ranges() -> None:
    book = PendingAcks()
    for number in range(limits.ACK_RANGES_MAX + 10):
        book.ack(0, 0, 2 * number, 2 * number + 1)
    sizes = [len(acks.ranges) for acks in book.take_acks()]
    assert sizes == [limits.ACK_RANGES_MAX, 10]


def test_a_cumulative_ack_never_moves_back() -> None:
    book = PendingAcks()
    book.ack_through(0, 0, 9)
    book.ack_through(0, 0, 4)
    assert list(book.take_cumulative()) == [(0, 0, 9)]


def test_a_repeated_ack_is_sent_once() -> None:
    assert merge_ranges([4, 5, 1, 2, 4, 5, 2, 3]) == [(1, 3), (4, 5)]
