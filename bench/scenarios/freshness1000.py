"""The freshness of a table that has had 1,000 commits, against the same table before them; interval of 1 s, 10k/s.

The commits are made by the pipeline itself, as fast as it goes, from a trickle of messages.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from bench import node
from bench.figures import Goal, Row, percentile, ratios
from bench.harness import Bench, RunFailed
from bench.node import Child, Node
from bench.scenarios.freshness import row, seconds_to_rows

NAME = "freshness1000"
GOAL = "freshness is flat after 1,000 commits: p99 ≤ 1.2x of before, and ≤ 1.5 s"
TOPIC = "many-commits"
COMMITS_SECONDS_MAX = 400.0


def fresh(path: Path, seconds: float, commits: int) -> tuple[list[float], list[float], float]:
    """Before, after, and the seconds that a commit took in between."""
    with node.running(path, settings={f"{node.WRITER}.writer_flush_interval_ms": "1s"}) as found:
        before = seconds_to_rows(found, TOPIC, seconds, 12)
        took = make_commits(found, commits)
        return before, seconds_to_rows(found, TOPIC, seconds, 12), took


def make_commits(found: Node, commits: int) -> float:
    found.change(writer_flush_interval_ms="100ms", writer_batch_size=1)  # whatever is there is due
    trickle = Child("paced", found.target.address, f"/default/{TOPIC}", 500, 5, COMMITS_SECONDS_MAX)
    began = time.monotonic()
    try:
        while count(found) < commits:
            if time.monotonic() - began > COMMITS_SECONDS_MAX:
                raise RunFailed(f"{count(found)} commits in {COMMITS_SECONDS_MAX:g} s")
            time.sleep(1)
    finally:
        trickle.end()
        found.change(writer_flush_interval_ms="1s", writer_batch_size=100_000)
    found.commit_now()
    return (time.monotonic() - began) / commits


def count(found: Node) -> int:
    return len(found.table(TOPIC)["snapshots"])


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "freshness after 1,000 commits", Goal(at_most=1.2), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    seconds, commits = bench.pick(20, 4), int(bench.pick(1000, 30))
    runs = bench.interleave(bench.rounds(1), {"fresh": lambda path: fresh(path, seconds, commits)})["fresh"]
    before, after = [run[0] for run in runs], [run[1] for run in runs]
    flat = ratios([percentile(run, 0.99) for run in after], [percentile(run, 0.99) for run in before])
    took = sum(run[2] for run in runs) / len(runs)
    return [
        row(NAME, f"publish to row after {commits:,} commits, p99", after, Goal(at_most=1.5, unit=" s")),
        row(NAME, "the same before them", before, None),
        Row(NAME, "after against before, p99", flat, Goal(at_most=1.2), note=f"a commit took {1e3 * took:.0f} ms"),
    ]
