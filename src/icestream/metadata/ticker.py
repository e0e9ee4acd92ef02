"""The clock of a node with others: a tick every METADATA_TICK_SECONDS, which is what elections and heartbeats go by.

Ticks that were missed are not made up for: a process that was stopped would hold an election for each. How late they
come is measured: half an election late means that this node nearly lost its leader for no reason but itself (rule 8).

A FOLLOWER THAT HEARS ITS LEADER counts ticks from the last message, so those before it change nothing. It sleeps
through METADATA_QUIET_TICKS of them, and ticks as often as the time since that message asks for. As soon as it leads,
looks for a leader, waits for a read, or has heard nobody for two ticks, every tick is made in its time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from icestream import errors, limits
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("metadata")
_TICK_NS: Final = int(limits.METADATA_TICK_SECONDS * 1e9)


class Ticked(Protocol):
    """The node (node.py)."""

    heard_ns: int

    @property
    def is_quiet(self) -> bool: ...

    def tick(self) -> None: ...

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool: ...


class Ticker:
    def __init__(self, clock: Clock, node: Ticked) -> None:
        self._clock = clock
        self._node = node
        self.drift_seconds_max = 0.0
        self.late_ticks = 0

    async def run(self) -> None:
        """Until it is cancelled, or the node is closed or has stopped."""
        with contextlib.suppress(errors.IcestreamError):
            await self._run()

    async def _run(self) -> None:
        last_ns = self._clock.monotonic_ns()
        while True:
            ticks = limits.METADATA_QUIET_TICKS if self._may_sleep() else 1
            due_ns = last_ns + ticks * _TICK_NS
            left_seconds = (due_ns - self._clock.monotonic_ns()) / 1e9
            if ticks == 1:
                await self._clock.sleep(left_seconds)
            elif await self._node.until(lambda: not self._node.is_quiet, left_seconds):
                ticks = min(ticks, (self._clock.monotonic_ns() - last_ns) // _TICK_NS)
                due_ns = last_ns + ticks * _TICK_NS
            last_ns = self._noted(due_ns)
            self._tick(ticks)

    def _may_sleep(self) -> bool:
        return self._node.is_quiet and self._unheard_ticks() < 2

    def _unheard_ticks(self) -> int:
        return (self._clock.monotonic_ns() - self._node.heard_ns) // _TICK_NS

    def _noted(self, due_ns: int) -> int:
        """From when on the next tick counts."""
        now_ns = self._clock.monotonic_ns()
        late_seconds = (now_ns - due_ns) / 1e9
        self.drift_seconds_max = max(self.drift_seconds_max, late_seconds)
        if late_seconds > limits.METADATA_TICK_SECONDS * limits.METADATA_ELECTION_TICKS / 2:
            self.late_ticks += 1
            _log.warning("a tick came late", seconds=round(late_seconds, 3))
        return now_ns if late_seconds > limits.METADATA_TICK_SECONDS else due_ns

    def _tick(self, ticks: int) -> None:
        if ticks > 1:
            ticks = min(ticks, self._unheard_ticks())
        for _ in range(ticks):
            self._node.tick()
