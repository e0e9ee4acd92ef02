"""The outcome of one append, reported synchronously in the moment it is decided.

    open      outcome undecided         settle(results) -> settled; fail(error) -> failed
    settled   `result()` returns the results
    failed    `result()` raises the error

A receipt can be awaited and has the interface of a future. An asyncio future calls back through the loop's queue, one
iteration later: for a batch of one message that costs as much as storing it, and in between other code sees a state
that is out of date. A receipt calls its callbacks at once. A callback must be short, and must expect that the log is in
the middle of handling completions. An exception in a callback goes to the loop's exception handler; it disturbs neither
the log nor the other callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from icestream import errors
from icestream.wal.appender import Result

Callback = Callable[["Receipt"], object]


class Receipt:
    """The outcome of one append, see the module.

    One callback or one awaiting coroutine is the rule, so the first of each has a slot without a list.
    """

    __slots__ = ("_error", "_first_callback", "_first_future", "_more_callbacks", "_results", "pause_ms")

    def __init__(self) -> None:
        self.pause_ms = 0  # backpressure near a quota: how long the producer should wait before it sends more
        self._results: list[Result] | None = None
        self._error: errors.IcestreamError | None = None
        self._first_future: asyncio.Future[list[Result]] | None = None
        self._first_callback: Callback | None = None
        self._more_callbacks: list[Callback] | None = None

    def done(self) -> bool:
        """Whether the outcome is decided."""
        return self._results is not None or self._error is not None

    def result(self) -> list[Result]:
        """The result of each batch. Raises the error of a failed append, InvalidStateError while it is undecided."""
        if self._error is not None:
            raise self._error
        if self._results is None:
            raise asyncio.InvalidStateError("the append has not completed yet")
        return self._results

    def exception(self) -> errors.IcestreamError | None:
        """The error of a failed append, else None."""
        return self._error

    def add_done_callback(self, callback: Callback) -> None:
        """Calls `callback(receipt)` when the outcome is decided; at once if it is decided already."""
        if self._results is not None or self._error is not None:
            self._call(callback)
        elif self._first_callback is None:
            self._first_callback = callback
        elif self._more_callbacks is None:
            self._more_callbacks = [callback]
        else:
            self._more_callbacks.append(callback)

    def settle(self, results: list[Result]) -> None:
        """Reports the results to every coroutine and callback that waits."""
        self._results = results
        if self._first_future is not None:
            _complete_future(self._first_future, self)
        if self._first_callback is not None:
            self._run_callbacks()

    def fail(self, error: errors.IcestreamError) -> None:
        """Reports the error to every coroutine and callback that waits."""
        self._error = error
        if self._first_future is not None:
            _complete_future(self._first_future, self)
        if self._first_callback is not None:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        # Taken out first: a callback may add further callbacks, which are then called at once.
        first, self._first_callback = self._first_callback, None
        others, self._more_callbacks = self._more_callbacks, None
        assert first is not None
        self._call(first)
        for callback in others or ():
            self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self)
        except Exception as error:  # noqa: BLE001 (a bug in a callback must not stop the log)
            context = {"message": "a callback of an append failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def __await__(self) -> Generator[Any, None, list[Result]]:
        # Each awaiting coroutine has a future of its own: cancelling one does not cancel the others.
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        if self._first_future is None and not self.done():
            self._first_future = future
        else:
            self.add_done_callback(partial(_complete_future, future))
        return future.__await__()


def _complete_future(future: asyncio.Future[list[Result]], receipt: Receipt) -> None:
    if future.done():  # cancelled meanwhile
        return
    if receipt._error is not None:
        future.set_exception(receipt._error)
    else:
        future.set_result(receipt.result())
