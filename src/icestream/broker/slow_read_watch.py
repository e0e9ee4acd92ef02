"""Reports reads for consumers that take long, although they have not failed yet.

A request to the lake process may take up to a minute before it fails; consumers are informed earlier. Each watch covers
one read at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors, limits
from icestream.broker.alarm import Alarm
from icestream.broker.storage import ShardRead, ShardStream
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

OnSlow = Callable[[errors.IcestreamError], None]


class SlowReadWatch:
    """Watches one read at a time. One alarm serves all reads in turn, because nearly all return long before it."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._alarm = Alarm(clock, tasks, self._check)
        self._since_ms = 0
        self._on_slow: OnSlow | None = None

    async def read(self, stream: ShardStream, start: int, on_slow: OnSlow, *, cache: bool) -> ShardRead:
        """Reads from the stream. Calls `on_slow` once if the read has not returned after READ_STALLED_MS.

        Raises the errors of the read.
        """
        self._since_ms, self._on_slow = self._now_ms(), on_slow
        self._alarm.set(self._since_ms + limits.READ_STALLED_MS)
        try:
            return await stream.read(start, limits.READ_BYTES_DEFAULT, cache=cache)
        finally:
            if self._on_slow is on_slow:  # else a later read is watched by now
                self._on_slow = None

    def close(self) -> None:
        self._on_slow = None
        self._alarm.close()

    def _check(self) -> None:
        """Reports the present read if it is overdue; sets the alarm again for a read that began later."""
        if self._on_slow is None:
            return
        due_ms = self._since_ms + limits.READ_STALLED_MS
        if self._now_ms() < due_ms:  # the alarm was set for an earlier read, which has returned
            self._alarm.set(due_ms)
            return
        on_slow, self._on_slow = self._on_slow, None
        on_slow(
            errors.StorageUnavailable(
                f"a read of stored messages has not returned after {limits.READ_STALLED_MS / 1000:g} s",
                hint="the lake process, a disk or an object store is slow or unavailable; `icestream doctor` checks "
                "them",
            )
        )

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
