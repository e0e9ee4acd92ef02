"""The clock of a node with peers: one tick every METADATA_TICK_SECONDS, which drives elections and heartbeats.

Missed ticks are not made up for: a process that was paused would hold an election for each. Delays are measured: a tick
that is half an election late means that this node nearly lost its leader through its own fault (node.py, rule 8).

WAKE-UPS are nearly all that an idle node costs, so there are fewer of them than ticks:

    a leader     that was idle for METADATA_IDLE_SECONDS makes METADATA_IDLE_HEARTBEAT_TICKS at a time
    a follower   that hears its leader counts ticks from the last message: those before it change nothing. Its alarm is
                 set METADATA_QUIET_TICKS behind that message and moved when the next one arrives, for which the
                 process is awake anyway; in a quiet cluster it never goes off. When it does, the ticks since the
                 message are made. It wakes at once when it becomes leader, has no leader, or waits for a read
    any other node, and a follower without a message for a while, makes every tick in its time
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
# Messages come by the thousand under load: the alarm is not moved for each.
_ALARM_MOVES_NS: Final = (limits.METADATA_IDLE_HEARTBEAT_TICKS - 1) * _TICK_NS


class TickedNode(Protocol):
    """The part of a node (node.py) that the ticker uses."""

    leads: bool
    heard_ns: int
    applied_ns: int

    @property
    def is_quiet(self) -> bool: ...

    def tick(self, ticks: int = 1) -> None: ...

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool: ...


class Ticker:
    """Calls `tick` of one node, and measures delays."""

    def __init__(self, clock: Clock, node: TickedNode) -> None:
        self._clock = clock
        self._node = node
        self.drift_seconds_max = 0.0
        self.late_ticks = 0

    async def run(self) -> None:
        """Runs until cancelled, or the node is closed or has stopped."""
        with contextlib.suppress(errors.IcestreamError):
            await self._run()

    async def _run(self) -> None:
        last_ns = self._clock.monotonic_ns()
        while True:
            ticks = self._ticks_together()
            if not ticks:
                last_ns = await self._listen(last_ns)
                continue
            due_ns = last_ns + ticks * _TICK_NS
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
            last_ns = self._record_delay(due_ns)
            self._node.tick(ticks)

    async def _listen(self, last_ns: int) -> int:
        """Waits as a follower until the leader is heard or missing. Returns when the next tick period starts."""
        node, heard_ns = self._node, self._node.heard_ns
        alarm_ns = heard_ns + limits.METADATA_QUIET_TICKS * _TICK_NS

        def is_woken() -> bool:
            return node.leads or not node.is_quiet or node.heard_ns - heard_ns >= _ALARM_MOVES_NS

        woken = await node.until(is_woken, (alarm_ns - self._clock.monotonic_ns()) / 1e9)
        begun_ns = max(last_ns, node.heard_ns)
        # Without a message: up to the alarm, not up to now. Time in which the process was paused is not counted.
        end_ns = self._clock.monotonic_ns() if woken else alarm_ns
        ticks = min(max(end_ns - begun_ns, 0) // _TICK_NS, limits.METADATA_QUIET_TICKS)
        if not woken:
            self._record_delay(alarm_ns)
        if ticks:
            node.tick(ticks)
        next_ns = begun_ns + ticks * _TICK_NS
        return next_ns if self._ticks_since(next_ns) <= 1 else self._clock.monotonic_ns()

    def _ticks_together(self) -> int:
        """How many ticks to make at once at the next deadline; 0 for a follower that hears its leader."""
        node = self._node
        if not node.is_quiet:
            return 1
        if node.leads:
            is_idle = self._ticks_since(node.applied_ns) * limits.METADATA_TICK_SECONDS >= limits.METADATA_IDLE_SECONDS
            return limits.METADATA_IDLE_HEARTBEAT_TICKS if is_idle else 1
        return 0 if self._ticks_since(node.heard_ns) < _HEARD_TICKS else 1

    def _ticks_since(self, then_ns: int) -> int:
        return (self._clock.monotonic_ns() - then_ns) // _TICK_NS

    def _record_delay(self, due_ns: int) -> int:
        """Measures how late a tick is; returns when the next tick period starts."""
        now_ns = self._clock.monotonic_ns()
        late_seconds = (now_ns - due_ns) / 1e9
        self.drift_seconds_max = max(self.drift_seconds_max, late_seconds)
        if late_seconds > limits.METADATA_TICK_SECONDS * limits.METADATA_ELECTION_TICKS / 2:
            self.late_ticks += 1
            _log.warning("Raft tick delayed: the process or its event loop was blocked", seconds=round(late_seconds, 3))
        return now_ns if late_seconds > limits.METADATA_TICK_SECONDS else due_ns
