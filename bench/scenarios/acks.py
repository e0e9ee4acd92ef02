"""How long an ack takes in each sync mode, for one producer and for 64, 100 B each, from the payload on. No goal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.figures import Figure, Row, percentile
from bench.harness import Bench
from bench.workload import append_for, block, on_loop, options, topic, warm
from icestream.model.sync_mode import SyncMode

NAME = "acks"
GOAL = "(no goal) ack latency in each sync mode"


def ours(path: Path, mode: SyncMode, appenders: int, seconds: float) -> list[int]:
    async def work() -> list[int]:
        async with warm(path, options(mode=mode)) as log:
            shard = topic(log, 1)
            found: list[int] = []
            await append_for(log, seconds / 5, appenders, lambda: log.batch(shard, block(1)))
            await append_for(log, seconds, appenders, lambda: log.batch(shard, block(1)), found)
            return found

    return on_loop(work())


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(2, 0.3)
    rows: list[Row] = []
    for appenders in (1, 64):
        sides = {
            mode.value: partial(ours, mode=mode, appenders=appenders, seconds=seconds)
            for mode in (SyncMode.ALWAYS, SyncMode.PERIODIC, SyncMode.NONE)
        }
        for mode, rounds in bench.interleave(bench.rounds(5), sides).items():
            p50 = Figure([percentile(run, 0.5) / 1e3 for run in rounds], " us")
            p99 = Figure([percentile(run, 0.99) / 1e3 for run in rounds], " us")
            what = f"p50, `{mode}`, {appenders} appender{'s' if appenders > 1 else ''}"
            rows.append(Row(NAME, what, p50, ours=f"p99 {p99}", details={"p99": p99}))
    return rows
