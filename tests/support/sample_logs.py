"""The small logs that damage is done to: how each came to be, by name."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from functools import cache

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.wal.log_file import checkpoint_parts
from tests.support.small_log import A, B, LogImage, SmallLog

BIG = 5000


async def _some(log: SmallLog) -> None:
    await log.append({A: 2, B: 1})
    await log.append({A: 1})
    await log.append({B: 2})


async def _killed() -> SmallLog:
    """One file, not sealed, and the next one prepared; nothing else knows of its records."""
    log = SmallLog()
    await log.open()
    await _some(log)
    await log.append({A: 1, B: 1})
    log.kill()
    return log


async def _stopped() -> SmallLog:
    """One sealed file and a clean checkpoint that covers it."""
    log = SmallLog()
    await log.open()
    await _some(log)
    await log.close()
    return log


async def _stopped_then_killed() -> SmallLog:
    """A sealed file that both checkpoints cover; a file that the newest covers in part."""
    log = await _stopped()
    await log.open()
    await log.append({A: 2, B: 2})
    await log.append({B: 1})
    await log.log.checkpoint()
    await log.append({A: 3})
    await log.append({A: 1, B: 1})
    log.kill()
    return log


async def _killed_often() -> SmallLog:
    """Copies that recovery made, sealed; no checkpoint is left."""
    log = SmallLog()
    for _ in range(3):
        await log.open()
        await _some(log)
        log.kill()
    for name in log.disk.names():
        if checkpoint_parts(name) is not None:
            log.disk.remove(name)
    log.disk.sync()
    return log


async def _rotated() -> SmallLog:
    """Files that were full, some covered by a checkpoint and some not."""
    log = SmallLog()
    await log.open()
    for number in range(16):
        await log.append({A: 2}, BIG)
        await log.append({B: 1, A: 1})
        if number in (5, 10):
            await log.log.checkpoint()
    log.kill()
    return log


async def _recycled() -> SmallLog:
    """The oldest files were freed and are used again: old records lie behind and between the new ones."""
    log = SmallLog()
    await log.open()
    for number in range(24):
        await log.append({A: 2}, BIG)
        await log.append({B: 1})
        if number == 12:
            await log.log.advance_floor({key: shard.synced for key, shard in log.log.state.shards.items()})
    log.kill()
    return log


async def _freed() -> SmallLog:
    """A log of which only the contents of two checkpoints are left."""
    log = await _stopped()
    await log.open()
    await log.log.advance_floor({key: shard.synced for key, shard in log.log.state.shards.items()})
    await log.append({A: 1})
    await log.append({B: 2})
    log.kill()
    return log


async def _periodic() -> SmallLog:
    """A log with unsynced records and offsets that are promised ahead."""
    log = SmallLog(SyncMode.PERIODIC)
    await log.open()
    await _some(log)
    await log.log.sync()
    await log.append({A: 1, B: 1})
    log.kill()
    return log


class _AllLands(random.Random):
    """Of a write that fails, every byte was written."""

    def randint(self, a: int, b: int) -> int:
        return b


async def _write_failed() -> SmallLog:
    """A file that a failed write ended: a record that was taken back lies behind its last one."""
    log = SmallLog()
    await log.open()
    await _some(log)
    await _fail_a_write(log)
    return log


async def _first_write_failed() -> SmallLog:
    """The same in a file where no record counts."""
    log = SmallLog()
    await log.open()
    await _fail_a_write(log)
    return log


async def _fail_a_write(log: SmallLog) -> None:
    log.disk.chance = _AllLands()
    log.disk.fail("write", errno.EIO)
    with pytest.raises(errors.OutcomeUnknown):
        await log.append({A: 1})
    await log.append({A: 2})
    await log.append({B: 1})
    log.kill()


LOGS: dict[str, Callable[[], Awaitable[SmallLog]]] = {
    "killed": _killed,
    "stopped": _stopped,
    "stopped then killed": _stopped_then_killed,
    "killed often": _killed_often,
    "rotated": _rotated,
    "recycled": _recycled,
    "freed": _freed,
    "periodic": _periodic,
    "write failed": _write_failed,
    "first write failed": _first_write_failed,
}


@cache
def picture(name: str) -> LogImage:
    """The log as it lies on disk after its last run. Not for coroutines: it runs an event loop of its own."""

    async def draw() -> LogImage:
        return (await LOGS[name]()).picture()

    return asyncio.run(draw())
