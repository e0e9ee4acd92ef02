"""The delay of password logins: it grows, has a bound, is never a lock, and its table is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.security.login_throttle import LoginThrottle, delay_ms

PAIRS = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"))
EVENTS = st.lists(
    st.tuples(PAIRS, st.sampled_from(["fail", "succeed", "abandon"]), st.integers(0, 2_000_000)), max_size=40
)


def test_the_delay_grows_to_its_bound() -> None:
    delays = [delay_ms(failures) for failures in range(12)]
    assert delays[:6] == [0, 0, 0, 100, 200, 400]
    assert delays == sorted(delays)
    assert delays[-1] == delay_ms(10**6) == limits.LOGIN_DELAY_MS_MAX


@given(EVENTS)
def test_a_pair_waits_as_its_own_failures_say_and_no_longer_than_the_bound(
    events: list[tuple[tuple[str, str], str, int]],
) -> None:
    throttle, now_ms = LoginThrottle(), 0
    model: dict[tuple[str, str], tuple[int, int]] = {}  # failures in a row, time of the last one
    for pair, outcome, pause_ms in events:
        now_ms += pause_ms
        failures, last_ms = model.get(pair, (0, now_ms))
        if now_ms - last_ms >= limits.LOGIN_FORGET_MS:
            failures = 0
            model.pop(pair, None)
        wait_ms = throttle.begin(*pair, now_ms)
        assert wait_ms == max(last_ms + delay_ms(failures) - now_ms, 0)
        assert wait_ms <= limits.LOGIN_DELAY_MS_MAX
        if failures >= 3:  # one at a time
            assert throttle.begin(*pair, now_ms) is None
        now_ms += wait_ms
        if outcome == "fail":
            throttle.fail(*pair, now_ms)
            model[pair] = (failures + 1, now_ms)
        elif outcome == "succeed":
            throttle.succeed(*pair)
            model.pop(pair, None)
        else:
            throttle.abandon(*pair)
        assert throttle.pairs <= len(model)


def test_hazard_120_the_table_of_failures_is_bounded() -> None:
    throttle = LoginThrottle(pairs_max=10)
    for number in range(1_000):
        throttle.fail("attacker", str(number), number)
    assert throttle.pairs == 10
    assert [throttle.begin("attacker", str(number), 1_000) for number in (0, 999)] == [0, 0]


def test_hazard_120_failures_of_one_address_delay_no_other() -> None:
    throttle = LoginThrottle()
    for attempt in range(100):
        throttle.fail("attacker", "admin", attempt)
    assert throttle.begin("attacker", "admin", 100) == limits.LOGIN_DELAY_MS_MAX - 1
    assert throttle.begin("home", "admin", 100) == 0
    assert throttle.begin("attacker", "other", 100) == 0
