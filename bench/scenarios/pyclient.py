"""What a message costs a program in Python: our client against nats-py's `publish_async`.

Each client is a process of its own (bench/python_client.py) that sends messages of 100 B one by one, has a future for
each, and looks at each answer. Measured is the CPU time of that process. nats-py runs on asyncio and on uvloop, and the
better one counts; ours counts on asyncio, which is what `asyncio.run` gives. The servers ack after the write.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench import broker
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Target
from bench.harness import Bench, MissingPeer, RunFailed
from bench.peers import nats

NAME = "pyclient"
GOAL = "Python client against nats-py publish_async: client CPU per message ≤ 1/30"
INSTALL = "make bench installs it (requirements/bench.txt)"
LOOPS = ("asyncio", "uvloop")


def client(side: str, target: Target, messages: int, loop: str) -> dict[str, float]:
    words = [sys.executable, "-m", "bench.python_client", side, target.address, str(messages), loop]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"the client {side} on {loop} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ours(path: Path, messages: int) -> dict[str, dict[str, float]]:
    with broker.running(path, "none") as target:
        broker.wait_for_spare(path)
        return {loop: client("ours", target, messages, loop) for loop in LOOPS}


def with_nats(path: Path, messages: int) -> dict[str, dict[str, float]]:
    with nats.running(path) as target:
        return {loop: client("nats", target, messages, loop) for loop in LOOPS}


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "client CPU per message", Goal(at_least=30), partial(_measure, bench))


def _measure(bench: Bench) -> list[Row]:
    if importlib.util.find_spec("nats") is None:
        raise MissingPeer(f"nats-py is not installed: {INSTALL}")
    peer_version = f"nats-py {version('nats-py')}, {nats.version()}"
    mine, theirs = int(bench.pick(1_000_000, 50_000)), int(bench.pick(30_000, 3_000))
    found = bench.interleave(
        bench.rounds(5), {"ours": lambda path: ours(path, mine), "nats-py": lambda path: with_nats(path, theirs)}
    )
    least = [min(_cpu_us(run[loop]) for loop in LOOPS) for run in found["nats-py"]]
    fastest = Figure([max(run[loop]["rate"] for loop in LOOPS) for run in found["nats-py"]], "/s")
    rows = []
    for loop in LOOPS:
        used = [_cpu_us(run[loop]) for run in found["ours"]]
        rows.append(
            Row(
                NAME,
                f"how many times less client CPU for a message, ours on {loop}",
                ratios(least, used),
                Goal(at_least=30) if loop == "asyncio" else None,
                ours=f"{Figure(used, ' us')}; {Figure([run[loop]['rate'] for run in found['ours']], '/s')}",
                peer=f"{Figure(least, ' us')}; {fastest}",
                peer_version=peer_version,
                note="peer: the better of asyncio and uvloop",
            )
        )
    return rows


def _cpu_us(found: dict[str, float]) -> float:
    return 1e6 * found["cpu_seconds"] / found["messages"]
