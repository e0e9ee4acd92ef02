"""Hazard 16 on a real file system: writes that fail under load, of a process that goes on.

The parent lowers the child's limit on file size (RLIMIT_FSIZE) from outside: the kernel then answers EFBIG to writes
behind that position and to the making of files, as a disk that fails in places.
"""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest

from icestream.limits import LOG_FILE_BYTES_MIN
from tests.process.conftest import Start
from tests.support.child_process import ChildProcess
from tests.support.history import check
from tests.support.process_run import MODES, OPTIONS, ProcessRun

FAILURES = 4
FAILURES_OF_A_PROCESS = 2
SEED = 16
# The header page and the seal can always be written: what cannot is a record or a new file.
LIMIT_MIN, LIMIT_MAX = 8 * 1024, 60 * 1024


@pytest.mark.parametrize(("mode", "native"), [*((mode, True) for mode in MODES), ("periodic", False)])
def test_hazard_16_after_failed_writes_nothing_acked_is_lost_or_duplicated(
    tmp_path: Path, start: Start, mode: str, native: bool
) -> None:
    check_failures(tmp_path, start, mode, FAILURES, SEED, native=native)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_hazard_16_many_failed_writes_and_kill_9_lose_nothing(tmp_path: Path, start: Start, mode: str) -> None:
    check_failures(tmp_path, start, mode, 60, random.SystemRandom().randrange(10**9))


def check_failures(directory: Path, start: Start, mode: str, failures: int, seed: int, *, native: bool = True) -> None:
    seed = int(os.environ.get("KILL_SEED", seed))
    run = ProcessRun(directory, seed, start)
    run.plan.disk_fails = True
    run.choices = {**OPTIONS, "file_bytes": (LOG_FILE_BYTES_MIN,)}
    try:
        while failures > 0:
            child = run.start(mode, native=native)
            run.open(child)
            # the first one hits the first batches of every producer, when nothing of its epoch is stored yet
            for acks in (0, *(run.chance.randrange(1, 100) for _ in range(FAILURES_OF_A_PROCESS - 1))):
                fail_writes(run, child, acks)
                failures -= 1
            run.kill(child, 0)
        run.finish(mode, native=native)
        if mode == "always":
            run.history.check_no_gaps()
    except Exception as error:
        error.add_note(f"KILL_SEED={seed}, process {run.plan.start} ({run.plan.mode}), log in {directory}")
        raise
    assert run.history.refused["unknown"] > 0, f"no write failed: {run.history.refused}"


def fail_writes(run: ProcessRun, child: ChildProcess, acks: int) -> None:
    """After so many acks writes fail, until a producer gets the error; then the disk recovers and appends go on."""
    run.wait_for_acks(child, acks)
    _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (run.chance.randrange(LIMIT_MIN, LIMIT_MAX), hard))
    refused = child.wait_for("refused", run.hear)
    check(refused[1] in ("unknown", "disk_full", "out_of_order"), "H1 a strange answer", refused)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (hard, hard))
    run.wait_for_acks(child, 100)
