"""Every update of a table in Iceberg's REST protocol, by the name of its action. Pure.

    table as a whole    UUID, format version, location, properties
    layout              schemas, partition specs, sort orders: one that exists already is reused under its id, and an id
                        of -1 in an update means the last one that the same commit added
    snapshots           snapshots, and the branches and tags that reference them
    side files          statistics files, one of each kind per snapshot, and encryption keys

A snapshot that was built on an older state of the table (its sequence number or first row id is used up, its schema is
gone) is a conflict: the client rebuilds it and retries. A snapshot whose numbers are far ahead of the table is invalid
input: it would use up the numbers of all later snapshots, even from a branch that no reader uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from icestream import errors, limits
from icestream.iceberg import partitioning, snapshots, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.table_metadata import (
    FORMAT_VERSIONS,
    ROW_LINEAGE_SINCE,
    check_encryption_key,
    check_partition_statistics,
    check_statistics,
)
from icestream.iceberg.values import Object, short_repr

SCHEMAS, SPECS, ORDERS = "schemas", "partition-specs", "sort-orders"
# In `remove-snapshots`, of the pipeline alone: snapshots that a branch or tag references stay. Without it they go with
# their references, as the protocol has it.
KEEP_REFERENCED: Final = "icestream-keep-referenced"

# --- the table as a whole ---------------------------------------------------------------------------------------------


def assign_uuid(builder: TableMetadataBuilder, update: Object) -> None:
    """A UUID is assigned once: clients recognise the table by it."""
    new_uuid, current_uuid = values.text(update, "uuid"), builder.fields.get("table-uuid")
    if current_uuid is not None and new_uuid.lower() != current_uuid.lower():
        raise errors.InvalidInput(f"Cannot reassign uuid: {current_uuid} to {new_uuid}")
    builder.put("table-uuid", current_uuid or new_uuid)


def upgrade_format_version(builder: TableMetadataBuilder, update: Object) -> None:
    new_version, current_version = values.integer(update, "format-version"), builder.format_version
    if new_version > FORMAT_VERSIONS[-1]:
        raise errors.InvalidInput(
            f"Cannot upgrade table to unsupported format version: v{new_version} (supported: v{FORMAT_VERSIONS[-1]})"
        )
    if new_version < current_version:
        raise errors.InvalidInput(f"Cannot downgrade v{current_version} table to v{new_version}")
    if builder.base is not None and builder.fields.get("table-uuid") is None and new_version > 1:
        raise errors.InvalidInput(f"UUID is required in format v{new_version}")
    builder.put("format-version", new_version)
    if new_version > 1:
        # A v1 table has no sequence numbers. The upgrade starts behind the highest one that a snapshot carries, so that
        # new snapshots are newer than all old ones.
        builder.fields.setdefault("last-sequence-number", builder.highest_sequence_number())
    if new_version >= ROW_LINEAGE_SINCE:
        builder.fields.setdefault("next-row-id", 0)


def set_location(builder: TableMetadataBuilder, update: Object) -> None:
    location = values.text(update, "location").rstrip("/")
    if not location:
        raise errors.InvalidInput("Invalid location: empty")
    builder.put("location", location)


def set_properties(builder: TableMetadataBuilder, update: Object) -> None:
    """Early Java clients call the field `updated`."""
    new_properties = values.text_map(update, values.present_name(update, "updates", "updated"))
    builder.put("properties", builder.fields["properties"] | new_properties)


def remove_properties(builder: TableMetadataBuilder, update: Object) -> None:
    """Names that are not set are ignored. Early Java clients call the field `removed`."""
    removals = set(values.texts(update, values.present_name(update, "removals", "removed")))
    properties = builder.fields["properties"]
    builder.put("properties", {name: value for name, value in properties.items() if name not in removals})


# --- layout: schemas, partition specs, sort orders --------------------------------------------------------------------


def add_schema(builder: TableMetadataBuilder, update: Object) -> None:
    new_schema = values.as_object(values.required(update, "schema"), "schema")
    fields = schemas.fields_of(new_schema)
    schemas.check_version(fields, builder.format_version)
    schemas.check_new(fields, builder.fields[SCHEMAS])
    # Also for a schema that exists already: field ids that a client has assigned are never given out again.
    builder.put("last-column-id", max(builder.fields["last-column-id"], schemas.highest_id(fields)))
    existing = builder.fields[SCHEMAS]
    equal_schema = _find_equal(existing, new_schema, schemas.same)
    if equal_schema is not None:
        builder.last_added[SCHEMAS] = equal_schema["schema-id"]
        return
    new_id = max((schema["schema-id"] + 1 for schema in existing), default=0)
    builder.add_item(SCHEMAS, "schema-id", {"type": "struct", **new_schema, "schema-id": new_id})


def set_current_schema(builder: TableMetadataBuilder, update: Object) -> None:
    schema_id = builder.resolve_id(SCHEMAS, values.integer(update, "schema-id"), "schema")
    if values.find(builder.fields[SCHEMAS], "schema-id", schema_id) is None:
        raise errors.InvalidInput(f"Cannot set current schema to unknown schema: {schema_id}")
    builder.put("current-schema-id", schema_id)


def remove_schemas(builder: TableMetadataBuilder, update: Object) -> None:
    schema_ids = values.integers(update, "schema-ids")
    _remove_unused(builder, SCHEMAS, "schema-id", schema_ids, "current-schema-id", "current schema")


def add_spec(builder: TableMetadataBuilder, update: Object) -> None:
    existing = builder.fields[SPECS]
    new_spec = partitioning.numbered(
        values.as_object(values.required(update, "spec"), "spec"), existing, builder.fields["last-partition-id"]
    )
    equal_spec = _find_equal(existing, new_spec, partitioning.same)
    if equal_spec is not None:
        builder.last_added[SPECS] = equal_spec["spec-id"]
        return
    partitioning.check(new_spec, builder.schema_fields())
    partitioning.check_ids(new_spec)
    if builder.format_version == 1:
        partitioning.check_sequential(new_spec)
    new_id = max((spec["spec-id"] + 1 for spec in existing), default=0)
    builder.add_item(SPECS, "spec-id", {**new_spec, "spec-id": new_id})
    last_id = max(builder.fields["last-partition-id"], partitioning.last_field_id([new_spec]))
    builder.put("last-partition-id", last_id)


def set_default_spec(builder: TableMetadataBuilder, update: Object) -> None:
    spec_id = builder.resolve_id(SPECS, values.integer(update, "spec-id"), "spec")
    if values.find(builder.fields[SPECS], "spec-id", spec_id) is None:
        raise errors.InvalidInput(f"Cannot set default partition spec to unknown spec: {spec_id}")
    builder.put("default-spec-id", spec_id)


def remove_specs(builder: TableMetadataBuilder, update: Object) -> None:
    spec_ids = values.integers(update, "spec-ids")
    _remove_unused(builder, SPECS, "spec-id", spec_ids, "default-spec-id", "default partition spec")


def add_sort_order(builder: TableMetadataBuilder, update: Object) -> None:
    new_order = values.as_object(values.required(update, "sort-order"), "sort order")
    existing = builder.fields[ORDERS]
    is_sorted = bool(sorting.fields_of(new_order))
    equal_order = _find_equal(existing, new_order, sorting.same)
    if equal_order is not None:
        builder.last_added[ORDERS] = equal_order["order-id"]
        return
    sorting.check(new_order, builder.schema_fields())
    # Id 0 is reserved for the unsorted order.
    new_id = max((order["order-id"] + 1 for order in existing), default=sorting.FIRST_ID) if is_sorted else 0
    builder.add_item(ORDERS, "order-id", {**new_order, "order-id": new_id})


def set_default_sort_order(builder: TableMetadataBuilder, update: Object) -> None:
    order_id = builder.resolve_id(ORDERS, values.integer(update, "sort-order-id"), "sort order")
    if values.find(builder.fields[ORDERS], "order-id", order_id) is None:
        raise errors.InvalidInput(f"Cannot set default sort order to unknown sort order: {order_id}")
    builder.put("default-sort-order-id", order_id)


def _find_equal(existing: list[Object], item: Object, same: Callable[[Object, Object], bool]) -> Object | None:
    return next((candidate for candidate in existing if same(candidate, item)), None)


def _remove_unused(
    builder: TableMetadataBuilder, list_name: str, id_name: str, ids: list[int], used_id_name: str, used_item: str
) -> None:
    """Removes the items with these ids; unknown ids are ignored. Raises InvalidInput for the item in use."""
    if builder.fields[used_id_name] in ids:
        raise errors.InvalidInput(f"Cannot remove the {used_item}")
    builder.put(list_name, [item for item in builder.fields[list_name] if item[id_name] not in ids])


# --- snapshots, branches and tags -------------------------------------------------------------------------------------


def add_snapshot(builder: TableMetadataBuilder, update: Object) -> None:
    snapshot = values.as_object(values.required(update, "snapshot"), "snapshot")
    snapshots.check_snapshot(snapshot)
    if snapshot["snapshot-id"] == snapshots.NO_SNAPSHOT:
        raise errors.InvalidInput(f"Invalid snapshot: id {snapshots.NO_SNAPSHOT} stands for no snapshot")
    for name in (SCHEMAS, SPECS, ORDERS):
        if not builder.fields[name]:
            raise errors.InvalidInput(f"Attempting to add a snapshot before one of {name} is added")
    if builder.snapshot(snapshot["snapshot-id"]) is not None:
        raise errors.InvalidInput(f"Snapshot already exists for id: {snapshot['snapshot-id']}")
    _check_snapshot_schema(builder, snapshot)
    _advance_sequence_number(builder, snapshot)
    if builder.format_version >= ROW_LINEAGE_SINCE:
        _advance_row_id(builder, snapshot)
    builder.add_snapshot(snapshot)


def _check_snapshot_schema(builder: TableMetadataBuilder, snapshot: Object) -> None:
    schema_id = snapshot.get("schema-id")  # absent in snapshots of old writers
    if schema_id is not None and values.find(builder.fields[SCHEMAS], "schema-id", schema_id) is None:
        raise errors.CommitConflict(
            f"Validation failed, please retry: Cannot add snapshot with unknown schema: {schema_id}"
        )


def _advance_sequence_number(builder: TableMetadataBuilder, snapshot: Object) -> None:
    """Checks the snapshot's sequence number and raises the table's. Raises InvalidInput, CommitConflict."""
    number = snapshots.sequence_number(snapshot)
    if builder.format_version == 1:
        if number != 0:
            raise errors.InvalidInput(f"Sequence number must be 0 in v1. Found: {number}")
        return
    last = builder.fields["last-sequence-number"]
    if not 0 <= number <= last + limits.CATALOG_SEQUENCE_LEAP_MAX:
        raise errors.InvalidInput(
            f"Cannot add snapshot with sequence number {number} far beyond last sequence number {last}, or below 0"
        )
    # A snapshot without a parent starts a new history; as in Iceberg's own library its number is not compared.
    if number <= last and snapshot.get("parent-snapshot-id") is not None:
        raise errors.CommitConflict(
            "Validation failed, please retry: Cannot add snapshot with sequence number "
            f"{number} older than last sequence number {last}"
        )
    builder.put("last-sequence-number", max(number, last))


def _advance_row_id(builder: TableMetadataBuilder, snapshot: Object) -> None:
    """Checks the snapshot's row ids and raises the table's next one. Raises InvalidInput, CommitConflict."""
    first, count = values.optional_long(snapshot, "first-row-id"), values.optional_long(snapshot, "added-rows")
    if first is None:
        raise errors.InvalidInput("Cannot add a snapshot: first-row-id is null")
    if count is None or count < 0:
        raise errors.InvalidInput("Cannot add a snapshot: added-rows is null or below 0")
    next_row_id = builder.fields["next-row-id"]
    if first < next_row_id:
        raise errors.CommitConflict(
            "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id: "
            f"{first} < {next_row_id}"
        )
    if first + count > next_row_id + limits.CATALOG_ROW_LEAP_MAX:
        raise errors.InvalidInput(
            f"Cannot add a snapshot, {count} rows from {first} on are far beyond table next-row-id: {next_row_id}"
        )
    builder.put("next-row-id", first + count)


def remove_snapshots(builder: TableMetadataBuilder, update: Object) -> None:
    """Removes snapshots with their statistics and the branches and tags that reference them. Unknown ids are ignored.
    Under KEEP_REFERENCED those that a branch or tag references stay.

    The children of a removed snapshot keep its id as their parent, so that an incremental reader that continues from it
    learns that it has expired.
    """
    snapshot_ids = set(values.longs(update, "snapshot-ids"))
    if update.get(KEEP_REFERENCED) is True:
        snapshot_ids -= {reference["snapshot-id"] for reference in builder.fields["refs"].values()}
    builder.remove_snapshots(snapshot_ids)


def expiry_of(snapshot_ids: Iterable[int]) -> Object:
    """The update that removes snapshots because of their age, but for those that got a branch or tag meanwhile: its
    writer cannot know of it, because a tag does not move main."""
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids), KEEP_REFERENCED: True}


def without_referenced(update: Object, referenced_ids: Collection[int]) -> Object:
    """The same in the words of the protocol, for a catalog that does not know KEEP_REFERENCED; `referenced_ids`: the
    snapshots that have a branch or tag after the updates before this one."""
    plain = {name: value for name, value in update.items() if name != KEEP_REFERENCED}
    if update.get(KEEP_REFERENCED) is True:
        plain["snapshot-ids"] = [number for number in update["snapshot-ids"] if number not in referenced_ids]
    return plain


def set_reference(builder: TableMetadataBuilder, update: Object) -> None:
    name = values.text(update, "ref-name")
    if not name:
        raise errors.InvalidInput("Invalid ref name: empty")
    reference = snapshots.check_reference(name, update)
    if builder.fields["refs"].get(name) == reference:
        return
    if builder.snapshot(reference["snapshot-id"]) is None:
        raise errors.InvalidInput(f"Cannot set {name} to unknown snapshot: {reference['snapshot-id']}")
    if name == snapshots.MAIN and reference["type"] != "branch":
        raise errors.InvalidInput(f"Cannot set {short_repr(name)} to a tag, it must be a branch")
    builder.set_reference(name, reference)


def remove_reference(builder: TableMetadataBuilder, update: Object) -> None:
    builder.remove_reference(values.text(update, "ref-name"))


# --- statistics files and encryption keys -----------------------------------------------------------------------------


def set_statistics(builder: TableMetadataBuilder, update: Object) -> None:
    _set_side_file(builder, "statistics", update, check_statistics)


def remove_statistics(builder: TableMetadataBuilder, update: Object) -> None:
    _remove_side_item(builder, "statistics", "snapshot-id", values.long(update, "snapshot-id"))


def set_partition_statistics(builder: TableMetadataBuilder, update: Object) -> None:
    _set_side_file(builder, "partition-statistics", update, check_partition_statistics)


def remove_partition_statistics(builder: TableMetadataBuilder, update: Object) -> None:
    _remove_side_item(builder, "partition-statistics", "snapshot-id", values.long(update, "snapshot-id"))


def add_encryption_key(builder: TableMetadataBuilder, update: Object) -> None:
    """An existing key with the same id stays as it is."""
    new_key = values.as_object(values.required(update, "encryption-key"), "encryption key")
    check_encryption_key(new_key)
    keys = builder.fields.get("encryption-keys") or []
    if all(key["key-id"] != new_key["key-id"] for key in keys):
        builder.put("encryption-keys", [*keys, new_key])


def remove_encryption_key(builder: TableMetadataBuilder, update: Object) -> None:
    _remove_side_item(builder, "encryption-keys", "key-id", values.text(update, "key-id"))


def _set_side_file(builder: TableMetadataBuilder, name: str, update: Object, check: Callable[[Object], None]) -> None:
    """Adds a statistics file; it replaces that of the same snapshot."""
    new_file = values.as_object(values.required(update, name), name)
    check(new_file)
    others = [file for file in builder.fields.get(name) or [] if file["snapshot-id"] != new_file["snapshot-id"]]
    builder.put(name, [*others, new_file])


def _remove_side_item(builder: TableMetadataBuilder, name: str, id_name: str, item_id: int | str) -> None:
    items = builder.fields.get(name) or []
    remaining = [item for item in items if item[id_name] != item_id]
    if len(remaining) < len(items):
        builder.put(name, remaining)


# --- all of them ------------------------------------------------------------------------------------------------------

UPDATES: Final[dict[str, Callable[[TableMetadataBuilder, Object], None]]] = {
    "assign-uuid": assign_uuid,
    "upgrade-format-version": upgrade_format_version,
    "add-schema": add_schema,
    "set-current-schema": set_current_schema,
    "remove-schemas": remove_schemas,
    "add-spec": add_spec,
    "set-default-spec": set_default_spec,
    "remove-partition-specs": remove_specs,
    "add-sort-order": add_sort_order,
    "set-default-sort-order": set_default_sort_order,
    "add-snapshot": add_snapshot,
    "remove-snapshots": remove_snapshots,
    "set-snapshot-ref": set_reference,
    "remove-snapshot-ref": remove_reference,
    "set-location": set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
    "set-statistics": set_statistics,
    "remove-statistics": remove_statistics,
    "set-partition-statistics": set_partition_statistics,
    "remove-partition-statistics": remove_partition_statistics,
    "add-encryption-key": add_encryption_key,
    "remove-encryption-key": remove_encryption_key,
}


def action(update: Object) -> str:
    """The action of an update, in lower case."""
    return values.text(update, "action").lower()


def apply(builder: TableMetadataBuilder, update: Object) -> None:
    """Applies one update. Raises InvalidInput, and CommitConflict if the client should rebuild and retry."""
    apply_update = UPDATES.get(action(update))
    if apply_update is None:
        raise errors.InvalidInput(f"Unknown update of a table: {short_repr(action(update))}")
    apply_update(builder, update)
