"""A circuit breaker: a target that failed too often is not called for a while, then probed with one call. Pure.

    state       a request                           on success           on failure
    closed      is permitted                        failures = 0         after `failures_max` in a row: open
    open        is refused until the pause is over; (reports of earlier terms are ignored)
                the next request is permitted as
                the probe: half-open
    half-open   is refused while the probe runs     of the probe:        of the probe: open, the pause is
                                                    closed               doubled, up to a bound

Each change of state begins a new *term*. The result of a call that was permitted in an earlier term is ignored: it says
nothing about the target as it is now. If the probe ends without a result (its caller was cancelled), the next request
becomes the probe.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from icestream import limits


class CircuitState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CallPermit(NamedTuple):
    """Permits one call. Its holder must report how the call ended."""

    term: int


class CallRefused(NamedTuple):
    """The call must not be made now."""

    wait_ns: int  # until a retry makes sense


class CircuitBreaker:
    """The state of one target. The caller asks before each call and reports its end."""

    def __init__(
        self,
        failures_max: int = limits.BREAKER_FAILURES_MAX,
        open_ns_min: int = int(limits.BREAKER_OPEN_SECONDS_MIN * 1e9),
        open_ns_max: int = int(limits.BREAKER_OPEN_SECONDS_MAX * 1e9),
    ) -> None:
        self.state = CircuitState.CLOSED
        self._failures_max = failures_max
        self._open_ns_min, self._open_ns_max = open_ns_min, open_ns_max
        self._term = 0
        self._failures = 0
        self._pause_ns = open_ns_min
        self._until_ns = 0

    def request(self, now_ns: int) -> CallPermit | CallRefused:
        """Asks for permission to call the target now."""
        if self.state is CircuitState.OPEN and now_ns >= self._until_ns:
            self._enter(CircuitState.HALF_OPEN)
            return CallPermit(self._term)
        if self.state is CircuitState.OPEN:
            return CallRefused(self._until_ns - now_ns)
        if self.state is CircuitState.HALF_OPEN:
            return CallRefused(self._pause_ns)
        return CallPermit(self._term)

    def succeeded(self, permit: CallPermit) -> None:
        if permit.term != self._term:
            return
        self._failures = 0
        if self.state is CircuitState.HALF_OPEN:
            self._pause_ns = self._open_ns_min
            self._enter(CircuitState.CLOSED)

    def failed(self, permit: CallPermit, now_ns: int) -> None:
        """Reports a failed call. Opens the circuit after `failures_max` in a row, or if the call was the probe."""
        if permit.term != self._term:
            return
        if self.state is CircuitState.HALF_OPEN:
            # The pause grows from probe to probe, so that a target that stays down is asked ever more seldom.
            self._pause_ns = min(2 * self._pause_ns, self._open_ns_max)
            self._open(now_ns)
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open(now_ns)

    def abandoned(self, permit: CallPermit, now_ns: int) -> None:
        """Reports a call that ended without a result, because its caller was cancelled."""
        if permit.term == self._term and self.state is CircuitState.HALF_OPEN:
            self._enter(CircuitState.OPEN)
            self._until_ns = now_ns

    def _open(self, now_ns: int) -> None:
        self._enter(CircuitState.OPEN)
        self._until_ns = now_ns + self._pause_ns

    def _enter(self, state: CircuitState) -> None:
        self.state = state
        self._term += 1
        self._failures = 0
