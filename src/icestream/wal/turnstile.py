"""Those who wait for room in flight, in the order of arrival: a pipelined connection must not overtake itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Turn:
    waiter: asyncio.Future[None]


class Turnstile:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns: deque[_Turn] = deque()

    def __len__(self) -> int:
        return len(self._turns)

    async def wait(self, may_pass: Callable[[], bool]) -> None:
        """Until everybody who came before has passed and `may_pass` says yes; what it raises ends the wait."""
        turn = _Turn(self._loop.create_future())
        self._turns.append(turn)
        try:
            while self._turns[0] is not turn or not may_pass():
                turn.waiter = self._loop.create_future()
                await turn.waiter
        finally:
            self._turns.remove(turn)
            self._loop.call_soon(self.wake)

    def wake(self) -> None:
        """Whose turn it is looks again."""
        if self._turns and not self._turns[0].waiter.done():
            self._turns[0].waiter.set_result(None)

    def fail(self, error: BaseException) -> None:
        for turn in self._turns:
            if not turn.waiter.done():
                turn.waiter.set_exception(error)
