"""Moves the floors of shards. Everything below a floor is durable elsewhere, so the log may free it.

    up      when something became durable elsewhere: a commit to the table, a deleted topic
    down    when it is no longer durable there (hazard 21): a table was rolled back or created again. Only as far as the
            log still has everything. Messages above count against the topic's quota again and are not freed, also
            after a crash

The floor of a shard with a spill log (hazard 8) goes down at most to the start of the spill log; nothing older is kept.
If there is a hole after the spill log, it goes down to the end of the hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import contiguous_start
from icestream.wal.state import LogState, Shard


class Floors:
    """Serialises all moves of floors of one log, in both directions."""

    def __init__(self, state: LogState, lifecycle: FileLifecycle, earliest: Callable[[ShardKey], int]) -> None:
        """`earliest`: returns the lowest offset of a shard from which on everything can be read."""
        self._state = state
        self._lifecycle = lifecycle
        self._earliest = earliest
        self._lock = asyncio.Lock()  # concurrent calls are applied one after the other

    async def advance(self, floors: Mapping[ShardKey, int]) -> None:
        """Raises floors and frees the files that are no longer needed. Never lowers a floor.

        Raises InvalidInput, and moves none, if one of them lies beyond the synced offset of its shard.
        """
        # All are checked before any is moved: a refused call changes nothing.
        for key, offset in floors.items():
            synced = self._state.shard(key).synced
            if offset > synced:
                raise errors.InvalidInput(
                    f"floor {offset} of {key} is beyond its synced offset {synced}",
                    hint="call sync() first: nothing durable elsewhere may pass synced",
                )
        async with self._lock:
            for number, (key, offset) in enumerate(floors.items(), 1):
                self._lifecycle.move_floor(self._state.shards[key], offset)
                if not number % limits.FLOORS_SLICE:
                    await asyncio.sleep(0)
        await self._lifecycle.free_due_files()

    async def reopen(self, floors: Mapping[ShardKey, int]) -> dict[ShardKey, int]:
        """Lowers floors to these offsets, or as far as the log can; never raises one. Returns the resulting floors."""
        shards = {key: self._state.shard(key) for key in floors}
        # Not while messages are copied to the spill log: the copied range would begin above a floor that was lowered
        # meanwhile.
        async with self._lifecycle.spill_lock, self._lock:
            targets = {key: self._lowest_floor(key, offset) for key, offset in floors.items()}
            lowered = {key: offset for key, offset in targets.items() if offset < shards[key].floor}
            for key, offset in lowered.items():
                self._lower(shards[key], offset)
        if lowered:
            # Outside of the lock: writing checkpoints takes a while, and other shards may move their floors meanwhile.
            await self._lifecycle.floors_lowered(lowered)
        return {key: shard.floor for key, shard in shards.items()}

    def _lowest_floor(self, key: ShardKey, offset: int) -> int:
        return self._state.step_over(key, max(offset, self._contiguous_start(key)))

    def _contiguous_start(self, key: ShardKey) -> int:
        """The lowest offset from which on log and spill log contain everything without a hole."""
        earliest, spilled_end = self._earliest(key), self._lifecycle.spills.end(key)
        # Without a spill log, or with a hole behind it, the readable part of the log files decides.
        if not spilled_end or earliest > spilled_end:
            return earliest
        spilled = [(file_range.first, file_range.end) for _, file_range in self._lifecycle.spills.ranges_of(key)]
        gaps = [(gap.start, gap.end) for gap in self._state.gaps.get(key, ())]
        return contiguous_start([*spilled, *gaps], min(self._state.shard(key).floor, spilled_end))

    def _lower(self, shard: Shard, offset: int) -> None:
        """Lowers one floor and counts the bytes above it against the topic's quota again, as `move_floor` undid it."""
        lifecycle, key = self._lifecycle, shard.key
        old_floor, old_log_floor = shard.floor, lifecycle.log_floor(key)
        shard.floor = offset
        log_floor = lifecycle.log_floor(key)
        log_ranges = [file_range for file in lifecycle.files if (file_range := file.find(key)) is not None]
        shard.usage.held_bytes += sum(
            log_range.own_bytes for log_range in log_ranges if log_floor < log_range.end <= old_log_floor
        )
        spilled_ranges = [file_range for _, file_range in lifecycle.spills.ranges_of(key)]
        shard.usage.held_bytes += sum(
            spilled_range.own_bytes for spilled_range in spilled_ranges if offset < spilled_range.end <= old_floor
        )
