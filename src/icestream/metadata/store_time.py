"""The time that is stamped on commands, in milliseconds: it never goes back and never jumps.

A node without peers starts at the wall clock, or at the highest stamp of the log if that is later, and continues by the
monotonic clock. So no time to live ends early because a clock was set (hazard 32), and a restart does not start it
anew.

A new leader continues from the last stamp that it has applied, by its own monotonic clock since then: never ahead of
its predecessor, whatever the clocks of the machines say. So no key expires early because the leader changed; it may
live longer by the time that a stamp needs to arrive, and by the time in which no node was up.
"""

from __future__ import annotations

from icestream.runtime.clock import Clock


class StoreTime:
    """The clock of one leadership."""

    def __init__(self, clock: Clock, start_ms: int, start_ns: int) -> None:
        self._clock = clock
        self._start_ms = start_ms
        self._start_ns = start_ns

    @classmethod
    def from_wall(cls, clock: Clock, floor_ms: int) -> StoreTime:
        """Starts at the wall clock, but not below `floor_ms`."""
        return cls(clock, max(clock.wall_us() // 1000, floor_ms), clock.monotonic_ns())

    @classmethod
    def continued(cls, clock: Clock, stamp_ms: int, applied_ns: int) -> StoreTime:
        """Continues from the stamp `stamp_ms`, which was applied at `applied_ns`."""
        return cls(clock, stamp_ms, applied_ns)

    def now_ms(self) -> int:
        """The stamp for a command that is proposed now."""
        return self._start_ms + (self._clock.monotonic_ns() - self._start_ns) // 1_000_000
