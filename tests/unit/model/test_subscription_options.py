"""Starts and failure policies: what is refused, and how long a message waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.subscription_options import (
    FailurePolicy,
    PoisonPolicy,
    RedeliveryBackoff,
    StartAt,
    SubscriptionStart,
)

FIELDS = ["max_redelivery_count", "ack_timeout_ms", "base_delay_ms", "max_delay_ms"]


def test_exponential_delays_double_up_to_the_longest() -> None:
    policy = FailurePolicy(base_delay_ms=100, max_delay_ms=1000)
    assert [policy.delay_ms(attempt) for attempt in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]


def test_fixed_delays_are_constant() -> None:
    policy = FailurePolicy(base_delay_ms=100, max_delay_ms=1000, backoff=RedeliveryBackoff.FIXED)
    assert [policy.delay_ms(attempt) for attempt in range(1, 4)] == [100, 100, 100]


def test_a_consumer_may_request_longer_delays_up_to_the_maximum() -> None:
    policy = FailurePolicy(base_delay_ms=100, max_delay_ms=1000)
    assert policy.delay_ms(1, 50) == 100
    assert policy.delay_ms(1, 500) == 500
    assert policy.delay_ms(1, 5000) == 1000


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(0, limits.FAILURE_POLICY_VALUE_MAX),
    st.integers(0, limits.FAILURE_POLICY_VALUE_MAX),
    st.sampled_from(RedeliveryBackoff),
)
def test_no_delay_is_above_the_longest(
    attempt: int, requested_ms: int, base: int, longest: int, backoff: RedeliveryBackoff
) -> None:
    policy = FailurePolicy(base_delay_ms=base, max_delay_ms=longest, backoff=backoff)
    assert 0 <= policy.delay_ms(attempt, requested_ms) <= longest
    assert policy.delay_ms(attempt, requested_ms) >= min(base, longest)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1, limits.FAILURE_POLICY_VALUE_MAX + 1, 2**64])
def test_values_of_a_policy_are_bounded(field: str, value: int) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(errors.InvalidInput, match=field):
        FailurePolicy(**options)


def test_a_deadline_is_never_immediate() -> None:
    with pytest.raises(errors.InvalidInput, match="ack_timeout_ms"):
        FailurePolicy(ack_timeout_ms=0)


def test_dead_letters_need_a_topic_that_can_exist() -> None:
    with pytest.raises(errors.InvalidInput, match="needs a topic"):
        FailurePolicy(poison=PoisonPolicy.DEAD_LETTER)
    for name in ("", "dead", "/default/dead-part-1", "/a/b/c"):
        with pytest.raises(errors.InvalidInput):
            FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=name)
    assert FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead").dead_letter_topic


@pytest.mark.parametrize(
    "start", [(StartAt.OFFSET, -1), (StartAt.OFFSET, limits.OFFSET_MAX + 1), (StartAt.TIME, 2**63)]
)
def test_invalid_start_options_are_refused(start: tuple[StartAt, int]) -> None:
    with pytest.raises(errors.InvalidInput):
        SubscriptionStart(*start)


def test_a_time_before_1970_is_a_time() -> None:
    assert SubscriptionStart(StartAt.TIME, -(2**63)).value == -(2**63)
