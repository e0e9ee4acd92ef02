"""Three and five cores agree, whatever the seed does to their clocks, network and disks (raft_world.py)."""

from __future__ import annotations

import pytest

from tests.support.raft_world import RaftWorld

SEEDS = 500
SEEDS_TOGETHER = 25
STEPS = 2000


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_TOGETHER))
def test_cores_agree(first: int) -> None:
    """A seed that fails is named by the assertion's traceback; `RaftWorld(seed).run(STEPS)` is all of it again."""
    crashes = installs = committed = answered = 0
    for seed in range(first, first + SEEDS_TOGETHER):
        world = RaftWorld(seed, nodes=5 if seed % 5 == 0 else 3)
        world.run(STEPS)
        crashes += world.crashes
        installs += world.installs
        committed += len(world.log)
        answered += world.answered
    assert min(crashes, installs, answered) > 0, "the seeds are too kind"
    assert committed > SEEDS_TOGETHER * 10


@pytest.mark.chaos
def test_cores_agree_in_long_runs() -> None:
    """A few short runs are alike, for instance without a leader before the end."""
    histories = {RaftWorld(seed, nodes=3 + 2 * (seed % 2)).run(3000) for seed in range(10_000, 15_000)}
    assert len(histories) > 4_900


def test_a_seed_determines_the_history() -> None:
    assert RaftWorld(7).run(STEPS) == RaftWorld(7).run(STEPS)
    assert RaftWorld(7).run(STEPS) != RaftWorld(8).run(STEPS)


@pytest.mark.parametrize("plant", ["acked before the sync", "the vote is not stored"])
def test_planted_bugs_are_detected(plant: str) -> None:
    """A planted bug is caught by one of a few seeds: by a check of ours, or by the crate's own."""
    assert any(is_noticed(seed, plant) for seed in range(20))


def is_noticed(seed: int, plant: str) -> bool:
    try:
        RaftWorld(seed, plant=plant).run(STEPS)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a panic of the crate is no Exception)
        return True
    return False
