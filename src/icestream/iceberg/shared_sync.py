"""One file system sync for all commits that wait for one: files that engines wrote are made durable together.

no sync running     a sync starts at once
a sync is running   it may have passed the files of a newly arrived commit: that commit waits for the next sync,
                    together with all others that arrive in the meantime
producers write     the next sync starts after a rest of some times the duration of the last one. A sync of a whole disk
to that disk        delays the acks that meet it; engines commit in seconds, producers in fractions of milliseconds
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.runtime.clock import Clock

Sync = Callable[[Collection[Path]], Awaitable[bool]]
_NEVER: Final = -(10**18)
_LOG_FILES: Final = "log-*.wal"
_NEWEST_LOG_FILES: Final = 3  # the active one, the next one, and one that was sealed just now


class _SyncGroup:
    """The commits that wait for the same sync, which has not started."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve_exception)


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Keeps asyncio from logging an exception whose waiters were all cancelled."""
    if not done.cancelled():
        done.exception()


class SharedSync:
    """Combines the syncs of concurrent commits."""

    def __init__(self, sync: Sync, clock: Clock) -> None:
        """`sync` syncs the disks of these directories and returns whether producers write to one of them."""
        self._sync = sync
        self._clock = clock
        self._waiting: _SyncGroup | None = None
        self._sync_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest_until_ns = _NEVER

    async def sync(self, paths: Collection[Path]) -> None:
        """Returns when everything written to the disks of these directories before the call is on disk.

        Raises the error of the sync.
        """
        group = self._waiting
        if group is None:
            group = self._waiting = _SyncGroup()
            # A task of its own: the caller that came first may be cancelled while the others wait.
            task = asyncio.create_task(self._run(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        group.paths.update(paths)
        # Shielded: a cancelled commit must not cancel the sync that others wait for.
        await asyncio.shield(group.done)

    async def _run(self, group: _SyncGroup) -> None:
        try:
            async with self._sync_lock:
                await self._rest()
                self._waiting = None  # from here on, new commits wait for the next sync
                started_ns = self._clock.monotonic_ns()
                if await self._sync(group.paths):
                    now_ns = self._clock.monotonic_ns()
                    rest_ns = (now_ns - started_ns) * limits.CATALOG_SYNC_REST_TIMES
                    self._rest_until_ns = now_ns + min(rest_ns, limits.CATALOG_SYNC_REST_NS_MAX)
        except asyncio.CancelledError:
            group.done.cancel()
            raise
        except BaseException as error:  # noqa: BLE001  # every waiting commit gets the error
            group.done.set_exception(error)
        else:
            group.done.set_result(None)
        finally:
            if self._waiting is group:
                self._waiting = None

    async def _rest(self) -> None:
        remaining_ns = self._rest_until_ns - self._clock.monotonic_ns()
        if remaining_ns > 0:
            await self._clock.sleep(remaining_ns / 1e9)


class LogDiskMonitor:
    """Tells whether the broker is writing its log to a disk, as another process can see it.

    By the modification times of the newest log files, one of which is written with every message.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_state: list[tuple[str, int]] = []

    def is_busy(self, disks: set[int]) -> bool:
        """True if the log is on one of these disks and was written since the last call."""
        try:
            if self._folder.stat().st_dev not in disks:
                return False
            newest = sorted((path.name for path in self._folder.glob(_LOG_FILES)), reverse=True)[:_NEWEST_LOG_FILES]
            state = [(name, (self._folder / name).stat().st_mtime_ns) for name in newest]
        except OSError:
            return False
        previous, self._last_state = self._last_state, state
        return bool(previous) and state != previous
