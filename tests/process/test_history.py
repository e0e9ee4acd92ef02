"""The checker itself: each broken promise is seen, and an honest history is not called broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.batches import BatchNumbers, payloads
from tests.support.history import HistoryViolation, LogHistory

SEED = 3
KEY = [1, 0]


def rows(writer: str, number: int) -> int:
    return len(payloads(SEED, writer, number))


def start(next_offset: int, *stored: tuple[str, int, int], gaps: tuple[tuple[int, int], ...] = ()) -> list[list[Any]]:
    """The report of a process at its start: batches as (writer, number, base)."""
    read = [["read", KEY, base, writer, number] for writer, number, base in stored]
    return [["opening"], ["shard", KEY, 0, next_offset, [list(gap) for gap in gaps]], *read, ["ready"]]


def sent(writer: str, number: int, base: int | None = None) -> list[list[Any]]:
    """A batch that was sent, and acked when it has a base."""
    intent = [["send", writer, number, KEY]]
    return intent if base is None else [*intent, ["ack", writer, number, KEY, base]]


def history_of(*parts: list[list[Any]]) -> LogHistory:
    history = LogHistory(SEED)
    for part in parts:
        for line in part:
            history.hear(line)
    return history


A = rows("u1", 0)
B = rows("u1", 1)
N = rows("n1", 0)
TWO_ACKED = [*start(0), *sent("u1", 0, 0), *sent("u1", 1, A)]


def test_an_honest_history_is_accepted() -> None:
    end = A + B
    gap = (end, end + 100)
    again = start(end + 100, ("u1", 0, 0), ("u1", 1, A), gaps=(gap,))
    history = history_of(TWO_ACKED, again, sent("n1", 0, end + 100), [["floor", KEY, A]])
    later = start(end + 100 + N, ("u1", 1, A), ("n1", 0, end + 100), gaps=(gap,))
    for line in later:
        history.hear(line)
    history.check_order()
    history.check_whole("n1")
    assert history.acks == 3


@pytest.mark.parametrize(
    ("promise", "lines"),
    [
        ("H1 seen before, gone now", [*TWO_ACKED, *start(A + B, ("u1", 0, 0))]),
        ("H1 .*never seen", [*start(0), *sent("n1", 0), ["ack", "n1", 0, KEY, None]]),
        ("H1 acked, but the producer's window", [*start(0), *sent("n1", 0, 0), ["known", "n1", 0]]),
        ("H1 the producer's window knows", [*start(0), *sent("n1", 0), ["known", "n1", 1]]),
        ("H2 a batch with two places", [*TWO_ACKED, *start(A + B + A, ("u1", 0, 0), ("u1", 1, A), ("u1", 0, A + B))]),
        ("H2 an offset with two messages", [*TWO_ACKED, *sent("u1", 2), *start(A + B, ("u1", 2, 0))]),
        ("H3 stored but never sent", [*TWO_ACKED, *start(A + B + 9, ("u1", 0, 0), ("u1", 1, A), ("u1", 2, A + B))]),
        ("H3 acked but never sent", [*start(0), ["ack", "u1", 0, KEY, 0]]),
        ("H3 stored in another shard", [*start(0), *sent("u1", 0), ["read", [1, 1], 0, "u1", 0]]),
        ("H4 acks out of order", [*start(0), *sent("u1", 0), *sent("u1", 1, 0), ["ack", "u1", 0, KEY, B]]),
        ("H4 a number was skipped", [*start(0), *sent("n1", 0), *sent("n1", 1, 0)]),
        ("H5 the next offset went back", [*TWO_ACKED, *start(A, ("u1", 0, 0))]),
        ("H5 an old offset was given out", [*start(10, gaps=((0, 10),)), *sent("u1", 0, 5)]),
        ("H5 a message at or behind", [*start(0), *sent("u1", 0), *start(0, ("u1", 0, 0))]),
        ("H6 missing and not declared", [*TWO_ACKED, *start(A + B + 1, ("u1", 0, 0), ("u1", 1, A))]),
        (
            "H6 a message inside a declared gap",
            [*TWO_ACKED, *start(A + B, ("u1", 0, 0), ("u1", 1, A), gaps=((0, A),))],
        ),
        ("H6 a gap reaches beyond", [*start(5, gaps=((0, 6),))]),
    ],
)
def test_a_lost_acked_message_is_detected(promise: str, lines: list[list[Any]]) -> None:
    with pytest.raises(HistoryViolation, match=promise):
        history_of(lines)


def test_wrong_order_in_a_shard_is_detected() -> None:
    history = history_of(start(0), sent("u1", 0), sent("u1", 1), start(A + B, ("u1", 1, 0), ("u1", 0, B)))
    with pytest.raises(HistoryViolation, match="H4 out of order"):
        history.check_order()


def test_a_hole_in_a_numbered_producer_is_detected() -> None:
    history = history_of(start(0), sent("n1", 0), sent("n1", 1), start(rows("n1", 1), ("n1", 1, 0)))
    with pytest.raises(HistoryViolation, match="H4 a numbered batch is missing"):
        history.check_whole("n1")


def test_a_batch_without_a_reply_is_detected() -> None:
    history = history_of(start(0), sent("n1", 0), start(N, ("n1", 0, 0)))
    with pytest.raises(HistoryViolation, match="H1 not every batch was answered"):
        history.check_whole("n1")


def test_a_gap_in_always_mode_is_detected() -> None:
    with pytest.raises(HistoryViolation, match="H7"):
        history_of(start(5, gaps=((0, 5),))).check_no_gaps()


def test_a_torn_batch_is_detected_by_its_numbers() -> None:
    numbers = BatchNumbers(SEED, "n1")
    number = next(number for number in range(99) if rows("n1", number) > 1)
    assert numbers.batch_at(numbers.first(number)) == number
    with pytest.raises(AssertionError, match="torn"):
        numbers.batch_at(numbers.first(number) + 1)
