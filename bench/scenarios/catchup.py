"""A reader that catches up: every record of the log, verified, against a bare read of the same files.

Both read chunks of 8 MiB into `bytes`, with the files in the page cache. Ours opens, reads and verifies in a reader
thread and hands each chunk to the loop. By shard: the sections of one topic out of ten, 1 MiB for each read, against a
bare read of as many bytes in chunks of 1 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.peers import bare_files
from bench.workload import ROWS, block, on_loop, opened, options, pipeline, topic
from icestream import limits
from icestream.model.sync_mode import SyncMode
from icestream.wal.write_ahead_log import WriteAheadLog

NAME = "catchup"
GOAL = "catch-up read with CRC ≥ 0.5x of a bare read of the file"
TOPICS = 10


def fill(path: Path, total: int, rows: int, topics: int) -> None:
    """A log of `total` bytes, one batch in each record, topics taking turns."""

    async def work() -> None:
        async with opened(path, options(mode=SyncMode.NONE)) as log:
            batches = [log.batch(topic(log, 1 + number), block(rows)) for number in range(topics)]
            turns = total // (len(batches[0].block) + 128) // topics // 16
            for _ in range(turns):
                for batch in batches:
                    await pipeline(log, batch, 16)

    on_loop(work())


def follow(path: Path) -> tuple[float, int]:
    """Bytes per second and records of a reader from the first record to the last."""

    async def work() -> tuple[float, int]:
        async with opened(path, options(spare_files=0)) as log:
            last, size, records = log.state.lsn, 0, 0
            started = time.perf_counter()
            async for chunk in log.reader.follow(1):
                size += sum(record[6] for record in chunk.records)
                records += len(chunk.records)
                if chunk.records[-1][1] >= last:
                    break
            return size / (time.perf_counter() - started), records

    return on_loop(work())


def by_shard(path: Path) -> float:
    async def work() -> float:
        async with opened(path, options(spare_files=0)) as log:
            return await _read_shard(log)

    return on_loop(work())


async def _read_shard(log: WriteAheadLog) -> float:
    shard = log.shard(1, 0)
    offset = size = 0
    started = time.perf_counter()
    while offset < shard.written:
        result = await log.reader.read(shard.key, offset, limits.MIB)
        size += sum(len(section.body) for section in result.sections)
        offset = result.next_offset
    return size / (time.perf_counter() - started)


def bare(path: Path, chunk_bytes: int) -> float:
    size, took = bare_files.read_through(sorted(path.glob("log-*.wal")), chunk_bytes)
    return size / took


def measure(bench: Bench) -> list[Row]:
    total = int(bench.pick(limits.GIB, 128 * limits.MIB))
    rows = [
        _row(bench, total, ROWS, "the whole log, records of 100 KiB", Goal(at_least=0.5)),
        _row(bench, total // 4, 64, "the whole log, records of 64 messages", None),
        _row(bench, total // 8, 1, "the whole log, records of one message", None),
    ]
    with bench.place("shards") as path:
        bench.tell("filling")
        fill(path, total, ROWS, TOPICS)
        found = bench.interleave(
            bench.rounds(7), {"ours": lambda _: by_shard(path), "bare read": lambda _: bare(path, limits.MIB)}
        )
    rows.append(_finish(found["ours"], found["bare read"], f"one topic of {TOPICS}, records of 100 KiB", None))
    return rows


def _row(bench: Bench, total: int, messages: int, what: str, goal: Goal | None) -> Row:
    with bench.place("log") as path:
        bench.tell("filling")
        fill(path, total, messages, 1)
        sides: dict[str, Callable[[Path], tuple[float, int]]] = {
            "ours": lambda _: follow(path),
            "bare read": lambda _: (bare(path, limits.FOLLOW_BYTES_MAX), 0),
        }
        found = bench.interleave(bench.rounds(7), sides)
    return _finish([rate for rate, _ in found["ours"]], [rate for rate, _ in found["bare read"]], what, goal)


def _finish(ours: list[float], peer: list[float], what: str, goal: Goal | None) -> Row:
    return Row(
        NAME,
        what,
        ratios(ours, peer),
        goal,
        ours=f"{Figure([rate / limits.MIB for rate in ours], ' MiB/s')}",
        peer=f"{Figure([rate / limits.MIB for rate in peer], ' MiB/s')}",
        peer_version=f"pread, {bare_files.VERSION}",
    )
