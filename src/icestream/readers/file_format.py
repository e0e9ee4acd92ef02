"""The interface between the reader of a table's files (file_reader.py) and a file format: Parquet, ORC or Avro.

A file consists of groups of rows that can be decoded one at a time: row groups of Parquet, stripes of ORC, runs of
blocks of Avro. A format does not know the columns of the envelope: it returns columns under the file's own names, with
the types that the file has or that the caller asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors
from icestream.readers.data_files import UNKNOWN, ScanBounds

ColumnTypes = Mapping[str, Any]  # columns by the file's own names, and the Arrow type that the caller wants of each


class TextBounds(NamedTuple):
    """The statistics of a text column: UTF-8 bounds, inclusive, and the number of nulls; None: unknown."""

    low: bytes | None
    high: bytes | None
    nulls: int | None


class RowGroupShape(NamedTuple):
    """Size and statistics of one group of rows."""

    rows: int
    bounds: Mapping[str, ScanBounds]  # by the file's own names; columns without statistics are absent
    stored_bytes: Mapping[str, int] = {}  # of each column in the file, where the format tells

    def bounds_of(self, column: str | None) -> ScanBounds:
        """Returns the bounds of a column; unknown for a column that the file does not have (None)."""
        return UNKNOWN if column is None else self.bounds.get(column, UNKNOWN)


class FileShape(NamedTuple):
    """What a file tells about itself before any row is decoded."""

    rows: int
    ids: Mapping[str, int | None]  # every top-level column and its Iceberg field id; None where the file has no id
    groups: tuple[RowGroupShape, ...]
    detail: Any = None  # what the format itself needs to read a group; opaque to callers


class FileFormat(Protocol):
    """Reads files of one format. Every method blocks, and opens and closes the file by itself.

    All methods raise FileNotFoundError for a file that does not exist, and TableDamaged for bytes that cannot be
    decoded.
    """

    def shape(self, path: str) -> FileShape: ...

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        """Estimates the memory that the columns of group `number` take once they are decoded."""

    def text_bounds(self, shape: FileShape, columns: Sequence[str]) -> list[list[TextBounds]]:
        """Returns the statistics of text columns, for each group of the file."""

    def batches(
        self, path: str, shape: FileShape, number: int, types: ColumnTypes, batch_rows: int | None
    ) -> Iterator[Any]:
        """Yields the columns of group `number` as Arrow tables of at most `batch_rows` rows, in the file's order; as
        one table if `batch_rows` is None."""

    def tables(self, path: str, shape: FileShape, numbers: Sequence[int], types: ColumnTypes) -> Iterator[Any]:
        """Yields the columns of several groups, each as one Arrow table. `numbers` rise."""


@contextmanager
def decoding(path: str, *library_errors: type[Exception]) -> Iterator[None]:
    """Converts errors of a decoding library into TableDamaged, which stops readers with the name of the file.

    `library_errors`: what the library raises for bad bytes beside errors of Arrow. Errors of the operating system (such
    as too many open files) and of an object store pass unchanged, because a retry may succeed.
    """
    try:
        yield
    except (pa.ArrowException, OSError, *library_errors) as error:
        # Arrow reports bad bytes as an OSError without an error number, too; with a number the system has failed. EIO
        # is the exception: the disk cannot return these bytes, and will not on a retry.
        is_system_error = isinstance(error, OSError) and error.errno not in (None, errno.EIO)
        if is_system_error or isinstance(error, errors.IcestreamError):
            raise
        raise errors.TableDamaged(
            f"this table cannot be read: {path} is damaged: {error}",
            hint="restore the file from a copy, or delete its rows with an engine (DELETE), so that readers continue "
            "behind them; `icestream verify --deep` names all such files",
        ) from None


def unreadable(reason: str, hint: str) -> errors.TableUnreadable:
    """Returns the error for a table that is intact but uses something that readers do not support."""
    return errors.TableUnreadable(f"this table cannot be read: {reason}", hint=hint)


def split_rows(rows: Any, batch_rows: int | None) -> Iterator[Any]:
    """Yields a decoded table as tables of at most `batch_rows` rows; at least one table, even if it is empty."""
    for start in range(0, max(len(rows), 1), batch_rows or max(len(rows), 1)):
        yield rows.slice(start, batch_rows)


class UnindexedFormat:
    """The parts of FileFormat for formats whose readers expose no statistics of groups: nothing is known of them."""

    def text_bounds(self, shape: FileShape, columns: Sequence[str]) -> list[list[TextBounds]]:
        return [[TextBounds(None, None, None)] * len(columns) for _ in shape.groups]

    def tables(
        self: FileFormat, path: str, shape: FileShape, numbers: Sequence[int], types: ColumnTypes
    ) -> Iterator[Any]:
        for number in numbers:
            yield from self.batches(path, shape, number, types, None)


FormatOf = Callable[[str], FileFormat | None]  # by the name in the manifest; None for a format that is not supported
