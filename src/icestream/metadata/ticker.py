"""The clock of a node with others: a tick every METADATA_TICK_SECONDS, which is what elections and heartbeats go by.

Ticks that were missed are not made up for: a process that was stopped would hold an election for each. How late they
come is measured: half an election late means that this node nearly lost its leader for no reason but itself (rule 8).

WAKES are nearly all that an idle node costs, so there are fewer of them than ticks:

    a leader     for which nothing happened for METADATA_IDLE_SECONDS makes METADATA_IDLE_HEARTBEAT_TICKS at a time
    a follower   that hears its leader counts ticks from the last message: those before it change nothing. It sleeps
                 through METADATA_QUIET_TICKS, and then makes those that came after that message. It wakes
                 at once when it takes the lead, looks for a leader, or waits for a read
    anybody else, and a follower that has heard nobody for a while, makes every tick in its time
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
# A heartbeat more than this late is missing.
_HEARD_TICKS: Final = limits.METADATA_IDLE_HEARTBEAT_TICKS + 1


class Ticked(Protocol):
    """The node (node.py)."""

    leads: bool
    heard_ns: int
    applied_ns: int

    @property
    def is_quiet(self) -> bool: ...

    def tick(self, ticks: int = 1) -> None: ...

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
            ticks = self._ticks_together()
            due_ns = last_ns + ticks * _TICK_NS
            left_seconds = (due_ns - self._clock.monotonic_ns()) / 1e9
            if ticks <= limits.METADATA_IDLE_HEARTBEAT_TICKS:
                await self._clock.sleep(left_seconds)
                last_ns = self._noted(due_ns)
                self._node.tick(ticks)
                continue
            woken = await self._node.until(self._must_wake, left_seconds)
            if woken:
                ticks = min(ticks, self._ticks_since(last_ns))
            before_heard = max(self._node.heard_ns - last_ns, 0) // _TICK_NS
            due_ns = last_ns + ticks * _TICK_NS
            last_ns = due_ns if woken else self._noted(due_ns)  # the part of a tick that has begun is not late
            if ticks > before_heard:
                self._node.tick(ticks - before_heard)

    def _ticks_together(self) -> int:
        node = self._node
        if not node.is_quiet:
            return 1
        if node.leads:
            is_idle = self._ticks_since(node.applied_ns) * limits.METADATA_TICK_SECONDS >= limits.METADATA_IDLE_SECONDS
            return limits.METADATA_IDLE_HEARTBEAT_TICKS if is_idle else 1
        return limits.METADATA_QUIET_TICKS if self._ticks_since(node.heard_ns) < _HEARD_TICKS else 1

    def _must_wake(self) -> bool:
        return self._node.leads or not self._node.is_quiet

    def _ticks_since(self, then_ns: int) -> int:
        return (self._clock.monotonic_ns() - then_ns) // _TICK_NS

    def _noted(self, due_ns: int) -> int:
        """From when on the next tick counts."""
        now_ns = self._clock.monotonic_ns()
        late_seconds = (now_ns - due_ns) / 1e9
        self.drift_seconds_max = max(self.drift_seconds_max, late_seconds)
        if late_seconds > limits.METADATA_TICK_SECONDS * limits.METADATA_ELECTION_TICKS / 2:
            self.late_ticks += 1
            _log.warning("a tick came late", seconds=round(late_seconds, 3))
        return now_ns if late_seconds > limits.METADATA_TICK_SECONDS else due_ns
