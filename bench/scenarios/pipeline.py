"""Rounds of the pipeline on Spark in `local[2]`, warm, from the plan to synced files.

small     one topic with 1,000 messages
topics    200 topics with 500 messages each, against one topic with as many
large     CPU of one large topic over all processes, against the same work in one process without Spark
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench, RunFailed

NAME = "pipeline"
GOAL = "a warm round ≤ 100 ms; 200 topics ≤ 4x one; CPU ≤ 1.15x bare PyArrow"
ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 900


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "rounds on Spark", Goal(at_most=100, unit=" ms"), partial(_rounds, bench))


def _rounds(bench: Bench) -> list[Row]:
    rows = int(bench.pick(1_000_000, 100_000))
    with bench.place("rounds") as path:
        found = _run(path, rows, bench.rounds(5))
    seconds = {name: [run["seconds"] for run in runs] for name, runs in found.items()}
    cpu = {name: [run["cpu"] for run in runs] for name, runs in found.items()}
    small = Figure([1e3 * second for second in seconds["small"]], " ms")
    many, one = Figure(seconds["topics"], " s"), Figure(seconds["one"], " s")
    spark, bare = Figure(cpu["large"], " s"), Figure(cpu["bare"], " s")
    rate = Figure([rows / max(run, 0.01) for run in cpu["large"]], "/s")
    return [
        Row(NAME, "a warm round of one small topic", small, Goal(at_most=100, unit=" ms")),
        Row(
            NAME,
            "200 topics x 500 messages, against one topic with all of them",
            ratios(many.samples, one.samples),
            Goal(at_most=4),
            ours=str(many),
            peer=str(one),
        ),
        Row(
            NAME,
            f"CPU of {rows:,} messages of 100 B, against bare PyArrow",
            ratios(spark.samples, bare.samples),
            Goal(at_most=1.15),
            ours=str(spark),
            peer=str(bare),
            note=f"{rate} messages per second of CPU",
        ),
    ]


def _run(path: Path, rows: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    command = [sys.executable, "-m", "bench.rounds", str(path), str(rows), str(repeats)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if done.returncode:
        raise RunFailed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the rounds failed")
    found: dict[str, list[dict[str, float]]] = json.loads(done.stdout.splitlines()[-1])
    return found
