"""The wall clock as the ticks of a log see it; one that went back is said aloud (hazard 32)."""

from __future__ import annotations

from icestream import limits
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("wal")


class TickClock:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0

    def now_us(self) -> int:
        """The time of this tick."""
        now_us = self._clock.wall_us()
        if now_us < self._last_us - limits.CLOCK_CLAMP_US:
            metrics.CLOCK_STEPS_BACK.inc()
            _log.warning("the wall clock went back", seconds=(self._last_us - now_us) / 1e6)
        self._last_us = now_us
        return now_us
