"""60 seconds of appends in `always`, nothing committed, against a plain sequential write with the same sync pattern.

64 producers append batches of 1,000 messages of 100 B and wait for each ack. Nothing is committed, so no file comes
back: every file is fresh, and spares are zeroed beside the load (hazard 36). The peer then writes as many bytes into
one growing file, as many in one write as ours had between two syncs, with an fdatasync after each.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.peers import bare_files
from bench.workload import ROWS, append_for, block, on_loop, opened, options, syncs, topic
from icestream import limits

NAME = "sustained"
GOAL = "sustained 60 s ≥ 0.6x of a plain sequential write with the same sync pattern"
APPENDERS = 64


def ours(path: Path, seconds: float) -> tuple[int, int, float, float]:
    """Bytes, syncs, seconds, and seconds of CPU."""

    async def work() -> tuple[int, int, float, float]:
        async with opened(path, options()) as log:
            batch = log.batch(topic(log, 1), block(ROWS))
            await append_for(log, min(seconds / 10, 2), APPENDERS, lambda: batch)
            used, synced, cpu = log.lifecycle.used_bytes, syncs(log), time.process_time()
            _, took = await append_for(log, seconds, APPENDERS, lambda: batch)
            return log.lifecycle.used_bytes - used, syncs(log) - synced, took, time.process_time() - cpu

    return on_loop(work())


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(60, 3)
    pattern: list[tuple[int, int]] = []

    def one_of_ours(path: Path) -> tuple[float, float]:
        size, count, took, cpu = ours(path, seconds)
        pattern.append((size, size // count))
        return size / took, cpu / took

    def plain(path: Path) -> tuple[float, float]:
        total, per_sync = pattern[-1]
        return total / bare_files.sequential_write(path / "file", total, per_sync), 0.0

    found = bench.interleave(bench.rounds(3), {"ours": one_of_ours, "plain write": plain})
    rates = {side: [rate / limits.MIB for rate, _ in rounds] for side, rounds in found.items()}
    cpu = Figure([cpu for _, cpu in found["ours"]])
    per_sync = Figure([float(size) / limits.KIB for _, size in pattern], " KiB")
    return [
        Row(
            NAME,
            f"{seconds:g} s of `always`, log growing, 64 appenders of 100 KiB",
            ratios(rates["ours"], rates["plain write"]),
            Goal(at_least=0.6),
            ours=f"{Figure(rates['ours'], ' MiB/s')}; {cpu} cores",
            peer=f"{Figure(rates['plain write'], ' MiB/s')}",
            peer_version=f"pwrite + fdatasync, one growing file, {bare_files.VERSION}",
            note=f"{per_sync} per sync on both sides",
        )
    ]
