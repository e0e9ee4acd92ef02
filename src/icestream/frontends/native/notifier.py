"""The next time that something happens, for those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Notifier:
    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)

    async def wait_while(self, is_so: Callable[[], bool]) -> None:
        """Looks at once, too: what happened before anybody waits is not missed."""
        while is_so():
            await self.wait()

    def beat(self) -> None:
        """It has happened: everybody who waits goes on."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
