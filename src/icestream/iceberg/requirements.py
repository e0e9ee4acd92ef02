"""Every requirement of a table in Iceberg's REST protocol, by the name of its type.

A requirement that does not hold is a conflict. The words are those that Java's clients and their tests look for.
`assert-icestream-range` is ours and stands in catalog/topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object, short_repr

CREATE: Final = "assert-create"


def assert_uuid(table: TableMetadata, requirement: Object) -> None:
    wanted = values.text(requirement, "uuid")
    if table.uuid is None or wanted.lower() != table.uuid.lower():
        raise errors.CommitConflict(f"Requirement failed: UUID does not match: expected {table.uuid} != {wanted}")


def assert_reference(table: TableMetadata, requirement: Object) -> None:
    """A snapshot id of null: there is no such branch or tag."""
    name, wanted = values.text(requirement, "ref"), values.optional_long(requirement, "snapshot-id")
    found = table.references.get(name)
    if found is None and wanted is not None:
        raise errors.CommitConflict(f"Requirement failed: branch or tag {name} is missing, expected {wanted}")
    if found is not None and wanted is None:
        raise errors.CommitConflict(f"Requirement failed: {found['type']} {name} was created concurrently")
    if found is not None and wanted != found["snapshot-id"]:
        raise errors.CommitConflict(
            f"Requirement failed: {found['type']} {name} has changed: expected id {wanted} != {found['snapshot-id']}"
        )


def assert_last_assigned_field_id(table: TableMetadata, requirement: Object) -> None:
    _assert_number(table, "last-column-id", requirement, "last-assigned-field-id", "last assigned field id")


def assert_current_schema_id(table: TableMetadata, requirement: Object) -> None:
    _assert_number(table, "current-schema-id", requirement, "current-schema-id", "current schema")


def assert_last_assigned_partition_id(table: TableMetadata, requirement: Object) -> None:
    name = "last-assigned-partition-id"
    _assert_number(table, "last-partition-id", requirement, name, "last assigned partition id")


def assert_default_spec_id(table: TableMetadata, requirement: Object) -> None:
    _assert_number(table, "default-spec-id", requirement, "default-spec-id", "default partition spec")


def assert_default_sort_order_id(table: TableMetadata, requirement: Object) -> None:
    _assert_number(table, "default-sort-order-id", requirement, "default-sort-order-id", "default sort order")


def _assert_number(table: TableMetadata, field: str, requirement: Object, name: str, what: str) -> None:
    wanted, found = values.integer(requirement, name), table.fields[field]
    if wanted != found:
        raise errors.CommitConflict(f"Requirement failed: {what} changed: expected id {wanted} != {found}")


REQUIREMENTS: Final[dict[str, Callable[[TableMetadata, Object], None]]] = {
    "assert-table-uuid": assert_uuid,
    "assert-ref-snapshot-id": assert_reference,
    "assert-last-assigned-field-id": assert_last_assigned_field_id,
    "assert-current-schema-id": assert_current_schema_id,
    "assert-last-assigned-partition-id": assert_last_assigned_partition_id,
    "assert-default-spec-id": assert_default_spec_id,
    "assert-default-sort-order-id": assert_default_sort_order_id,
}


def kind(requirement: Object) -> str:
    return values.text(requirement, "type").lower()


def check(table: TableMetadata | None, requirement: Object) -> None:
    """Raises CommitConflict when it does not hold. Without a table only `assert-create` does."""
    name = kind(requirement)
    if name == CREATE:
        if table is not None:
            raise errors.CommitConflict("Requirement failed: table already exists")
        return
    known = REQUIREMENTS.get(name)
    if known is None:
        raise errors.InvalidInput(f"Unknown requirement of a table: {short_repr(name)}")
    if table is None:
        raise errors.InvalidInput(f"Invalid create requirements: {short_repr(name)}")
    known(table, requirement)
