"""Reads Avro files: a group is a run of blocks of some MiB. Field ids are the attribute `field-id` of a field.

Rows are decoded one by one, which is much slower than columns; engines write data as Avro only if the table's
properties say so (`write.format.default`). An Avro file has no statistics, so bounds are unknown.

`decoding(path, Exception)`: for bytes that are not Avro, fastavro raises errors of any kind (KeyError, IndexError, …).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]

from icestream import limits
from icestream.readers.file_format import ColumnTypes, FileShape, RowGroupShape, UnindexedFormat, decoding, split_rows
from icestream.readers.stored_files import OpenFile

_DECODED_RATIO: Final = 4  # decoded bytes for each stored one, about


class _BlockRun(NamedTuple):
    """Blocks of a file that are decoded together."""

    start: int  # position of the first block in the file
    blocks: int
    bytes: int  # stored size of all of them


class AvroFormat(UnindexedFormat):
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def shape(self, path: str) -> FileShape:
        """Reads the heads of all blocks and groups them into runs of about SCAN_BATCH_BYTES."""
        # An Avro file has no footer: the heads of all blocks are read, and their rows skipped.
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
                    runs.append(_BlockRun(start, blocks, size))
                    rows = blocks = size = 0
            if blocks:
                groups.append(RowGroupShape(rows, {}))
                runs.append(_BlockRun(start, blocks, size))
        return FileShape(sum(group.rows for group in groups), ids, tuple(groups), tuple(runs))

    def decoded_bytes(self, path: str, shape: FileShape, number: int, columns: list[str]) -> int:
        return int(shape.detail[number].bytes) * _DECODED_RATIO

    def batches(
        self, path: str, shape: FileShape, number: int, types: ColumnTypes, batch_rows: int | None
    ) -> Iterator[Any]:
        """Decodes the rows of a run, one by one, into columns of the requested types."""
        run: _BlockRun = shape.detail[number]
        with self._open(path) as source, decoding(path, Exception):
            reader = fastavro.block_reader(source)
            # The reader has consumed the header with the schema; it goes on with the block at the file's position.
            source.seek(run.start)
            records: list[Any] = [record for block in islice(reader, run.blocks) for record in block]
            columns = {
                name: pa.array([_arrow_value(row[name]) for row in records], type_) for name, type_ in types.items()
            }
        yield from split_rows(pa.table(columns), batch_rows)


def _field_ids(schema: Any) -> dict[str, int | None]:
    """Returns the columns of a file and their field ids. Raises ValueError for a schema without columns."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the schema of the file is not a record")
    return {str(field["name"]): field.get("field-id") for field in schema["fields"]}


def _arrow_value(value: Any) -> Any:
    """Returns a decoded value in the form that Arrow accepts: maps become lists of pairs.

    Avro's own maps have text keys; Iceberg stores maps with other keys as lists of records with `key` and `value`.
    """
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [(pair["key"], pair["value"]) for pair in value]
    return value
