"""The time that a retention by age goes by, and whether it is believed (hazards 32, 85).

A wrong clock removes rows for ever, so a step ahead is not believed:

    while the pipeline runs    more than RETENTION_CLOCK_JUMP_MS ahead of the monotonic clock
    over a restart             more than `downtime_max_ms` after the last time that was recorded

Nothing is removed by age then, until the clock is right again, or `pipeline.retention_downtime_max_ms` says that the
pause was real. A clock that goes back is believed at once: rows are kept longer.

The record lies at /pipeline/retention_clock/{lease}: one for each node of a cluster.
"""

from __future__ import annotations

import msgspec

from icestream import limits
from icestream.catalog.catalog_keys import retention_clock_key
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("retention")


class RetentionClockRecord(msgspec.Struct, frozen=True):
    """The last time that was believed."""

    time_ms: int


class RetentionClock:
    """Tells the time to a retention by age; None while it is not believed."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        lease_name: str,
        downtime_max_ms: int = limits.RETENTION_DOWNTIME_MS_DEFAULT,
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = retention_clock_key(lease_name)
        self._downtime_max_ms = downtime_max_ms
        self._believed_ms: int | None = None  # the last believed time of this process; None: not asked yet
        self._believed_ns = 0  # monotonic, of the same moment
        self._recorded_ms = 0
        self.is_believed = True

    async def now_ms(self) -> int | None:
        """Returns the wall clock; None if it is not believed. Records it, about once in an hour."""
        wall_ms, monotonic_ns = self._clock.wall_us() // 1000, self._clock.monotonic_ns()
        expected_ms = await self._latest_expected_ms(monotonic_ns)
        if expected_ms is not None and wall_ms > expected_ms:
            if self.is_believed:
                _log.error(
                    "clock is ahead of the time that passed: nothing is removed by age",
                    ahead_seconds=(wall_ms - expected_ms) // 1000,
                    hint="correct the clock; after a real pause raise pipeline.retention_downtime_max_ms",
                )
            self.is_believed = False
            return None
        self.is_believed = True
        self._believed_ms, self._believed_ns = wall_ms, monotonic_ns
        if not 0 <= wall_ms - self._recorded_ms < limits.RETENTION_CLOCK_JUMP_MS:
            await self._store.put(self._key, msgspec.json.encode(RetentionClockRecord(wall_ms)))
            self._recorded_ms = wall_ms
        return wall_ms

    async def _latest_expected_ms(self, monotonic_ns: int) -> int | None:
        """The latest time that is believed now; None if no time was ever recorded."""
        if self._believed_ms is not None:
            elapsed_ms = (monotonic_ns - self._believed_ns) // 1_000_000
            return self._believed_ms + elapsed_ms + limits.RETENTION_CLOCK_JUMP_MS
        entry = await self._store.get(self._key)
        if entry is None:
            return None
        # Damaged or not, the record is ours alone: without one the first time is believed.
        try:
            recorded = msgspec.json.decode(entry.value, type=RetentionClockRecord)
        except msgspec.MsgspecError:
            return None
        return recorded.time_ms + self._downtime_max_ms
