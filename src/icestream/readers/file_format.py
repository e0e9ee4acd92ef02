"""What the reader of a table's files (file_reader.py) needs of a file format: Parquet, ORC or Avro.

A file consists of groups of rows that can be decoded one at a time: row groups of Parquet, stripes of ORC, runs of
blocks of Avro. A format knows no columns of the envelope; it returns columns under the names and with the types that
the file has, or that it was asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors
from icestream.readers.data_files import UNKNOWN, Bounds

ColumnTypes = Mapping[str, Any]  # columns by the file's own names, and the Arrow type that the caller wants of each


class RowGroupShape(NamedTuple):
    rows: int
    bounds: Mapping[str, Bounds]  # by the file's own names; columns without statistics are absent

    def bounds_of(self, column: str | None) -> Bounds:
        return UNKNOWN if column is None else self.bounds.get(column, UNKNOWN)


class FileShape(NamedTuple):
    rows: int
    ids: Mapping[str, int | None]  # of each top-level column its field id, where the file carries one
    groups: tuple[RowGroupShape, ...]
    detail: Any = None  # what the format itself needs to read a group


class FileFormat(Protocol):
    """Every method blocks, opens the file by itself and closes it. Raises FileNotFoundError."""

    def shape(self, path: str) -> FileShape: ...

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        """About how many bytes the columns of a group have once they are decoded."""

    def batches(self, path: str, shape: FileShape, number: int, kinds: ColumnTypes, rows: int | None) -> Iterator[Any]:
        """The columns of a group as Arrow tables of at most so many rows, in the file's order. None: in one table."""


@contextmanager
def decoding(path: str, *more: type[Exception]) -> Iterator[None]:
    """Around everything that a format's library does with the bytes of a file. Raises TableDamaged for what it cannot
    decode. Errors of the operating system (too many open files) and of an object store pass unchanged: a retry may
    succeed. An error without a number is about the bytes. `more`: what else the library raises about bytes."""
    try:
        yield
    except (pa.ArrowException, OSError, *more) as error:
        is_of_machine = isinstance(error, OSError) and error.errno not in (None, errno.EIO)
        if is_of_machine or isinstance(error, errors.IcestreamError):
            raise
        raise errors.TableDamaged(
            f"this table cannot be read: {path} is damaged: {error}",
            hint="put the file back from a copy, or take its rows out with an engine (DELETE), so that readers go on "
            "behind them; `icestream verify --deep` names all such files",
        ) from None


def unreadable(message: str, hint: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(f"this table cannot be read: {message}", hint=hint)


def in_slices(rows: Any, count: int | None) -> Iterator[Any]:
    """A decoded table as tables of at most so many rows; at least one."""
    for start in range(0, max(len(rows), 1), count or max(len(rows), 1)):
        yield rows.slice(start, count)


FormatOf = Callable[[str], FileFormat | None]
