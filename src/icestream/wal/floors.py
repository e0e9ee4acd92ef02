"""Moves the floors of shards: everything below one is durable elsewhere, so the log may forget it.

    up      by whoever made it durable
    down    when it is durable there no longer (hazard 21): a table was rewound, or made anew. As far as the log still
            has all of it. What lies above counts against its topic again and is not freed, also after a crash

A shard with a spill log (hazard 8) goes back to the beginning of that at most: what lies before it is kept by nobody.
Where there is a hole behind the spill log, it goes back to the end of the hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.wal.reach import reaches_back
from icestream.wal.state import LogState, Shard
from icestream.wal.upkeep import Upkeep


class Floors:
    def __init__(self, state: LogState, upkeep: Upkeep, earliest: Callable[[ShardKey], int]) -> None:
        """`earliest`: the lowest offset of a shard from which on all can be read."""
        self._state = state
        self._upkeep = upkeep
        self._earliest = earliest
        self._turns = asyncio.Lock()  # whoever came later has the last word

    async def advance(self, floors: Mapping[ShardKey, int]) -> None:
        """All of them, or none when one cannot be right. Never down. Frees the files that nobody needs any more."""
        for key, offset in floors.items():
            synced = self._state.shard(key).synced
            if offset > synced:
                raise errors.InvalidInput(
                    f"floor {offset} of {key} is beyond its synced offset {synced}",
                    hint="call sync() first: nothing durable elsewhere may pass synced",
                )
        async with self._turns:
            for number, (key, offset) in enumerate(floors.items(), 1):
                self._upkeep.move_floor(self._state.shards[key], offset)
                if not number % limits.FLOORS_SLICE:
                    await asyncio.sleep(0)
        await self._upkeep.floors_moved()

    async def reopen(self, floors: Mapping[ShardKey, int]) -> dict[ShardKey, int]:
        """Down, never up: to these offsets, or as near as the log can. Where the floors are then."""
        shards = {key: self._state.shard(key) for key in floors}
        async with self._upkeep.copying, self._turns:
            found = {key: self._lowest(key, offset) for key, offset in floors.items()}
            lower = {key: offset for key, offset in found.items() if offset < shards[key].floor}
            for key, offset in lower.items():
                self._lower(shards[key], offset)
        if lower:
            await self._upkeep.floors_lowered(lower)
        return {key: shard.floor for key, shard in shards.items()}

    def _lowest(self, key: ShardKey, offset: int) -> int:
        return self._state.step_over(key, max(offset, self._kept_from(key)))

    def _kept_from(self, key: ShardKey) -> int:
        """The lowest offset from which on log and spill log keep everything without a hole."""
        earliest, spilled_end = self._earliest(key), self._upkeep.spills.end(key)
        if not spilled_end or earliest > spilled_end:
            return earliest
        copied = [(held.first, held.end) for _, held in self._upkeep.spills.of(key)]
        gaps = [(gap.start, gap.end) for gap in self._state.gaps.get(key, ())]
        return reaches_back([*copied, *gaps], min(self._state.shard(key).floor, spilled_end))

    def _lower(self, shard: Shard, offset: int) -> None:
        """What `move_floor` took from its topic's account comes back (hazard 8)."""
        upkeep, key = self._upkeep, shard.key
        before, log_before = shard.floor, upkeep.log_floor(key)
        shard.floor = offset
        log_floor = upkeep.log_floor(key)
        in_log = [held for file in upkeep.files if (held := file.find(key)) is not None]
        shard.usage.held_bytes += sum(held.own_bytes for held in in_log if log_floor < held.end <= log_before)
        copied = [held for _, held in upkeep.spills.of(key)]
        shard.usage.held_bytes += sum(held.own_bytes for held in copied if offset < held.end <= before)
