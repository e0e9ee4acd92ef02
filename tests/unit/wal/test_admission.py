"""Admission: free below 80 % of a quota, slower and slower above it, refused at 100 %."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.wal.admission import Quota, admit, default_quota

BYTES = st.integers(1, 2**50)
USED = st.integers(0, 2**51)


def answer(quota: Quota, node: int, topic: int, size: int) -> float:
    """The pause, infinity for a refusal."""
    try:
        return admit(quota, node, topic, size, "/default/a")
    except errors.Refused:
        return float("inf")


@given(BYTES, BYTES, USED, USED, st.integers(0, 2**40))
def test_admitted_exactly_while_both_quotas_hold(
    node_quota: int, topic_quota: int, node: int, topic: int, size: int
) -> None:
    pause = answer(Quota(node_quota, topic_quota), node, topic, size)
    assert (pause < float("inf")) == (node + size <= node_quota and topic + size <= topic_quota)
    assert pause == float("inf") or 0 <= pause <= limits.QUOTA_PAUSE_SECONDS_MAX


@given(BYTES, BYTES, st.floats(0, 0.8), st.floats(0, 0.8), st.floats(0, 1))
def test_no_pause_up_to_the_slow_share(
    node_quota: int, topic_quota: int, node_share: float, topic_share: float, of_it: float
) -> None:
    quota = Quota(node_quota, topic_quota)
    node, topic = int(quota.slow_node_bytes * node_share), int(quota.slow_topic_bytes * topic_share)
    size = int(of_it * min(quota.slow_node_bytes - node, quota.slow_topic_bytes - topic))
    assert answer(quota, node, topic, size) == 0


@given(st.integers(10, 2**50), st.integers(1, 100))
def test_a_pause_starts_right_above_the_slow_share(bytes_: int, percent: int) -> None:
    above = bytes_ * 4 // 5 + 1 + (bytes_ - bytes_ * 4 // 5 - 1) * percent // 100
    assume(above > bytes_ * 0.8)
    assert answer(Quota(bytes_, 2**60), above, 0, 0) > 0
    assert answer(Quota(2**60, bytes_), 0, above, 0) > 0


@given(
    BYTES, BYTES, USED, USED, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 99)
)
def test_more_use_never_means_a_shorter_pause(
    node_quota: int, topic_quota: int, node: int, topic: int, size: int, more_node: int, more_topic: int, more: int
) -> None:
    quota = Quota(node_quota, topic_quota)
    base = answer(quota, node, topic, size)
    assert base <= answer(quota, node + more_node, topic, size)
    assert base <= answer(quota, node, topic + more_topic, size)
    assert base <= answer(quota, node, topic, size + more)


@given(st.integers(1, 1_000))
def test_the_longest_pause_is_at_the_very_end(quota: int) -> None:
    assert answer(Quota(quota, 10**6), quota, 0, 0) == limits.QUOTA_PAUSE_SECONDS_MAX
    assert answer(Quota(10**6, quota), 0, quota, 0) == limits.QUOTA_PAUSE_SECONDS_MAX
    assert answer(Quota(quota, quota), quota - 1, 0, 1) == limits.QUOTA_PAUSE_SECONDS_MAX


def test_a_refusal_names_the_quota_and_is_retryable() -> None:
    with pytest.raises(errors.NodeQuotaReached, match="90 of 100") as node:
        admit(Quota(100, 1_000), 90, 0, 11, "/default/a")
    with pytest.raises(errors.TopicQuotaReached, match="/default/a holds 90 of 100") as topic:
        admit(Quota(1_000, 100), 0, 90, 11, "/default/a")
    for caught in (node, topic):
        assert caught.value.retryable
        assert "raise" in caught.value.hint


def test_hazard_08_a_full_topic_does_not_refuse_the_others() -> None:
    quota = Quota(1_000, 100)
    assert answer(quota, 100, 100, 1) == float("inf")
    assert answer(quota, 100, 0, 1) == 0


@given(st.integers(0, 2**45), st.integers(0, 2**45), st.floats(0, 1))
def test_hazard_16_the_default_quota_does_not_shrink_as_the_log_fills(free: int, used: int, share: float) -> None:
    quota = default_quota(free, used)
    assert quota == min((free + used) // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)
    written = int(share * free)
    assert default_quota(free - written, used + written) == quota
