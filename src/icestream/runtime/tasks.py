"""Work beside the loop: blocking calls in threads, and background tasks that are stopped in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from icestream.runtime.clock import Clock

Answer = TypeVar("Answer")


class Offload(Protocol):
    """Runs blocking calls without blocking the loop."""

    async def run(self, call: Callable[[], Answer]) -> Answer:
        """Runs a blocking call without blocking the loop."""

    def close(self) -> None: ...


class ThreadOffload:
    """A pool of threads. With one thread, calls run one at a time and in order."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, call: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class ShortOffload:
    """Runs calls that are mostly short (a small file and its sync) on the loop itself, while that pays.

    It pays while the loop is idle and recent calls were short: it saves two thread switches, which take as long as the
    call. Of several concurrent calls only the first runs inline, so that the others wait for the disk together.
    """

    def __init__(self, threads: Offload, clock: Clock, is_alone: Callable[[], bool], below_ns: int) -> None:
        """`threads`: closed by its owner, not by this object."""
        self._threads = threads
        self._clock = clock
        self._is_alone = is_alone
        self._below_ns = below_ns
        self._took_ns = 0.0
        self._at_once = 0  # calls in threads, and inline in this iteration of the loop

    async def run(self, call: Callable[[], Answer]) -> Answer:
        is_first = self._at_once == 0
        self._at_once += 1
        if is_first and self._took_ns < self._below_ns and self._is_alone():
            asyncio.get_running_loop().call_soon(self._ended)
            return self._timed(call)
        try:
            return await self._threads.run(lambda: self._timed(call))
        finally:
            self._ended()

    def _ended(self) -> None:
        self._at_once -= 1

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        """Runs the call and updates the moving average of its time.

        A slow call sends the next ones to the threads until they are short again.
        """
        began_ns = self._clock.monotonic_ns()
        try:
            return call()
        finally:
            self._took_ns = 0.7 * self._took_ns + 0.3 * (self._clock.monotonic_ns() - began_ns)

    def close(self) -> None:
        """No effect: the threads belong to their owner."""


class InlineOffload:
    """The simulated twin: runs the call at once, so that a run follows from its seed."""

    async def run(self, call: Callable[[], Answer]) -> Answer:
        return call()

    def close(self) -> None:
        """Nothing runs elsewhere."""


class Tasks:
    """Background tasks of one component. An unexpected exception is passed to `on_failure`, never lost."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task and keeps it referenced until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """Cancels all tasks and waits until they have ended; tasks started meanwhile included."""
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
