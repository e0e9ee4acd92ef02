"""The object list of a backup: a row for each object, as Parquet with the field ids of the inventory table (ADR 70).

A list is written row group by row group, so that a backup of many files takes little memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icestream import errors, limits
from icestream.backup.backup_layout import is_digest
from icestream.backup.backup_root import ObjectRef

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

ROLES: Final = ("data", "deletes", "table-metadata", "tail", "checkpoint", "metadata", "view", "erased")


class ObjectRow(NamedTuple):
    """A row of the list. None where a column does not apply."""

    backup_id: str
    path: str
    role: str
    topic_id: int | None
    topic: str | None
    shard: int | None
    first_offset: int | None
    end_offset: int | None
    rows: int | None
    min_time_us: int | None
    max_time_us: int | None
    size: int
    sha256: str
    content_size: int
    content_sha256: str
    key_id: str
    source: str
    snapshot_id: int | None
    added_ms: int

    @property
    def is_original(self) -> bool:
        """Whether the object is a file of the warehouse: a reference backup has no copies of them."""
        return "://" in self.path or self.path.startswith("file:")

    @property
    def reference(self) -> ObjectRef:
        return ObjectRef(self.path, self.size, self.sha256, self.content_size, self.content_sha256, self.key_id)


# Iceberg's types, in the order of the columns; field ids count from 1. Only the first three and the sizes are required.
COLUMN_TYPES: Final[dict[str, str]] = {
    "backup_id": "string",
    "path": "string",
    "role": "string",
    "topic_id": "long",
    "topic": "string",
    "shard": "int",
    "first_offset": "long",
    "end_offset": "long",
    "rows": "long",
    "min_time_us": "long",
    "max_time_us": "long",
    "size": "long",
    "sha256": "string",
    "content_size": "long",
    "content_sha256": "string",
    "key_id": "string",
    "source": "string",
    "snapshot_id": "long",
    "added_ms": "long",
}
assert tuple(COLUMN_TYPES) == ObjectRow._fields


def object_row(
    reference: ObjectRef,
    *,
    backup_id: str,
    role: str,
    added_ms: int,
    source: str = "",
    topic_id: int | None = None,
    topic: str | None = None,
    shard: int | None = None,
    offsets: tuple[int, int] | None = None,
    rows: int | None = None,
    times_us: tuple[int, int] | None = None,
    snapshot_id: int | None = None,
) -> ObjectRow:
    """The row of an uploaded object."""
    first, end = offsets if offsets is not None else (None, None)
    earliest, latest = times_us if times_us is not None else (None, None)
    return ObjectRow(
        backup_id, reference.path, role, topic_id, topic, shard, first, end, rows, earliest, latest, reference.size,
        reference.sha256, reference.content_size, reference.content_sha256, reference.key_id, source, snapshot_id,
        added_ms,
    )  # fmt: skip


def arrow_schema() -> pa.Schema:
    import pyarrow as pa

    types = {"string": pa.string(), "long": pa.int64(), "int": pa.int32()}
    return pa.schema(
        [
            pa.field(name, types[kind], metadata={"PARQUET:field_id": str(number)})
            for number, (name, kind) in enumerate(COLUMN_TYPES.items(), 1)
        ]
    )


def encode_list(rows: Iterable[ObjectRow]) -> bytes:
    """The Parquet file of the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    schema, stream = arrow_schema(), io.BytesIO()
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for part in _parts(rows):
            columns = dict(zip(ObjectRow._fields, map(list, zip(*part, strict=True)), strict=True))
            writer.write_table(pa.table(columns, schema=schema))
    return stream.getvalue()


def _parts(rows: Iterable[ObjectRow]) -> Iterator[list[ObjectRow]]:
    part: list[ObjectRow] = []
    for row in rows:
        part.append(row)
        if len(part) == limits.BACKUP_LIST_ROWS:
            yield part
            part = []
    if part:
        yield part


def decode_list(name: str, data: bytes) -> Iterator[ObjectRow]:
    """The rows of a list. Raises BackupDamaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        for batch in file.iter_batches(limits.BACKUP_LIST_ROWS, columns=list(ObjectRow._fields)):
            columns: Sequence[Any] = [column.to_pylist() for column in batch.columns]
            for row in map(ObjectRow._make, zip(*columns, strict=True)):
                _check_digests(name, row)
                yield row
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise errors.BackupDamaged(f"{name} is not an object list: {error}") from None


def _check_digests(name: str, row: ObjectRow) -> None:
    """A restored file is named after the digest of its content. An original that a reference backup names has none.

    Raises BackupDamaged.
    """
    digests = (row.sha256, row.content_sha256)
    if not all(map(is_digest, digests)) and (any(digests) or not row.is_original):
        raise errors.BackupDamaged(f"{name} names {row.path} without the SHA-256 of its bytes")
