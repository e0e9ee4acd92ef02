"""Commits to one table: requirements and updates in, the next version of its metadata out. Pure.

The cost of a commit does not grow with the table: requirements look at fields, updates copy what they change, and the
existing snapshots are shared. Encoding the result copies their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from icestream import errors, limits
from icestream.iceberg import partitioning, sorting, values
from icestream.iceberg import requirements as requirement
from icestream.iceberg import schema as schemas
from icestream.iceberg import updates as update
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.table_metadata import FORMAT_VERSION_DEFAULT, FORMAT_VERSIONS, TableMetadata
from icestream.iceberg.table_properties import FORMAT_VERSION, RESERVED, as_flag, as_integer
from icestream.iceberg.values import Object, as_object, integer

DELETE_AFTER_COMMIT: Final = "write.metadata.delete-after-commit.enabled"
# Set on every new table, so that engines with other defaults write alike.
NEW_TABLE_PROPERTIES: Final = {"write.parquet.compression-codec": "zstd"}


def check_size(requirements: Sequence[Object], updates: Sequence[Object]) -> None:
    """Raises InvalidInput for a commit with too many requirements or updates, or with one that is not an object."""
    for items, count_max, items_name in (
        (requirements, limits.CATALOG_REQUIREMENTS_MAX, "requirements"),
        (updates, limits.CATALOG_UPDATES_MAX, "updates"),
    ):
        if len(items) > count_max:
            raise errors.InvalidInput(f"commit too large: {len(items)} {items_name}, limit {count_max}")
        for item in items:
            as_object(item, items_name)


def is_create(requirements: Sequence[Object]) -> bool:
    """Whether the commit creates its table."""
    return any(requirement.kind(item) == requirement.CREATE for item in requirements)


def check_requirements(table: TableMetadata | None, requirements: Sequence[Object]) -> None:
    """Raises CommitConflict if a requirement does not hold."""
    for item in requirements:
        requirement.check(table, item)


def apply_updates(
    table: TableMetadata | None, table_location: str | None, updates: Sequence[Object], now_ms: int
) -> TableMetadata:
    """Returns the metadata after the updates; `table` itself if they change nothing. `table` is None for a new table.

    `table_location` is the metadata file that holds `table`.
    """
    builder = TableMetadataBuilder(table, now_ms, _initial_format_version(updates))
    for item in updates:
        update.apply(builder, item)
    return builder.finish(table_location)


def replace_snapshots(
    table: TableMetadata, table_location: str, snapshots: Sequence[Object], updates: Sequence[Object], now_ms: int
) -> TableMetadata:
    """Returns the metadata with other objects for snapshots that the table has, and after the updates.

    No update of the protocol does that: a snapshot is what its commit made it. Only the server exchanges one, for an
    erasure (docs/adr/0128).
    """
    builder = TableMetadataBuilder(table, now_ms, table.format_version)
    builder.replace_snapshots({snapshot["snapshot-id"]: snapshot for snapshot in snapshots})
    for item in updates:
        update.apply(builder, item)
    return builder.finish(table_location)


def _initial_format_version(updates: Sequence[Object]) -> int:
    """Returns the format version of a new table: that of its first upgrade."""
    for item in updates:
        if update.action(item) == "upgrade-format-version":
            return min(max(integer(item, "format-version"), FORMAT_VERSIONS[0]), FORMAT_VERSIONS[-1])
    return FORMAT_VERSION_DEFAULT


def new_table_metadata(request: Object, location: str, uuid: str, now_ms: int) -> TableMetadata:
    """Returns the metadata of a new table. Field ids are assigned anew, whatever ids the client sent.

    `request` has `schema`, and optionally `partition-spec`, `write-order` and `properties`, each of which may be null.
    """
    requested = values.optional_text_map(request, "properties")
    version = as_integer(requested, FORMAT_VERSION, FORMAT_VERSION_DEFAULT)
    if version not in FORMAT_VERSIONS:
        raise errors.InvalidInput(f"Unsupported format version: v{version} (supported: v{FORMAT_VERSIONS[-1]})")
    schema, new_ids = schemas.with_fresh_ids(values.as_object(values.required(request, "schema"), "schema"), 0)
    spec = values.as_object(request.get("partition-spec") or partitioning.UNPARTITIONED, "partition-spec")
    order = values.as_object(request.get("write-order") or sorting.UNSORTED, "write-order")
    properties = {name: value for name, value in requested.items() if name not in RESERVED}
    updates: list[Object] = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": partitioning.with_fresh_ids(spec, new_ids, 0)},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": sorting.with_fresh_ids(order, new_ids)},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": NEW_TABLE_PROPERTIES | properties},
    ]
    return apply_updates(None, None, updates, now_ms)


def dropped_metadata_files(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Returns the metadata files that may be removed once `after` is committed.

    They are those that left the metadata log, if the table's properties request it.
    """
    if not as_flag(after.properties, DELETE_AFTER_COMMIT, False):
        return []
    logged = {entry["metadata-file"] for entry in after.metadata_log}
    return [location for entry in before.metadata_log if (location := entry["metadata-file"]) not in logged]
