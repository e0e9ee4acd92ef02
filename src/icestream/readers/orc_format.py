"""Reads ORC files: a group is a stripe. Field ids are the attribute `iceberg.id` of a column.

Arrow's ORC reader exposes neither the row counts nor the statistics of stripes. In a file of several stripes one narrow
column is decoded to count the rows, and bounds are unknown. A stripe can only be decoded as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.orc as orc  # type: ignore[import-untyped]

from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, UnindexedFormat, decoding, split_rows
from icestream.readers.stored_files import OpenFile

_FIELD_ID: Final = b"iceberg.id"
_DECODED_RATIO: Final = 4  # decoded bytes for each stored one, about: small integers and texts compress by that


class OrcFormat(UnindexedFormat):
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def shape(self, path: str) -> FileShape:
        with self._open(path) as source, decoding(path):
            file = orc.ORCFile(source)
            ids = {field.name: _field_id(field) for field in file.schema}
            rows = _stripe_rows(file)
            stripe_bytes = file.content_length // max(len(rows), 1)
        return FileShape(sum(rows), ids, tuple(RowGroupShape(count, {}) for count in rows), stripe_bytes)

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        return int(shape.detail) * _DECODED_RATIO

    def batches(
        self, path: str, shape: FileShape, number: int, types: ColumnTypes, batch_rows: int | None
    ) -> Iterator[Any]:
        with self._open(path) as source, decoding(path):
            if not types:  # to `read_stripe`, an empty list of columns means all columns
                decoded = pa.table({"": pa.nulls(shape.groups[number].rows)}).select([])
            else:
                decoded = pa.Table.from_batches([orc.ORCFile(source).read_stripe(number, columns=[*types])])
        yield from split_rows(decoded, batch_rows)


def _field_id(field: Any) -> int | None:
    metadata = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _stripe_rows(file: Any) -> list[int]:
    """Returns the number of rows of each stripe."""
    if file.nstripes <= 1:
        return [file.nrows] if file.nstripes else []
    flat = [field.name for field in file.schema if not pa.types.is_nested(field.type)]
    narrow = next((name for name in flat if pa.types.is_integer(file.schema.field(name).type)), flat[0])
    return [len(file.read_stripe(number, columns=[narrow])) for number in range(file.nstripes)]
