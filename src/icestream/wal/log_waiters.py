"""Coroutines that wait for the log: for a condition to become true, or for their turn to append."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from icestream import errors


class ConditionWaiters:
    """Coroutines that wait until a condition on the log holds: a record released, a file sealed, everything synced.

    The log calls `notify` after each change; conditions are not polled.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition()` is true; raises the error given to `notify` if the log ends before."""
        if not condition():
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((condition, future))
            await future

    def notify(self, error: errors.LogError | None) -> None:
        """Checks every condition again. `error`: the log stopped or closed, so no condition can become true."""
        pending = []
        for condition, future in self._waiting:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            elif condition():
                future.set_result(None)
            else:
                pending.append((condition, future))
        self._waiting = pending


@dataclass(slots=True, eq=False)
class _Ticket:
    """The place of one append in the queue. Compared by identity: `eq=False`."""

    future: asyncio.Future[None]


class AdmissionQueue:
    """Appends that wait for room in flight, first in, first out: a pipelined connection must not overtake itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tickets: deque[_Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    async def wait(self, can_enter: Callable[[], bool]) -> None:
        """Returns when all earlier waiters have entered and `can_enter()` is true; raises what `can_enter` raises."""
        ticket = _Ticket(self._loop.create_future())
        self._tickets.append(ticket)
        try:
            # A new future for each wait: a future can be completed only once, and `wake` may come without room.
            while self._tickets[0] is not ticket or not can_enter():
                ticket.future = self._loop.create_future()
                await ticket.future
        finally:
            self._tickets.remove(ticket)
            # Not at once: the caller appends first, and the next waiter must see the room that it took.
            self._loop.call_soon(self.wake)

    def wake(self) -> None:
        """Lets the first waiter check again whether there is room."""
        if self._tickets and not self._tickets[0].future.done():
            self._tickets[0].future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Raises `error` in every waiter."""
        for ticket in self._tickets:
            if not ticket.future.done():
                ticket.future.set_exception(error)
