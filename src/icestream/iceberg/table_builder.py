"""The next version of a table while a commit makes it: the base with the updates so far.

The base is shared and never touched: a field, list or map that changes is made anew, once for each change. What each
update means stands beside its noun (…_updates.py); here is what they have in common: what was added in this commit
(`-1` in an update means the last one), and how a draft becomes a table.

    last-updated-ms   the time of the commit, never before that of the base: a clock may step back (hazard 32)
    snapshot-log      one entry for each snapshot that main was set to; those that were replaced within the same commit
                      leave no trace, and a removed snapshot takes all history before it away
    metadata-log      the base's own file is added; the oldest go, as `write.metadata.previous-versions-max` says
"""

from __future__ import annotations

from typing import Any

from icestream import errors, limits
from icestream.iceberg import partitioning, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg import snapshots as snapshot
from icestream.iceberg.properties import as_integer
from icestream.iceberg.schema import Field
from icestream.iceberg.shared_list import SharedList
from icestream.iceberg.table_metadata import ROW_LINEAGE_SINCE, TableMetadata
from icestream.iceberg.values import Object

PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"


class TableMetadataBuilder:
    def __init__(self, base: TableMetadata | None, now_ms: int, format_version: int) -> None:
        """`format_version` is that of a table that does not exist yet."""
        self.base = base
        self.fields: Object = dict(base.fields) if base else _nothing(format_version)
        self.now_ms = max(now_ms, self.fields["last-updated-ms"])
        self.is_changed = base is None
        self.last_added: dict[str, int] = {}  # by the name of the list: schemas, partition-specs, sort-orders
        self.added_snapshots: set[int] = set()
        self._snapshots = base.snapshots if base else SharedList([], "snapshot-id")
        self._removed: set[int] = set()  # snapshots that are still in `_snapshots`
        self._has_removed = False
        self._log = base.snapshot_log if base else SharedList([])
        self._was_main: set[int] = set()  # added here, and set as main here

    # --- fields ---

    @property
    def format_version(self) -> int:
        return int(self.fields["format-version"])

    def put(self, name: str, value: Any) -> None:
        if self.fields.get(name) != value:
            self.fields[name] = value
            self.is_changed = True

    def add_item(self, name: str, id_name: str, item: Object) -> None:
        """A schema, spec or order that was not there."""
        self.fields[name] = [*self.fields[name], item]
        self.last_added[name] = item[id_name]
        self.is_changed = True

    def resolved(self, name: str, given_id: int, what: str) -> int:
        """An id of an update; -1 is the last one that this commit added, or found to be there already."""
        if given_id != -1:
            return given_id
        found = self.last_added.get(name)
        if found is None:
            raise errors.InvalidInput(f"Cannot set last added {what}: no {what} has been added")
        return found

    def schema_fields(self) -> dict[int, Field]:
        """The fields of the current schema; none before there is one."""
        found = values.find(self.fields["schemas"], "schema-id", self.fields["current-schema-id"])
        return schemas.fields_of(found) if found else {}

    # --- snapshots ---

    def snapshot(self, snapshot_id: int) -> Object | None:
        return None if snapshot_id in self._removed else self._snapshots.find(snapshot_id)

    def highest_sequence_number(self) -> int:
        """0 for a table of v1, unless its writer counted all the same."""
        return max(map(snapshot.sequence_number, self._snapshots), default=0)

    def add_snapshot(self, added: Object) -> None:
        self._settle_removals()
        self._snapshots = self._snapshots.plus(added)
        self.added_snapshots.add(added["snapshot-id"])
        self.is_changed = True

    def remove_snapshots(self, snapshot_ids: set[int]) -> None:
        """Those that are there. Java's library sends an update for each, so the list is gone through at the end."""
        present = {one for one in snapshot_ids if self.snapshot(one) is not None}
        if not present:
            return
        self._removed |= present
        self._has_removed = self.is_changed = True
        for name, reference in list(self.fields["refs"].items()):
            if reference["snapshot-id"] in present:
                self.remove_reference(name)

    def _settle_removals(self) -> None:
        removed = self._removed
        if not removed:
            return
        self._snapshots = self._snapshots.without(removed)
        for name in ("statistics", "partition-statistics"):
            if self.fields.get(name):
                self.fields[name] = [one for one in self.fields[name] if one["snapshot-id"] not in removed]
        self._removed = set()

    # --- references ---

    def set_reference(self, name: str, reference: Object) -> None:
        self.fields["refs"] = self.fields["refs"] | {name: reference}
        self.is_changed = True
        if name == snapshot.MAIN:
            self._move_main(reference["snapshot-id"])

    def _move_main(self, snapshot_id: int) -> None:
        """A rollback happens now; a new snapshot counts from its own time."""
        self.fields["current-snapshot-id"] = snapshot_id
        time_ms = self.now_ms
        if snapshot_id in self.added_snapshots:
            self._was_main.add(snapshot_id)
            time_ms = self._snapshots.find(snapshot_id)["timestamp-ms"]  # type: ignore[index]  # it was added here
        if self._log:
            last_ms = self._log[-1]["timestamp-ms"]
            if time_ms < last_ms - limits.CATALOG_CLOCK_SKEW_MS:
                time_ms = last_ms  # a writer whose clock is behind: readers refuse a log that goes back
        self._log = self._log.plus({"timestamp-ms": time_ms, "snapshot-id": snapshot_id})

    def remove_reference(self, name: str) -> None:
        if name not in self.fields["refs"]:
            return
        self.fields["refs"] = {key: value for key, value in self.fields["refs"].items() if key != name}
        if name == snapshot.MAIN:
            self.fields["current-snapshot-id"] = snapshot.NO_SNAPSHOT
        self.is_changed = True

    # --- the end ---

    def finish(self, base_location: str | None) -> TableMetadata:
        """The table that the updates made; the base itself when they changed nothing.

        `base_location` is the metadata file of the base, None when it has none.
        """
        if self.base is not None and not self.is_changed:
            return self.base
        self._settle_removals()
        self._check_layouts()
        self.fields["last-updated-ms"] = self.now_ms
        if self.fields.get("current-snapshot-id") in (None, snapshot.NO_SNAPSHOT):
            since_v3 = self.format_version >= ROW_LINEAGE_SINCE
            self.fields["current-snapshot-id"] = None if since_v3 else snapshot.NO_SNAPSHOT
        log = self._finished_log()
        return TableMetadata(self.fields, self._snapshots, log, self._finished_files(base_location))

    def _check_layouts(self) -> None:
        """What is in use exists and fits the present schema. Unchanged, it fitted before."""
        names = ("schemas", "partition-specs", "sort-orders")
        used = ("current-schema-id", "default-spec-id", "default-sort-order-id")
        if self.base and all(self.fields[name] is self.base.fields[name] for name in (*names, *used)):
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

    def _finished_log(self) -> SharedList:
        current = self.fields["current-snapshot-id"]
        replaced = self._was_main - {current}
        if replaced or self._has_removed:
            self._log = _without(self._log, replaced, self._snapshots, self._has_removed)
        if self._log:
            last_ms = self._log[-1]["timestamp-ms"]
            if last_ms > self.now_ms + limits.CATALOG_CLOCK_SKEW_MS:
                raise errors.InvalidInput(
                    f"Invalid update timestamp {self.now_ms}: before last snapshot log entry at {last_ms}",
                    hint="set the clock of the machine that made the snapshot",
                )
        return self._log

    def _finished_files(self, base_location: str | None) -> SharedList:
        if self.base is None:
            return SharedList([])
        if base_location is None:
            return self.base.metadata_log
        most = max(1, as_integer(self.fields["properties"], PREVIOUS_VERSIONS_MAX, limits.CATALOG_METADATA_LOG_DEFAULT))
        kept = self.base.metadata_log.without_first(len(self.base.metadata_log) - most + 1)
        return kept.plus({"timestamp-ms": self.base.fields["last-updated-ms"], "metadata-file": base_location})


def _without(log: SharedList, replaced: set[int], snapshots: SharedList, has_removed: bool) -> SharedList:
    """History with a hole would tell that a snapshot was current when another one was: it begins behind the hole."""
    begin = 0
    if has_removed:
        gone = [number for number, entry in enumerate(log) if snapshots.find(entry["snapshot-id"]) is None]
        begin = gone[-1] + 1 if gone else 0
    rest = log.without_first(begin)
    return rest.kept(lambda entry: entry["snapshot-id"] not in replaced) if replaced else rest


def _nothing(format_version: int) -> Object:
    """A table that is about to be created, as Iceberg's own library begins one."""
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
