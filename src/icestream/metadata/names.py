"""Names under which commands are sent, so that a repeat is carried out once: one command at a time for each name."""

from __future__ import annotations

import asyncio
from collections import deque


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

    async def take(self) -> Name:
        """A name with its next number; waits while all are in use. It must be given back."""
        await self._are_free.acquire()
        name = self._free.popleft()
        name.sequence += 1
        return name

    def give_back(self, name: Name) -> None:
        self._free.append(name)
        self._are_free.release()
