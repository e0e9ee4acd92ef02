"""Shares of one budget: every connection has the current share, and together they stay below the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.frontends.send_budget import SendBudget


class RecordingConnection:
    def __init__(self) -> None:
        self.share = 0
        self.times = 0

    def set_share(self, share_bytes: int) -> None:
        self.share = share_bytes
        self.times += 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=8))
def test_all_connections_get_equal_shares_within_the_budget(steps: list[tuple[bool, int]]) -> None:
    budget: SendBudget[RecordingConnection] = SendBudget("native")
    here = []
    for comes, count in steps:
        for _ in range(count):
            connection = RecordingConnection()
            if comes:
                here.append(connection)
                budget.add(connection)
            elif here:
                budget.discard(here.pop())
        assert {connection.share for connection in here} <= {budget.share}
        assert limits.SOCKET_WRITE_BYTES_MIN <= budget.share <= limits.SOCKET_WRITE_BYTES_MAX
        assert budget.share * len(budget) <= limits.SEND_BYTES_TOTAL


def test_shares_are_announced_only_when_they_double() -> None:
    budget: SendBudget[RecordingConnection] = SendBudget("native")
    first = RecordingConnection()
    budget.add(first)
    for _ in range(4096):
        budget.add(RecordingConnection())
    assert first.share == limits.SOCKET_WRITE_BYTES_MIN
    assert first.times < 10
