"""Work beside the loop that does not begin before the test says so: readers that stall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class HeldOffload:
    """The `Offload` of a log's reads. While `hold` is in force every call waits; `let_go` runs them."""

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._arrived = asyncio.Event()
        self._free.set()
        self.waiting = 0
        self._runs_first = False

    def hold(self) -> None:
        self._free.clear()

    def hold_results(self) -> None:
        """Calls run, and their results wait: a thread that has read and not come back yet."""
        self._runs_first = True
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    async def until_waiting(self, count: int = 1) -> None:
        while self.waiting < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def run(self, call: Callable[[], Answer]) -> Answer:
        self.waiting += 1
        self._arrived.set()
        early = [call()] if self._runs_first else []
        try:
            await self._free.wait()
        finally:
            self.waiting -= 1
        return early[0] if early else call()

    def close(self) -> None:
        """Nothing runs elsewhere."""
