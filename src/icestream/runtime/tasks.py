"""Work beside the loop: blocking calls in a thread of their own, background tasks that end in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class Offload(Protocol):
    async def run(self, call: Callable[[], Answer]) -> Answer:
        """Runs a blocking call without blocking the loop."""

    def close(self) -> None: ...


class ThreadOffload:
    def __init__(self, name: str, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, call: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineOffload:
    """The simulated twin: the call happens here and now, so that a run follows from its seed."""

    async def run(self, call: Callable[[], Answer]) -> Answer:
        return call()

    def close(self) -> None:
        """Nothing runs elsewhere."""


class Tasks:
    """Background tasks of one component. An unexpected end is handed to `on_failure`, never lost."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """Cancels what still runs and waits until it has ended."""
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
