"""What of a log's options may change while it runs. A part of log.py in a file of its own: it knows its inside.

    quota_bytes, topic_quota_bytes     from the next append on; nobody is told to leave
    in_flight_bytes                    at once: who waits for room looks again
    sync_interval_ms                   from the next sync of mode `periodic` on
    inline_sync_below_us               from the next write on
    checkpoint_every_bytes             when the next file is sealed
    retention_step_percent             with the next step of a retention
    warm_ms, warm_bytes                at once: what is kept for longer goes

Everything else stays as it was at the start: it is in the files, or threads and buffers were made by it.
"""

from __future__ import annotations

from dataclasses import replace

from icestream.wal.log import Log
from icestream.wal.options import LogOptions
from icestream.wal.sink import NativeSink


def change_options(log: Log, wanted: LogOptions) -> None:
    old = log._options
    options = replace(
        old,
        quota_bytes=wanted.quota_bytes,
        topic_quota_bytes=wanted.topic_quota_bytes,
        in_flight_bytes=wanted.in_flight_bytes,
        sync_interval_ms=wanted.sync_interval_ms,
        inline_sync_below_us=wanted.inline_sync_below_us,
        checkpoint_every_bytes=wanted.checkpoint_every_bytes,
        retention_step_percent=wanted.retention_step_percent,
        warm_ms=wanted.warm_ms,
        warm_bytes=wanted.warm_bytes,
    )
    log._options = log.upkeep._options = options
    if (old.quota_bytes, old.topic_quota_bytes) != (options.quota_bytes, options.topic_quota_bytes):
        log.quota = log._make_quota()
    if isinstance(log._sink, NativeSink):
        log._sink._inline_below_ns = options.inline_sync_below_us * 1000
    log.turnstile.wake()
    log._tasks.start(log.upkeep.floors_moved(), "wal-free")
