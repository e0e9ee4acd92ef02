"""What becomes of one append. Told once, in the very moment in which it is known.

    open      nobody knows yet          settle(results) -> settled; fail(error) -> failed
    settled   `result()` has it
    failed    `result()` raises it

It looks like a future and can be awaited like one. But a future of asyncio calls back through the queue of the loop, a
turn later: for a batch of one message that costs as much as storing it, and in between others see a state that is over.
A receipt calls back at once. Whoever asks for that does something short, and expects that the log is in the middle of
its news. Should it fail all the same, the loop is told, and neither the log nor anybody else who waits is disturbed.
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
    """One who waits is the rule, so the first has a place of his own, and the first who awaits too."""

    __slots__ = ("_awaited", "_error", "_first", "_others", "_results", "pause_ms")

    def __init__(self) -> None:
        self.pause_ms = 0  # so long should the producer wait before it sends more: near a quota it is slowed
        self._results: list[Result] | None = None
        self._error: errors.IcestreamError | None = None
        self._awaited: asyncio.Future[list[Result]] | None = None
        self._first: Callback | None = None
        self._others: list[Callback] | None = None

    def done(self) -> bool:
        return self._results is not None or self._error is not None

    def result(self) -> list[Result]:
        if self._error is not None:
            raise self._error
        if self._results is None:
            raise asyncio.InvalidStateError("the outcome of this append is not known yet")
        return self._results

    def exception(self) -> errors.IcestreamError | None:
        return self._error

    def add_done_callback(self, callback: Callback) -> None:
        """At once when it is known already."""
        if self._results is not None or self._error is not None:
            self._call(callback)
        elif self._first is None:
            self._first = callback
        elif self._others is None:
            self._others = [callback]
        else:
            self._others.append(callback)

    def settle(self, results: list[Result]) -> None:
        self._results = results
        if self._awaited is not None:
            _hand_over(self._awaited, self)
        if self._first is not None:
            self._tell()

    def fail(self, error: errors.IcestreamError) -> None:
        self._error = error
        if self._awaited is not None:
            _hand_over(self._awaited, self)
        if self._first is not None:
            self._tell()

    def _tell(self) -> None:
        first, self._first = self._first, None
        others, self._others = self._others, None
        assert first is not None
        self._call(first)
        for callback in others or ():
            self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self)
        except Exception as error:  # noqa: BLE001 (a mistake of one of them must not stop the log)
            context = {"message": "who waited for an append failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def __await__(self) -> Generator[Any, None, list[Result]]:
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        if self._awaited is None and not self.done():
            self._awaited = future
        else:
            self.add_done_callback(partial(_hand_over, future))
        return future.__await__()


def _hand_over(future: asyncio.Future[list[Result]], receipt: Receipt) -> None:
    """Each who awaits has a future of his own: one who gives up takes nothing from the others."""
    if future.done():
        return
    if receipt._error is not None:
        future.set_exception(receipt._error)
    else:
        future.set_result(receipt.result())
