"""Parquet files: row groups, with the statistics of the footer as bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import limits
from icestream.readers.data_files import Bounds
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
        """A footer has the size of the encoded values: of equal ones a dictionary has one, and rows of a few KiB can
        decode to gigabytes. Where that may be, the values are counted without being decoded."""
        group = shape.detail.row_group(number)
        repeated = _repeated(group, columns)
        counted = self._count(path, shape, number, repeated) if repeated else 0
        return int(group.total_byte_size) + counted

    def _count(self, path: str, shape: FileShape, number: int, names: list[str]) -> int:
        source = self._open(path)
        with decoding(path), pq.ParquetFile(source, metadata=shape.detail, read_dictionary=names) as parquet:
            rows = parquet.read_row_group(number, columns=names, use_threads=False)
        return sum(_value_bytes(chunk) for column in rows.columns for chunk in column.chunks)

    def batches(self, path: str, shape: FileShape, number: int, kinds: ColumnTypes, rows: int | None) -> Iterator[Any]:
        """From an object store a group is fetched in few large requests; from a disk, each column as it is decoded."""
        source = self._open(path)
        pre_buffer = not isinstance(source, pa.OSFile)
        with decoding(path), pq.ParquetFile(source, metadata=shape.detail, pre_buffer=pre_buffer) as parquet:
            if rows is None:
                yield parquet.read_row_group(number, columns=[*kinds], use_threads=False)
                return
            for batch in parquet.iter_batches(rows, [number], [*kinds], use_threads=False):
                yield pa.Table.from_batches([batch])


def _field_id(field: Any) -> int | None:
    metadata = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _bounds(group: Any) -> dict[str, Bounds]:
    bounds = {}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if statistics is not None and statistics.has_min_max and _is_comparable(statistics.logical_type):
            bounds[column.path_in_schema] = Bounds(_int(statistics.min_raw), _int(statistics.max_raw))
    return bounds


def _is_comparable(kind: Any) -> bool:
    """Whether bounds are in the units of the envelope, whose times are microseconds."""
    return bool(kind.type != "TIMESTAMP" or json.loads(kind.to_json())["timeUnit"] == "microseconds")


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _repeated(group: Any, wanted: list[str]) -> list[str]:
    """Columns of values of any length that can decode to much more than they take: each value may be as long as all
    that the dictionary has."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return [
        column.path_in_schema
        for column in columns
        if column.has_dictionary_page
        and column.physical_type == "BYTE_ARRAY"
        and column.path_in_schema in wanted
        and column.num_values * column.total_uncompressed_size > limits.SCAN_GROUP_BYTES_MAX
    ]


def _value_bytes(chunk: Any) -> int:
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
    return int(pc.sum(lengths.take(chunk.indices)).as_py() or 0)
