"""Avro files: runs of blocks that hold some MiB each. Field ids are the attribute `field-id` of a field.

Rows are decoded one by one, which is much slower than columns; engines write data as Avro only when a table's
properties tell them to (`write.format.default`). Bounds are unknown. About bytes that are no Avro the library raises
errors of any kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]

from icestream import limits
from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, decoding, in_slices
from icestream.readers.stored_files import OpenFile

_DECODED_RATIO: Final = 4  # decoded bytes for each stored one, about


class _Run(NamedTuple):
    """Blocks that are decoded together: where the first begins, how many there are, and their bytes."""

    start: int
    blocks: int
    bytes: int


class AvroFormat:
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def shape(self, path: str) -> FileShape:
        with self._open(path) as source, decoding(path, Exception):
            reader = fastavro.block_reader(source)
            ids = _field_ids(reader.writer_schema)
            groups, runs = [], []
            rows = blocks = size = start = 0
            for block in reader:
                start = start if blocks else block.offset
                rows, blocks, size = rows + block.num_records, blocks + 1, size + block.size
                if size >= limits.SCAN_BATCH_BYTES:
                    groups.append(RowGroupShape(rows, {}))
                    runs.append(_Run(start, blocks, size))
                    rows = blocks = size = 0
            if blocks:
                groups.append(RowGroupShape(rows, {}))
                runs.append(_Run(start, blocks, size))
        return FileShape(sum(group.rows for group in groups), ids, tuple(groups), tuple(runs))

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        return int(shape.detail[number].bytes) * _DECODED_RATIO

    def batches(self, path: str, shape: FileShape, number: int, kinds: ColumnTypes, rows: int | None) -> Iterator[Any]:
        run: _Run = shape.detail[number]
        with self._open(path) as source, decoding(path, Exception):
            reader = fastavro.block_reader(source)
            source.seek(run.start)
            records: list[Any] = [record for block in islice(reader, run.blocks) for record in block]
            columns = {name: pa.array([_value(row[name]) for row in records], kind) for name, kind in kinds.items()}
        yield from in_slices(pa.table(columns), rows)


def _field_ids(schema: Any) -> dict[str, int | None]:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("its schema is no record")
    return {str(field["name"]): field.get("field-id") for field in schema["fields"]}


def _value(value: Any) -> Any:
    """A map as Arrow takes it. Avro has maps of texts only; others are lists of pairs."""
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [(pair["key"], pair["value"]) for pair in value]
    return value
