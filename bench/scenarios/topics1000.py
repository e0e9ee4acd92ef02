"""Ticks with 1,000 sections of different topics, against the same batches for one topic.

Both sides append the same 1,000 blocks in one call and wait for the ack; on one side each goes to a topic of its own,
on the other all go to one. In `always` the sync is part of it; in `none` only the work of the log is left.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.workload import block, check_synced, on_loop, options, syncs, topic, warm
from icestream.model.sync_mode import SyncMode
from icestream.wal.appender import require_placed

NAME = "topics1000"
GOAL = "append of 1000 sections of different topics per tick ≥ 0.5x of one topic"
TOPICS = 1000


def ours(path: Path, mode: SyncMode, topics: int, rows: int, seconds: float) -> float:
    """Messages per second, in ticks of 1,000 batches."""

    async def work() -> float:
        async with warm(path, options(mode=mode)) as log:
            shards = [topic(log, 1 + number) for number in range(topics)]
            content = block(rows)
            batches = [log.batch(shards[number % topics], content) for number in range(TOPICS)]
            for _ in range(10):
                require_placed(await log.append(batches))
            ticks, synced = 0, syncs(log)
            started = time.perf_counter()
            until = started + seconds
            while (now := time.perf_counter()) < until:
                require_placed(await log.append(batches))
                ticks += 1
            check_synced(log, syncs(log) - synced, ticks)
            return ticks * TOPICS * rows / (now - started)

    return on_loop(work())


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(2, 0.3)
    rows: list[Row] = []
    for mode, per_section in ((SyncMode.ALWAYS, 1), (SyncMode.ALWAYS, 10), (SyncMode.NONE, 1), (SyncMode.NONE, 10)):
        found = bench.interleave(
            bench.rounds(5),
            {
                name: partial(ours, mode=mode, topics=topics, rows=per_section, seconds=seconds)
                for name, topics in ((f"{TOPICS} topics", TOPICS), ("one topic", 1))
            },
        )
        many, one = found[f"{TOPICS} topics"], found["one topic"]
        ticks = Figure([1e6 * TOPICS * per_section / rate for rate in many], " us")
        plural = "message" if per_section == 1 else "messages"
        rows.append(
            Row(
                NAME,
                f"`{mode.value}`, {per_section} {plural} of 100 B per section",
                ratios(many, one),
                Goal(at_least=0.5) if mode is SyncMode.ALWAYS else None,
                ours=f"{Figure(many, '/s')}",
                peer=f"{Figure(one, '/s')}",
                peer_version="ours, one topic",
                note=f"a tick of 1,000 sections takes {ticks}",
            )
        )
    return rows
