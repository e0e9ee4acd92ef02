"""The view of a pinned table: Iceberg metadata of one snapshot whose paths are those of a backup (ADR 70). Pure.

    v1.metadata.json      the table at the snapshot, with another UUID and without places and history
    list.avro             its manifest list
    manifest-<n>.avro     its manifests: the live entries, with schema and header fields as they were
    deletes-<n>.parquet   its position deletes, which name data files in their rows

Manifests are those of the snapshot with other paths (iceberg/relocation.py). The bytes depend on the input alone, so a
run that is resumed writes the same.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from icestream.iceberg.values import Object

METADATA_FILE: Final = "v1.metadata.json"
LIST_FILE: Final = "list.avro"
_NAMESPACE: Final = uuid.UUID("5a3e9c1e-6b64-4d5c-9b6b-0d7c3f7c2f10")
# What lies outside of the snapshot, or names places of the warehouse.
_DROPPED: Final = ("metadata-log", "snapshot-log", "statistics", "partition-statistics", "refs", "snapshots")
_PLACES: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class RewrittenDeletes(NamedTuple):
    """A Parquet file of position deletes. Without rows it deletes nothing, and is left out."""

    data: bytes
    rows: int


def rewrite_position_deletes(data: bytes, new_path: Callable[[str], str | None]) -> RewrittenDeletes:
    """Position deletes whose rows name the files of the backup. `new_path`: None for a file that is no longer live: a
    file of deletes for several files stays while one of them is rewritten. The rows for it delete nothing."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    table = pq.read_table(io.BytesIO(data))
    number = table.schema.get_field_index("file_path")
    paths = pa.array([new_path(path) for path in table.column(number).to_pylist()], table.schema.field(number).type)
    rewritten = table.set_column(number, table.schema.field(number), paths).filter(paths.is_valid())
    stream = io.BytesIO()
    pq.write_table(rewritten, stream, compression="zstd")
    return RewrittenDeletes(stream.getvalue(), len(rewritten))


def view_metadata(
    document: Mapping[str, Any], snapshot: Object, backup_id: str, topic_id: int, location: str, manifest_list: str
) -> bytes:
    """The metadata file of the view: the table as if it had this snapshot alone.

    The schema of the snapshot is current, so that engines show the columns as they were at the cut. The UUID differs
    from that of the table: a view is never taken for it (hazards 88, 93).
    """
    fields = {name: value for name, value in document.items() if name not in _DROPPED}
    properties = {name: value for name, value in (document.get("properties") or {}).items() if name not in _PLACES} | {
        "icestream.backup-id": backup_id
    }
    pinned = {name: value for name, value in snapshot.items() if name != "parent-snapshot-id"}
    pinned["manifest-list"] = manifest_list
    view = {
        **fields,
        "table-uuid": str(uuid.uuid5(_NAMESPACE, f"{backup_id}/{topic_id}")),
        "location": location,
        "properties": properties,
        "current-schema-id": snapshot.get("schema-id", document.get("current-schema-id", 0)),
        "current-snapshot-id": snapshot["snapshot-id"],
        "snapshots": [pinned],
        "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
        "snapshot-log": [{"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}],
        "metadata-log": [],
    }
    return orjson.dumps(view, option=orjson.OPT_INDENT_2)


def paths_of_view(document: Mapping[str, Any]) -> Iterator[str]:
    """The manifest lists of a view's snapshots."""
    for snapshot in document.get("snapshots") or ():
        yield snapshot["manifest-list"]
