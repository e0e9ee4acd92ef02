"""The start on a backlog of 16 GiB, in a process of its own: from its spawn until the log is open.

Before each start the files leave the page cache, as after a reboot. After a clean stop nothing is scanned; after kill
-9 the files behind the last checkpoint are, and the unsealed one, which is nearly full, is copied. That costs the more
the smaller its records are, so it is measured with three sizes of records at the end of the log. Memory is that of the
process that started.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure, Goal, Row
from bench.harness import Bench, settle
from bench.workload import ROWS
from icestream import limits

NAME = "start16"
GOAL = "start with a 16 GiB backlog < 3 s"
SECONDS_MAX = 3
# More than lies between two checkpoints, so that each kill meets a fresh one.
TAIL_BYTES = limits.CHECKPOINT_EVERY_BYTES + 3 * limits.LOG_FILE_BYTES_DEFAULT


def child(*words: str) -> list[str]:
    return [sys.executable, "-m", "bench.backlog", *words]


def started(path: Path) -> dict[str, float]:
    """How long a start takes with cold files, and what it found."""
    settle(path)
    for file in path.iterdir():
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    before = time.perf_counter()
    with subprocess.Popen(child("start", str(path)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - before
    found: dict[str, float] = json.loads(line)
    return {**found, "seconds": took}


def killed(path: Path, rows: int, tail: int) -> None:
    """Appends `tail` bytes in records of `rows` messages and kills the process while it goes on."""
    with subprocess.Popen(child("die", str(path), str(tail), str(rows)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the process that should be killed ended with {process.wait()}")
        process.kill()


def measure(bench: Bench) -> list[Row]:
    size, tail = int(bench.pick(16 * limits.GIB, limits.GIB)), int(bench.pick(TAIL_BYTES, 80 * limits.MIB))
    free = shutil.disk_usage(bench.directory).free
    needed = size + size // 4 + 8 * limits.GIB
    name = f"{size >> 30} GiB"
    if free < needed:
        return [Row(NAME, f"start on {name}", missing=f"{free >> 30} GiB of disk are free, {needed >> 30} are needed")]
    rows: list[Row] = []
    with bench.place("backlog") as path:
        bench.tell(f"filling {name}")
        subprocess.run(child("fill", str(path), str(size), str(ROWS)), check=True)
        found = []
        for number in range(bench.rounds(5)):
            bench.tell(f"start {number + 1} after a clean stop")
            found.append(started(path))
        rows.append(_row(f"{name}, clean stop", found, Goal(at_most=SECONDS_MAX, unit=" s")))
        for messages in (ROWS, 64, 1):
            found = []
            for number in range(bench.rounds(3)):
                bench.tell(f"start {number + 1} after kill -9, records of {messages} messages")
                killed(path, messages, tail)
                found.append(started(path))
            what = f"{name}, kill -9, at its end records of {messages} x 100 B"
            rows.append(_row(what, found, Goal(at_most=SECONDS_MAX, unit=" s")))
    return rows


def _row(what: str, found: list[dict[str, float]], goal: Goal | None) -> Row:
    def figure(name: str, unit: str) -> Figure:
        return Figure([run[name] for run in found], unit)

    return Row(
        NAME,
        what,
        figure("seconds", " s"),
        goal,
        ours=f"open_log alone {figure('open_seconds', ' s')}; RSS {figure('rss_mib', ' MiB')}, "
        f"peak {figure('peak_mib', ' MiB')}",
        note=f"{figure('files', ' files')}, {figure('held_gib', ' GiB')}, scanned {figure('scanned_mib', ' MiB')} "
        f"in {figure('records', ' records')}",
    )
