"""Drops what a retention does not keep: on each sealed file, and now and then because messages get older.

Only while some topic has a retention is there anything to do. What is dropped becomes a declared gap and lies below the
floor in the same moment; the checkpoints that free its files know both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from icestream import limits
from icestream.model.shard import Gap, GapState, ShardKey
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.options import LogOptions
from icestream.wal.retention import REASON, Retention, Stretch, to_drop
from icestream.wal.state import LogState
from icestream.wal.upkeep import Upkeep

_log = get_logger("wal")


class Calendar:
    """The wall clock, as far as the monotonic one confirms it: a step forward is not believed before a restart, one
    back at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_us = clock.wall_us() - clock.monotonic_ns() // 1000

    def now_us(self) -> int:
        return min(self._clock.wall_us(), self._start_us + self._clock.monotonic_ns() // 1000)


class Retainer:
    def __init__(
        self,
        state: LogState,
        upkeep: Upkeep,
        clock: Clock,
        tasks: Tasks,
        next_seal: Callable[[], Awaitable[None]],
        options: Callable[[], LogOptions],
    ) -> None:
        self._state = state
        self._upkeep = upkeep
        self._clock = clock
        self._tasks = tasks
        self._next_seal = next_seal
        self._options = options
        self._calendar = Calendar(clock)
        self._topics: dict[int, tuple[list[ShardKey], Retention]] = {}
        self._is_running = False

    def set(self, topic_id: int, shards: int, retention: Retention) -> None:
        """In force from the next step on."""
        self._topics.pop(topic_id, None)
        if retention != Retention():
            self._topics[topic_id] = [ShardKey(topic_id, number) for number in range(shards)], retention
        if self._topics and not self._is_running:
            self._is_running = True
            self._tasks.start(self._on_time(), "wal-retention")
            self._tasks.start(self._on_seals(), "wal-retention-seals")

    async def _on_time(self) -> None:
        while True:
            await self._clock.sleep(limits.RETENTION_STEP_SECONDS)
            await self.step()

    async def _on_seals(self) -> None:
        while True:
            await self._next_seal()
            await self.step()

    async def step(self) -> None:
        """One look at every topic that has a retention."""
        if self._topics:
            for keys, retention in self._topics.values():
                self._drop(keys, retention)
            await self._upkeep.floors_moved()

    def _drop(self, keys: Sequence[ShardKey], retention: Retention) -> None:
        usage = self._state.usage.get(keys[0].topic_id)
        if usage is None:
            return
        share = self._options().retention_step_percent / 100
        floors: dict[ShardKey, int] = {}
        for stretch in to_drop(retention, usage.held_bytes, self._stretches(keys), self._calendar.now_us(), share):
            floors.update((key, held.end) for key, held in stretch.items())
        for key, floor in floors.items():
            self._drop_below(key, floor)

    def _stretches(self, keys: Sequence[ShardKey]) -> Iterator[Stretch]:
        shards = [self._state.shards[key] for key in keys if key in self._state.shards]
        for file in self._upkeep.spills.files:
            found = ((shard, file.find(shard.key)) for shard in shards)
            stretch = {shard.key: held for shard, held in found if held is not None and held.end > shard.floor}
            if stretch:
                yield stretch
        for file in self._upkeep.files:
            found = ((shard, file.find(shard.key)) for shard in shards)
            floors = self._upkeep.log_floor
            stretch = {shard.key: held for shard, held in found if held is not None and held.end > floors(shard.key)}
            if stretch:
                yield stretch

    def _drop_below(self, key: ShardKey, floor: int) -> None:
        """Sealed files are synced, so the floor may lie there. What is a gap already stays what it is."""
        shard = self._state.shards[key]
        at = shard.floor
        while (at := self._state.step_over(key, at)) < floor:
            end = min([floor, *(gap.start for gap in self._state.gaps.get(key, ()) if gap.start > at)])
            self._state.declare_gap(Gap(key, at, end, shard.epoch, REASON, GapState.DROPPED))
            metrics.WAL_RETENTION_DROPPED.inc(end - at)
            _log.info("messages are dropped by retention", topic=shard.topic.name, shard=key.shard, start=at, end=end)
        self._upkeep.move_floor(shard, floor)
