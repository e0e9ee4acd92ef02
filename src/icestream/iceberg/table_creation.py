"""A new table from what a client asks for: ids are assigned anew, whatever the client called them."""

from __future__ import annotations

from icestream import errors
from icestream.iceberg import partitioning, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg.properties import FORMAT_VERSION, RESERVED, as_integer
from icestream.iceberg.table_commit import apply_updates
from icestream.iceberg.table_metadata import FORMAT_VERSION_DEFAULT, FORMAT_VERSIONS, TableMetadata
from icestream.iceberg.values import Object

# Set on every new table, so that engines with other defaults write alike.
NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def new_table_metadata(request: Object, location: str, uuid: str, now_ms: int) -> TableMetadata:
    """`request` has schema, and optionally partition-spec, write-order and properties, each of which may be null."""
    given = values.optional_text_map(request, "properties")
    version = as_integer(given, FORMAT_VERSION, FORMAT_VERSION_DEFAULT)
    if version not in FORMAT_VERSIONS:
        raise errors.InvalidInput(f"Unsupported format version: v{version} (supported: v{FORMAT_VERSIONS[-1]})")
    schema, fresh = schemas.with_fresh_ids(values.as_object(values.required(request, "schema"), "schema"), 0)
    spec = values.as_object(request.get("partition-spec") or partitioning.UNPARTITIONED, "partition-spec")
    order = values.as_object(request.get("write-order") or sorting.UNSORTED, "write-order")
    properties = {name: value for name, value in given.items() if name not in RESERVED}
    updates: list[Object] = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": partitioning.with_fresh_ids(spec, fresh, 0)},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": sorting.with_fresh_ids(order, fresh)},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": NEW_TABLE_PROPERTIES | properties},
    ]
    return apply_updates(None, None, updates, now_ms)
