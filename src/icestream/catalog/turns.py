"""Who is at work on what, in this process: changes of one table or namespace take turns.

Nothing depends on it but speed: two nodes are told apart by the comparisons of their transactions. Without it every
second commit to a busy table would write its metadata file in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class Turns:
    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of those who want it

    @asynccontextmanager
    async def of(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """All of them, always in the same order, so that nobody waits in a circle."""
        wanted = sorted(set(keys))
        for key in wanted:
            lock, count = self._locks.get(key, (asyncio.Lock(), 0))
            self._locks[key] = lock, count + 1
        try:
            async with AsyncExitStack() as held:
                for key in wanted:
                    await held.enter_async_context(self._locks[key][0])
                yield
        finally:
            for key in wanted:
                lock, count = self._locks.pop(key)
                if count > 1:
                    self._locks[key] = lock, count - 1

    def __len__(self) -> int:
        return len(self._locks)
