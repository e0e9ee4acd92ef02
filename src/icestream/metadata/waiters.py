"""Waits for conditions, until the store has stopped or is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream import errors
from icestream.runtime.clock import Clock


class Waiters:
    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.ended: errors.IcestreamError | None = None

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for the condition; False on timeout. Raises the error that ended the store."""
        if self.ended is not None:
            raise self.ended
        if is_reached():
            return True
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((is_reached, waiter))
        if seconds is None:
            await waiter
            return True
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            return waiter.done() and waiter.result() is None
        finally:
            timer.cancel()
            waiter.cancel()

    def look(self) -> None:
        """Checks all conditions again."""
        if not self._waiting:
            return
        remaining = []
        for is_reached, waiter in self._waiting:
            if waiter.done():
                continue
            if self.ended is not None:
                waiter.set_exception(self.ended)
            elif is_reached():
                waiter.set_result(None)
            else:
                remaining.append((is_reached, waiter))
        self._waiting = remaining

    def end(self, error: errors.IcestreamError) -> None:
        """Ends all waits with this error; conditions that hold succeed."""
        self.look()
        self.ended = error
        self.look()
