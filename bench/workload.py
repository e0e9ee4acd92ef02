"""Logs, topics and messages for the scenarios."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from icestream import limits
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.shard import TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.runtime.garbage import calm_collector
from icestream.wal.appender import AppendBatch, require_placed
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from icestream.wal.receipt import Receipt
from icestream.wal.state import Shard
from icestream.wal.write_ahead_log import WriteAheadLog

MESSAGE_BYTES = 100
PAYLOAD = bytes(range(MESSAGE_BYTES))
# 1,000 messages of 100 B are what the goals call a record of 100 KiB.
ROWS = 1000
QUOTA_BYTES = 200 * limits.GIB  # far away: a log near its quota is slowed on purpose

Answered = TypeVar("Answered")


def on_loop(work: Coroutine[Any, Any, Answered]) -> Answered:
    """On the loop that the broker uses, in a process that is set up like its own."""
    calm_collector()
    return uvloop.run(work)


def block(rows: int) -> bytes:
    """`rows` messages of 100 B."""
    return encode_block(rows, {envelope.PAYLOAD: [PAYLOAD] * rows})


def options(**values: Any) -> LogOptions:
    return LogOptions(quota_bytes=QUOTA_BYTES, topic_quota_bytes=QUOTA_BYTES, **values)


@asynccontextmanager
async def opened(path: Path, chosen: LogOptions) -> AsyncIterator[WriteAheadLog]:
    log = await open_log(path, chosen, {})
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def warm(path: Path, chosen: LogOptions) -> AsyncIterator[WriteAheadLog]:
    """A log in the state it has after its first minute: it writes into a zeroed file, and a spare is ready."""
    async with opened(path, chosen) as log:
        shard = topic(log, limits.KIB)
        filler = log.batch(shard, encode_block(1, {envelope.PAYLOAD: [bytes(limits.MIB)]}))
        await spares(path)
        first = None
        while first is None or log.appender.file is first:
            require_placed(await log.append([filler]))
            first = first or log.appender.file
        await spares(path)
        yield log


async def spares(path: Path) -> None:
    """Until a spare file is ready. The log has no event for that: it needs none."""
    while not any(path.glob("spare-*.wal")):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


def topic(log: WriteAheadLog, number: int) -> Shard:
    log.declare_topic(TopicIdentity(number, f"/default/bench-{number}"))
    return log.shard(number, 0)


async def append_for(
    log: WriteAheadLog,
    seconds: float,
    appenders: int,
    make: Callable[[], AppendBatch],
    latencies: list[int] | None = None,
) -> tuple[int, float]:
    """`appenders` tasks, each awaiting one append after the other: how many appends, in how many seconds."""
    now = time.perf_counter_ns
    count = 0
    started = now()
    until = started + int(seconds * 1e9)

    async def appender() -> None:
        nonlocal count
        while (before := now()) < until:
            require_placed(await log.append([make()]))
            count += 1
            if latencies is not None:
                latencies.append(now() - before)

    synced = syncs(log)
    await asyncio.gather(*(appender() for _ in range(appenders)))
    took = (now() - started) / 1e9
    check_synced(log, syncs(log) - synced, count // appenders)
    return count, took


async def pipeline(log: WriteAheadLog, batch: AppendBatch, count: int, per_tick: int = 1) -> float:
    """Submits `count` batches as fast as the in-flight bound lets it; the seconds until the last ack.

    Each tick of the loop becomes one record (of at most 4 MiB) with `per_tick` batches.
    """
    size = len(batch.block)
    bound = limits.IN_FLIGHT_BYTES_DEFAULT - 2 * size * per_tick
    waiting: deque[Receipt] = deque()
    synced = syncs(log)
    started = time.perf_counter()
    for number in range(count):
        while waiting and log.in_flight_bytes >= bound:
            require_placed(await waiting.popleft())
        waiting.append(log.submit([batch]))
        if number % per_tick == per_tick - 1:
            await asyncio.sleep(0)
            while waiting and waiting[0].done():
                require_placed(waiting.popleft().result())
    while waiting:
        require_placed(await waiting.popleft())
    took = time.perf_counter() - started
    check_synced(log, syncs(log) - synced, count * size // limits.IN_FLIGHT_BYTES_DEFAULT)
    return took


def syncs(log: WriteAheadLog) -> int:
    """How often the native writer has synced. Not part of the log's face: only the benchmark asks."""
    return int(log._sink._writer.sync_count())  # type: ignore[attr-defined]


def check_synced(log: WriteAheadLog, done: int, at_least: int) -> None:
    """An ack without a sync is fast and worth nothing: a figure of `always` must not come from one."""
    if log.appender.mode is SyncMode.ALWAYS and done < at_least:
        raise RuntimeError(f"the log acked with {done} syncs what takes at least {at_least}")
