"""The time that is stamped on commands, in milliseconds: it never goes back and never jumps.

It starts at the wall clock, or at the highest stamp of the log when that is later, and goes on by the monotonic clock.
So nobody's time to live ends early because somebody set the clock (hazard 32), and a restart does not begin it anew.
"""

from __future__ import annotations

from icestream.runtime.clock import Clock


class StoreTime:
    def __init__(self, clock: Clock, floor_ms: int) -> None:
        self._clock = clock
        self._start_ms = max(clock.wall_us() // 1000, floor_ms)
        self._start_ns = clock.monotonic_ns()

    def now_ms(self) -> int:
        return self._start_ms + (self._clock.monotonic_ns() - self._start_ns) // 1_000_000
