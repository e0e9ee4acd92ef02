"""Every requirement of a table in Iceberg's REST protocol, by the name of its type. Pure.

A requirement that does not hold is a commit conflict. The messages are worded as in Iceberg's Java library, because its
clients and their tests match them. `assert-icestream-range` and `assert-icestream-job` are our own and are checked in
catalog/topic_rules.
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
    expected = values.text(requirement, "uuid")
    if table.uuid is None or expected.lower() != table.uuid.lower():
        raise errors.CommitConflict(f"Requirement failed: UUID does not match: expected {table.uuid} != {expected}")


def assert_reference(table: TableMetadata, requirement: Object) -> None:
    """A snapshot id of null requires that the branch or tag does not exist."""
    name, expected_id = values.text(requirement, "ref"), values.optional_long(requirement, "snapshot-id")
    reference = table.references.get(name)
    if reference is None and expected_id is not None:
        raise errors.CommitConflict(f"Requirement failed: branch or tag {name} is missing, expected {expected_id}")
    if reference is not None and expected_id is None:
        raise errors.CommitConflict(f"Requirement failed: {reference['type']} {name} was created concurrently")
    if reference is not None and expected_id != reference["snapshot-id"]:
        raise errors.CommitConflict(
            f"Requirement failed: {reference['type']} {name} has changed: "
            f"expected id {expected_id} != {reference['snapshot-id']}"
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


def _assert_number(table: TableMetadata, field: str, requirement: Object, name: str, field_title: str) -> None:
    expected, actual = values.integer(requirement, name), table.fields[field]
    if expected != actual:
        raise errors.CommitConflict(f"Requirement failed: {field_title} changed: expected id {expected} != {actual}")


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
    """The type of a requirement, in lower case."""
    return values.text(requirement, "type").lower()


def check(table: TableMetadata | None, requirement: Object) -> None:
    """Raises CommitConflict if the requirement does not hold.

    For a table that does not exist only `assert-create` is allowed.
    """
    name = kind(requirement)
    if name == CREATE:
        if table is not None:
            raise errors.CommitConflict("Requirement failed: table already exists")
        return
    assert_requirement = REQUIREMENTS.get(name)
    if assert_requirement is None:
        raise errors.InvalidInput(f"Unknown requirement of a table: {short_repr(name)}")
    if table is None:
        raise errors.InvalidInput(f"Invalid create requirements: {short_repr(name)}")
    assert_requirement(table, requirement)
