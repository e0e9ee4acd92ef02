"""Producers beside the pipeline: p99 of one that awaits each ack in `always`, while another sends 10,000 a second.

    stopped   no pipeline runs: messages stay in the log
    running   the pipeline writes and commits them, interval of 1 s
    dead      it runs, and the catalog does not answer: the lake process stands still

All three on the same broker, one after the other; the ratio is computed within a round, so that the disk of that minute
is the same for all.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

from bench import broker, generator, node
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load
from bench.harness import Bench
from bench.node import Child, Node

NAME = "producers"
GOAL = "p99 of an ack with the pipeline running, and with a dead catalog ≤ 1.5x of stopped, median of pairs"
RATE, BURST = 10_000, 100


def beside(path: Path, seconds: float) -> dict[str, Load]:
    settings = {f"{node.WRITER}.writer_flush_interval_ms": "1s"}
    with node.running(path, settings=settings, has_pipeline=False) as found:
        broker.warm(found.target, path)
        loads = {"stopped": awaited(found, seconds, "stopped")}
        with found.pipeline():
            loads["running"] = awaited(found, seconds, "running")
            lake = found.lake_pid()
            os.kill(lake, signal.SIGSTOP)
            try:
                loads["dead"] = awaited(found, seconds, "dead")
            finally:
                os.kill(lake, signal.SIGCONT)
    return loads


def awaited(found: Node, seconds: float, topic: str) -> Load:
    other = Child("paced", found.target.address, f"/default/{topic}-load", RATE, BURST, seconds * 1.5 + 3)
    try:
        return generator.publish("native", found.target, seconds=seconds, warm_seconds=seconds / 3, topic=topic)
    finally:
        other.end()


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "producers beside the pipeline", Goal(at_most=1.5), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    seconds = bench.pick(8, 2)
    runs = bench.interleave(bench.rounds(4), {"beside": lambda path: beside(path, seconds)})["beside"]
    stopped = [run["stopped"] for run in runs]
    words = {"running": "with the pipeline running", "dead": "with a dead catalog"}
    return [
        Row(
            NAME,
            f"p99 of an ack {what}, against none running",
            ratios([run[name].p99_us for run in runs], [run.p99_us for run in stopped]),
            Goal(at_most=1.5),
            ours=latency([run[name] for run in runs]),
            peer=latency(stopped),
        )
        for name, what in words.items()
    ]


def latency(loads: list[Load]) -> str:
    p50, p99 = Figure([load.p50_us for load in loads], " us"), Figure([load.p99_us for load in loads], " us")
    return f"p50 {p50}, p99 {p99}"
