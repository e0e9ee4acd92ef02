"""Names under which commands are sent, so that a repeat is carried out once: one command at a time for each name."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Name:
    """A client of the store, with one command under way at most."""

    __slots__ = ("client", "sequence")

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.sequence = 0


class Names:
    def __init__(self, token: bytes, count: int) -> None:
        """`token`: made of chance, so that nobody else has these names."""
        self._free = deque(Name(token + number.to_bytes(2)) for number in range(count))
        self._are_free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Name]:
        """A name with its next number; waits while all are in use."""
        async with self._are_free:
            name = self._free.popleft()
            name.sequence += 1
            try:
                yield name
            finally:
                self._free.append(name)
