"""Tasks that wait until something has changed, and look again then."""

from __future__ import annotations

import asyncio


class Waiters:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures.append(future)
        await future

    def wake(self) -> None:
        """All of them; one that was cancelled meanwhile is gone."""
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)
