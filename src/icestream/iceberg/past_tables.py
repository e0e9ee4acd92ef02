"""A table as it was: the metadata document of an earlier snapshot, made from the present one. Pure.

The document has one branch, `main`, at that snapshot; the snapshots that led to it; the schema that it was written
with; and a UUID of its own, because it is not the table that commits go to. What engines choose by name or id in the
present document (branches, tags, later snapshots) is not in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID, uuid5

from icestream.iceberg import snapshots as snapshot
from icestream.iceberg import values
from icestream.iceberg.shared_list import SharedList
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

_FIRST_SEQUENCE_NUMBER: Final = 1
_NO_UUID: Final = UUID(int=0)  # of v1 tables of old writers


class ExpiredHistory(NamedTuple):
    """The snapshot that was current then is no longer in the table."""

    oldest_ms: int  # since when its history is complete


def table_at(table: TableMetadata, time_ms: int, view: str) -> TableMetadata | ExpiredHistory | None:
    """Returns the table as it was at a time, without snapshots if it had none yet; None if it did not exist. `view`:
    the name that its UUID is made of."""
    log = [entry for entry in table.snapshot_log if entry["timestamp-ms"] <= time_ms]
    if log:
        current = table.snapshots.find(log[-1]["snapshot-id"])
        if current is None:
            return ExpiredHistory(_oldest_kept_ms(table))
        return _at_snapshot(table, current, log, view)
    if _has_lost_history(table):
        return ExpiredHistory(_oldest_kept_ms(table))
    return _without_snapshots(table, view) if _oldest_ms(table) <= time_ms else None


def table_of_reference(table: TableMetadata, name: str, view: str) -> TableMetadata | None:
    """Returns the table at a branch or tag; None if it has none of that name."""
    reference = table.references.get(name)
    current = None if reference is None else table.snapshots.find(reference["snapshot-id"])
    if current is None:
        return None
    ancestors = _ancestors(table, current)
    log = [entry for entry in table.snapshot_log if entry["snapshot-id"] in ancestors]
    positions = [number for number, entry in enumerate(log) if entry["snapshot-id"] == current["snapshot-id"]]
    if positions:
        return _at_snapshot(table, current, log[: positions[-1] + 1], view)
    # It was never current: of a branch, or its entry of the log is gone.
    entry = {"timestamp-ms": current["timestamp-ms"], "snapshot-id": current["snapshot-id"]}
    earlier = [past for past in log if past["timestamp-ms"] <= entry["timestamp-ms"]]
    return _at_snapshot(table, current, [*earlier, entry], view)


def _oldest_ms(table: TableMetadata) -> int:
    """The earliest time that the document names."""
    times = [entry["timestamp-ms"] for log in (table.metadata_log, table.snapshot_log) for entry in log]
    return int(min([*times, table.fields["last-updated-ms"]]))


def _oldest_kept_ms(table: TableMetadata) -> int:
    """Since when each current snapshot is still in the table."""
    oldest = int(table.fields["last-updated-ms"])
    for entry in reversed([*table.snapshot_log]):
        if table.snapshots.find(entry["snapshot-id"]) is None:
            break
        oldest = int(entry["timestamp-ms"])
    return oldest


def _has_lost_history(table: TableMetadata) -> bool:
    """Whether snapshots before the first entry of the log were expired. Without an entry: whether there were any."""
    if not len(table.snapshot_log):
        return bool(table.fields.get("last-sequence-number"))
    first = table.snapshots.find(table.snapshot_log[0]["snapshot-id"])
    return first is None or (
        first.get("parent-snapshot-id") is not None or snapshot.sequence_number(first) > _FIRST_SEQUENCE_NUMBER
    )


def _ancestors(table: TableMetadata, current: Object) -> set[int]:
    ids: set[int] = set()
    ancestor: Object | None = current
    while ancestor is not None and ancestor["snapshot-id"] not in ids:
        ids.add(ancestor["snapshot-id"])
        parent_id = ancestor.get("parent-snapshot-id")
        ancestor = None if parent_id is None else table.snapshots.find(parent_id)
    return ids


def _at_snapshot(table: TableMetadata, current: Object, log: list[Object], view: str) -> TableMetadata:
    ids = _ancestors(table, current) | {entry["snapshot-id"] for entry in log}
    snapshots = [item for item in table.snapshots if item["snapshot-id"] in ids]
    fields = _fields(table, view) | {
        "current-snapshot-id": current["snapshot-id"],
        "refs": {snapshot.MAIN: {"snapshot-id": current["snapshot-id"], "type": "branch"}},
        "last-updated-ms": max(current["timestamp-ms"], log[-1]["timestamp-ms"]),
    }
    if table.format_version > 1:
        fields["last-sequence-number"] = max(map(snapshot.sequence_number, snapshots))
    schema_id = current.get("schema-id")
    if schema_id is not None and values.find(fields["schemas"], "schema-id", schema_id) is not None:
        fields["current-schema-id"] = schema_id
    for name in ("statistics", "partition-statistics"):
        if fields.get(name):
            fields[name] = [item for item in fields[name] if item["snapshot-id"] in ids]
    kept_log = [entry for entry in log if table.snapshots.find(entry["snapshot-id"]) is not None]
    return TableMetadata(fields, SharedList(snapshots, "snapshot-id"), SharedList(kept_log), SharedList([]))


def _without_snapshots(table: TableMetadata, view: str) -> TableMetadata:
    fields = _fields(table, view)
    fields.pop("current-snapshot-id", None)
    fields["refs"] = {}
    fields["last-updated-ms"] = _oldest_ms(table)
    for name in ("statistics", "partition-statistics"):
        fields.pop(name, None)
    return TableMetadata(fields, SharedList([], "snapshot-id"), SharedList([]), SharedList([]))


def _fields(table: TableMetadata, view: str) -> Object:
    return table.fields | {"table-uuid": str(uuid5(UUID(table.uuid) if table.uuid else _NO_UUID, view))}
