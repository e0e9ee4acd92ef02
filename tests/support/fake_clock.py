"""The clock of tests: time that stands still or runs, and sleeps that end as the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream.runtime.clock import Clock, SimulatedClock, SystemClock

# Turns of the event loop after an automatic advance: other tasks that the advance woke run before the sleeper resumes.
_TURNS_AFTER_ADVANCE = 10


class FakeClock(SimulatedClock):
    """A configurable clock. `advance` moves both clocks and wakes sleepers, `step` moves the wall clock only.

    base          the running clock to which both are added, such as SystemClock(); None: time moves by the test alone
    auto_advance  sleeps that return at once and advance the clock instead: all (True), or those up to so many seconds
    shorten       how long a sleep of so many seconds really takes (with a base)
    hold          which sleeps wait for `release` instead of time
    on_sleep      called with the seconds of each sleep, before it begins

    Every sleep is recorded in `sleeps`. `read_cost_seconds` is what each read of the monotonic clock adds to it: the
    work that a real process would have done between two reads.
    """

    def __init__(
        self,
        base: Clock | None = None,
        *,
        auto_advance: bool | float = False,
        shorten: Callable[[float], float] = lambda seconds: seconds,
        hold: Callable[[float], bool] = lambda _: False,
        on_sleep: Callable[[float], None] = lambda _: None,
    ) -> None:
        if base is None:
            super().__init__()
        else:
            super().__init__(wall_us=0)
        self._base = base
        self._advance_seconds_max = float("inf") if auto_advance is True else float(auto_advance)
        self._shorten = shorten
        self._hold = hold
        self._on_sleep = on_sleep
        self._released = asyncio.Event()
        self.sleeps: list[float] = []
        self.held_sleeps = 0
        self.read_cost_seconds = 0.0

    def wall_us(self) -> int:
        return super().wall_us() + (self._base.wall_us() if self._base else 0)

    def monotonic_ns(self) -> int:
        self._monotonic_ns += int(self.read_cost_seconds * 1e9)
        return super().monotonic_ns() + (self._base.monotonic_ns() if self._base else 0)

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._on_sleep(seconds)
        if self._hold(seconds):
            self.held_sleeps += 1
            await self._released.wait()
        elif self._base is not None:
            await self._base.sleep(self._shorten(seconds))
        elif seconds <= self._advance_seconds_max:
            await self.advance_and_yield(seconds)
        else:
            await super().sleep(seconds)

    async def advance_and_yield(self, seconds: float) -> None:
        """Advances the clock and lets the tasks run that this woke."""
        self.advance(seconds)
        for _ in range(_TURNS_AFTER_ADVANCE):
            await asyncio.sleep(0)

    def release(self) -> None:
        """Ends the sleeps that are held, and holds none from now on."""
        self._released.set()


def clock_with_short_sleeps() -> FakeClock:
    """Real time in which a sleep takes a hundredth: for clients whose retries a test would wait for."""
    return FakeClock(SystemClock(), shorten=lambda seconds: seconds / 100)
