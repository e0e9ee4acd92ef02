"""Requests of one method that came together, as columns, and their answers.

A handler looks at all rows at once. Each row is answered once, when its outcome is known; rows whose outcomes become
known in the same turn of the loop go back together.

    integer column     u64 of each row; 0 where it is not there
    value column       (all values joined, the end of each)
    `present`          which columns a row has, a bit for each
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import Any, NamedTuple

CompleteRows = Callable[[list[int] | None, Mapping[int, tuple[int, str]]], None]  # None: all rows


class BatchedMethod(NamedTuple):
    """A unary method whose requests a wire may bring together. Its column kinds are those of native/src/wire."""

    columns: Sequence[tuple[int, int, int]]  # parent field (0: none), field, kind
    echo: tuple[int, int] | None  # the answer repeats this column as this field
    handle: Callable[[RequestBatch], None]


class RequestBatch:
    def __init__(self, count: int, present: bytes, columns: tuple[Any, ...], answer: CompleteRows) -> None:
        self.count = count
        self.present = memoryview(present).cast("I")
        self._columns = columns
        self._answer = answer
        self._done: list[int] = []
        self._failures: dict[int, tuple[int, str]] = {}

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

    def joined(self, column: int) -> tuple[bytes, bytes]:
        """The values of all rows side by side, and where each ends: u32, in the order of this machine."""
        joined, ends = self._columns[column]
        return joined, ends

    def largest(self, column: int) -> int:
        """The bytes of the largest value."""
        ends = memoryview(self.joined(column)[1]).cast("I").tolist()
        return int(max(map(sub, ends, [0, *ends])))

    # --- where all rows say the same ---

    def constant_shape(self, columns: int) -> int | None:
        """Which of these columns every row has, bits as in `present`; None where they differ in that."""
        found = {present & columns for present in self.present}
        return found.pop() if len(found) == 1 else None

    def constant_integer(self, column: int) -> int | None:
        """What every row has there; None where they differ."""
        values = self.integers(column).tolist()
        return int(values[0]) if values.count(values[0]) == self.count else None

    def constant_value(self, column: int) -> bytes | None:
        joined, ends = self.joined(column)
        size, rest = divmod(len(joined), self.count)
        first = joined[:size]
        if rest or joined != first * self.count:
            return None
        # aa|a|aaa repeats a value of two bytes, too
        is_even = not size or array("I", range(size, len(joined) + 1, size)).tobytes() == ends
        return first if is_even else None

    # --- answers ---

    def succeed_all(self) -> None:
        """For a batch of which no row was answered yet."""
        self._answer(None, {})

    def fail_all(self, status: tuple[int, str]) -> None:
        self._answer(None, dict.fromkeys(range(self.count), status))

    def succeed(self, row: int) -> None:
        if not self._done:
            asyncio.get_running_loop().call_soon(self._flush)
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

    def __init__(self, batch: RequestBatch, row: int, status: Callable[[Exception], tuple[int, str]]) -> None:
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
