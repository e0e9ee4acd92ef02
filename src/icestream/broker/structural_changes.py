"""Runs structural changes (topics, subscriptions, policies) one at a time, each to its end even if its caller is gone.

A change has several steps: something is written to the metadata store, then takes effect here. A client that
disconnects in between must not leave half of it. If the caller was cancelled, the result of the change is undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from icestream import errors

Result = TypeVar("Result")


class StructuralChanges:
    """The queue of structural changes of one broker.

    One lock for all of them instead of one for each topic: they are rare, and a change may concern several topics (a
    namespace, a dead-letter topic), for which locks would have to be taken in an order.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run(
        self, change: Callable[[], Coroutine[Any, Any, Result]], undo: Callable[[Result], None] | None = None
    ) -> Result:
        """Runs a change after those before it and returns its result.

        `undo` is called with the result if the caller was cancelled meanwhile. Raises the errors of the change, and
        ShuttingDown after `stop`.
        """
        if self._is_closed:
            raise _shutting_down()
        task = asyncio.get_running_loop().create_task(self._run_alone(change))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        try:
            # Shielded: a cancelled caller must not stop the change halfway.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise _shutting_down() from None  # `stop` has cancelled the change, and not its caller
            # Both may be cancelled at once. The caller must end then: an error instead would make it go on for ever.
            if undo is not None:
                task.add_done_callback(partial(_undo_result, undo))
            raise

    async def _run_alone(self, change: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        async with self._lock:
            return await change()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller gets it, unless it is gone

    async def stop(self) -> None:
        """Cancels the changes in progress; the next start completes what they have written."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)


def _undo_result(undo: Callable[[Result], None], task: asyncio.Task[Result]) -> None:
    """Undoes a change that has succeeded after its caller was cancelled."""
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


def _shutting_down() -> errors.ShuttingDown:
    return errors.ShuttingDown("the broker is shutting down", hint="reconnect in a moment")
