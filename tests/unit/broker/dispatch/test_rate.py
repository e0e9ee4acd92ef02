"""Token buckets: nothing is discarded, the rate holds over any stretch of time, takers that share it pass in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.broker.rate_limit import Throttle, TokenBucket

RATES = st.integers(1, 100_000)


def test_rate_0_is_unlimited() -> None:
    bucket = TokenBucket(0)
    assert [bucket.take(10**9, 0) for _ in range(3)] == [0, 0, 0]
    assert Throttle(bucket).allowed(0) == limits.OFFSET_MAX


def test_a_token_taken_in_advance_delays_the_next() -> None:
    bucket = TokenBucket(10)
    assert bucket.take(1, 0) == 0
    assert bucket.take(1, 0) == 100
    assert bucket.take(5, 0) == 600
    assert bucket.take(1, 700) == 0


def test_a_batch_above_the_burst_waits_and_is_not_refused() -> None:
    assert TokenBucket(10).take(1_000, 0) == 99_900


def test_an_idle_bucket_is_capped_at_a_burst() -> None:
    bucket = TokenBucket(1_000)
    bucket.take(100, 0)
    assert bucket.take(100, 10**9) == 0
    assert bucket.take(1, 10**9) == 1


def test_a_clock_that_steps_back_adds_nothing() -> None:
    bucket = TokenBucket(10)
    bucket.take(1, 1_000)
    assert bucket.take(1, 0) == 100
    assert bucket.take(1, 0) == 200


@given(RATES, st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), min_size=1, max_size=50))
def test_the_rate_holds_over_any_interval(rate: int, steps: list[tuple[int, int]]) -> None:
    """Each taker waits as long as the bucket says. The messages between two moments fit the rate and one burst."""
    bucket, now, passed = TokenBucket(rate), 0, []
    for pause, count in steps:
        now += pause
        passed.append((now + bucket.take(count, now), count))
    burst = max(1, rate * limits.RATE_BURST_MS / 1000)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            count = sum(step for _, step in passed[first + 1 : last + 1])
            span_ms = passed[last][0] - passed[first][0]
            assert count <= burst + rate * span_ms / 1000
    assert [when for when, _ in passed] == sorted(when for when, _ in passed)


@given(RATES, st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), min_size=1, max_size=50))
def test_no_taker_waits_longer_than_the_rate_requires(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket, now, taken_count = TokenBucket(rate), 0, 0
    for pause, count in steps:
        now += pause
        taken_count += count
        assert bucket.take(count, now) <= taken_count * 1000 / rate + 1


@given(RATES, RATES, st.integers(0, 500))
def test_a_new_rate_applies_to_the_debt(old: int, new: int, count: int) -> None:
    bucket = TokenBucket(old)
    bucket.take(count, 0)
    bucket.set_rate(new)
    assert bucket.take(1, 0) <= (count + 1) * 1000 / new + 1


# --- a share of a bucket ----------------------------------------------------------------------------------------------


def passes(throttles: list[Throttle], until_ms: int) -> list[int]:
    """The messages that each of several greedy takers gets until then; all take in the same order."""
    counts = [0] * len(throttles)
    for now in range(until_ms):
        for number, throttle in enumerate(throttles):
            while count := throttle.allowed(now):
                throttle.spend(count)
                counts[number] += count
    return counts


@pytest.mark.parametrize("rate", [1, 7, 150, 1_000, 12_345])
def test_one_taker_gets_exactly_the_rate(rate: int) -> None:
    (passed,) = passes([Throttle(TokenBucket(rate))], 10_000)
    step = max(1, rate // 100)
    assert rate * 10 - step <= passed <= rate * 10 + max(1, rate // 10) + step


def test_shards_sharing_a_rate_get_equal_parts() -> None:
    bucket = TokenBucket(1_000)
    counts = passes([Throttle(bucket) for _ in range(4)], 10_000)
    assert 9_900 <= sum(counts) <= 10_200
    assert max(counts) - min(counts) <= 110, "no more than the first burst and a step"


def test_a_refused_taker_gets_its_retry_time() -> None:
    throttle = Throttle(TokenBucket(10))
    assert throttle.allowed(0) == 1
    throttle.spend(1)
    assert throttle.wake_ms is None
    assert throttle.allowed(30) == 0
    assert throttle.wake_ms == 100
    assert throttle.allowed(99) == 0
    assert throttle.allowed(100) == 1


def test_a_higher_rate_releases_a_waiting_taker() -> None:
    bucket = TokenBucket(1)
    throttle = Throttle(bucket)
    throttle.spend(throttle.allowed(0))
    assert throttle.allowed(1) == 0
    assert throttle.wake_ms == 1_000
    bucket.set_rate(1_000)
    assert throttle.allowed(2) == 0
    assert throttle.wake_ms == 11
    assert throttle.allowed(11) == 10
    bucket.set_rate(0)
    assert throttle.allowed(2) == limits.OFFSET_MAX
    bucket.set_rate(5)
    assert throttle.allowed(2) <= 1
