"""Ack of one producer over `writer_batch_size` x `writer_flush_interval_ms` x sync mode. No goal.

Another producer sends 10,000 messages a second, so that the pipeline has something to do. The writer's settings are
changed while the broker runs; each sync mode has a broker of its own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker, node
from bench.figures import Figure, Row
from bench.generator import Load
from bench.harness import Bench
from bench.scenarios.producers import awaited

NAME = "writers"
GOAL = "ack of a producer, p50 and p99, over writer_batch_size x writer_flush_interval_ms x sync mode: no goal"
MODES = ("always", "periodic", "none")
BATCHES = (10_000, 100_000)
INTERVALS = ("1s", "5s")

Cells = dict[tuple[int, str], Load]


def cells(path: Path, mode: str, seconds: float) -> Cells:
    found: Cells = {}
    with node.running(path, mode) as running:
        broker.warm(running.target, path)
        for batch in BATCHES:
            for interval in INTERVALS:
                running.change(writer_batch_size=batch, writer_flush_interval_ms=interval)
                found[batch, interval] = awaited(running, seconds, f"{mode}-{batch}-{interval}")
    return found


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "acks over the writer's settings", None, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    seconds = bench.pick(6, 1)
    sides = {mode: partial(cells, mode=mode, seconds=seconds) for mode in MODES}
    found = bench.interleave(bench.rounds(1), sides)
    return [
        _cell(mode, batch, interval, [run[batch, interval] for run in found[mode]])
        for mode in MODES
        for batch in BATCHES
        for interval in INTERVALS
    ]


def _cell(mode: str, batch: int, interval: str, loads: list[Load]) -> Row:
    p99 = Figure([load.p99_us for load in loads], " us")
    return Row(
        NAME,
        f"ack of one producer, p50, `{mode}`, batches of {batch:,}, interval {interval}",
        Figure([load.p50_us for load in loads], " us"),
        ours=f"p99 {p99}, {Figure([load.rate for load in loads], '/s')}",
        details={"p99": p99},
    )
