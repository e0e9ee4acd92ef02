"""Updates of a table's layout: schemas, partition specs, sort orders.

One that is there already is used again under its id. An id of -1 means the last one that the same commit added.
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors
from icestream.iceberg import partitioning, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.values import Object

SCHEMAS, SPECS, ORDERS = "schemas", "partition-specs", "sort-orders"


def add_schema(draft: TableMetadataBuilder, update: Object) -> None:
    added = values.as_object(values.required(update, "schema"), "schema")
    fields = schemas.fields_of(added)
    schemas.check_version(fields, draft.format_version)
    schemas.check_new(fields, draft.fields[SCHEMAS])
    draft.put("last-column-id", max(draft.fields["last-column-id"], schemas.highest_id(fields)))
    known = draft.fields[SCHEMAS]
    found = _same(known, added, schemas.same)
    if found is not None:
        draft.last_added[SCHEMAS] = found["schema-id"]
        return
    new_id = max((one["schema-id"] + 1 for one in known), default=0)
    draft.add_item(SCHEMAS, "schema-id", {"type": "struct", **added, "schema-id": new_id})


def set_current_schema(draft: TableMetadataBuilder, update: Object) -> None:
    wanted = draft.resolved(SCHEMAS, values.integer(update, "schema-id"), "schema")
    if values.find(draft.fields[SCHEMAS], "schema-id", wanted) is None:
        raise errors.InvalidInput(f"Cannot set current schema to unknown schema: {wanted}")
    draft.put("current-schema-id", wanted)


def remove_schemas(draft: TableMetadataBuilder, update: Object) -> None:
    _remove(draft, SCHEMAS, "schema-id", values.integers(update, "schema-ids"), "current-schema-id", "current schema")


def add_spec(draft: TableMetadataBuilder, update: Object) -> None:
    given = values.as_object(values.required(update, "spec"), "spec")
    known = draft.fields[SPECS]
    added = partitioning.numbered(given, known, draft.fields["last-partition-id"])
    found = _same(known, added, partitioning.same)
    if found is not None:
        draft.last_added[SPECS] = found["spec-id"]
        return
    partitioning.check(added, draft.schema_fields())
    partitioning.check_ids(added)
    if draft.format_version == 1:
        partitioning.check_sequential(added)
    new_id = max((one["spec-id"] + 1 for one in known), default=0)
    draft.add_item(SPECS, "spec-id", {**added, "spec-id": new_id})
    last_id = max(draft.fields["last-partition-id"], partitioning.last_field_id([added]))
    draft.put("last-partition-id", last_id)


def set_default_spec(draft: TableMetadataBuilder, update: Object) -> None:
    wanted = draft.resolved(SPECS, values.integer(update, "spec-id"), "spec")
    if values.find(draft.fields[SPECS], "spec-id", wanted) is None:
        raise errors.InvalidInput(f"Cannot set default partition spec to unknown spec: {wanted}")
    draft.put("default-spec-id", wanted)


def remove_specs(draft: TableMetadataBuilder, update: Object) -> None:
    ids = values.integers(update, "spec-ids")
    _remove(draft, SPECS, "spec-id", ids, "default-spec-id", "default partition spec")


def add_sort_order(draft: TableMetadataBuilder, update: Object) -> None:
    added = values.as_object(values.required(update, "sort-order"), "sort order")
    known = draft.fields[ORDERS]
    is_sorted = bool(sorting.fields_of(added))
    found = _same(known, added, sorting.same)
    if found is not None:
        draft.last_added[ORDERS] = found["order-id"]
        return
    sorting.check(added, draft.schema_fields())
    new_id = max((one["order-id"] + 1 for one in known), default=sorting.FIRST_ID) if is_sorted else 0
    draft.add_item(ORDERS, "order-id", {**added, "order-id": new_id})


def set_default_sort_order(draft: TableMetadataBuilder, update: Object) -> None:
    wanted = draft.resolved(ORDERS, values.integer(update, "sort-order-id"), "sort order")
    if values.find(draft.fields[ORDERS], "order-id", wanted) is None:
        raise errors.InvalidInput(f"Cannot set default sort order to unknown sort order: {wanted}")
    draft.put("default-sort-order-id", wanted)


def _same(known: list[Object], added: Object, same: Callable[[Object, Object], bool]) -> Object | None:
    return next((one for one in known if same(one, added)), None)


def _remove(draft: TableMetadataBuilder, name: str, id_name: str, ids: list[int], used: str, what: str) -> None:
    """Those that are there. The one in use stays."""
    if draft.fields[used] in ids:
        raise errors.InvalidInput(f"Cannot remove the {what}")
    draft.put(name, [one for one in draft.fields[name] if one[id_name] not in ids])
