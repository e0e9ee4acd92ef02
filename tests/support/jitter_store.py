"""A metadata store before which calls wait by chance, from a seed: what two nodes may do to each other."""

from __future__ import annotations

import asyncio
import random

from icestream import limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import Entries, MemoryStore
from icestream.runtime.clock import SimulatedClock


class JitterStore(MemoryStore):
    def __init__(self, seed: int) -> None:
        super().__init__(SimulatedClock())
        self._chance = random.Random(seed)

    async def _wait(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        await self._wait()
        answer = await super().submit(command, client, sequence)
        await self._wait()
        return answer

    async def get(self, key: str) -> Entry | None:
        await self._wait()
        return await super().get(key)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        await self._wait()
        return await super().list(prefix, after, limit)
