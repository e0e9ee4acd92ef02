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
from typing import Any

from icestream import errors
from icestream.wal.appender import Result


class Receipt:
    __slots__ = ("_callbacks", "_error", "_results", "pause_ms")

    def __init__(self) -> None:
        self.pause_ms = 0  # so long should the producer wait before it sends more: near a quota it is slowed
        self._results: list[Result] | None = None
        self._error: errors.IcestreamError | None = None
        self._callbacks: list[Callable[[Receipt], None]] = []

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

    def add_done_callback(self, callback: Callable[[Receipt], None]) -> None:
        """At once when it is known already."""
        self._callbacks.append(callback)
        if self.done():
            self._tell()

    def settle(self, results: list[Result]) -> None:
        self._results = results
        self._tell()

    def fail(self, error: errors.IcestreamError) -> None:
        self._error = error
        self._tell()

    def _tell(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 (a mistake of one of them must not stop the log)
                context = {"message": "who waited for an append failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def __await__(self) -> Generator[Any, None, list[Result]]:
        if not self.done():
            known = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if known.done() else known.set_result(None))
            yield from known
        return self.result()
