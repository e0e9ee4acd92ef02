"""Whole nodes agree, and clients see one history, whatever a seed does to clocks, network and disks (node_world.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icestream import limits
from icestream.metadata.raft_core import has_raft_core
from icestream.wal.sink import SinkProgress
from tests.chaos.history import OK
from tests.support.held_sink import HeldSink
from tests.support.node_world import NodeWorld

pytestmark = pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")
SEEDS = 500
SEEDS_TOGETHER = 50
STEPS = 700
LONG_STEPS = 2_000


@pytest.fixture(autouse=True)
def _short_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was away needs a snapshot."""
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 5)


def world(seed: int) -> NodeWorld:
    return NodeWorld(seed, nodes=5 if seed % 5 == 0 else 3)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_TOGETHER))
def test_nodes_agree_and_clients_see_one_history(first: int) -> None:
    """A seed that fails is named by the traceback; `world(seed).run(STEPS)` is all of it again."""
    crashes = changes = answered = 0
    for seed in range(first, first + SEEDS_TOGETHER):
        simulation = world(seed)
        asyncio.run(simulation.run(STEPS))
        crashes += simulation.crashes
        changes += simulation.changes
        answered += sum(operation.outcome == OK for operation in simulation.operations)
    assert min(crashes, changes) > 0, "the seeds are too kind"
    assert answered > SEEDS_TOGETHER * 5


@pytest.mark.parametrize("first", range(1_000, 1_030, 10))
def test_nodes_agree_after_long_runs_with_installed_snapshots(first: int) -> None:
    lives = [world(seed) for seed in range(first, first + 10)]
    for life in lives:
        asyncio.run(life.run(LONG_STEPS))
    assert min(sum(life.crashes for life in lives), sum(life.installs for life in lives)) > 0, "the seeds are too kind"


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(10_000, 13_000, 500))
def test_nodes_agree_in_very_long_runs(first: int) -> None:
    assert len({asyncio.run(world(seed).run(LONG_STEPS)) for seed in range(first, first + 500)}) > 490


def test_a_seed_determines_the_history() -> None:
    assert asyncio.run(world(7).run(LONG_STEPS)) == asyncio.run(world(7).run(LONG_STEPS))
    assert asyncio.run(world(7).run(LONG_STEPS)) != asyncio.run(world(8).run(LONG_STEPS))


def test_a_reply_before_the_sync_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(self: Any) -> SinkProgress:
        return SinkProgress(self._written, self._written, self._error)

    monkeypatch.setattr(HeldSink, "progress", too_early)
    assert any(is_noticed(seed) for seed in range(40))


def is_noticed(seed: int) -> bool:
    try:
        asyncio.run(world(seed).run(LONG_STEPS))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a panic of the crate is no Exception)
        return True
    return False
