"""New topics with one message of 100 B each, until every one of them is a table with its row.

The wall time from the first message to the end of `icestream lake commit-now`, and the CPU seconds of the broker, the
lake process and the pipeline with Spark in that time. Spark is up before anything is measured.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import broker, node, process
from bench.figures import Figure, Goal, Row
from bench.harness import Bench, RunFailed
from bench.node import Node

NAME = "newtopics"
GOAL = "5,000 new topics with a message each are tables with their rows within 45 s"
SECONDS_MAX = 600.0


class Run(NamedTuple):
    seconds: float
    cpu_seconds: dict[str, float]  # by process


def _cpu_seconds(running: Node) -> dict[str, float]:
    pids = process.family(running.target.pid)
    lake = running.lake_pid()
    rest = [pid for pid in pids if pid not in (running.target.pid, lake)]
    return {
        "broker": process.cpu_seconds([running.target.pid]),
        "lake": process.cpu_seconds([lake]),
        "pipeline": process.cpu_seconds(rest),
    }


def _rows(running: Node) -> int:
    """That the pipeline has written since its start."""
    return int(running.icestream("pipeline", "status")["rows"])


def measured_run(path: Path, topics: int) -> Run:
    with node.running(path) as running:
        before, rows = _cpu_seconds(running), _rows(running)
        started = time.perf_counter()
        broker.burst(running.target, topics, batch=1000, parts=1000, topics=topics, handles=topics, topic="new")
        until = time.monotonic() + SECONDS_MAX
        running.icestream("lake", "commit-now", "--wait", f"{SECONDS_MAX:g}")
        while _rows(running) < rows + topics:
            if time.monotonic() > until:
                raise RunFailed(f"{topics} topics were not in their tables after {SECONDS_MAX:g} s")
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        after = _cpu_seconds(running)
        return Run(seconds, {name: used - before[name] for name, used in after.items()})


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "new topics", Goal(at_most=45, unit=" s"), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    topics = bench.pick(5000, 500)
    runs = bench.interleave(bench.rounds(1), {"new": lambda path: measured_run(path, topics)})["new"]
    used = ", ".join(f"{name} {Figure([run.cpu_seconds[name] for run in runs], ' s')}" for name in runs[0].cpu_seconds)
    goal = Goal(at_most=45, unit=" s") if topics == 5000 else None
    seconds = Figure([run.seconds for run in runs], " s")
    return [Row(NAME, f"{topics:,} new topics, a message each, in tables", seconds, goal, ours=f"CPU: {used}")]
