"""Syncs on the idle loop against syncs in the native thread: the figures of the decision (ADR). No goal.

`inline_sync_below_us` is 1,000 (the default) on one side and 0 (always the thread) on the other.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.figures import Figure, Row, percentile, ratios
from bench.harness import Bench
from bench.workload import append_for, block, on_loop, options, topic, warm

NAME = "inline"
GOAL = "(no goal) sync on the idle loop against sync in the thread"


def ours(path: Path, below_us: int, appenders: int, seconds: float) -> tuple[float, float, float]:
    """p50 and p99 in microseconds, appends per second."""

    async def work() -> tuple[float, float, float]:
        async with warm(path, options(inline_sync_below_us=below_us)) as log:
            shard = topic(log, 1)
            found: list[int] = []
            await append_for(log, seconds / 5, appenders, lambda: log.batch(shard, block(1)))
            count, took = await append_for(log, seconds, appenders, lambda: log.batch(shard, block(1)), found)
            return percentile(found, 0.5) / 1e3, percentile(found, 0.99) / 1e3, count / took

    return on_loop(work())


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(2, 0.3)
    rows: list[Row] = []
    for appenders in (1, 8, 64, 512):
        found = bench.interleave(
            bench.rounds(5),
            {
                "inline": partial(ours, below_us=1000, appenders=appenders, seconds=seconds),
                "thread": partial(ours, below_us=0, appenders=appenders, seconds=seconds),
            },
        )
        columns = {side: list(zip(*rounds, strict=True)) for side, rounds in found.items()}
        rows.append(
            Row(
                NAME,
                f"p50 inline / p50 thread, {appenders} appender{'s' if appenders > 1 else ''}",
                ratios(columns["inline"][0], columns["thread"][0]),
                ours=_text(columns["inline"]),
                peer=_text(columns["thread"]),
                peer_version="ours, thread",
            )
        )
    return rows


def _text(columns: list[tuple[float, ...]]) -> str:
    p50, p99, rate = (Figure(list(column)) for column in columns)
    return f"p50 {p50} us, p99 {p99} us, {rate}/s"
