"""A circuit breaker: a target that failed too often is not called for a while, then probed with one call. Pure.

    state       who asks                            a success         a failure
    closed      is let through                      counts from 0     `failures_max` in a row: open
    open        is refused until the pause is over; (comes too late and counts for nothing)
                the first one behind it is let
                through as the probe: half-open
    half-open   is refused while the probe runs     of the probe:     of the probe: open, the pause is
                                                    closed            twice as long, up to a bound

Each change of state begins a new *term*; what was let through in an earlier term no longer decides anything. A probe
that ends without an answer (its caller was cancelled) gives its place to the next one who asks.
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
    wait_ns: int  # until a retry makes sense


class CircuitBreaker:
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

    def ask(self, now_ns: int) -> CallPermit | CallRefused:
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
        if permit.term != self._term:
            return
        if self.state is CircuitState.HALF_OPEN:
            self._pause_ns = min(2 * self._pause_ns, self._open_ns_max)
            self._open(now_ns)
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open(now_ns)

    def abandoned(self, permit: CallPermit, now_ns: int) -> None:
        """The call ended without a result, because its caller was cancelled."""
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
