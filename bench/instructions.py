"""The instructions that a broker executes for a message, counted by Valgrind (callgrind).

Where rounds of seconds scatter by tens of per cent on a machine that is not alone, counts of two equal runs differ by a
few tenths of one. Counted is what the process itself executes, in all threads: Python, the native part, libraries; not
the kernel. What a connection costs once is in the counts of a short and of a long run alike, so their difference
over the difference of their messages is what a message costs.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import generator
from bench.generator import Target
from bench.harness import MissingPeer, RunFailed

PAIRS = 5
_WARM_ATTEMPTS = 5


def prefix(folder: Path) -> Sequence[str]:
    """The words before a Python program that is to be counted; its dumps go into the folder. Raises MissingPeer."""
    if shutil.which("valgrind") is None:
        raise MissingPeer("counting instructions needs valgrind (apt install valgrind)")
    options = ("--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'callgrind'}.%p")
    return ("valgrind", *options, sys.executable)


def instructions_per_message(target: Target, folder: Path, messages: int, **options: float | str) -> float:
    """What one more message costs a broker that was started with `prefix`. Raises RunFailed."""
    _control(target, "--instr=on")
    _warm(target, messages, options)
    _take(target, folder)
    costs = []
    for _ in range(PAIRS):
        counts = []
        for count in (messages, 3 * messages):
            generator.publish("native", target, messages=count, **options)
            counts.append(_take(target, folder))
        costs.append((counts[1] - counts[0]) / (2 * messages))
    _control(target, "--instr=off")
    return median(costs)


def _warm(target: Target, messages: int, options: dict[str, float | str]) -> None:
    """The first pass takes longer, also than a broker waits for a HELLO: Valgrind translates the code that it meets."""
    for _ in range(_WARM_ATTEMPTS):
        with contextlib.suppress(RunFailed):
            generator.publish("native", target, messages=messages, **options)
            return
    raise RunFailed("the broker answered no publish under Valgrind")


def _take(target: Target, folder: Path) -> int:
    """The instructions since the last call."""
    _control(target, "--dump")
    dump = max(folder.glob(f"callgrind.{target.pid}.*"), key=lambda path: int(path.suffix[1:]))
    for line in dump.read_text().splitlines():
        if line.startswith("totals:"):
            dump.unlink()
            return int(line.split()[1])
    raise RunFailed(f"{dump} has no totals")


def _control(target: Target, word: str) -> None:
    command = ["callgrind_control", word, str(target.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "ERROR" in done.stderr + done.stdout:
        raise RunFailed(f"callgrind_control {word}: {done.stdout} {done.stderr}")
