"""Waits grow, end at a bound, and differ between clients."""

from __future__ import annotations

from icestream.rpc.backoff import RetryBackoff
from icestream.runtime.randomness import SeededRandomness


def test_each_wait_is_in_the_upper_half_of_its_step() -> None:
    backoff = RetryBackoff(SeededRandomness(1), 0.1, 1.0)
    waits = [backoff.next_seconds() for _ in range(6)]
    for wait, step in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert step / 2 <= wait <= step


def test_success_starts_again_from_the_first_step() -> None:
    backoff = RetryBackoff(SeededRandomness(1), 0.1, 1.0)
    for _ in range(5):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= 0.1


def test_two_clients_do_not_wait_in_step() -> None:
    first, other = RetryBackoff(SeededRandomness(1)), RetryBackoff(SeededRandomness(2))
    assert [first.next_seconds() for _ in range(5)] != [other.next_seconds() for _ in range(5)]


def test_without_randomness_each_wait_is_the_whole_step() -> None:
    backoff = RetryBackoff(None, 0.1, 0.3)
    assert [backoff.next_seconds() for _ in range(4)] == [0.1, 0.2, 0.3, 0.3]
    backoff.reset()
    assert backoff.next_seconds() == 0.1
