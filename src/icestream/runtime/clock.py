"""Clocks, passed in by constructor: the wall clock stamps messages, the monotonic clock measures durations."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The time, passed in so that tests control it."""

    def wall_us(self) -> int:
        """Microseconds since 1970. May step in either direction."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some point. Never steps: for durations, time-outs and leases."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clocks of this machine."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimulatedClock:
    """A clock that moves only by `advance` and `step`. A sleep ends when the clock has advanced far enough."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000) -> None:
        self._wall_us = wall_us
        self._monotonic_ns = 0
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def wall_us(self) -> int:
        return self._wall_us

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic_ns + int(seconds * 1e9), waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Advances both clocks and wakes the sleeps that are due."""
        self._wall_us += int(seconds * 1e6)
        self._monotonic_ns += int(seconds * 1e9)
        due = [waiter for until_ns, waiter in self._sleepers if until_ns <= self._monotonic_ns]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic_ns]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    def step(self, seconds: float) -> None:
        """Steps the wall clock; the monotonic clock stays."""
        self._wall_us += int(seconds * 1e6)
