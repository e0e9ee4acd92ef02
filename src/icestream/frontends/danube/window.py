"""How many unacked messages a consumer of Danube may hold: as many as it acks in two seconds. Pure: the time comes in.

Its client gives no credit: it takes what comes and queues it. What lies there longer than the ack time-out is delivered
again, and counts as failed. A fixed window is too large for one that needs seconds for a message, or too small for one
that acks thousands in a second; so it follows the rate of acks, between Danube's own 10 and a bound.
"""

from __future__ import annotations

from icestream import limits


class AckWindow:
    __slots__ = ("_acks", "_since_ms", "size")

    def __init__(self, now_ms: int) -> None:
        self.size = limits.DANUBE_WINDOW_MIN
        self._acks = 0
        self._since_ms = now_ms

    def acked(self, count: int, now_ms: int) -> bool:
        """Whether the window has changed."""
        self._acks += count
        passed_ms = now_ms - self._since_ms
        if passed_ms < limits.DANUBE_WINDOW_STEP_MS:
            return False
        wanted = self._acks * limits.DANUBE_WINDOW_MS // passed_ms
        size = max(limits.DANUBE_WINDOW_MIN, min(wanted, limits.DANUBE_WINDOW_MAX))
        self._acks, self._since_ms = 0, now_ms
        changed, self.size = size != self.size, size
        return changed
