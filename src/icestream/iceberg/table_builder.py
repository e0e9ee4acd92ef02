"""Builds the next version of a table's metadata: the base with the updates of one commit applied. Pure.

The base is shared and never modified: a field, list or map that changes is replaced by a new one. What each update
means is in updates.py. Here is what the updates have in common: which items this commit added (`-1` in an update means
the last one), and how the result is completed:

    last-updated-ms   the time of the commit, never before that of the base: a clock may step back (hazard 32)
    snapshot-log      an entry for each snapshot that main was set to; snapshots that the same commit replaced again are
                      left out, and a removed snapshot takes all history before it away
    metadata-log      the base's own metadata file is added; the oldest are dropped, as
                      `write.metadata.previous-versions-max` says
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icestream import errors, limits
from icestream.iceberg import partitioning, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg import snapshots as snapshot
from icestream.iceberg.schema import SchemaField
from icestream.iceberg.shared_list import SharedList
from icestream.iceberg.table_metadata import ROW_LINEAGE_SINCE, TableMetadata
from icestream.iceberg.table_properties import as_integer
from icestream.iceberg.values import Object

PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"


class TableMetadataBuilder:
    def __init__(self, base: TableMetadata | None, now_ms: int, format_version: int) -> None:
        """`base` is None for a new table; only then `format_version` matters."""
        self.base = base
        self.fields: Object = dict(base.fields) if base else _empty_fields(format_version)
        self.now_ms = max(now_ms, self.fields["last-updated-ms"])
        self.is_changed = base is None
        self.last_added: dict[str, int] = {}  # by the name of the list: schemas, partition-specs, sort-orders
        self.added_snapshots: set[int] = set()
        self._snapshots = base.snapshots if base else SharedList([], "snapshot-id")
        self._pending_removals: set[int] = set()  # snapshots to be removed that are still in `_snapshots`
        self._has_removed = False
        self._snapshot_log = base.snapshot_log if base else SharedList([])
        self._was_main: set[int] = set()  # snapshots that this commit added and set as main

    # --- fields ---

    @property
    def format_version(self) -> int:
        return int(self.fields["format-version"])

    def put(self, name: str, value: Any) -> None:
        """Sets a field; an equal value is no change, so a commit that changes nothing writes no metadata file."""
        if self.fields.get(name) != value:
            self.fields[name] = value
            self.is_changed = True

    def add_item(self, name: str, id_name: str, item: Object) -> None:
        """Appends a new schema, partition spec or sort order to the list `name`."""
        self.fields[name] = [*self.fields[name], item]
        self.last_added[name] = item[id_name]
        self.is_changed = True

    def resolve_id(self, list_name: str, item_id: int, item_name: str) -> int:
        """Returns the id that an update means: -1 is the last item that this commit added, or tried to add although
        an equal one existed. Raises InvalidInput if there is none."""
        if item_id != -1:
            return item_id
        last_added_id = self.last_added.get(list_name)
        if last_added_id is None:
            raise errors.InvalidInput(f"Cannot set last added {item_name}: no {item_name} has been added")
        return last_added_id

    def schema_fields(self) -> dict[int, SchemaField]:
        """Returns the fields of the current schema; empty before a new table has one."""
        current_schema = values.find(self.fields["schemas"], "schema-id", self.fields["current-schema-id"])
        return schemas.fields_of(current_schema) if current_schema else {}

    # --- snapshots ---

    def snapshot(self, snapshot_id: int) -> Object | None:
        return None if snapshot_id in self._pending_removals else self._snapshots.find(snapshot_id)

    def highest_sequence_number(self) -> int:
        """Returns 0 for a v1 table, unless its writer assigned sequence numbers nevertheless."""
        return max(map(snapshot.sequence_number, self._snapshots), default=0)

    def add_snapshot(self, new_snapshot: Object) -> None:
        self._apply_removals()  # a snapshot may be removed and added again under its id
        self._snapshots = self._snapshots.plus(new_snapshot)
        self.added_snapshots.add(new_snapshot["snapshot-id"])
        self.is_changed = True

    def remove_snapshots(self, snapshot_ids: set[int]) -> None:
        """Removes the snapshots that exist, and the references to them.

        Java's library sends an update per snapshot, so the list itself is rebuilt once, at the end.
        """
        present = {snapshot_id for snapshot_id in snapshot_ids if self.snapshot(snapshot_id) is not None}
        if not present:
            return
        self._pending_removals |= present
        self._has_removed = self.is_changed = True
        for name, reference in list(self.fields["refs"].items()):
            if reference["snapshot-id"] in present:
                self.remove_reference(name)

    def replace_snapshots(self, replacements: Mapping[int, Object]) -> None:
        """Exchanges snapshots for others of the same ids. Nothing that refers to them changes."""
        replaced = [replacements.get(entry["snapshot-id"], entry) for entry in self._snapshots]
        self._snapshots = SharedList(replaced, "snapshot-id")
        self.is_changed = True

    def _apply_removals(self) -> None:
        removed = self._pending_removals
        if not removed:
            return
        self._snapshots = self._snapshots.without(removed)
        for name in ("statistics", "partition-statistics"):
            if self.fields.get(name):
                self.fields[name] = [file for file in self.fields[name] if file["snapshot-id"] not in removed]
        self._pending_removals = set()

    # --- references ---

    def set_reference(self, name: str, reference: Object) -> None:
        self.fields["refs"] = self.fields["refs"] | {name: reference}
        self.is_changed = True
        if name == snapshot.MAIN:
            self._move_main(reference["snapshot-id"])

    def _move_main(self, snapshot_id: int) -> None:
        """Sets the current snapshot and appends to the snapshot log: a rollback with the time of the commit, a new
        snapshot with its own time."""
        self.fields["current-snapshot-id"] = snapshot_id
        time_ms = self.now_ms
        if snapshot_id in self.added_snapshots:
            self._was_main.add(snapshot_id)
            time_ms = self._snapshots.find(snapshot_id)["timestamp-ms"]  # type: ignore[index]  # it was added here
        if self._snapshot_log:
            last_ms = self._snapshot_log[-1]["timestamp-ms"]
            if time_ms < last_ms - limits.CATALOG_CLOCK_SKEW_MS:
                time_ms = last_ms  # the writer's clock is behind; readers reject a log whose times decrease
        self._snapshot_log = self._snapshot_log.plus({"timestamp-ms": time_ms, "snapshot-id": snapshot_id})

    def remove_reference(self, name: str) -> None:
        if name not in self.fields["refs"]:
            return
        self.fields["refs"] = {key: value for key, value in self.fields["refs"].items() if key != name}
        if name == snapshot.MAIN:
            self.fields["current-snapshot-id"] = snapshot.NO_SNAPSHOT
        self.is_changed = True

    # --- result ---

    def finish(self, base_location: str | None) -> TableMetadata:
        """Returns the new metadata; the base itself if the updates changed nothing.

        `base_location` is the metadata file of the base, None if it has none.
        """
        if self.base is not None and not self.is_changed:
            return self.base
        self._apply_removals()
        self._check_layouts()
        self.fields["last-updated-ms"] = self.now_ms
        if self.fields.get("current-snapshot-id") in (None, snapshot.NO_SNAPSHOT):
            is_v3 = self.format_version >= ROW_LINEAGE_SINCE
            self.fields["current-snapshot-id"] = None if is_v3 else snapshot.NO_SNAPSHOT
        snapshot_log = self._finish_snapshot_log()
        return TableMetadata(self.fields, self._snapshots, snapshot_log, self._finish_metadata_log(base_location))

    def _check_layouts(self) -> None:
        """Checks that the default spec and sort order exist and fit the current schema; unchanged ones did before."""
        lists = ("schemas", "partition-specs", "sort-orders")
        used_ids = ("current-schema-id", "default-spec-id", "default-sort-order-id")
        if self.base and all(self.fields[name] is self.base.fields[name] for name in (*lists, *used_ids)):
            return
        spec = values.find(self.fields["partition-specs"], "spec-id", self.fields["default-spec-id"])
        order = values.find(self.fields["sort-orders"], "order-id", self.fields["default-sort-order-id"])
        schema = values.find(self.fields["schemas"], "schema-id", self.fields["current-schema-id"])
        if schema is None or spec is None or order is None:
            raise errors.InvalidInput("Cannot make a table without a current schema, a default spec and a sort order")
        if not self.fields.get("location"):
            raise errors.InvalidInput("Cannot make a table without a location")
        if self.fields.get("table-uuid") is None and self.format_version > 1:
            raise errors.InvalidInput(f"UUID is required in format v{self.format_version}")
        fields = schemas.fields_of(schema)
        partitioning.check(spec, fields)
        sorting.check(order, fields)

    def _finish_snapshot_log(self) -> SharedList:
        current = self.fields["current-snapshot-id"]
        replaced = self._was_main - {current}
        if replaced or self._has_removed:
            self._snapshot_log = _prune_snapshot_log(self._snapshot_log, replaced, self._snapshots, self._has_removed)
        if self._snapshot_log:
            last_ms = self._snapshot_log[-1]["timestamp-ms"]
            if last_ms > self.now_ms + limits.CATALOG_CLOCK_SKEW_MS:
                raise errors.InvalidInput(
                    f"Invalid update timestamp {self.now_ms}: before last snapshot log entry at {last_ms}",
                    hint="set the clock of the machine that made the snapshot",
                )
        return self._snapshot_log

    def _finish_metadata_log(self, base_location: str | None) -> SharedList:
        if self.base is None:
            return SharedList([])
        if base_location is None:
            return self.base.metadata_log
        size_max = as_integer(self.fields["properties"], PREVIOUS_VERSIONS_MAX, limits.CATALOG_METADATA_LOG_DEFAULT)
        previous = self.base.metadata_log
        recent = previous.without_first(len(previous) - max(1, size_max) + 1)
        return recent.plus({"timestamp-ms": self.base.fields["last-updated-ms"], "metadata-file": base_location})


def _prune_snapshot_log(log: SharedList, replaced: set[int], snapshots: SharedList, has_removed: bool) -> SharedList:
    """Returns the log without snapshots that the same commit replaced, starting after the last removed snapshot.

    A log with an entry missing in the middle would claim that a snapshot was current while another one was.
    """
    start = 0
    if has_removed:
        removed = [number for number, entry in enumerate(log) if snapshots.find(entry["snapshot-id"]) is None]
        start = removed[-1] + 1 if removed else 0
    rest = log.without_first(start)
    return rest.filter(lambda entry: entry["snapshot-id"] not in replaced) if replaced else rest


def _empty_fields(format_version: int) -> Object:
    """Returns the fields of a new table before its first update, with the initial values of Iceberg's own library."""
    fields: Object = {
        "format-version": format_version,
        "table-uuid": None,
        "location": None,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "schemas": [],
        "current-schema-id": 0,
        "partition-specs": [],
        "default-spec-id": 0,
        "last-partition-id": partitioning.FIRST_FIELD_ID - 1,
        "sort-orders": [],
        "default-sort-order-id": 0,
        "properties": {},
        "current-snapshot-id": snapshot.NO_SNAPSHOT,
        "refs": {},
        "statistics": [],
        "partition-statistics": [],
    }
    if format_version > 1:
        fields["last-sequence-number"] = 0
    if format_version >= ROW_LINEAGE_SINCE:
        fields["next-row-id"] = 0
    return fields
