"""How soon a message is a row that a reader of the catalog sees, with 10,000 messages a second of 100 B, bursts of 100.

    default   at the writer's own interval of 5 s
    short     at an interval of 1 s, set while the broker runs

From the moment in which the application has the burst in hand to the first look at the table that has all of it. A look
comes 20 times a second. Spark is up before anything is measured. `freshness1000`: the same after 1,000 commits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import node
from bench.figures import Figure, Goal, Row, percentile
from bench.harness import Bench, RunFailed
from bench.node import Child, Node

NAME = "freshness"
GOAL = "publish to row, 10k/s: p99 ≤ 6 s at default settings, ≤ 1.5 s with the interval at 1 s"
RATE, BURST = 10_000, 100
LATE_SECONDS_MAX = 1.0


def seconds_to_rows(found: Node, topic: str, seconds: float, wait: float) -> list[float]:
    """Of each burst. `wait`: how long to look on after the last of them."""
    publishing = Child("paced", found.target.address, f"/default/{topic}", RATE, BURST, seconds)
    seen = Child("watch_table", found.catalog, topic, seconds + wait).said()
    said = publishing.said()
    if said["late_seconds"] > LATE_SECONDS_MAX:
        raise RunFailed(f"the producer did not keep its pace: {said['late_seconds']:.1f} s late")
    return waits(said["sent"], seen)


def waits(sent: list[list[int]], seen: list[list[int]]) -> list[float]:
    """Both rise. Raises RunFailed for a burst that was never seen as rows."""
    found, looks = [], iter(seen)
    at_ns, upto = next(looks, (0, 0))
    for first, count, sent_ns in sent:
        while upto < first + count:
            look = next(looks, None)
            if look is None:
                raise RunFailed(f"offset {first + count - 1} was not a row in time: {upto} were")
            at_ns, upto = look
        found.append((at_ns - sent_ns) / 1e9)
    return found


def fresh(path: Path, seconds: float) -> dict[str, list[float]]:
    with node.running(path) as found:
        default = seconds_to_rows(found, "by-default", seconds, 20)
        found.change(writer_flush_interval_ms="1s")
        return {"default": default, "short": seconds_to_rows(found, "by-second", seconds * 0.7, 12)}


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "publish to row", Goal(at_most=6, unit=" s"), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    seconds = bench.pick(30, 6)
    runs = bench.interleave(bench.rounds(1), {"fresh": lambda path: fresh(path, seconds)})["fresh"]
    default, short = [run["default"] for run in runs], [run["short"] for run in runs]
    return [
        row(NAME, "publish to row, 10k/s, default settings, p99", default, Goal(at_most=6, unit=" s")),
        row(NAME, "the same, interval of 1 s, p99", short, Goal(at_most=1.5, unit=" s")),
    ]


def row(name: str, what: str, runs: list[list[float]], goal: Goal | None) -> Row:
    p50 = Figure([percentile(run, 0.5) for run in runs], " s")
    worst = Figure([max(run) for run in runs], " s")
    return Row(name, what, Figure([percentile(run, 0.99) for run in runs], " s"), goal, ours=f"p50 {p50}, max {worst}")
