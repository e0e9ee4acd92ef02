"""Reads Parquet files: a group is a row group, and its bounds are the statistics of the footer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import limits
from icestream.readers.data_files import ScanBounds
from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, TextBounds, decoding
from icestream.readers.stored_files import OpenFile

_FIELD_ID: Final = b"PARQUET:field_id"


class ParquetFormat:
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def shape(self, path: str) -> FileShape:
        with self._open(path) as source, decoding(path):
            metadata = pq.read_metadata(source)
            ids = {field.name: _field_id(field) for field in metadata.schema.to_arrow_schema()}
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            shapes = tuple(RowGroupShape(group.num_rows, _bounds(group), _stored_bytes(group)) for group in groups)
        return FileShape(int(metadata.num_rows), ids, shapes, metadata)

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        group = shape.detail.row_group(number)
        # The footer has the size of the encoded values. A dictionary stores equal values once, so a few KiB can decode
        # to gigabytes. Columns that could do so are measured by their dictionary, without decoding the values.
        inflating = _columns_that_may_inflate(group, columns)
        measured = self._dictionary_bytes(path, shape, number, inflating) if inflating else 0
        return int(group.total_byte_size) + measured

    def _dictionary_bytes(self, path: str, shape: FileShape, number: int, names: list[str]) -> int:
        """Returns the decoded size of dictionary-encoded columns."""
        source = self._open(path)
        with decoding(path), pq.ParquetFile(source, metadata=shape.detail, read_dictionary=names) as parquet:
            rows = parquet.read_row_group(number, columns=names, use_threads=False)
        return sum(_value_bytes(chunk) for column in rows.columns for chunk in column.chunks)

    def text_bounds(self, shape: FileShape, columns: Sequence[str]) -> list[list[TextBounds]]:
        metadata = shape.detail
        places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [[_text_bounds(group.column(places[name])) for name in columns] for group in groups]

    def batches(
        self, path: str, shape: FileShape, number: int, types: ColumnTypes, batch_rows: int | None
    ) -> Iterator[Any]:
        source = self._open(path)
        # From an object store a group is fetched in few large requests; from a disk, each column as it is decoded,
        # which needs less memory.
        pre_buffer = not isinstance(source, pa.OSFile)
        # Scans already run in a small pool of threads, so Arrow starts no threads of its own.
        with decoding(path), pq.ParquetFile(source, metadata=shape.detail, pre_buffer=pre_buffer) as parquet:
            if batch_rows is None:
                yield parquet.read_row_group(number, columns=[*types], use_threads=False)
                return
            for batch in parquet.iter_batches(batch_rows, [number], [*types], use_threads=False):
                yield pa.Table.from_batches([batch])

    def tables(self, path: str, shape: FileShape, numbers: Sequence[int], types: ColumnTypes) -> Iterator[Any]:
        source = self._open(path)
        with decoding(path):
            if len(numbers) > 1 and not isinstance(source, pa.OSFile):
                source = pa.PythonFile(_FetchedRange(source, *_byte_range(shape.detail, numbers)), "r")
            with pq.ParquetFile(source, metadata=shape.detail, pre_buffer=len(numbers) == 1) as parquet:
                for number in numbers:
                    yield parquet.read_row_group(number, columns=[*types], use_threads=False)


def _field_id(field: Any) -> int | None:
    metadata = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _bounds(group: Any) -> dict[str, ScanBounds]:
    """Returns the bounds of the columns that have statistics, by the file's own names."""
    bounds = {}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if statistics is not None and statistics.has_min_max and _is_comparable(statistics.logical_type):
            bounds[column.path_in_schema] = ScanBounds(_int(statistics.min_raw), _int(statistics.max_raw))
    return bounds


def _stored_bytes(group: Any) -> dict[str, int]:
    """Returns the size of each top-level column in the file."""
    sizes: dict[str, int] = {}
    for column in map(group.column, range(group.num_columns)):
        name = column.path_in_schema.partition(".")[0]
        sizes[name] = sizes.get(name, 0) + column.total_compressed_size
    return sizes


def _text_bounds(column: Any) -> TextBounds:
    statistics = column.statistics
    if statistics is None:
        return TextBounds(None, None, None)
    # Texts are compared by their bytes. Other types of the same physical type may be ordered differently.
    has_bounds = statistics.has_min_max and statistics.logical_type.type == "STRING"
    low, high = (statistics.min_raw, statistics.max_raw) if has_bounds else (None, None)
    return TextBounds(low, high, statistics.null_count if statistics.has_null_count else None)


def _byte_range(metadata: Any, numbers: Sequence[int]) -> tuple[int, int]:
    """Returns where the first of these groups begins in the file, and where the last one ends."""
    columns = [metadata.row_group(number).column(place) for number in numbers for place in range(metadata.num_columns)]
    starts = [
        min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset) for column in columns
    ]
    ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    return min(starts), max(ends)


class _FetchedRange(io.RawIOBase):
    """A file in an object store, of which a range was fetched in one request. What lies outside is not read."""

    def __init__(self, source: Any, start: int, end: int) -> None:
        super().__init__()
        self._size = source.size()
        source.seek(start)
        self._data = memoryview(source.read(end - start))
        self._start = start
        self._position = 0
        source.close()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return int(self._size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._position = position + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size()}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        begin = self._position - self._start
        if begin < 0:
            raise OSError(f"read at {self._position} in front of the fetched range, which begins at {self._start}")
        data = self._data[begin:] if size < 0 else self._data[begin : begin + size]
        self._position += len(data)
        return bytes(data)


def _is_comparable(logical_type: Any) -> bool:
    """True if bounds of this type are in the units of the envelope, whose times are microseconds."""
    return bool(logical_type.type != "TIMESTAMP" or json.loads(logical_type.to_json())["timeUnit"] == "microseconds")


def _int(value: Any) -> int | None:
    """Returns the bound of an integer column; None for columns of other types, whose bounds are not needed."""
    return value if isinstance(value, int) else None


def _columns_that_may_inflate(group: Any, names: list[str]) -> list[str]:
    """Returns the dictionary-encoded columns that could decode to more than a reader may hold at once.

    The worst case of a column: every row has a value as long as all stored bytes.
    """
    columns = [group.column(number) for number in range(group.num_columns)]
    return [
        column.path_in_schema
        for column in columns
        if column.has_dictionary_page
        and column.physical_type == "BYTE_ARRAY"
        and column.path_in_schema in names
        and column.num_values * column.total_uncompressed_size > limits.SCAN_GROUP_BYTES_MAX
    ]


def _value_bytes(chunk: Any) -> int:
    """Returns the bytes of all values of a chunk, those of a dictionary counted once for each row."""
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
    return int(pc.sum(lengths.take(chunk.indices)).as_py() or 0)
