"""Reads Parquet files: a group is a row group, and its bounds are the statistics of the footer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import limits
from icestream.readers.data_files import ScanBounds
from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, decoding
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
            shapes = tuple(RowGroupShape(group.num_rows, _bounds(group)) for group in groups)
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
