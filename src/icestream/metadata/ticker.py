"""The clock of a node with others: a tick every METADATA_TICK_SECONDS, which is what elections and heartbeats go by.

Ticks that were missed are not made up for: a process that was stopped would hold an election for each. How late they
come is measured: half an election late means that this node nearly lost its leader for no reason but itself (rule 8).
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import limits
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("metadata")


class Ticker:
    def __init__(self, clock: Clock, tick: Callable[[], None]) -> None:
        self._clock = clock
        self._tick = tick
        self.drift_seconds_max = 0.0
        self.late_ticks = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        due_ns = self._clock.monotonic_ns()
        while True:
            due_ns += int(limits.METADATA_TICK_SECONDS * 1e9)
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
            late = (self._clock.monotonic_ns() - due_ns) / 1e9
            self.drift_seconds_max = max(self.drift_seconds_max, late)
            if late > limits.METADATA_TICK_SECONDS * limits.METADATA_ELECTION_TICKS / 2:
                self.late_ticks += 1
                _log.warning("a tick came late", seconds=round(late, 3))
            if late > limits.METADATA_TICK_SECONDS:
                due_ns = self._clock.monotonic_ns()
            self._tick()
