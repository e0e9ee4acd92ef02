"""Every call to a catalog or an object store goes through a `StorageCaller`: deadline, retries, circuit breaker.

What an attempt raises decides:

    StorageUnavailable              a failure: it counts for the breaker, and is tried again until the deadline
    ... `is_ambiguous`              the same, but a change is not tried again: it may have happened (settlement.py)
    any other error of the tree     an answer: it is handed on, and the one who gave it is well

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
    """How long anybody waits."""

    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000
    attempts_max: int = limits.STORAGE_ATTEMPTS_MAX
    retry_seconds_min: float = limits.STORAGE_RETRY_SECONDS_MIN
    retry_seconds_max: float = limits.STORAGE_RETRY_SECONDS_MAX

    @property
    def call_seconds(self) -> float:
        """A call with all its repeats."""
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
        """`target`: who is called, in words for people and a label of metrics, such as `catalog`."""
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
        """Of a call that begins now."""
        return self.clock.monotonic_ns() + int(self.patience.call_seconds * 1e9)

    async def read(self, what: str, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """A call that changes nothing, or changes nothing more when it is repeated."""
        return await self._call(what, attempt, self.deadline_ns(), is_repeatable=True)

    async def change(
        self, what: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int | None = None
    ) -> Answer:
        """A call that must not be repeated blindly: an ambiguous failure is handed on at once."""
        return await self._call(what, attempt, deadline_ns or self.deadline_ns(), is_repeatable=False)

    async def pause(self, number: int, deadline_ns: int) -> bool:
        """Before the repeat of that number, from 1. False, and at once, when the deadline does not allow it."""
        step = min(self.patience.retry_seconds_min * 2 ** (number - 1), self.patience.retry_seconds_max)
        share = int.from_bytes(self._randomness.token(4), "little") / 2**32
        seconds = step * (1 + share) / 2
        if self.clock.monotonic_ns() + int(seconds * 1e9) >= deadline_ns:
            return False
        await self.clock.sleep(seconds)
        return True

    async def _call(
        self, what: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int, is_repeatable: bool
    ) -> Answer:
        number = 1
        while True:
            try:
                return await self._once(what, attempt, deadline_ns)
            except errors.CircuitOpen:
                raise
            except errors.StorageUnavailable as error:
                if error.is_ambiguous and not is_repeatable:
                    raise
                if number >= self.patience.attempts_max or not await self.pause(number, deadline_ns):
                    raise
                log.info("storage call repeated", target=self.target, call=what, attempt=number, error=error.message)
            number += 1

    async def _once(self, what: str, attempt: Callable[[], Awaitable[Answer]], deadline_ns: int) -> Answer:
        before = self._breaker.state
        permit = self._breaker.ask(self.clock.monotonic_ns())
        self._tell(before, call=what)
        if isinstance(permit, CallRefused):
            self._count("refused")
            raise errors.CircuitOpen(
                f"the {self.target} failed too often and is left alone for {permit.wait_ns / 1e9:.1f} s; "
                f"its last failure: {self._last_failure}",
                hint=f"look at the {self.target}: `icestream doctor` says what is wrong with it",
            )
        left = (deadline_ns - self.clock.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(max(min(left, self.patience.request_seconds), 0.0)):
                answer = await attempt()
        except TimeoutError:
            late = errors.StorageUnavailable(
                f"the {self.target} did not answer in time: {what}",
                hint="look at it and the way to it, or raise its `request_timeout_ms`",
                is_ambiguous=True,
            )
            self._failed(permit, what, late)
            raise late from None
        except errors.StorageUnavailable as error:
            self._failed(permit, what, error)
            raise
        except errors.IcestreamError:
            self._succeeded(permit)
            raise
        except BaseException:
            before = self._breaker.state
            self._breaker.abandoned(permit, self.clock.monotonic_ns())
            self._tell(before, call=what)
            raise
        self._succeeded(permit)
        return answer

    def _succeeded(self, permit: CallPermit) -> None:
        before = self._breaker.state
        self._breaker.succeeded(permit)
        self._count("answered")
        self._tell(before)

    def _failed(self, permit: CallPermit, what: str, error: errors.StorageUnavailable) -> None:
        self._last_failure = error.message
        before = self._breaker.state
        self._breaker.failed(permit, self.clock.monotonic_ns())
        self._count("failed")
        self._tell(before, call=what)

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
