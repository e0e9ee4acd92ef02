"""A notification that coroutines wait for: a condition variable of one event loop, without a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Notifier:
    def __init__(self) -> None:
        self._next_notification: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Returns at the next notification."""
        if self._next_notification is None:
            self._next_notification = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_notification)

    async def wait_while(self, condition: Callable[[], bool]) -> None:
        """Returns as soon as the condition is false. It is evaluated before the first wait too, so that a notification
        before this call is not missed."""
        while condition():
            await self.wait()

    def notify(self) -> None:
        """Wakes every coroutine that waits now."""
        if self._next_notification is not None:
            self._next_notification.set_result(None)
            self._next_notification = None
