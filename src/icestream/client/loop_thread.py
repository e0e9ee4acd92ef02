"""LoopThread: an event loop in a thread of its own, for blocking callers.

open      runs coroutines and calls of other threads
closed    waiting callers get ClientClosed, and so do later ones: no caller waits for ever
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from icestream import errors

Result = TypeVar("Result")


class LoopThread:
    """Runs the asyncio client for threads without an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        # A daemon: a program that ends without closing its client must not hang; `atexit` closes it (blocking.py).
        self._thread = threading.Thread(target=self._run, name="icestream-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            # Cancelled, not left behind: a caller in another thread waits for its coroutine, and gets ClientClosed.
            self._loop.run_until_complete(_cancel_all(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine on the loop, waits for it, and returns its result. Raises ClientClosed."""
        try:
            self._check_caller()
            with self._lock:  # so that the loop cannot stop between the check and the hand-over
                self._check_open()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except errors.IcestreamError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise errors.ClientClosed("the client was closed") from None
        except BaseException:  # the caller is interrupted, by Ctrl-C: the coroutine must not go on without it
            future.cancel()
            raise

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls on the loop without waiting, in the order of all calls of other threads. Raises ClientClosed."""
        with self._lock:
            self._check_open()
            self._loop.call_soon_threadsafe(call, *arguments)

    def _check_caller(self) -> None:
        """Raises InvalidInput in the client's own thread, which would wait for itself for ever."""
        if self._thread is threading.current_thread():
            raise errors.InvalidInput("blocking call from the client's own thread", hint="call it from another thread")

    def _check_open(self) -> None:
        """Raises ClientClosed; also in a forked child, which has no such thread."""
        if self._is_closed:
            raise errors.ClientClosed("the client is closed", hint="use it inside `with icestream.connect_sync()`")
        if not self._thread.is_alive():
            raise errors.ClientClosed("the client belongs to another process", hint="connect after the fork")

    def close(self) -> None:
        """Cancels what runs, stops the loop, and waits for the thread to end. May be called by several threads."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            if is_first and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join()


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
