"""What the broker concludes from an answer, or none, at the port of its lake process, a child or not."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors
from icestream.broker.scan_requests import ScanRequests
from icestream.observability.health import Check
from icestream.processes.node.lake_probe import UnmanagedLake, lake_check
from icestream.runtime.http_probe import ProbeAnswer

OWN, OTHER = "a" * 32, "b" * 32
UP = Check("lake", True, "listens on port 8181", is_needed=False)


def test_a_lake_process_that_answers_as_its_own_is_well() -> None:
    assert lake_check(UP, ProbeAnswer(200, OWN), OWN, "127.0.0.1:8181") == UP
    assert lake_check(UP, None, OWN, "127.0.0.1:8181") == UP  # it was not asked yet


def test_an_unreachable_lake_process_is_informational() -> None:
    away = UP._replace(ok=False, reason="it is being started")
    assert lake_check(away, ProbeAnswer(200, OWN), OWN, "127.0.0.1:8181") == away
    silent = lake_check(UP, errors.ConnectionLost("127.0.0.1:8181 does not answer within 3 s"), OWN, "127.0.0.1:8181")
    assert (silent.ok, silent.is_needed) == (False, False)
    assert "does not answer within 3 s" in silent.reason
    full = lake_check(UP, ProbeAnswer(503, OWN), OWN, "127.0.0.1:8181")
    assert (full.ok, full.is_needed) == (False, False)
    assert "status 503" in full.reason


def test_another_broker_at_the_port_makes_the_node_unready() -> None:
    foreign = lake_check(UP, ProbeAnswer(200, OTHER), OWN, "127.0.0.1:8181")
    assert (foreign.ok, foreign.is_needed) == (False, True)
    assert "127.0.0.1:8181 is answered by another broker" in foreign.reason


def test_another_broker_at_the_port_of_an_unmanaged_lake_process_is_only_shown() -> None:
    foreign = lake_check(UP, ProbeAnswer(200, OTHER), OWN, "127.0.0.1:8181", is_managed=False)
    assert (foreign.ok, foreign.is_needed) == (False, False)
    assert "127.0.0.1:8181 is answered by another broker" in foreign.reason


@pytest.mark.asyncio
async def test_an_unmanaged_lake_process_is_missed_where_it_is_needed_or_was_present() -> None:
    scan_requests, is_needed = ScanRequests(), [False]
    lake = UnmanagedLake(scan_requests, 8181, lambda: is_needed[0])
    assert (lake.check(), lake.port) == (None, 0), "no lake process runs, and none is expected"
    is_needed[0] = True
    missed = lake.check()
    assert missed is not None
    assert (missed.ok, missed.is_needed) == (False, False)
    assert "no lake process has connected to this broker" in missed.reason
    is_needed[0] = False

    def tell(_: dict[str, Any]) -> None: ...

    scan_requests.attach_worker(tell)
    connected = lake.check()
    assert connected is not None
    assert (connected.ok, lake.port) == (True, 8181)
    scan_requests.detach_worker(tell)
    left = lake.check()
    assert left is not None
    assert (left.ok, left.is_needed, lake.port) == (False, False, 0)
    assert "the lake process has disconnected" in left.reason
