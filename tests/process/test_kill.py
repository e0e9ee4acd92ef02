"""kill -9 of a real process at random moments: under load, during recovery, right after a start. Again and again.

What must hold is in tests/support/history.py. The plan of a run follows from its seed; the moments, to the microsecond,
do not. A failure names the seed and the directory of the log; KILL_SEED runs one seed again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.conftest import Start
from tests.support.process_run import MODES, ProcessRun

WAYS_TO_END = ("load", "load", "load", "recovery", "recovery", "start", "stop")
Choose = Callable[[random.Random], tuple[str, bool]]  # sync mode, and whether with the native part


@pytest.mark.parametrize("mode", MODES)
def test_acked_messages_survive_kill_9(tmp_path: Path, start: Start, mode: str) -> None:
    check_kills(tmp_path, start, 10, 20_260, lambda _: (mode, True))


def test_acked_messages_survive_kill_9_with_and_without_the_native_part(tmp_path: Path, start: Start) -> None:
    """In turn, on one log: both write the same format. The mode changes from start to start too."""
    check_kills(tmp_path, start, 8, 7, lambda chance: (chance.choice(MODES), chance.random() < 0.4))


@pytest.mark.chaos
@pytest.mark.parametrize("mode", [*MODES, "any"])
def test_acked_messages_survive_75_times_kill_9(tmp_path: Path, start: Start, mode: str) -> None:
    def choose(chance: random.Random) -> tuple[str, bool]:
        return (chance.choice(MODES), chance.random() < 0.7) if mode == "any" else (mode, True)

    check_kills(tmp_path, start, 75, random.SystemRandom().randrange(10**9), choose)


def check_kills(directory: Path, start: Start, kills: int, seed: int, choose: Choose) -> None:
    """Fails when a promise is broken, and when the run was too tame to break one."""
    seed = int(os.environ.get("KILL_SEED", seed))
    run = ProcessRun(directory, seed, start)
    modes = set()
    try:
        ways = ["recovery", "load"]
        while run.kills < kills:
            mode, native = choose(run.chance)
            modes.add(mode)
            run.process(mode, ways.pop(), native=native)
            ways = ways or run.chance.sample(WAYS_TO_END, len(WAYS_TO_END))
        run.finish(mode, native=native)
        if modes == {"always"}:
            run.history.check_no_gaps()
    except Exception as error:
        error.add_note(f"KILL_SEED={seed}, process {run.plan.start} ({run.plan.mode}), log in {directory}, {run.ends}")
        raise
    assert run.ends["in recovery"] > 0, f"no kill came during a recovery: {run.ends}"
    assert run.history.acks > 5 * kills, f"hardly any load: {run.history.acks} acks"
    assert run.newest_file > 2 * kills, f"hardly any rotation: the newest file is {run.newest_file}"
    if kills > 50:
        assert run.oldest_file > kills, f"hardly any file was freed: the oldest is {run.oldest_file}"
