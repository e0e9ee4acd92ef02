"""Waiters: tasks that wait for a change, and check their condition again when they are woken."""

from __future__ import annotations

import asyncio


class Waiters:
    """The waiting tasks of one condition."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Waits for the next `wake`."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures.append(future)
        await future

    def wake(self) -> None:
        """Wakes all tasks."""
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():  # its task may have been cancelled
                future.set_result(None)
