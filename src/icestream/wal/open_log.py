"""Opens the log of a directory: lock, recovery, sink, first file.

The lock is taken before anything is read: a second process on the same directory would recycle files under the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.files import Directory, open_directory
from icestream.runtime.native import native
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import InlineOffload, Offload, ThreadOffload
from icestream.wal.ballast import FULL, release_ballast
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.log_options import LogOptions
from icestream.wal.recovery import RecoveredWal, recover
from icestream.wal.sink import InlineSink, NativeSink, Sink
from icestream.wal.write_ahead_log import WriteAheadLog


async def open_log(
    path: Path,
    options: LogOptions | None = None,
    positions: Mapping[ShardKey, int] | None = None,
    *,
    must_exist: bool = False,
) -> WriteAheadLog:
    """Opens the log in `path`; creates it if it does not exist. Raises LogDamaged.

    `must_exist`: a missing log is damage instead. `positions`: offsets known to be durable elsewhere.
    """
    options = options or LogOptions()
    clock = SystemClock()
    directory = open_directory(path)
    sink: Sink = NativeSink(clock, options.inline_sync_below_us) if native else InlineSink()
    threads: Callable[[str, int], Offload] = ThreadOffload
    randomness = SystemRandomness()
    return await open_log_on(
        directory, options, positions or {}, clock, randomness, sink, threads, must_exist=must_exist
    )


async def open_log_on(
    directory: Directory,
    options: LogOptions,
    positions: Mapping[ShardKey, int],
    clock: Clock,
    randomness: Randomness,
    sink: Sink,
    threads: Callable[[str, int], Offload] = lambda name, count: InlineOffload(),
    *,
    must_exist: bool = False,
) -> WriteAheadLog:
    """`open_log` with all of its dependencies as parameters; tests pass a simulated disk and clock."""
    try:
        lock = directory.lock(LOCK_NAME)
    except OSError as error:
        raise _open_error(directory, error) from error
    # One thread for maintenance, so that files are prepared, freed and checkpointed one at a time, in order. Reads have
    # threads of their own: a slow read must not delay the next log file.
    maintenance, reads = threads("wal-files", 1), threads("wal-reads", limits.READ_THREADS)
    log: WriteAheadLog | None = None
    try:
        recovered = await maintenance.run(
            lambda: _recover(directory, clock, randomness.token(16), positions, must_exist=must_exist)
        )
        log = WriteAheadLog(directory, lock, options, clock, sink, maintenance, reads, recovered)
        await log.start()
    # Cancellation included: a start that is aborted must not keep the lock.
    except BaseException as error:
        if log is not None:
            await log.abort()
        else:
            sink.close()
            maintenance.close()
            reads.close()
            lock.close()
            directory.close()
        if isinstance(error, OSError):
            raise _open_error(directory, error) from error
        raise
    return log


def _recover(
    directory: Directory, clock: Clock, log_id: bytes, positions: Mapping[ShardKey, int], *, must_exist: bool
) -> RecoveredWal:
    """Recovers the log; on a full disk, once more with the space of the ballast."""
    try:
        return recover(directory, clock, log_id, positions, must_exist=must_exist)
    except OSError as error:
        if error.errno not in FULL or not release_ballast(directory):
            raise
        return recover(directory, clock, log_id, positions, must_exist=must_exist)


def _open_error(directory: Directory, error: OSError) -> errors.IcestreamError:
    path = directory.describe("")
    if error.errno in FULL:
        return errors.DiskFull(f"the log in {path} needs room to start: {error}", hint="free disk space, start again")
    return errors.LogError(f"the log in {path} cannot be opened: {error}", hint="check the disk and its permissions")
