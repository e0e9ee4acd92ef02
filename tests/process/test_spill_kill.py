"""Hazard 8 with kill -9: a real process is killed while it copies a stuck topic out of the log and frees the files."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from icestream.model.sync_mode import SyncMode
from tests.support.machine import messages
from tests.support.spill_child import STUCK, opened

ROOT = Path(__file__).parents[2]


def killed(path: Path, mode: SyncMode, chance: random.Random) -> list[int]:
    """One life, ended at any moment behind the first spill; what it acked of the stuck topic."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.spill_child", str(path), mode.value],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    acked: list[int] = []
    left = -1
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("b"):
                acked.append(int(line.split()[1]))
            elif left < 0:
                left = chance.randrange(25)
            left -= left > 0
            if left == 0:
                break
    finally:
        child.kill()
        rest, _ = child.communicate()
    return acked + [int(line.split()[1]) for line in rest.splitlines() if line.startswith("b ")]


@pytest.mark.asyncio
@pytest.mark.parametrize(("mode", "lives"), [(SyncMode.ALWAYS, 1), (SyncMode.NONE, 2)])
async def test_hazard_08_after_kill_9_a_stuck_topic_has_every_message_once(
    tmp_path: Path, mode: SyncMode, lives: int
) -> None:
    chance = random.Random(8)
    acked: list[int] = []
    for _ in range(lives):
        acked += killed(tmp_path, mode, chance)
        log = await opened(tmp_path, mode)
        stored = await messages(log, STUCK, 0)
        assert {offset: stored.get(offset) for offset in acked} == {offset: b"%d" % offset for offset in acked}
        backlog = await log.backlog.snapshot()
        stretches = [
            stretch for file in backlog.files for stretch in file.stretches if stretch.topic_id == STUCK.topic_id
        ]
        assert all(sum(stretch.start <= offset < stretch.end for stretch in stretches) == 1 for offset in acked)
        assert log.lifecycle.spills
        await log.close()
    assert len(set(acked)) == len(acked) >= 20
