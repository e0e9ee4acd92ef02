"""Deadlines, repeats and the breaker around a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from icestream import errors
from icestream.catalogs.circuit_breaker import CircuitBreaker, CircuitState
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.runtime.randomness import SeededRandomness
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.asyncio

AWAY = errors.StorageUnavailable("away")
LOST = errors.StorageUnavailable("lost", is_ambiguous=True)


def caller(clock: FakeClock | None = None, **more: float) -> StorageCaller:
    breaker = CircuitBreaker(failures_max=5)
    return StorageCaller(
        "test", clock or FakeClock(auto_advance=True), SeededRandomness(1), CallTimeouts(**more), breaker
    )  # type: ignore[arg-type]


def answers(*planned: object) -> tuple[Callable[[], Awaitable[object]], list[object]]:
    """An attempt that ends as planned, and the attempts that were made."""
    attempts: list[object] = []

    async def attempt() -> object:
        outcome = planned[len(attempts)]
        attempts.append(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt, attempts


async def test_a_read_is_retried_until_it_is_answered() -> None:
    attempt, attempts = answers(AWAY, LOST, AWAY, "answer")
    assert await caller().read("x", attempt) == "answer"
    assert len(attempts) == 4


async def test_a_change_is_repeated_only_while_it_was_never_sent() -> None:
    attempt, attempts = answers(AWAY, AWAY, LOST, "never asked")
    with pytest.raises(errors.StorageUnavailable) as caught:
        await caller().change("x", attempt)
    assert caught.value.is_ambiguous
    assert len(attempts) == 3


@pytest.mark.parametrize("error", [errors.UnknownTable("t"), errors.CommitConflict("c"), errors.AccessDenied("a")])
async def test_an_answer_is_never_retried(error: errors.IcestreamError) -> None:
    attempt, attempts = answers(error)
    subject = caller()
    for _ in range(20):
        attempts.clear()
        with pytest.raises(type(error)):
            await subject.read("x", attempt)
        assert len(attempts) == 1
    assert subject.state is CircuitState.CLOSED


async def test_pauses_grow_and_are_randomised() -> None:
    clock = FakeClock(auto_advance=True)
    subject = caller(clock, retry_seconds_min=1.0, retry_seconds_max=4.0, request_seconds=1000.0)
    took = []
    for number in (1, 2, 3, 4):
        before = clock.monotonic_ns()
        assert await subject.pause(number, 10**18)
        took.append((clock.monotonic_ns() - before) / 1e9)
    assert [1 / 2 <= took[0] <= 1, 1 <= took[1] <= 2, 2 <= took[2] <= 4, 2 <= took[3] <= 4] == [True] * 4
    assert took[3] not in (2.0, 4.0)


async def test_no_retry_starts_after_the_deadline() -> None:
    clock = FakeClock(auto_advance=True)
    attempt, attempts = answers(*[AWAY] * 99)
    subject = caller(clock, retry_seconds_min=2.0, retry_seconds_max=2.0, request_seconds=1.0, attempts_max=99)
    with pytest.raises(errors.StorageUnavailable):
        await subject.read("x", attempt)
    assert clock.monotonic_ns() <= 4 * 10**9, "four times the wait for one answer"
    assert len(attempts) in (2, 3, 4)


async def test_a_slow_call_is_cancelled_and_ambiguous() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(errors.StorageUnavailable, match="no response within the request timeout: x") as caught:
        await caller(request_seconds=0.01).change("x", never)
    assert caught.value.is_ambiguous


async def test_a_failing_service_opens_the_breaker_and_is_probed() -> None:
    clock = FakeClock(auto_advance=True)
    subject = caller(clock, attempts_max=1)
    attempt, attempts = answers(*[AWAY] * 5, "answer", "answer")
    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(errors.StorageUnavailable):
                await subject.read("x", attempt)
    assert [(entry["log_level"], entry["now"], entry["call"]) for entry in logs] == [("warning", "open", "x")]
    assert subject.state is CircuitState.OPEN
    with pytest.raises(errors.CircuitOpen, match=r"next attempt in 1\.0 s; last failure: .*away"):
        await subject.read("x", attempt)
    assert len(attempts) == 5
    assert circuit() == {"closed": 0, "open": 1, "half-open": 0}
    clock.advance(1.0)
    with capture_logs() as logs:
        assert await subject.read("x", attempt) == "answer"
    assert [(entry["event"], entry["before"], entry["now"], entry["target"]) for entry in logs] == [
        ("circuit breaker changed state", "open", "half-open", "test"),
        ("circuit breaker changed state", "half-open", "closed", "test"),
    ]
    assert subject.state is CircuitState.CLOSED
    assert circuit() == {"closed": 1, "open": 0, "half-open": 0}


async def test_a_cancelled_probe_frees_its_slot() -> None:
    clock = FakeClock(auto_advance=True)
    subject = caller(clock, attempts_max=1)
    attempt, _ = answers(*[AWAY] * 5, "answer")
    for _ in range(5):
        with pytest.raises(errors.StorageUnavailable):
            await subject.read("x", attempt)
    clock.advance(1.0)

    started = asyncio.Event()

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    probe = asyncio.create_task(subject.read("x", never))
    await started.wait()
    assert subject.state is CircuitState.HALF_OPEN
    assert circuit() == {"closed": 0, "open": 0, "half-open": 1}
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert circuit() == {"closed": 0, "open": 1, "half-open": 0}, "what is shown is what the next caller meets"
    assert await subject.read("x", attempt) == "answer"


async def test_calls_are_counted_by_outcome() -> None:
    before = {outcome: calls(outcome) for outcome in ("answered", "failed", "refused")}
    attempt, _ = answers(AWAY, "answer")
    await caller().read("x", attempt)
    assert calls("answered") - before["answered"] == 1
    assert calls("failed") - before["failed"] == 1
    assert calls("refused") == before["refused"]


def calls(outcome: str) -> float:
    labels = {"target": "test", "outcome": outcome}
    return REGISTRY.get_sample_value("icestream_storage_calls_total", labels) or 0.0


def circuit() -> dict[str, float]:
    return {
        state.value: REGISTRY.get_sample_value("icestream_storage_circuit", {"target": "test", "state": state.value})
        or 0
        for state in CircuitState
    }
