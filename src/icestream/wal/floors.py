"""Moves the floors of shards: everything below one is durable elsewhere, so the log may forget it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.wal.state import LogState
from icestream.wal.upkeep import Upkeep


class Floors:
    def __init__(self, state: LogState, upkeep: Upkeep) -> None:
        self._state = state
        self._upkeep = upkeep

    async def advance(self, floors: Mapping[ShardKey, int]) -> None:
        """All of them, or none when one cannot be right. Never down. Frees the files that nobody needs any more."""
        for key, offset in floors.items():
            synced = self._state.shard(key).synced
            if offset > synced:
                raise errors.InvalidInput(
                    f"floor {offset} of {key} is beyond its synced offset {synced}",
                    hint="call sync() first: nothing durable elsewhere may pass synced",
                )
        for number, (key, offset) in enumerate(floors.items(), 1):
            self._upkeep.move_floor(self._state.shards[key], offset)
            if not number % limits.FLOORS_SLICE:
                await asyncio.sleep(0)
        await self._upkeep.floors_moved()
