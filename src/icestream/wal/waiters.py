"""Those who wait until something about the log has become true: a record released, a file sealed, everything synced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream import errors


class Waiters:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        if not is_reached():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((is_reached, waiter))
            await waiter

    def look(self, stopped: errors.LogError | None) -> None:
        """Something has changed: everybody looks again. A log that stopped or is closed will never get there."""
        left = []
        for is_reached, waiter in self._waiting:
            if waiter.done():
                continue
            if stopped is not None:
                waiter.set_exception(stopped)
            elif is_reached():
                waiter.set_result(None)
            else:
                left.append((is_reached, waiter))
        self._waiting = left
