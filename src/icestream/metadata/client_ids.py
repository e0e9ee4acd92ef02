"""Client ids for exactly-once commands: one command in flight for each id, so that a retry is recognised."""

from __future__ import annotations

import asyncio
from collections import deque


class ClientId:
    """A client id with at most one command in flight."""

    __slots__ = ("client", "sequence")

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.sequence = 0


class ClientIds:
    """A pool of client ids. A borrowed id identifies one command until it is returned."""

    def __init__(self, token: bytes, count: int) -> None:
        """`token`: random, so that the ids are unique."""
        self._free = deque(ClientId(token + number.to_bytes(2)) for number in range(count))
        self._free_count = asyncio.Semaphore(count)

    async def take(self) -> ClientId:
        """Borrows a client id with its next sequence number; waits while all are in use. It must be returned."""
        await self._free_count.acquire()
        client_id = self._free.popleft()
        client_id.sequence += 1
        return client_id

    def release(self, client_id: ClientId) -> None:
        """Returns a borrowed id to the pool."""
        self._free.append(client_id)
        self._free_count.release()
