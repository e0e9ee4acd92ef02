"""Requests of one method that came together, as columns, and their answers.

A handler looks at all rows at once. Each row is answered once, when its outcome is known; rows whose outcomes become
known in the same turn of the loop go back together.

    integer column     u64 of each row; 0 where it is not there
    value column       (all values joined, the end of each)
    `present`          which columns a row has, a bit for each
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Answer = Callable[[list[int], Mapping[int, tuple[int, str]]], None]


class BatchedMethod(NamedTuple):
    """A unary method whose requests a wire may bring together. Its column kinds are those of native/src/wire."""

    columns: Sequence[tuple[int, int, int]]  # parent field (0: none), field, kind
    echo: tuple[int, int] | None  # the answer repeats this column as this field
    handle: Callable[[Batch], None]


class Batch:
    def __init__(self, count: int, present: bytes, columns: tuple[Any, ...], answer: Answer) -> None:
        self.count = count
        self.present = memoryview(present).cast("I")
        self._columns = columns
        self._answer = answer
        self._done: list[int] = []
        self._failures: dict[int, tuple[int, str]] = {}
        self._loop = asyncio.get_running_loop()

    def integers(self, column: int) -> memoryview:
        return memoryview(self._columns[column]).cast("Q")

    def values(self, column: int) -> list[bytes]:
        joined, ends = self._columns[column]
        values = []
        begin = 0
        for end in memoryview(ends).cast("I"):
            values.append(joined[begin:end])
            begin = end
        return values

    def texts(self, column: int) -> list[str]:
        """Each was checked to be UTF-8. Most columns of text say the same in every row."""
        return [str(value, "utf-8") for value in self.values(column)]

    def succeed(self, row: int) -> None:
        if not self._done:
            self._loop.call_soon(self._flush)
        self._done.append(row)

    def fail(self, row: int, status: tuple[int, str]) -> None:
        self._failures[row] = status
        self.succeed(row)

    def _flush(self) -> None:
        done, self._done = self._done, []
        failures, self._failures = self._failures, {}
        self._answer(done, failures)


class RowOutcome:
    """Where the outcome of one row goes: it looks like a future to who sets it, and is cheaper."""

    __slots__ = ("_batch", "_row", "_status")

    def __init__(self, batch: Batch, row: int, status: Callable[[Exception], tuple[int, str]]) -> None:
        self._batch = batch
        self._row = row
        self._status = status

    def done(self) -> bool:
        return False

    def set_result(self, wait_ms: int) -> None:
        if wait_ms:
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._batch.succeed, self._row)
        else:
            self._batch.succeed(self._row)

    def set_exception(self, error: Exception) -> None:
        self._batch.fail(self._row, self._status(error))
