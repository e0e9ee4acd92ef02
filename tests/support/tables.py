"""Tables as tests need them: small schemas, snapshots, and commits that add one."""

from __future__ import annotations

from typing import Any

from icestream.iceberg import table_commit
from icestream.iceberg.table_commit import new_table_metadata
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
LOCATION = "file:/warehouse/ns/table"
FILE = f"{LOCATION}/metadata/00000-a.metadata.json"
NOW_MS = 1_700_000_000_000


def column(number: int, name: str, kind: Any = "long", required: bool = False, **more: Any) -> Object:
    return {"id": number, "name": name, "type": kind, "required": required, **more}


def schema(*columns: Object, **more: Any) -> Object:
    return {"type": "struct", "fields": [*columns], **more}


SCHEMA = schema(column(1, "id", required=True), column(2, "data", "string"), column(3, "at", "timestamptz"))


NEW_VIEW: Object = {
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "timestamp-ms": NOW_MS,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        "default-namespace": ["ns"],
    },
    "properties": {"a": "b"},
}


def table(version: int = 2, **request: Any) -> TableMetadata:
    fields = {"schema": SCHEMA, "properties": {"format-version": str(version)}} | request
    return new_table_metadata(fields, LOCATION, UUID, NOW_MS)


def snapshot(number: int, parent: int | None = None, **more: Any) -> Object:
    """The snapshot with this id, which is also its sequence number; each is a second behind the one before."""
    fields: Object = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": NOW_MS + 1_000 * number,
        "manifest-list": f"{LOCATION}/metadata/snap-{number}.avro",
        "summary": {"operation": "append", "added-records": "1"},
        "schema-id": 0,
    }
    if parent is not None:
        fields["parent-snapshot-id"] = parent
    return fields | more


def numbers_in(version: int, number: int) -> Object:
    """The counters of a snapshot in a format version: v1 has no sequence number, v3 has row ids."""
    if version == 1:
        return {"sequence-number": 0}
    return {"first-row-id": number - 1, "added-rows": 1} if version >= 3 else {}


def add(fields: Object) -> Object:
    return {"action": "add-snapshot", "snapshot": fields}


def point(name: str, number: int, kind: str = "branch", **retention: int) -> Object:
    return {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": number, "type": kind, **retention}


def commit_to(
    base: TableMetadata, *updates: Object, now_ms: int | None = None, location: str | None = FILE
) -> TableMetadata:
    latest = max((entry["timestamp-ms"] for entry in base.snapshots), default=NOW_MS)
    return table_commit.apply_updates(base, location, updates, latest + 1_000 if now_ms is None else now_ms)


def append(base: TableMetadata, number: int, **more: Any) -> TableMetadata:
    """A commit that adds a snapshot to main."""
    added = snapshot(number, base.current_snapshot_id, **more)
    return commit_to(base, add(added), point("main", number), now_ms=added["timestamp-ms"])


def with_snapshots(count: int, version: int = 2) -> TableMetadata:
    """Snapshots 1 to `count`, each the parent of the next."""
    metadata = table(version)
    for number in range(1, count + 1):
        metadata = append(metadata, number, **numbers_in(version, number))
    return metadata


def ids(metadata: TableMetadata) -> list[int]:
    return [entry["snapshot-id"] for entry in metadata.snapshots]


def log_ids(metadata: TableMetadata) -> list[int]:
    return [entry["snapshot-id"] for entry in metadata.snapshot_log]
