"""Shares of one budget: everybody knows the present one, and together they stay below the whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.frontends.native.send_budget import SendBudget


class Told:
    def __init__(self) -> None:
        self.share = 0
        self.times = 0

    def set_share(self, share_bytes: int) -> None:
        self.share = share_bytes
        self.times += 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=8))
def test_everybody_has_the_same_share_and_all_of_them_fit(steps: list[tuple[bool, int]]) -> None:
    budget, here = SendBudget(), []
    for comes, count in steps:
        for _ in range(count):
            one: Any = Told()
            if comes:
                here.append(one)
                budget.add(one)
            elif here:
                budget.discard(here.pop())
        assert {one.share for one in here} <= {budget.share}
        assert limits.SOCKET_WRITE_BYTES_MIN <= budget.share <= limits.SOCKET_WRITE_BYTES_MAX
        assert budget.share * len(budget) <= limits.SEND_BYTES_TOTAL


def test_they_are_not_told_more_often_than_it_doubles() -> None:
    budget: Any = SendBudget()
    first = Told()
    budget.add(first)
    for _ in range(4096):
        budget.add(Told())
    assert first.share == limits.SOCKET_WRITE_BYTES_MIN
    assert first.times < 10
