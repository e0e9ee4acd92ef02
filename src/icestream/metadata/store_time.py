"""The time that is stamped on commands, in milliseconds: it never goes back and never jumps.

A node on its own starts at the wall clock, or at the highest stamp of the log when that is later, and goes on by the
monotonic clock. So nobody's time to live ends early because somebody set the clock (hazard 32), and a restart does not
begin it anew.

A leader that takes over from another goes on from the last stamp that it has applied, by its own monotonic clock since
it did: never ahead of the one before it, whatever the clocks of the machines say. So no key dies early because the lead
changed; it may live longer by what a stamp needs to get here, and by the time in which no node was up.
"""

from __future__ import annotations

from icestream.runtime.clock import Clock


class StoreTime:
    def __init__(self, clock: Clock, start_ms: int, start_ns: int) -> None:
        self._clock = clock
        self._start_ms = start_ms
        self._start_ns = start_ns

    @classmethod
    def from_wall(cls, clock: Clock, floor_ms: int) -> StoreTime:
        return cls(clock, max(clock.wall_us() // 1000, floor_ms), clock.monotonic_ns())

    @classmethod
    def going_on(cls, clock: Clock, stamp_ms: int, applied_ns: int) -> StoreTime:
        return cls(clock, stamp_ms, applied_ns)

    def now_ms(self) -> int:
        return self._start_ms + (self._clock.monotonic_ns() - self._start_ns) // 1_000_000
