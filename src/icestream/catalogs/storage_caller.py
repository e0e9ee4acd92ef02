"""Every call to a catalog or an object store goes through a `StorageCaller`: deadline, retries, circuit breaker.

The error of an attempt decides:

    StorageUnavailable              a failure: it counts for the breaker, and is retried until the deadline
    ... `is_ambiguous`              the same, but a change is not retried: it may have been applied (settlement.py)
    any other error of the tree     an answer: it is raised, and the target counts as healthy

An attempt that takes longer than its time is cut off, which is ambiguous.
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
    def __init__(
        self,
        target: str,
        clock: Clock,
        randomness: Randomness,
        patience: CallTimeouts | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        """`target`: the name of what is called, in messages and as a label of metrics, such as `catalog`."""
        self.target = target
        self.clock = clock
        self.patience = patience or CallTimeouts()
        self._randomness = randomness
        self._breaker = breaker or CircuitBreaker()
        self._last_failure = ""
        self._show(CircuitState.CLOSED)

    @property
    def state(self) -> CircuitState:
        return self._breaker.state

    def deadline_ns(self) -> int:
        """The deadline of a call that begins now."""
        return self.clock.monotonic_ns() + int(self.patience.call_seconds * 1e9)

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
        step = min(self.patience.retry_seconds_min * 2 ** (number - 1), self.patience.retry_seconds_max)
        share = int.from_bytes(self._randomness.token(4), "little") / 2**32
        seconds = step * (1 + share) / 2
        if self.clock.monotonic_ns() + int(seconds * 1e9) >= deadline_ns:
            return False
        await self.clock.sleep(seconds)
        return True

    async def _call(
        self, operation: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int, is_repeatable: bool
    ) -> Answer:
        attempt_number = 1
        while True:
            try:
                return await self._once(operation, attempt, deadline_ns)
            except errors.CircuitOpen:
                raise
            except errors.StorageUnavailable as error:
                if error.is_ambiguous and not is_repeatable:
                    raise
                if attempt_number >= self.patience.attempts_max or not await self.pause(attempt_number, deadline_ns):
                    raise
                log.info(
                    "storage call repeated",
                    target=self.target,
                    call=operation,
                    attempt=attempt_number,
                    error=error.message,
                )
            attempt_number += 1

    async def _once(self, operation: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int) -> Answer:
        before = self._breaker.state
        permit = self._breaker.ask(self.clock.monotonic_ns())
        self._tell(before, call=operation)
        if isinstance(permit, CallRefused):
            self._count("refused")
            raise errors.CircuitOpen(
                f"{self.target} unavailable: it failed too often, next attempt in {permit.wait_ns / 1e9:.1f} s; "
                f"last failure: {self._last_failure}",
                hint=f"look at the {self.target}: `icestream doctor` says what is wrong with it",
            )
        seconds_left = (deadline_ns - self.clock.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(max(min(seconds_left, self.patience.request_seconds), 0.0)):
                answer = await attempt()
        except TimeoutError:
            late = errors.StorageUnavailable(
                f"the {self.target} did not answer in time: {operation}",
                hint="look at it and the way to it, or raise its `request_timeout_ms`",
                is_ambiguous=True,
            )
            self._failed(permit, operation, late)
            raise late from None
        except errors.StorageUnavailable as error:
            self._failed(permit, operation, error)
            raise
        except errors.IcestreamError:
            self._succeeded(permit)
            raise
        except BaseException:
            before = self._breaker.state
            self._breaker.abandoned(permit, self.clock.monotonic_ns())
            self._tell(before, call=operation)
            raise
        self._succeeded(permit)
        return answer

    def _succeeded(self, permit: CallPermit) -> None:
        before = self._breaker.state
        self._breaker.succeeded(permit)
        self._count("answered")
        self._tell(before)

    def _failed(self, permit: CallPermit, operation: str, error: errors.StorageUnavailable) -> None:
        self._last_failure = error.message
        before = self._breaker.state
        self._breaker.failed(permit, self.clock.monotonic_ns())
        self._count("failed")
        self._tell(before, call=operation)

    def _tell(self, before: CircuitState, **facts: str) -> None:
        now = self._breaker.state
        if now is before:
            return
        self._show(now)
        say = log.warning if now is CircuitState.OPEN else log.info
        say("circuit changed", target=self.target, before=before.value, now=now.value, **facts)

    def _show(self, now: CircuitState) -> None:
        for state in CircuitState:
            metrics.STORAGE_CIRCUIT.labels(self.target, state.value).set(int(state is now))

    def _count(self, outcome: str) -> None:
        metrics.STORAGE_CALLS.labels(self.target, outcome).inc()
