"""Structural changes: one at a time, and each is finished even when whoever asked for it is gone.

A change is several steps: something is written, then takes effect here. A client that disconnects in between must not
leave half of it. What a change hands to somebody who is gone by then is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from icestream import errors

Answer = TypeVar("Answer")


class StructuralChanges:
    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def make(
        self, change: Callable[[], Coroutine[Any, Any, Answer]], take_back: Callable[[Answer], None] | None = None
    ) -> Answer:
        if self._is_closed:
            raise _shutting_down()
        task = asyncio.get_running_loop().create_task(self._alone(change))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _shutting_down() from None
            if take_back is not None:
                task.add_done_callback(partial(_take_back, take_back))
            raise

    async def _alone(self, change: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        async with self._one_at_a_time:
            return await change()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it is for whoever asked, if he is still there

    async def stop(self) -> None:
        """Those under way get no further; what they have written is found by the next start."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)


def _take_back(take_back: Callable[[Answer], None], task: asyncio.Task[Answer]) -> None:
    if not task.cancelled() and task.exception() is None:
        take_back(task.result())


def _shutting_down() -> errors.ShuttingDown:
    return errors.ShuttingDown("the broker is shutting down", hint="connect again in a moment")
