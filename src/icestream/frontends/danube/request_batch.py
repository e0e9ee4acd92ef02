"""A batch of requests of one method that arrived together, as columns, and the completion of its rows.

A handler processes all rows at once. Each row is completed once, when its outcome is known; rows whose outcomes become
known in the same loop tick are returned together.

    integer column     u64 of each row; 0 where it is absent
    value column       (all values joined, the end of each)
    `present`          which columns a row has, a bit for each
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from icestream.broker.guarded_broker import GuardedBroker
    from icestream.frontends.danube.handlers import Call

CompleteRows = Callable[
    [list[int] | None, Mapping[int, tuple[int, str]]], None
]  # rows (None: all of them), and the statuses of failed rows


Callers = Callable[[], "dict[Call, list[int]]"]  # the rows of each call


class BatchedMethod(NamedTuple):
    """A unary method whose requests may be batched. The kinds of its columns are those of native/src/wire."""

    columns: Sequence[tuple[int, int, int]]  # parent field (0: none), field, kind
    echo: tuple[int, int] | None  # the response repeats this column as this field
    handle: Callable[[RequestBatch], None]


class RequestBatch:
    def __init__(
        self,
        count: int,
        present: bytes,
        columns: tuple[Any, ...],
        complete: CompleteRows,
        callers: Callers = dict,
    ) -> None:
        """`callers`: the rows of each caller, for the admission (call_admission.py)."""
        self.count = count
        self.callers = callers
        self.admitted: GuardedBroker | None = None  # set by call_admission.py
        self.present = memoryview(present).cast("I")
        self._columns = columns
        self._complete = complete
        self._done: list[int] = []
        self._failures: dict[int, tuple[int, str]] = {}

    @property
    def client(self) -> GuardedBroker:
        """The use cases of the broker for the session that all rows are of."""
        assert self.admitted is not None
        return self.admitted

    def part(self, rows: Sequence[int]) -> RequestBatch:
        """The batch of these rows alone, which completes them by its own numbers; the batch itself if it has all."""
        if len(rows) == self.count:
            return self

        def complete(done: list[int] | None, failures: Mapping[int, tuple[int, str]]) -> None:
            completed = list(rows) if done is None else [rows[row] for row in done]
            self._complete(completed, {rows[row]: status for row, status in failures.items()})

        columns = tuple(_rows_of(column, rows) for column in self._columns)
        return RequestBatch(len(rows), array("I", [self.present[row] for row in rows]).tobytes(), columns, complete)

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
        """The values as text; the native part has checked that they are UTF-8."""
        return [str(value, "utf-8") for value in self.values(column)]

    def joined(self, column: int) -> tuple[bytes, bytes]:
        """The values of all rows, joined, and the end of each: u32 in native byte order."""
        joined, ends = self._columns[column]
        return joined, ends

    def largest(self, column: int) -> int:
        """The size of the largest value, in bytes."""
        ends = memoryview(self.joined(column)[1]).cast("I").tolist()
        return int(max(map(sub, ends, [0, *ends])))

    # --- columns with the same value in every row ---

    def constant_shape(self, columns: int) -> int | None:
        """The bits of these columns in `present`, if they are the same in every row; else None."""
        shapes = {present & columns for present in self.present}
        return shapes.pop() if len(shapes) == 1 else None

    def constant_integer(self, column: int) -> int | None:
        """The value of the column, if it is the same in every row; else None."""
        values = self.integers(column).tolist()
        return int(values[0]) if values.count(values[0]) == self.count else None

    def constant_value(self, column: int) -> bytes | None:
        """The value of the column, if it is the same in every row; else None."""
        joined, ends = self.joined(column)
        size, rest = divmod(len(joined), self.count)
        first = joined[:size]
        if rest or joined != first * self.count:
            return None
        # the joined bytes alone do not prove it: aa|a|aaa equals aa|aa|aa
        is_even = not size or array("I", range(size, len(joined) + 1, size)).tobytes() == ends
        return first if is_even else None

    # --- completion ---

    def succeed_all(self) -> None:
        """Completes every row, of a batch of which no row is completed yet."""
        self._complete(None, {})

    def fail_all(self, status: tuple[int, str]) -> None:
        self._complete(None, dict.fromkeys(range(self.count), status))

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
        self._complete(done, failures)


def _rows_of(column: Any, rows: Sequence[int]) -> Any:
    """Some rows of an integer column or of a value column."""
    if isinstance(column, bytes):
        numbers = memoryview(column).cast("Q")
        return array("Q", [numbers[row] for row in rows]).tobytes()
    joined, ends = column
    bounds = [0, *memoryview(ends).cast("I")]
    values = [joined[bounds[row] : bounds[row + 1]] for row in rows]
    return b"".join(values), array("I", accumulate(map(len, values))).tobytes()


class RowOutcome:
    """Sets the outcome of one row: the part of a future's interface that senders use, at a lower cost."""

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
