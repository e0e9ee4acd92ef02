"""Background job that drops messages beyond a topic's retention: after each sealed file, and periodically for the age.

It runs only while a topic has a retention. Dropped messages become a declared gap and lie below the floor in the same
moment; the checkpoints that allow to free their files contain both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from icestream import limits
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import FileSummary
from icestream.wal.log_options import LogOptions
from icestream.wal.retention import REASON, FileSlice, Retention, to_drop
from icestream.wal.state import LogState, Shard

_log = get_logger("wal")


class BoundedWallClock:
    """The wall clock, bounded by the monotonic clock: a step forward takes effect at a restart, a step back at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_us = clock.wall_us() - clock.monotonic_ns() // 1000

    def now_us(self) -> int:
        return min(self._clock.wall_us(), self._start_us + self._clock.monotonic_ns() // 1000)


class RetentionJob:
    """Drops messages of the topics that have a retention; idle as long as no topic has one."""

    def __init__(
        self,
        state: LogState,
        lifecycle: FileLifecycle,
        clock: Clock,
        tasks: Tasks,
        next_seal: Callable[[], Awaitable[None]],
        options: Callable[[], LogOptions],
    ) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._clock = clock
        self._tasks = tasks
        self._next_seal = next_seal
        self._options = options
        self._wall_clock = BoundedWallClock(clock)
        self._topics: dict[int, tuple[list[ShardKey], Retention]] = {}
        self._is_running = False

    def set_retention(self, topic_id: int, shards: int, retention: Retention) -> None:
        """Sets or removes (`Retention()`) the retention of a topic, from the next step on."""
        self._topics.pop(topic_id, None)
        if retention != Retention():
            self._topics[topic_id] = [ShardKey(topic_id, number) for number in range(shards)], retention
        if self._topics and not self._is_running:
            self._is_running = True
            self._tasks.start(self._run_periodically(), "wal-retention")
            self._tasks.start(self._run_after_seals(), "wal-retention-seals")

    async def _run_periodically(self) -> None:
        while True:
            await self._clock.sleep(limits.RETENTION_STEP_SECONDS)
            await self.step()

    async def _run_after_seals(self) -> None:
        while True:
            await self._next_seal()
            await self.step()

    async def step(self) -> None:
        """Drops what is due of every topic with a retention, and frees the files."""
        if self._topics:
            for keys, retention in self._topics.values():
                self._drop(keys, retention)
            await self._lifecycle.free_due_files()

    def _drop(self, keys: Sequence[ShardKey], retention: Retention) -> None:
        usage = self._state.usage.get(keys[0].topic_id)
        if usage is None:
            return
        share = self._options().retention_step_percent / 100
        floors: dict[ShardKey, int] = {}
        shards = [self._state.shards[key] for key in keys if key in self._state.shards]
        held_messages = sum(shard.written - shard.floor for shard in shards)
        now_us = self._wall_clock.now_us()
        for file_slice in to_drop(retention, usage.held_bytes, self._slices(keys), now_us, share, held_messages):
            floors.update((key, file_range.end) for key, file_range in file_slice.items())
        for key, floor in floors.items():
            self._drop_below(key, floor)

    def _slices(self, keys: Sequence[ShardKey]) -> Iterator[FileSlice]:
        """The messages of a topic in each sealed file, spill files first: they hold the oldest."""
        shards = [self._state.shards[key] for key in keys if key in self._state.shards]
        for file in self._lifecycle.spills.files:
            if file_slice := _slice_above(file, shards, lambda shard: shard.floor):
                yield file_slice
        for file in self._lifecycle.files:
            if file_slice := _slice_above(file, shards, lambda shard: self._lifecycle.log_floor(shard.key)):
                yield file_slice

    def _drop_below(self, key: ShardKey, floor: int) -> None:
        """Declares everything below `floor` dropped, except existing gaps, and moves the floor.

        The floor lies in a sealed file, so it is not beyond the synced offset.
        """
        shard = self._state.shards[key]
        at = shard.floor
        while (at := self._state.step_over(key, at)) < floor:
            # Existing gaps keep their own reason: an unclean stop is not reported as a retention.
            end = min([floor, *(gap.start for gap in self._state.gaps.get(key, ()) if gap.start > at)])
            self._state.declare_gap(DeclaredGap(key, at, end, shard.epoch, REASON, GapState.DROPPED))
            metrics.WAL_RETENTION_DROPPED.inc(end - at)
            _log.info("dropped messages by retention", topic=shard.topic.name, shard=key.shard, start=at, end=end)
        self._lifecycle.move_floor(shard, floor)


def _slice_above(file: FileSummary, shards: Sequence[Shard], floor_of: Callable[[Shard], int]) -> FileSlice:
    """What the file contains of the shards above their floors."""
    ranges = ((shard, file.find(shard.key)) for shard in shards)
    return {
        shard.key: file_range
        for shard, file_range in ranges
        if file_range is not None and file_range.end > floor_of(shard)
    }
