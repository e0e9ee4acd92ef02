"""Appends while a sync is under way: whether the loop or the thread writes, nothing is left out (hazard 51)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream.limits import KIB
from icestream.model.sync_mode import SyncMode
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from tests.support.acked_messages import WAIT_SECONDS, AckedMessages

APPENDS = 300


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(SyncMode))
async def test_every_append_beside_a_sync_is_written(tmp_path: Path, mode: SyncMode) -> None:
    chosen = LogOptions(mode=mode, file_bytes=256 * KIB, sync_interval_ms=1)
    log = await open_log(tmp_path, chosen)
    keeper = AckedMessages(log, payload_bytes=500)
    for _ in range(APPENDS):
        sync = asyncio.create_task(log.sync())
        await keeper.send()
        await keeper.send()
        await asyncio.wait_for(sync, WAIT_SECONDS)
    await keeper.check()
    await log.close()
    keeper.attach(await open_log(tmp_path, chosen))
    await keeper.check()
    await keeper.log.close()
