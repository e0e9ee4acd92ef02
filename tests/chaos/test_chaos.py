"""Nodes in processes of their own are killed, stopped, cut off, starved and replaced; clients notice waits and unknown
outcomes, and nothing else. The short form runs in `make test`, the long ones in `make chaos`, with seeds of chance.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from icestream.metadata.raft_core import has_raft_core
from tests.chaos.nemesis import KINDS
from tests.chaos.run import ChaosPlan, Verdict, below_the_gate, run

pytestmark = pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")
LONG_SECONDS = 60.0


def judged(plan: ChaosPlan, folder: Path) -> Verdict:
    """The verdict of a run; a failed run leaves its files in the folder of the test."""
    print(f"seed {plan.seed}")
    verdict = asyncio.run(run(plan, folder))
    print(verdict.text())
    if not verdict.is_good:
        verdict.history.save(folder / "history")
    return verdict


@pytest.mark.timeout(400)
def test_the_short_form(tmp_path: Path) -> None:
    verdict = judged(ChaosPlan(seed=1, seconds=13.0), tmp_path)
    assert verdict.is_good, verdict.text()
    assert set(verdict.history.faults) & set(KINDS)


@pytest.mark.chaos
@pytest.mark.parametrize(("nodes", "disk"), [(3, "losing"), (5, "losing"), (3, "native"), (5, "native")])
def test_the_long_form(tmp_path: Path, nodes: int, disk: str) -> None:
    plan = ChaosPlan(random.SystemRandom().randrange(10**6), LONG_SECONDS, nodes, disk)
    verdict = judged(plan, tmp_path)
    assert verdict.is_good, verdict.text()
    assert not below_the_gate(verdict), verdict.text()


# What each bug is caught by; which faults bring it out, so that a few seconds do.
CAUGHT = {
    "no_fsync": (("kill_all",), ""),
    "vote_not_persisted": (("kill_all",), "after it had promised"),
    "ack_before_commit": (("kill_leader", "cut"), ""),
    "stale_read": (("cut", "cut_one_way"), "are not linearizable"),
    "dropped_watch_event": (("transfer",), "was told revision"),
}


def is_caught(plan: ChaosPlan, folder: Path) -> bool:
    folder.mkdir()
    return any(CAUGHT[plan.bug][1] in violation for violation in judged(plan, folder).violations)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", CAUGHT)
def test_planted_bugs_are_caught(tmp_path: Path, bug: str) -> None:
    """Nearly always by the first seed; a machine that is busy may hide one from a few seconds."""
    plans = [ChaosPlan(seed, 3.0, bug=bug, only=CAUGHT[bug][0], patience_seconds=8.0) for seed in range(1, 6)]
    assert any(is_caught(plan, tmp_path / str(plan.seed)) for plan in plans)


@pytest.mark.chaos
@pytest.mark.parametrize("bug", CAUGHT)
def test_planted_bugs_are_caught_among_all_faults(tmp_path: Path, bug: str) -> None:
    plan = ChaosPlan(random.SystemRandom().randrange(10**6), 20.0, bug=bug, patience_seconds=15.0)
    assert is_caught(plan, tmp_path / "run")
