"""Which conditions make a node unready, decided from values."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from icestream import limits
from icestream.observability.health import Check, failure, warnings
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node import node_health


def test_the_first_needed_check_that_fails_is_the_reason() -> None:
    shown = Check("disk", False, "full", is_needed=False)
    first, second = Check("metadata", False, "stopped"), Check("log", False, "stopped")
    assert failure([Check("broker", True), shown, first, second]) is first
    assert failure([Check("broker", True), shown]) is None
    assert failure([]) is None


def test_warnings_are_the_failures_that_leave_a_node_ready() -> None:
    shown = Check("disk", False, "full", is_needed=False)
    assert warnings([Check("metadata", False), shown, Check("lake", True, is_needed=False)]) == [shown]


def test_a_node_that_leads_is_ready() -> None:
    check = node_health.leader_check(leader=7, is_self=True, silent_seconds=1e9, voters=3)
    assert check.ok


def test_a_follower_is_ready_while_it_hears_its_leader() -> None:
    check = node_health.leader_check(leader=7, is_self=False, silent_seconds=0.4, voters=3)
    assert check == Check("consensus", True, "node 0000000000000007 leads")


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_node_without_a_leader_is_not_ready_and_names_the_majority(voters: int, majority: int) -> None:
    check = node_health.leader_check(leader=0, is_self=False, silent_seconds=0.0, voters=voters)
    assert not check.ok
    assert check.is_needed
    assert f"{majority} of {voters} voting nodes" in check.reason


def test_a_silent_leader_counts_as_none() -> None:
    silent_seconds = limits.LEADER_SILENT_SECONDS_MAX + 1
    check = node_health.leader_check(leader=7, is_self=False, silent_seconds=silent_seconds, voters=3)
    assert not check.ok
    assert check.is_needed
    assert "silent for 4 s" in check.reason


def test_a_failing_check_is_shown_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(node: BrokerNode) -> Any:
        raise ZeroDivisionError("a mistake")

    def well(node: BrokerNode) -> list[Check]:
        return [Check("well", True)]

    monkeypatch.setattr(node_health, "PROBES", (broken, well))
    with caplog.at_level(logging.CRITICAL):
        rows = node_health.checks(cast("BrokerNode", object()))
    assert [(row.name, row.ok, row.is_needed) for row in rows] == [("broken", False, False), ("well", True, True)]
    assert "a mistake" in rows[0].reason
