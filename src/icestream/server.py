"""The composition root: turns settings into components, starts them in order, stops them in reverse."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from icestream import errors
from icestream.model.sync_mode import SyncMode
from icestream.observability.log import get_logger
from icestream.runtime.clock import SystemClock
from icestream.runtime.garbage import calm_collector
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.settings import Settings
from icestream.storage.native import native
from icestream.wal.log import Log
from icestream.wal.open import open_log, open_log_on
from icestream.wal.options import LogOptions
from icestream.wal.recovery import RecoveryReport
from icestream.wal.sink import InlineSink

_log = get_logger("server")


def log_options(settings: Settings) -> LogOptions:
    wal = settings.wal
    return LogOptions(
        mode=SyncMode(wal.sync_mode),
        sync_interval_ms=wal.sync_interval_ms,
        file_bytes=wal.max_file_size,
        message_bytes_max=wal.max_message_bytes,
        align_bytes=wal.align_bytes,
        quota_bytes=wal.quota,
        topic_quota_bytes=wal.topic_quota,
        in_flight_bytes=wal.in_flight_bytes,
        spare_files=wal.spare_files,
        inline_sync_below_us=wal.inline_sync_below_us,
        checkpoint_every_bytes=wal.checkpoint_every_bytes,
    )


async def open_configured_log(settings: Settings) -> Log:
    """The log that the settings describe; in memory when the storage is."""
    options = log_options(settings)
    if settings.storage.type == "memory":
        disk = SimulatedDisk(seed=0)
        return await open_log_on(disk, options, {}, SystemClock(), SystemRandomness(), InlineSink())
    return await open_log(Path(settings.wal.base_path), options)


async def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Runs until SIGTERM or SIGINT, or until the log stops because its disk cannot be trusted any more."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    # before the log is opened: a signal during a long recovery stops the process behind it, not in the middle of it
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop)
    try:
        log = await open_configured_log(settings)
        calm_collector()
        for line in greeting(settings, log):
            say(line)
        await run(log, stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    say("stopped in order: the next start needs no recovery" if settings.storage.type != "memory" else "stopped")


def _ask_to_stop(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


async def run(log: Log, stop: asyncio.Future[None]) -> None:
    """Until `stop`, then closes the log. Raises LogStopped when the log stops by itself."""

    def fail(error: errors.LogStopped) -> None:
        if not stop.done():
            stop.set_exception(error)

    log.on_stop = fail
    _log.info("log open", lsn=log.state.lsn, files=len(log.upkeep.files), clean=log.report.clean)
    try:
        await stop
    finally:
        await log.close()


def greeting(settings: Settings, log: Log) -> Iterator[str]:
    where = "in memory" if settings.storage.type == "memory" else str(settings.wal.base_path)
    yield f"Icestream: the log is open ({where}), sync mode {settings.wal.sync_mode}"
    if native is None:
        yield "  without the native part: syncs run on the event loop, encoding and scanning in Python (slower)"
    for line in recovery_lines(log.report):
        yield f"  {line}"
    used, quota = log.upkeep.used_bytes, log.quota.node_bytes
    yield f"  {len(log.upkeep.files)} sealed files, {used} of {quota} bytes, {len(log.state.shards)} shards"
    yield "Try, in another terminal:"
    if settings.storage.type != "memory":
        yield f"  .venv/bin/icestream wal inspect {settings.wal.base_path}"
    yield "  .venv/bin/icestream config show --origin"
    yield "Stop with Ctrl-C."


def recovery_lines(report: RecoveryReport) -> Iterator[str]:
    """What the start found and did, in sentences."""
    if report.clean:
        yield f"clean start at record {report.last_lsn}"
    else:
        yield (
            f"recovered: {report.records_scanned} records read, checkpoint at record {report.checkpoint_lsn}, "
            f"the log ends at record {report.last_lsn}"
        )
    if report.rewritten_file:
        yield f"{report.rewritten_file} was not sealed: written anew and synced"
    if report.tail_bytes:
        yield f"{report.tail_bytes} bytes of unfinished, never acknowledged writes cut from {report.tail_file}"
    if report.sync_failed_before:
        yield "a sync failed in the last run: check the disk; what was unsealed has been written anew"
    for name in report.bad_checkpoints:
        yield f"{name} was not readable; the older checkpoint and more of the log were used"
    for gap in report.gaps:
        yield f"declared gap: {gap.key} offsets {gap.start} to {gap.end - 1} ({gap.reason})"
