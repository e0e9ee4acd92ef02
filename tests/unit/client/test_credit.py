"""How much is asked for: never too little, never more than fits, and less when the application is slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.client.credit import CreditWindow

SECOND_NS = 1_000_000_000


def drain(window: CreditWindow, row_bytes: int, waited_ns: int, now_ns: int) -> None:
    """Everything that was asked for comes and is taken."""
    rows = window.credit
    assert window.arrived(rows, rows * row_bytes)
    window.release(rows, rows * row_bytes)
    window.adapt(rows, waited_ns, now_ns)


def test_credit_starts_small_and_grows_to_the_prefetch() -> None:
    window = CreditWindow(1000, 2**30)
    assert window.grant() == limits.CLIENT_PREFETCH_START
    for number in range(10):
        drain(window, 100, 0, number * 1000)
        window.grant()
    assert window.window == 1000
    assert window.credit == 1000


def test_credit_shrinks_to_one_while_messages_wait_and_is_never_zero() -> None:
    window = CreditWindow(1000, 2**30)
    window.drain_ns = SECOND_NS
    for number in range(20):
        window.grant()
        drain(window, 100, 2 * SECOND_NS, number * SECOND_NS)
    assert window.window == 1
    assert window.grant() == 1


def test_a_trickle_of_messages_does_not_change_the_credit() -> None:
    window = CreditWindow(1000, 2**30)
    for number in range(1000):
        window.grant()
        assert window.arrived(1, 100)
        window.release(1, 100)
        window.adapt(1, 0, number * SECOND_NS)
    assert window.window == limits.CLIENT_PREFETCH_START


def test_large_messages_are_requested_up_to_the_buffer_size() -> None:
    window = CreditWindow(1000, 10_000_000)
    window.grant()
    for number in range(20):
        drain(window, 1_000_000, 0, number)
        window.grant()
    assert window.credit == 10


def test_deliveries_beyond_the_credit_are_detected() -> None:
    window = CreditWindow(10, 2**20)
    window.grant()
    assert not window.arrived(11, 11)
    assert window.arrived(10, 10)
    assert not window.arrived(1, 1)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 10**6)), max_size=60), st.data())
def test_credit_and_buffered_messages_never_exceed_the_prefetch(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    window = CreditWindow(40, 10**7)
    for come_max, take_max, size in steps:
        window.grant()
        assert window.credit + window.buffered <= 40
        come, take = min(come_max, window.credit), min(take_max, window.buffered)
        if come:
            assert window.arrived(come, come * size)
        if take:
            window.release(take, 0)
            window.adapt(take, data.draw(st.integers(0, 10 * SECOND_NS)), data.draw(st.integers(0, SECOND_NS)))
    while window.buffered:
        window.release(window.buffered, 0)
    window.buffered_bytes = 0
    window.grant()
    assert window.credit, "an empty consumer must ask for something"


def test_batch_consumers_get_more_credit_while_messages_are_small() -> None:
    window = CreditWindow(1000, 8 * 1_600_000)
    window.widen(16_000)
    for number in range(20):
        window.grant()
        drain(window, 100, 0, number * 1000)
    assert window.grant() == 16_000, "a share of the bytes, so that messages may become larger meanwhile"
    drain(window, 1000, 0, 21_000)
    assert window.grant() == 1600
    drain(window, 10_000, 0, 22_000)
    assert window.grant() == 1000, "the same window as for every consumer"
    drain(window, 100_000, 0, 23_000)
    assert window.grant() == 128
