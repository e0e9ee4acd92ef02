"""One small record awaited, against a bare loop of pwrite and fdatasync over a zeroed file.

Ours counts from the payload to the ack: encode a block of one message of 100 B, append it in `always`, wait. The peer
writes as many bytes as our record has, at the same positions, and syncs. Both into a zeroed file, one after the other.
"""

from __future__ import annotations

from pathlib import Path

from bench.figures import Figure, Goal, Row, percentile, ratios
from bench.harness import Bench
from bench.peers import bare_files
from bench.workload import append_for, block, on_loop, options, topic, warm
from icestream import limits

NAME = "single"
GOAL = "one small record awaited: p50 ≤ 1.7x of a bare fdatasync loop on the same disk"


def ours(path: Path, seconds: float) -> list[int]:
    async def work() -> list[int]:
        async with warm(path, options()) as log:
            shard = topic(log, 1)
            found: list[int] = []
            await append_for(log, seconds / 5, 1, lambda: log.batch(shard, block(1)))
            await append_for(log, seconds, 1, lambda: log.batch(shard, block(1)), found)
            return found

    return on_loop(work())


def bare_loop(path: Path, count: int) -> list[int]:
    fd = bare_files.zeroed(path / "file", 16 * limits.MIB)
    bare_files.synced_writes(fd, record_bytes(), count // 5)
    return bare_files.synced_writes(fd, record_bytes(), count, 4 * limits.MIB)


def record_bytes() -> int:
    """Header, one section entry, the block."""
    return 64 + 64 + len(block(1))


def measure(bench: Bench) -> list[Row]:
    seconds, count = bench.pick(2, 0.3), int(bench.pick(10_000, 1_000))
    found = bench.interleave(
        bench.rounds(9),
        {"ours": lambda path: ours(path, seconds), "bare loop": lambda path: bare_loop(path, count)},
    )
    p50 = {side: [percentile(run, 0.5) / 1e3 for run in rounds] for side, rounds in found.items()}
    p99 = {side: [percentile(run, 0.99) / 1e3 for run in rounds] for side, rounds in found.items()}
    return [
        Row(
            NAME,
            "p50 of an awaited append of 100 B, `always`",
            ratios(p50["ours"], p50["bare loop"]),
            Goal(at_most=1.7),
            ours=f"{Figure(p50['ours'], ' us')}",
            peer=f"{Figure(p50['bare loop'], ' us')}",
            peer_version=f"pwrite + fdatasync, {bare_files.VERSION}",
            note=f"{record_bytes()} B per write on both sides",
        ),
        Row(
            NAME,
            "p99 of the same",
            ratios(p99["ours"], p99["bare loop"]),
            ours=f"{Figure(p99['ours'], ' us')}",
            peer=f"{Figure(p99['bare loop'], ' us')}",
            peer_version=f"pwrite + fdatasync, {bare_files.VERSION}",
        ),
    ]
