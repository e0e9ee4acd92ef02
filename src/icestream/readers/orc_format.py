"""ORC files: stripes. Field ids are the attribute `iceberg.id` of a column.

Arrow's reader tells neither the rows nor the statistics of a stripe: where a file has several, one narrow column is
decoded to count them, and their bounds are unknown. A stripe is decoded as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.orc as orc  # type: ignore[import-untyped]

from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, decoding, in_slices
from icestream.readers.stored_files import OpenFile

_FIELD_ID: Final = b"iceberg.id"
_DECODED_RATIO: Final = 4  # decoded bytes for each stored one, about: small integers and texts compress by that


class OrcFormat:
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def shape(self, path: str) -> FileShape:
        with self._open(path) as source, decoding(path):
            file = orc.ORCFile(source)
            ids = {field.name: _field_id(field) for field in file.schema}
            rows = _stripe_rows(file)
            size = file.content_length // max(len(rows), 1)
        return FileShape(sum(rows), ids, tuple(RowGroupShape(count, {}) for count in rows), size)

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        return int(shape.detail) * _DECODED_RATIO

    def batches(self, path: str, shape: FileShape, number: int, kinds: ColumnTypes, rows: int | None) -> Iterator[Any]:
        with self._open(path) as source, decoding(path):
            if not kinds:  # no columns would mean all of them here
                decoded = pa.table({"": pa.nulls(shape.groups[number].rows)}).select([])
            else:
                decoded = pa.Table.from_batches([orc.ORCFile(source).read_stripe(number, columns=[*kinds])])
        yield from in_slices(decoded, rows)


def _field_id(field: Any) -> int | None:
    metadata = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _stripe_rows(file: Any) -> list[int]:
    if file.nstripes <= 1:
        return [file.nrows] if file.nstripes else []
    fixed = [field.name for field in file.schema if not pa.types.is_nested(field.type)]
    narrow = next((name for name in fixed if pa.types.is_integer(file.schema.field(name).type)), fixed[0])
    return [len(file.read_stripe(number, columns=[narrow])) for number in range(file.nstripes)]
