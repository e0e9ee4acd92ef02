"""New tables: by one request, and by a transaction that brings every update itself."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors
from icestream.iceberg import table_commit
from icestream.iceberg.table_metadata import TableMetadata, load
from tests.support.tables import (
    LOCATION,
    NOW_MS,
    SCHEMA,
    UUID,
    add,
    column,
    numbers_in,
    point,
    schema,
    snapshot,
    table,
)

PARTITIONED = {
    "partition-spec": {"fields": [{"source-id": 30, "name": "day", "transform": "day"}]},
    "write-order": {
        "order-id": 9,
        "fields": [{"source-id": 10, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
    },
    "schema": schema(column(10, "id"), column(20, "data", "string"), column(30, "at", "timestamptz")),
}


def test_column_ids_are_assigned_whatever_the_client_sent() -> None:
    metadata = table(**PARTITIONED, properties={"owner": "me"})
    fields = metadata.fields
    assert [field["id"] for field in metadata.current_schema["fields"]] == [1, 2, 3]
    assert (fields["last-column-id"], fields["current-schema-id"], fields["default-spec-id"]) == (3, 0, 0)
    assert fields["partition-specs"] == [
        {"spec-id": 0, "fields": [{"source-id": 3, "name": "day", "transform": "day", "field-id": 1000}]}
    ]
    assert fields["last-partition-id"] == 1000
    assert [order["order-id"] for order in fields["sort-orders"]] == [1]
    assert (fields["sort-orders"][0]["fields"][0]["source-id"], fields["default-sort-order-id"]) == (1, 1)
    assert metadata.properties == {"owner": "me", "write.parquet.compression-codec": "zstd"}
    assert (metadata.uuid, metadata.location, fields["last-updated-ms"]) == (UUID, LOCATION, NOW_MS)
    assert load(metadata.as_json()).as_json() == metadata.as_json()


def test_a_plain_table_is_unpartitioned_and_unsorted() -> None:
    metadata = table(**{"partition-spec": None, "write-order": None, "properties": None})
    assert metadata.format_version == 2
    assert metadata.fields["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert metadata.fields["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert metadata.fields["last-partition-id"] == 999
    assert (len(metadata.snapshots), metadata.references, metadata.current_snapshot_id) == (0, {}, None)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_version_is_a_property_that_is_not_stored(version: int) -> None:
    metadata = table(properties={"format-version": str(version), "uuid": "x", "a": "b"})
    assert metadata.format_version == version
    assert metadata.properties == {"a": "b", "write.parquet.compression-codec": "zstd"}
    assert ("next-row-id" in metadata.fields) == (version == 3)
    assert ("last-sequence-number" in metadata.fields) == (version > 1)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"schema": None}, "missing field: schema"),
        ({"schema": schema(column(1, "a", "variant"))}, "variant is not supported until v3"),
        ({"properties": {"format-version": "4"}}, "Unsupported format version: v4"),
        ({"properties": {"format-version": "two"}}, "integer value"),
        ({"properties": {"a": 1}}, "non-string"),
        ({"partition-spec": {"fields": [{"source-id": 7, "name": "x", "transform": "day"}]}}, "Cannot find source"),
        ({"partition-spec": {"fields": [{"source-id": 1, "name": "x", "transform": "day"}]}}, "Invalid source type"),
        ({"partition-spec": {"fields": [{"source-id": 1, "name": "", "transform": "identity"}]}}, "empty one"),
        (
            {"partition-spec": {"fields": [{"source-id": 1, "name": "data", "transform": "identity"}]}},
            "different field",
        ),
        ({"partition-spec": "day"}, "non-object"),
        ({"write-order": {"order-id": 1, "fields": [{"source-id": 1, "transform": "identity"}]}}, "direction"),
        ({"write-order": {"fields": 1}}, "non-array"),
    ],
)
def test_invalid_tables_are_refused(request_: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        table(**request_)


def test_a_field_in_a_list_does_not_partition() -> None:
    kind = {"type": "list", "element-id": 2, "element": "int", "element-required": False}
    spec = {"fields": [{"source-id": 2, "name": "x", "transform": "identity"}]}
    with pytest.raises(errors.InvalidInput, match="Invalid partition field parent"):
        table(schema=schema(column(1, "a", kind)), **{"partition-spec": spec})


def staged(version: int = 2) -> list[dict[str, Any]]:
    """The updates that Java's client sends to create a table with data."""
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": SCHEMA | {"schema-id": 0}, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION + "/"},
        {"action": "set-properties", "updates": {"a": "b"}},
        add(snapshot(1, **numbers_in(version, 1))),
        point("main", 1),
    ]


def created(updates: list[dict[str, Any]]) -> TableMetadata:
    return table_commit.apply_updates(None, None, updates, NOW_MS + 10_000)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_transaction_creates_a_table_with_its_first_snapshot(version: int) -> None:
    metadata = created(staged(version))
    assert (metadata.format_version, metadata.current_snapshot_id, metadata.location) == (version, 1, LOCATION)
    assert [entry["snapshot-id"] for entry in metadata.snapshot_log] == [1]
    assert list(metadata.metadata_log) == []
    assert load(metadata.as_json()).as_json() == metadata.as_json()


@pytest.mark.parametrize("missing", ["add-schema", "add-spec", "add-sort-order", "set-location", "assign-uuid"])
def test_an_incomplete_create_transaction_creates_nothing(missing: str) -> None:
    left = [update for update in staged() if update["action"] != missing]
    with pytest.raises(errors.InvalidInput):
        created(left)
    with pytest.raises(errors.InvalidInput):
        created([update for update in left if "snapshot" not in update["action"] and -1 not in update.values()])


def test_several_schemas_may_precede_the_first_commit() -> None:
    wider = schema(*SCHEMA["fields"], column(4, "more"))
    more = [{"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": -1}]
    metadata = created(staged()[:10] + more)
    assert [schema["schema-id"] for schema in metadata.fields["schemas"]] == [0, 1]
    assert (metadata.fields["current-schema-id"], metadata.fields["last-column-id"]) == (1, 4)
