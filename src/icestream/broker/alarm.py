"""A timer on the monotonic clock: the I/O shell for pure decisions that know when they are next due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks


class Alarm:
    """Calls back at the earliest of the requested times, once."""

    def __init__(self, clock: Clock, tasks: Tasks, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._on_due = on_due
        self._due_ms = 0
        self._sleep_task: asyncio.Task[None] | None = None

    def set(self, due_ms: int) -> None:
        """Sets the alarm. A time later than the present one is ignored: a callback that comes early sets it again."""
        if self._sleep_task is not None:
            if self._due_ms <= due_ms:
                return
            self._sleep_task.cancel()
        # One sleeping task whatever is set: with thousands of deliveries, a task per requested time would be many.
        self._due_ms = due_ms
        self._sleep_task = self._tasks.start(self._sleep(due_ms), "alarm")

    def close(self) -> None:
        """Cancels the alarm; it can be set again."""
        if self._sleep_task is not None:
            self._sleep_task.cancel()
            self._sleep_task = None

    async def _sleep(self, due_ms: int) -> None:
        # At least a millisecond, so that a time in the past that is set again by its callback is not a busy loop.
        await self._clock.sleep(max(due_ms - self._clock.monotonic_ns() // 1_000_000, 1) / 1000)
        self._sleep_task = None  # before the callback, which may set the alarm again
        self._on_due()
