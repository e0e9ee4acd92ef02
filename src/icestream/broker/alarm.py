"""Rings at a time of the monotonic clock. The shell for decisions that know when they next care."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks


class Alarm:
    """One time at once: the earliest that was asked for."""

    def __init__(self, clock: Clock, tasks: Tasks, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._ring = ring
        self._due_ms = 0
        self._sleeping: asyncio.Task[None] | None = None

    def set(self, due_ms: int) -> None:
        """A later time than the one that is set does not count: whoever is woken too early asks again."""
        if self._sleeping is not None:
            if self._due_ms <= due_ms:
                return
            self._sleeping.cancel()
        self._due_ms = due_ms
        self._sleeping = self._tasks.start(self._sleep(due_ms), "alarm")

    def close(self) -> None:
        if self._sleeping is not None:
            self._sleeping.cancel()
            self._sleeping = None

    async def _sleep(self, due_ms: int) -> None:
        await self._clock.sleep(max(due_ms - self._clock.monotonic_ns() // 1_000_000, 1) / 1000)
        self._sleeping = None
        self._ring()
