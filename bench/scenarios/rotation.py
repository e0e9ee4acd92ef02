"""Awaited appends at a rotation, against all others of the same run.

One producer appends 64 KiB at a time in `always` and waits for each ack; files have their default size. An append is
at a rotation when the log changes its file while it waits, or when the next file is still being made as it begins.

    growing     nothing is committed: every file is fresh or a zeroed spare (hazard 36)
    recycled    everything is committed as soon as it is synced, as with a pipeline that keeps up
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.figures import Figure, Goal, Row, percentile, ratios
from bench.harness import Bench
from bench.workload import check_synced, on_loop, options, syncs, topic, warm
from icestream import limits
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.wal.appender import require_placed
from icestream.wal.state import Shard
from icestream.wal.write_ahead_log import WriteAheadLog

NAME = "rotation"
GOAL = "p99 at rotation ≤ 3x p99 elsewhere"
APPEND_BYTES = 64 * limits.KIB


def ours(path: Path, rotations: int, file_bytes: int, *, recycle: bool) -> tuple[list[int], list[int]]:
    """Nanoseconds of the appends at rotations, and of the others."""

    async def work() -> tuple[list[int], list[int]]:
        async with warm(path, options(file_bytes=file_bytes)) as log:
            return await _append(log, topic(log, 1), rotations, recycle=recycle)

    return on_loop(work())


async def _append(log: WriteAheadLog, shard: Shard, rotations: int, *, recycle: bool) -> tuple[list[int], list[int]]:
    batch = log.batch(shard, encode_block(1, {envelope.PAYLOAD: [bytes(APPEND_BYTES - 200)]}))
    now = time.perf_counter_ns
    at_rotation: list[int] = []
    elsewhere: list[int] = []
    seen, synced = 0, syncs(log)
    while seen < rotations:
        file, preparing, before = log.appender.file, log.lifecycle.preparing, now()
        require_placed(await log.append([batch]))
        took = now() - before
        rotated = log.appender.file is not file
        (at_rotation if rotated or preparing else elsewhere).append(took)
        if rotated:
            seen += 1
            if recycle:
                await log.advance_floor({shard.key: shard.synced})
    check_synced(log, syncs(log) - synced, len(at_rotation) + len(elsewhere))
    return at_rotation, elsewhere


def measure(bench: Bench) -> list[Row]:
    rotations = int(bench.pick(150, 25))
    file_bytes = int(bench.pick(limits.LOG_FILE_BYTES_DEFAULT, 8 * limits.MIB))
    found = bench.interleave(
        bench.rounds(3),
        {
            "growing": lambda path: ours(path, rotations, file_bytes, recycle=False),
            "recycled": lambda path: ours(path, rotations, file_bytes, recycle=True),
        },
    )
    return [_row(kind, rounds, rotations, file_bytes) for kind, rounds in found.items()]


def _row(kind: str, rounds: list[tuple[list[int], list[int]]], rotations: int, file_bytes: int) -> Row:
    here = [percentile(at, 0.99) / 1e3 for at, _ in rounds]
    there = [percentile(elsewhere, 0.99) / 1e3 for _, elsewhere in rounds]
    middle = Figure([percentile(at, 0.5) / 1e3 for at, _ in rounds], " us")
    usual = Figure([percentile(elsewhere, 0.5) / 1e3 for _, elsewhere in rounds], " us")
    count = Figure([float(len(at)) for at, _ in rounds])
    return Row(
        NAME,
        f"p99 of awaited appends of 64 KiB at a rotation, log {kind}",
        ratios(here, there),
        Goal(at_most=3),
        ours=f"p99 {Figure(here, ' us')}, p50 {middle}",
        peer=f"p99 {Figure(there, ' us')}, p50 {usual}",
        peer_version="ours, away from rotations",
        note=f"{rotations} rotations of {file_bytes >> 20} MiB files per round; {count} appends at a rotation",
    )
