"""Client ids for exactly-once commands: one command in flight for each id, so that a retry is recognised."""

from __future__ import annotations

import asyncio
from collections import deque


class Name:
    """A client id with at most one command in flight."""

    __slots__ = ("client", "sequence")

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.sequence = 0


class Names:
    def __init__(self, token: bytes, count: int) -> None:
        """`token`: random, so that the ids are unique."""
        self._free = deque(Name(token + number.to_bytes(2)) for number in range(count))
        self._are_free = asyncio.Semaphore(count)

    async def take(self) -> Name:
        """Borrows a client id with its next sequence number; waits while all are in use. It must be returned."""
        await self._are_free.acquire()
        name = self._free.popleft()
        name.sequence += 1
        return name

    def give_back(self, name: Name) -> None:
        self._free.append(name)
        self._are_free.release()
