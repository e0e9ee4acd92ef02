"""A process whose log has a topic without progress: it appends, spills and says so, until it is killed.

Lines on stdout: `b OFFSET` an acked message of the stuck topic, whose payload is its offset; `spill` a step that let
files go. Nothing is said before it is so.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from icestream import limits
from icestream.model import ShardKey, TopicIdentity, envelope
from icestream.model.block import encode_block
from icestream.model.sync_mode import SyncMode
from icestream.wal.appender import require_placed
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from icestream.wal.write_ahead_log import WriteAheadLog

OTHER, STUCK = ShardKey(1, 0), ShardKey(2, 0)


def options(mode: SyncMode) -> LogOptions:
    return LogOptions(
        mode=mode, file_bytes=limits.LOG_FILE_BYTES_MIN, message_bytes_max=8000, spare_files=0, quota_bytes=2**24
    )


async def opened(path: Path, mode: SyncMode) -> WriteAheadLog:
    log = await open_log(path, options(mode))
    log.declare_topic(TopicIdentity(1, "/default/other"))
    log.declare_topic(TopicIdentity(2, "/default/stuck"))
    return log


async def run(path: Path, mode: SyncMode) -> None:
    limits.SPILL_STUCK_SECONDS = 0.0  # type: ignore[misc]
    log = await opened(path, mode)
    while True:
        for _ in range(20):
            offset = log.shard(*STUCK).assigned
            block = encode_block(1, {envelope.PAYLOAD: [b"%d" % offset]})
            (place,) = require_placed(await log.submit([log.batch(log.shard(*STUCK), block)]))
            assert place.base_offset == offset
            print("b", offset, flush=True)
            other = encode_block(1, {envelope.PAYLOAD: [bytes(7000)]})
            await log.submit([log.batch(log.shard(*OTHER), other)])
        await log.sync()
        await log.advance_floor({OTHER: log.shard(*OTHER).synced})
        if await log.spill_job.step():
            print("spill", flush=True)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), SyncMode(sys.argv[2])))
