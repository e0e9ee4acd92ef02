"""Hazards 6, 16, on the native path: a sync that fails beside a failed write stops the log, and is not forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.runtime.native import native
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from tests.support.machine import TOPICS, A, publish

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "support" / "failing_disk.c"


async def fail_twice(disk: ctypes.CDLL, path: Path) -> str:
    """The state of a log whose sync thread is inside fdatasync when a write fails."""
    options = LogOptions(
        mode=SyncMode.PERIODIC, sync_interval_ms=10, spare_files=0, file_bytes=2**20, quota_bytes=2**30
    )
    log = await open_log(path, options)
    log.declare_topic(TOPICS[0])
    await publish(log, A, b"zero")
    await log.sync()
    disk.failing_disk_arm()
    await publish(log, A, b"acked, not synced")
    await asyncio.to_thread(disk.failing_disk_await_sync)
    with contextlib.suppress(errors.OutcomeUnknown):
        await publish(log, A, b"fails")
    stopped, synced = log.stopped is not None, log.shard(*A).synced
    await log.close()
    return f"stopped={stopped} synced={synced} marker={(path / 'sync-failed').exists()}"


@pytest.mark.skipif(native is None, reason="without the native part nothing is synced beside a write")
def test_hazard_16_a_failed_sync_outweighs_the_failed_write_before_it(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) on this machine")
    library = tmp_path / "failing_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    child = subprocess.run(
        [sys.executable, "-m", "tests.process.test_failing_disk", str(library), str(tmp_path / "log")],
        cwd=ROOT, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "stopped=True synced=1 marker=True"


if __name__ == "__main__":
    print(asyncio.run(fail_twice(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]))))
