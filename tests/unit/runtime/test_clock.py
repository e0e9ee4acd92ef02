"""Clocks: the real one reads the machine's, the simulated one moves only when told."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.runtime.clock import SimulatedClock, SystemClock


def test_the_system_clock_reads_both_clocks_of_the_machine() -> None:
    clock = SystemClock()
    before_us, before_ns = time.time_ns() // 1000, time.monotonic_ns()
    assert clock.wall_us() >= before_us
    assert before_ns <= clock.monotonic_ns() <= time.monotonic_ns()


@pytest.mark.asyncio
async def test_the_system_clock_sleeps_for_real() -> None:
    clock = SystemClock()
    before = clock.monotonic_ns()
    await clock.sleep(0.01)
    assert clock.monotonic_ns() - before >= 9_000_000


def test_the_simulated_clock_does_not_run() -> None:
    clock = SimulatedClock(5)
    assert [(clock.wall_us(), clock.monotonic_ns()) for _ in range(3)] == [(5, 0)] * 3


@given(st.lists(st.tuples(st.booleans(), st.integers(-(10**8), 10**8)), max_size=20))
def test_hazard_32_time_passes_on_both_clocks_a_step_moves_only_the_wall(moves: list[tuple[bool, int]]) -> None:
    clock = SimulatedClock(10**15)
    wall, monotonic = 10**15, 0
    for is_step, seconds in moves:
        if is_step:
            clock.step(seconds)
            wall += seconds * 10**6
        else:
            clock.advance(abs(seconds))
            wall, monotonic = wall + abs(seconds) * 10**6, monotonic + abs(seconds) * 10**9
        assert (clock.wall_us(), clock.monotonic_ns()) == (wall, monotonic)


@pytest.mark.asyncio
async def test_a_simulated_sleeper_wakes_when_the_clock_has_moved_far_enough() -> None:
    clock = SimulatedClock(0)
    woken: list[int] = []

    async def sleep(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    sleepers = [asyncio.create_task(sleep(seconds)) for seconds in (30, 10, 20)]
    for advance, expected in ((0, []), (10, [10]), (9, [10]), (1, [10, 20]), (3_600, [10, 20, 30])):
        for _ in range(3):
            await asyncio.sleep(0)
        clock.advance(advance)
        for _ in range(3):
            await asyncio.sleep(0)
        assert woken == expected
    await asyncio.gather(*sleepers)


@pytest.mark.asyncio
async def test_hazard_32_a_step_of_the_wall_clock_wakes_no_sleeper() -> None:
    clock = SimulatedClock(0)
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    clock.step(10**6)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(10)
    await sleeper


@pytest.mark.asyncio
async def test_a_sleeper_that_was_cancelled_is_passed_over() -> None:
    clock = SimulatedClock(0)
    gone, waiting = asyncio.create_task(clock.sleep(5)), asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    clock.advance(5)
    await waiting
    assert gone.cancelled()


@pytest.mark.asyncio
async def test_a_sleep_of_zero_only_yields() -> None:
    """As asyncio.sleep(0): it returns without an advance of the clock."""
    sleeper = asyncio.create_task(SimulatedClock().sleep(0))
    for _ in range(3):
        await asyncio.sleep(0)
    is_done = sleeper.done()
    sleeper.cancel()
    assert is_done
