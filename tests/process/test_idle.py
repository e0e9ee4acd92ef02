"""An idle log costs nothing: no CPU time, no write."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.process.conftest import Start
from tests.support.child_process import ChildProcess
from tests.support.process_run import MODES
from tests.support.writer_plan import WriterPlan

# Long enough for the interval of `periodic`, fifty times.
MEASURED_SECONDS = 1.5
CPU_SHARE_MAX = 0.02


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_log_uses_no_cpu_and_writes_nothing(tmp_path: Path, start: Start, mode: str) -> None:
    child = start(
        WriterPlan(str(tmp_path), mode=mode, work="rest", options={"sync_interval_ms": 30, "file_bytes": 1 << 20})
    )
    child.wait_for("resting")
    settle(child)
    began, cpu, written, calls = time.monotonic(), *usage(child.pid)
    assert list(child.lines(MEASURED_SECONDS)) == [], "an idle process printed lines"
    seconds = time.monotonic() - began
    cpu_after, written_after, calls_after = usage(child.pid)
    assert (cpu_after - cpu) / seconds < CPU_SHARE_MAX
    assert written_after == written
    assert calls_after == calls
    child.stop()


def settle(child: ChildProcess) -> None:
    """Waits until no write happens for a moment: the spare file is prepared in the background."""
    for _ in range(100):
        before = usage(child.pid)[1:]
        assert list(child.lines(0.05)) == []
        if usage(child.pid)[1:] == before:
            return
    raise AssertionError("it never stops to write")


def usage(pid: int) -> tuple[float, int, int]:
    """Seconds of CPU, bytes written to the disk, and calls of write."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(io["write_bytes"]), int(io["syscw"])
