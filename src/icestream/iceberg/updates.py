"""Every update of a table in Iceberg's REST protocol, by the name of its action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors
from icestream.iceberg import identity_updates, layout_updates, side_file_updates, snapshot_updates, values
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.values import Object, short_repr

UPDATES: Final[dict[str, Callable[[TableMetadataBuilder, Object], None]]] = {
    "assign-uuid": identity_updates.assign_uuid,
    "upgrade-format-version": identity_updates.upgrade_format_version,
    "add-schema": layout_updates.add_schema,
    "set-current-schema": layout_updates.set_current_schema,
    "remove-schemas": layout_updates.remove_schemas,
    "add-spec": layout_updates.add_spec,
    "set-default-spec": layout_updates.set_default_spec,
    "remove-partition-specs": layout_updates.remove_specs,
    "add-sort-order": layout_updates.add_sort_order,
    "set-default-sort-order": layout_updates.set_default_sort_order,
    "add-snapshot": snapshot_updates.add_snapshot,
    "remove-snapshots": snapshot_updates.remove_snapshots,
    "set-snapshot-ref": snapshot_updates.set_reference,
    "remove-snapshot-ref": snapshot_updates.remove_reference,
    "set-location": identity_updates.set_location,
    "set-properties": identity_updates.set_properties,
    "remove-properties": identity_updates.remove_properties,
    "set-statistics": side_file_updates.set_statistics,
    "remove-statistics": side_file_updates.remove_statistics,
    "set-partition-statistics": side_file_updates.set_partition_statistics,
    "remove-partition-statistics": side_file_updates.remove_partition_statistics,
    "add-encryption-key": side_file_updates.add_encryption_key,
    "remove-encryption-key": side_file_updates.remove_encryption_key,
}


def action(update: Object) -> str:
    return values.text(update, "action").lower()


def apply(draft: TableMetadataBuilder, update: Object) -> None:
    known = UPDATES.get(action(update))
    if known is None:
        raise errors.InvalidInput(f"Unknown update of a table: {short_repr(action(update))}")
    known(draft, update)
