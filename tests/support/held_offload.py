"""The offload of tests: calls beside the event loop that wait for the test, or for chance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class HeldOffload:
    """Runs calls on the loop, when it may. While `hold` is in force they wait for `release`.

    delay      a random number of turns of the loop passes before and after each call; calls run one at a time, in order
    calls_max  fails the test at more calls: code that would otherwise repeat one for ever
    """

    def __init__(self, *, delay: random.Random | None = None, calls_max: int | None = None) -> None:
        self._delay = delay
        self._calls_max = calls_max
        self._calls = 0
        self._lock = asyncio.Lock()
        self._free = asyncio.Event()
        self._arrived = asyncio.Event()
        self._free.set()
        self._runs_first = False
        self.waiting = 0

    def hold(self) -> None:
        self._free.clear()

    def hold_results(self) -> None:
        """Calls run and their results wait: a thread that has read and not come back yet."""
        self._runs_first = True
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def until_waiting(self, count: int = 1) -> None:
        while self.waiting < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def run(self, call: Callable[[], Result]) -> Result:
        if self._calls_max is not None:
            self._calls += 1
            assert self._calls <= self._calls_max, "the same call is repeated without end"
            await asyncio.sleep(0)
        if self._delay is not None:
            return await self._run_delayed(call, self._delay)
        self.waiting += 1
        self._arrived.set()
        results = [call()] if self._runs_first else []
        try:
            await self._free.wait()
        finally:
            self.waiting -= 1
        return results[0] if results else call()

    async def _run_delayed(self, call: Callable[[], Result], delay: random.Random) -> Result:
        async with self._lock:
            await self._pass_turns(delay)
            result = call()
        await self._pass_turns(delay)
        return result

    async def _pass_turns(self, delay: random.Random) -> None:
        for _ in range(delay.choice((0, 1, 2, 10, 40))):
            await asyncio.sleep(0)

    def close(self) -> None:
        """Does nothing: no call runs elsewhere."""
