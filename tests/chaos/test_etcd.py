"""The same clients and checkers against etcd, where it is installed: its own reads pass, stale ones are caught."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.peers import etcd
from tests.chaos import checkers, linearizability
from tests.chaos.clients import WIDTH, Clients, register_key
from tests.chaos.etcd_client import EtcdConnector
from tests.chaos.history import OperationHistory

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: apt-get install etcd-server"),
]
SECONDS = 6.0


async def judged(clients: list[str], pids: list[int], *, serializable: bool) -> tuple[list[str], OperationHistory]:
    history = OperationHistory()
    working = Clients(EtcdConnector(clients, serializable=serializable), history, seed=1)
    working.first_revision = 1  # an empty etcd is at revision 1
    working.start()
    for pid in pids:
        # one after the other stands still for a while, the leader first
        await asyncio.sleep(SECONDS / 6)
        stand_still(pid, "STOP")
        await asyncio.sleep(SECONDS / 6)
        stand_still(pid, "CONT")
    await working.finish()
    await working.read_all(random.Random(1))
    await working.close()
    watched, ledger = checkers.watch_violations(history.watchings)
    violations = linearizability.violations(history.operations, WIDTH) + watched
    return violations + checkers.revision_violations(history.operations, ledger, register_key), history


def stand_still(pid: int, signal: str) -> None:
    subprocess.run(["kill", f"-{signal}", str(pid)], check=True)


def test_etcd_passes(tmp_path: Path) -> None:
    with etcd.running_processes(tmp_path) as (clients, pids):
        violations, history = asyncio.run(judged(clients, pids, serializable=False))
    assert violations == []
    assert history.acked > 100
    assert any(watching.events for watching in history.watchings)


def test_etcd_with_serializable_reads_is_caught(tmp_path: Path) -> None:
    with etcd.running_processes(tmp_path) as (clients, pids):
        violations, _ = asyncio.run(judged(clients, pids, serializable=True))
    assert any("are not linearizable" in violation for violation in violations)
