"""Every call to a catalog or an object store goes through a `StorageCaller`: deadline, retries, circuit breaker.

The error of an attempt decides:

    StorageUnavailable              a failure: it counts for the breaker, and is retried until the deadline
    ... `is_ambiguous`              the same, but a change is not retried: it may have been applied
    (commit_resolution.py)
    any other error of the tree     an answer: it is raised, and the target counts as healthy

An attempt that exceeds the request timeout is cancelled, which is ambiguous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from icestream import errors, limits
from icestream.catalogs.circuit_breaker import CallPermit, CallRefused, CircuitBreaker, CircuitState
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

Answer = TypeVar("Answer")
log = get_logger("warehouse")


@dataclass(frozen=True)
class CallTimeouts:
    """Timeouts and backoff of calls."""

    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000
    attempts_max: int = limits.STORAGE_ATTEMPTS_MAX
    retry_seconds_min: float = limits.STORAGE_RETRY_SECONDS_MIN
    retry_seconds_max: float = limits.STORAGE_RETRY_SECONDS_MAX

    @property
    def call_seconds(self) -> float:
        """The time for a call with all its retries."""
        return limits.STORAGE_CALL_TIMEOUTS * self.request_seconds


class StorageCaller:
    """Calls one target: its deadline, retries, circuit breaker and metrics."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        randomness: Randomness,
        timeouts: CallTimeouts | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        """`target`: the name of the callee in messages and as a label of metrics, such as `catalog`."""
        self.target = target
        self.clock = clock
        self.timeouts = timeouts or CallTimeouts()
        self._randomness = randomness
        self._breaker = breaker or CircuitBreaker()
        self._last_failure = ""
        self._set_metrics(CircuitState.CLOSED)

    @property
    def state(self) -> CircuitState:
        return self._breaker.state

    def deadline_ns(self) -> int:
        """Returns the deadline of a call that begins now."""
        return self.clock.monotonic_ns() + int(self.timeouts.call_seconds * 1e9)

    async def read(self, operation: str, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Runs an idempotent call; every failure is retried."""
        return await self._call(operation, attempt, self.deadline_ns(), is_repeatable=True)

    async def change(
        self, operation: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int | None = None
    ) -> Answer:
        """Runs a call that must not be repeated blindly: an ambiguous failure is raised at once."""
        return await self._call(operation, attempt, deadline_ns or self.deadline_ns(), is_repeatable=False)

    async def pause(self, number: int, deadline_ns: int) -> bool:
        """Sleeps before retry `number`, from 1, with backoff. Returns False at once if the deadline does not allow
        it."""
        step = min(self.timeouts.retry_seconds_min * 2 ** (number - 1), self.timeouts.retry_seconds_max)
        # A random half of the step: callers that failed together do not retry together.
        share = int.from_bytes(self._randomness.token(4), "little") / 2**32
        seconds = step * (1 + share) / 2
        if self.clock.monotonic_ns() + int(seconds * 1e9) >= deadline_ns:
            return False
        await self.clock.sleep(seconds)
        return True

    async def _call(
        self, operation: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int, is_repeatable: bool
    ) -> Answer:
        """Attempts a call until it succeeds, its error is final, or the deadline or the number of attempts is
        reached."""
        attempt_number = 1
        while True:
            try:
                return await self._attempt(operation, attempt, deadline_ns)
            # Not retried here: nothing was called, and the error says when the next attempt is allowed.
            except errors.CircuitOpen:
                raise
            except errors.StorageUnavailable as error:
                if error.is_ambiguous and not is_repeatable:
                    raise
                if attempt_number >= self.timeouts.attempts_max or not await self.pause(attempt_number, deadline_ns):
                    raise
                log.info(
                    "retrying storage call",
                    target=self.target,
                    call=operation,
                    attempt=attempt_number,
                    error=error.message,
                )
            attempt_number += 1

    async def _attempt(self, operation: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int) -> Answer:
        """Attempts a call once, within the request timeout. Raises CircuitOpen without calling while the circuit is
        open."""
        before = self._breaker.state
        permit = self._breaker.request(self.clock.monotonic_ns())
        self._log_change(before, call=operation)
        if isinstance(permit, CallRefused):
            self._count("refused")
            raise errors.CircuitOpen(
                f"{self.target} unavailable: it failed too often, next attempt in {permit.wait_ns / 1e9:.1f} s; "
                f"last failure: {self._last_failure}",
                hint=f"`icestream doctor` checks the {self.target}",
            )
        seconds_left = (deadline_ns - self.clock.monotonic_ns()) / 1e9
        try:
            # A request has a bound of its own below the deadline of the call, so that one lost reply leaves time for a
            # retry.
            async with asyncio.timeout(max(min(seconds_left, self.timeouts.request_seconds), 0.0)):
                answer = await attempt()
        except TimeoutError:
            late = errors.StorageUnavailable(
                f"{self.target}: no response within the request timeout: {operation}",
                hint="check the service and the network, or raise its `request_timeout_ms`",
                is_ambiguous=True,
            )
            self._failed(permit, operation, late)
            raise late from None
        except errors.StorageUnavailable as error:
            self._failed(permit, operation, error)
            raise
        except errors.IcestreamError:
            # A refusal is an answer: the target is healthy.
            self._succeeded(permit)
            raise
        except BaseException:
            before = self._breaker.state
            # Cancelled: says nothing about the target, but a half-open breaker waits for this probe and must get it
            # back.
            self._breaker.abandoned(permit, self.clock.monotonic_ns())
            self._log_change(before, call=operation)
            raise
        self._succeeded(permit)
        return answer

    def _succeeded(self, permit: CallPermit) -> None:
        before = self._breaker.state
        self._breaker.succeeded(permit)
        self._count("answered")
        self._log_change(before)

    def _failed(self, permit: CallPermit, operation: str, error: errors.StorageUnavailable) -> None:
        self._last_failure = error.message
        before = self._breaker.state
        self._breaker.failed(permit, self.clock.monotonic_ns())
        self._count("failed")
        self._log_change(before, call=operation)

    def _log_change(self, before: CircuitState, **facts: str) -> None:
        now = self._breaker.state
        if now is before:
            return
        self._set_metrics(now)
        write = log.warning if now is CircuitState.OPEN else log.info
        write("circuit breaker changed state", target=self.target, before=before.value, now=now.value, **facts)

    def _set_metrics(self, now: CircuitState) -> None:
        for state in CircuitState:
            metrics.STORAGE_CIRCUIT.labels(self.target, state.value).set(int(state is now))

    def _count(self, outcome: str) -> None:
        metrics.STORAGE_CALLS.labels(self.target, outcome).inc()
