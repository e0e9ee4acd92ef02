"""Every update of a table: what it does, what it refuses, and that the base is never touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from icestream import errors
from icestream.iceberg import updates as update
from icestream.iceberg.table_metadata import TableMetadata, load
from tests.support.tables import (
    LOCATION,
    NOW_MS,
    SCHEMA,
    UUID,
    add,
    append,
    column,
    commit_to,
    ids,
    log_ids,
    point,
    schema,
    snapshot,
    table,
    with_snapshots,
)

WIDER = schema(*SCHEMA["fields"], column(4, "more", "int"))
BY_DAY = {"spec-id": 5, "fields": [{"source-id": 3, "field-id": 1000, "name": "at_day", "transform": "day"}]}
BY_ID = {
    "order-id": 7,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "file:/s.puffin",
    "file-size-in-bytes": 10,
    "file-footer-size-in-bytes": 5,
    "blob-metadata": [{"type": "t", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}],
}
PARTITION_STATISTICS = {"snapshot-id": 1, "statistics-path": "file:/p.parquet", "file-size-in-bytes": 10}
KEY = {"key-id": "k1", "encrypted-key-metadata": "YQ==", "encrypted-by-id": "root"}


def do(action: str, **values: Any) -> dict[str, Any]:
    return {"action": action, **{name.replace("_", "-"): value for name, value in values.items()}}


ADD_WIDER, USE_LAST_SCHEMA = do("add-schema", schema=WIDER), do("set-current-schema", schema_id=-1)
ADD_BY_DAY, USE_LAST_SPEC = do("add-spec", spec=BY_DAY), do("set-default-spec", spec_id=-1)
ADD_BY_ID, USE_LAST_ORDER = do("add-sort-order", sort_order=BY_ID), do("set-default-sort-order", sort_order_id=-1)

BASE = commit_to(
    with_snapshots(3),
    point("old", 1, "tag"),
    do("set-properties", updates={"owner": "me", "a": "b"}),
    do("set-statistics", statistics=STATISTICS),
    do("set-partition-statistics", partition_statistics=PARTITION_STATISTICS),
)
BASE_JSON = copy.deepcopy(BASE.as_json())


@pytest.fixture(autouse=True)
def _the_base_is_never_touched() -> Any:
    yield
    assert BASE.as_json() == BASE_JSON


def fields(*updates: dict[str, Any], base: TableMetadata = BASE) -> dict[str, Any]:
    metadata = commit_to(base, *updates)
    assert load(metadata.as_json()).as_json() == metadata.as_json(), "what a commit makes is a valid document"
    return metadata.as_json()


# --- each with what it changes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([do("assign-uuid", uuid=UUID.upper())], {}),
        ([do("upgrade-format-version", format_version=2)], {}),
        ([do("upgrade-format-version", format_version=3)], {"format-version": 3, "next-row-id": 0}),
        ([ADD_WIDER], {"last-column-id": 4, "current-schema-id": 0}),
        ([ADD_WIDER, USE_LAST_SCHEMA], {"last-column-id": 4, "current-schema-id": 1}),
        ([ADD_WIDER, do("set-current-schema", schema_id=1)], {"current-schema-id": 1}),
        ([ADD_WIDER, USE_LAST_SCHEMA, do("set-current-schema", schema_id=0)], {"current-schema-id": 0}),
        ([do("add-schema", schema=SCHEMA), USE_LAST_SCHEMA], {"current-schema-id": 0}),
        ([ADD_BY_DAY, USE_LAST_SPEC], {"default-spec-id": 1, "last-partition-id": 1000}),
        ([ADD_BY_DAY, ADD_BY_DAY, USE_LAST_SPEC], {"default-spec-id": 1}),
        ([ADD_BY_ID, USE_LAST_ORDER], {"default-sort-order-id": 1}),
        ([ADD_BY_ID, ADD_BY_ID, do("set-default-sort-order", sort_order_id=1)], {"default-sort-order-id": 1}),
        ([do("set-location", location="file:/elsewhere/")], {"location": "file:/elsewhere"}),
        ([do("set-properties", updates={"a": "c"})], {"properties": BASE.properties | {"a": "c"}}),
        ([do("set-properties", updated={"a": "c"})], {"properties": BASE.properties | {"a": "c"}}),
        ([do("set-properties", updates={"a": "c"}, updated={"x": "y"})], {"properties": BASE.properties | {"a": "c"}}),
        ([do("remove-properties", removals=["write.parquet.compression-codec", "owner"])], {"properties": {"a": "b"}}),
        ([do("remove-properties", removed=["a", "not there"])], {"properties": {**BASE.properties, "a": ...}}),
        ([do("remove-properties", removals=["not there"])], {}),
        ([do("remove-statistics", snapshot_id=1)], {"statistics": []}),
        ([do("remove-statistics", snapshot_id=99)], {}),
        ([do("remove-partition-statistics", snapshot_id=1)], {"partition-statistics": []}),
        ([do("set-statistics", statistics={**STATISTICS, "x": 1})], {"statistics": [{**STATISTICS, "x": 1}]}),
        ([do("add-encryption-key", encryption_key=KEY)], {"encryption-keys": [KEY]}),
        (
            [do("add-encryption-key", encryption_key=KEY), do("add-encryption-key", encryption_key={**KEY, "x": 1})],
            {"encryption-keys": [KEY]},
        ),
        (
            [do("add-encryption-key", encryption_key=KEY), do("remove-encryption-key", key_id="k1")],
            {"encryption-keys": []},
        ),
        ([do("remove-encryption-key", key_id="none")], {}),
        ([do("remove-snapshot-ref", ref_name="none")], {}),
        ([do("remove-snapshots", snapshot_ids=[99])], {}),
        ([point("main", 3)], {}),
        ([do("remove-schemas", schema_ids=[9])], {}),
        (
            [ADD_WIDER, USE_LAST_SCHEMA, do("remove-schemas", schema_ids=[0, 9])],
            {"schemas": [WIDER | {"schema-id": 1}]},
        ),
        (
            [ADD_BY_DAY, USE_LAST_SPEC, do("remove-partition-specs", spec_ids=[0])],
            {"partition-specs": [BY_DAY | {"spec-id": 1}]},
        ),
    ],
)
def test_an_update_changes_only_what_it_names(updates: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    changed = fields(*updates)
    for name, value in expected.items():
        left_out = isinstance(value, dict) and [key for key, item in value.items() if item is ...]
        assert changed[name] == (value if not left_out else {key: value[key] for key in value if key not in left_out})
    if not expected:
        assert changed == BASE_JSON, "nothing changed, so nothing is committed"


@pytest.mark.parametrize(
    ("updates", "says"),
    [
        ([do("fly")], "Unknown update of a table: 'fly'"),
        ([{}], "missing field: action"),
        ([do("assign-uuid", uuid="other")], "Cannot reassign uuid"),
        ([do("assign-uuid")], "missing field: uuid"),
        ([do("upgrade-format-version", format_version=1)], "Cannot downgrade v2 table to v1"),
        ([do("upgrade-format-version", format_version=4)], "unsupported format version: v4"),
        ([do("upgrade-format-version", format_version="3")], "non-integer"),
        ([do("add-schema", schema=schema(column(1, "x", "variant")))], "not supported until v3"),
        ([do("add-schema", schema=[])], "schema from non-object"),
        ([do("add-schema", schema=schema(column(0, "x")))], "Invalid column id: 0"),
        ([do("add-schema", schema=schema(column(-9, "x")))], "Invalid column id: -9"),
        ([do("add-schema", schema=schema(column(2**31 - 200, "x")))], "Invalid column id: 2147483448"),
        ([do("add-schema", schema=schema(column(9, "")))], "Invalid column name: column 9 has none"),
        (
            [do("add-schema", schema=schema(column(9, "x", {"type": "struct", "fields": [column(10, "")]})))],
            "Invalid column name: column 10 has none",
        ),
        ([USE_LAST_SCHEMA], "no schema has been added"),
        ([do("set-current-schema", schema_id=7)], "unknown schema: 7"),
        ([do("remove-schemas", schema_ids=[0])], "Cannot remove the current schema"),
        ([do("remove-schemas", schema_ids=0)], "non-array"),
        ([USE_LAST_SPEC], "no spec has been added"),
        ([do("set-default-spec", spec_id=7)], "unknown spec: 7"),
        ([do("remove-partition-specs", spec_ids=[0])], "Cannot remove the default partition spec"),
        ([do("add-spec", spec={"fields": [{**BY_DAY["fields"][0], "source-id": 9}]})], "Cannot find source column"),
        ([do("add-spec", spec={"fields": [BY_DAY["fields"][0], {"source-id": 1}]})], "missing field"),
        (
            [
                do(
                    "add-spec",
                    spec={"fields": [BY_DAY["fields"][0], {"source-id": 1, "name": "x", "transform": "void"}]},
                )
            ],
            "missing field IDs: 1 missing of 2",
        ),
        ([do("add-spec", spec={"fields": [BY_DAY["fields"][0]] * 2})], "partition name more than once"),
        (
            [do("add-spec", spec={"fields": [BY_DAY["fields"][0], {**BY_DAY["fields"][0], "name": "x"}]})],
            "Cannot use partition field id more than once: 1000",
        ),
        ([do("add-spec", spec={"fields": [{**BY_DAY["fields"][0], "field-id": 0}]})], "Invalid partition field id: 0"),
        (
            [
                do("add-spec", spec={"fields": [{**BY_DAY["fields"][0], "field-id": 2**31 - 1}]}),
                do("add-spec", spec={"fields": [{"source-id": 1, "name": "x", "transform": "identity"}]}),
            ],
            "Invalid partition field id: 2147483648",
        ),
        ([USE_LAST_ORDER], "no sort order has been added"),
        ([do("set-default-sort-order", sort_order_id=7)], "unknown sort order: 7"),
        ([do("add-sort-order", sort_order={**BY_ID, "order-id": 0})], "reserved for unsorted"),
        ([do("add-sort-order", sort_order={"fields": [{**BY_ID["fields"][0], "direction": "up"}]})], "direction"),
        ([do("add-sort-order", sort_order={"fields": [{**BY_ID["fields"][0], "null-order": "x"}]})], "null order"),
        ([do("add-sort-order", sort_order={"fields": [{**BY_ID["fields"][0], "source-id": 9}]})], "source column"),
        (
            [ADD_BY_DAY, USE_LAST_SPEC, do("add-schema", schema=schema(column(1, "id"))), USE_LAST_SCHEMA],
            "source column",
        ),
        ([add({"snapshot-id": 9})], "missing field"),
        ([add(snapshot(3, 2))], "Snapshot already exists for id: 3"),
        ([point("main", 99)], "Cannot set main to unknown snapshot: 99"),
        ([point("main", 1, "tag")], "it must be a branch"),
        ([point("x", 1, "twig")], "ref type"),
        ([point("", 1)], "Invalid ref name: empty"),
        ([point("x", 1, "tag", **{"min-snapshots-to-keep": 1})], "Tags do not support"),
        ([point("x", 1, "branch", **{"max-ref-age-ms": 0})], "greater than 0"),
        ([do("remove-snapshots", snapshot_ids=["1"])], "non-integer"),
        ([do("remove-snapshot-ref")], "missing field: ref-name"),
        ([do("set-location", location="/")], "Invalid location"),
        ([do("set-location", location=None)], "missing field"),
        ([do("set-properties")], "missing field: updates"),
        ([do("set-properties", updates={"a": None})], "non-string"),
        ([do("remove-properties", removals="a")], "non-array"),
        ([do("set-statistics", statistics={})], "missing field"),
        ([do("set-partition-statistics", partition_statistics={"snapshot-id": "1"})], "non-integer"),
        ([do("add-encryption-key", encryption_key={"key-id": 7})], "non-string"),
        ([do("remove-encryption-key")], "missing field"),
    ],
)
def test_an_invalid_update_is_refused(updates: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says) as refused:
        commit_to(BASE, *updates)
    assert not isinstance(refused.value, errors.CommitConflict)


def test_action_names_match_the_protocol() -> None:
    assert set(update.UPDATES) == {
        "assign-uuid", "upgrade-format-version", "add-schema", "set-current-schema", "add-spec", "set-default-spec",
        "add-sort-order", "set-default-sort-order", "add-snapshot", "set-snapshot-ref", "remove-snapshots",
        "remove-snapshot-ref", "set-location", "set-properties", "remove-properties", "set-statistics",
        "remove-statistics", "set-partition-statistics", "remove-partition-statistics", "remove-partition-specs",
        "remove-schemas", "add-encryption-key", "remove-encryption-key",
    }  # fmt: skip


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_a_removed_schema_keeps_its_column_ids_used() -> None:
    metadata = commit_to(BASE, ADD_WIDER, USE_LAST_SCHEMA, do("set-current-schema", schema_id=0))
    metadata = commit_to(metadata, do("remove-schemas", schema_ids=[1]))
    assert (metadata.fields["last-column-id"], len(metadata.fields["schemas"])) == (4, 1)


def test_a_narrower_schema_frees_no_column_id() -> None:
    narrow = do("add-schema", schema=schema(column(1, "id", required=True)))
    assert fields(ADD_WIDER, USE_LAST_SCHEMA, narrow, USE_LAST_SCHEMA)["last-column-id"] == 4


def test_partition_fields_without_ids_keep_their_former_ids() -> None:
    metadata = commit_to(BASE, ADD_BY_DAY, USE_LAST_SPEC)
    unnumbered = [
        {"source-id": 1, "name": "id_bucket", "transform": "bucket[4]"},
        {"source-id": 3, "name": "day", "transform": "DAY"},
    ]
    metadata = commit_to(metadata, do("add-spec", spec={"fields": unnumbered}))
    assert [field["field-id"] for field in metadata.fields["partition-specs"][2]["fields"]] == [1001, 1000]
    assert metadata.fields["last-partition-id"] == 1001


def test_partition_fields_of_v1_are_counted() -> None:
    with pytest.raises(errors.InvalidInput, match="sequential IDs that are required in v1"):
        commit_to(table(1), do("add-spec", spec={"fields": [{**BY_DAY["fields"][0], "field-id": 1001}]}))
    assert commit_to(table(1), ADD_BY_DAY).fields["last-partition-id"] == 1000


def test_a_void_field_outlives_its_column() -> None:
    void = {"fields": [{"source-id": 77, "field-id": 1000, "name": "gone", "transform": "void"}]}
    assert fields(do("add-spec", spec=void), USE_LAST_SPEC)["default-spec-id"] == 1


def test_a_multi_column_transform_is_kept() -> None:
    several = {"fields": [{"source-ids": [1, 2], "field-id": 1000, "name": "both", "transform": "zorder"}]}
    assert fields(do("add-spec", spec=several), USE_LAST_SPEC)["partition-specs"][1]["fields"] == several["fields"]
    order = {"fields": [{**BY_ID["fields"][0], "source-ids": [1, 2], "source-id": None, "transform": "zorder"}]}
    assert fields(do("add-sort-order", sort_order=order), USE_LAST_ORDER)["default-sort-order-id"] == 1


def test_the_unsorted_order_is_always_number_0() -> None:
    sorted_only = table(**{"write-order": BY_ID})
    back = commit_to(sorted_only, do("add-sort-order", sort_order={"fields": []}), USE_LAST_ORDER)
    assert back.fields["default-sort-order-id"] == 0
    assert [order["order-id"] for order in back.fields["sort-orders"]] == [1, 0]


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_of_an_older_state_is_a_conflict() -> None:
    with pytest.raises(errors.CommitConflict, match="sequence number 3 older than last sequence number 3"):
        commit_to(BASE, add({**snapshot(9, 3), "sequence-number": 3}))
    alone = commit_to(BASE, add({**snapshot(9), "sequence-number": 2}))
    assert alone.fields["last-sequence-number"] == 3, "one without a parent may be older; the number stays"


def test_a_snapshot_of_a_removed_schema_is_a_conflict() -> None:
    """A read as of that snapshot needs its schema. The client builds the snapshot again with a schema that exists."""
    metadata = commit_to(BASE, ADD_WIDER, USE_LAST_SCHEMA, do("remove-schemas", schema_ids=[0]))
    with pytest.raises(errors.CommitConflict, match="Cannot add snapshot with unknown schema: 0"):
        commit_to(metadata, add(snapshot(4, 3)), point("main", 4))
    for schema_id in ({"schema-id": 1}, {"schema-id": None}):
        assert commit_to(metadata, add(snapshot(4, 3, **schema_id)), point("main", 4)).current_snapshot_id == 4


def test_tables_with_unusual_column_ids_stay_usable() -> None:
    """A table that was registered may have a column 0; its schema can be changed all the same."""
    document = table().as_json()
    document["schemas"] = [schema(column(0, "id"), column(2, "data"), **{"schema-id": 0})]
    metadata = commit_to(load(document), do("add-schema", schema=schema(column(0, "id"), column(4, "more"))))
    assert len(metadata.fields["schemas"]) == 2


def test_a_v1_table_counts_no_sequence() -> None:
    metadata = append(append(table(1), 7, **{"sequence-number": 0}), 3, **{"sequence-number": None})
    assert ids(metadata) == [7, 3]
    assert "last-sequence-number" not in metadata.fields


def test_rows_of_v3_are_numbered_once() -> None:
    metadata = append(table(3), 1, **{"first-row-id": 0, "added-rows": 100})
    assert metadata.fields["next-row-id"] == 100
    side = commit_to(metadata, add(snapshot(2, 1, **{"first-row-id": 100, "added-rows": 5})))
    assert side.fields["next-row-id"] == 105, "also when no branch is moved"
    ahead = commit_to(metadata, add(snapshot(2, 1, **{"first-row-id": 200, "added-rows": 5})))
    assert ahead.fields["next-row-id"] == 205, "higher than every row that has a number"
    with pytest.raises(errors.CommitConflict, match="first-row-id is behind table next-row-id: 99 < 100"):
        commit_to(metadata, add(snapshot(2, 1, **{"first-row-id": 99, "added-rows": 5})))
    for broken in ({}, {"first-row-id": 100}, {"first-row-id": 100, "added-rows": -1}):
        with pytest.raises(errors.InvalidInput, match="Cannot add a snapshot"):
            commit_to(metadata, add(snapshot(2, 1, **broken)))


def test_an_upgrade_to_v3_begins_to_count_rows() -> None:
    metadata = commit_to(with_snapshots(2), do("upgrade-format-version", format_version=3))
    assert metadata.fields["next-row-id"] == 0
    assert append(metadata, 3, **{"first-row-id": 0, "added-rows": 7}).fields["next-row-id"] == 7


def test_removed_snapshots_lose_their_refs_and_statistics() -> None:
    metadata = commit_to(BASE, do("remove-snapshots", snapshot_ids=[1, 99]))
    assert ids(metadata) == [2, 3]
    assert set(metadata.references) == {"main"}
    assert (metadata.fields["statistics"], metadata.fields["partition-statistics"]) == ([], [])
    assert metadata.snapshots[0]["parent-snapshot-id"] == 1, "a child keeps the id of its parent"


def test_each_snapshot_may_be_added_by_its_own_update() -> None:
    many = with_snapshots(20)
    metadata = commit_to(many, *(do("remove-snapshots", snapshot_ids=[number]) for number in range(1, 20)))
    assert ids(metadata) == [20]


def test_a_snapshot_may_be_removed_and_added_again() -> None:
    metadata = commit_to(BASE, do("remove-snapshots", snapshot_ids=[2]), add({**snapshot(2, 1), "sequence-number": 9}))
    assert ids(metadata) == [1, 3, 2]
    assert metadata.snapshots[-1]["sequence-number"] == 9


def test_the_current_snapshot_can_be_removed() -> None:
    metadata = commit_to(BASE, do("remove-snapshots", snapshot_ids=[3]))
    assert metadata.current_snapshot_id is None
    assert set(metadata.references) == {"old"}
    assert log_ids(metadata) == []


# --- branches, tags and the log ---------------------------------------------------------------------------------------


def test_retention_is_kept_with_a_branch_and_can_be_changed() -> None:
    keep = {"min-snapshots-to-keep": 2, "max-snapshot-age-ms": 3, "max-ref-age-ms": 4}
    metadata = commit_to(BASE, point("main", 3, **keep))
    assert metadata.references["main"] == {"snapshot-id": 3, "type": "branch", **keep}
    assert log_ids(commit_to(metadata, point("main", 3))) == [1, 2, 3, 3, 3], "main was set, so it is noted"


def test_a_rollback_counts_from_now_and_a_new_snapshot_from_its_own_time() -> None:
    metadata = commit_to(BASE, point("main", 1), now_ms=NOW_MS + 77_000)
    assert metadata.snapshot_log[-1] == {"timestamp-ms": NOW_MS + 77_000, "snapshot-id": 1}
    metadata = append(BASE, 4)
    assert metadata.snapshot_log[-1] == {"timestamp-ms": NOW_MS + 4_000, "snapshot-id": 4}


def test_immediately_replaced_snapshots_leave_no_history() -> None:
    metadata = commit_to(BASE, add(snapshot(4, 3)), point("main", 4), add(snapshot(5, 4)), point("main", 5))
    assert (log_ids(metadata), ids(metadata)) == ([1, 2, 3, 5], [1, 2, 3, 4, 5])
    back = commit_to(BASE, add(snapshot(4, 3)), point("main", 4), point("main", 3))
    assert log_ids(back) == [1, 2, 3, 3]


def test_history_starts_after_a_removed_snapshot() -> None:
    five = with_snapshots(5)
    assert log_ids(commit_to(five, do("remove-snapshots", snapshot_ids=[3]))) == [4, 5]
    assert log_ids(commit_to(five, do("remove-snapshots", snapshot_ids=[1]))) == [2, 3, 4, 5]


def test_a_replaced_table_keeps_its_history() -> None:
    metadata = commit_to(BASE, do("remove-snapshot-ref", ref_name="main"), add(snapshot(4)), point("main", 4))
    assert log_ids(metadata) == [1, 2, 3, 4]
    gone = commit_to(BASE, do("remove-snapshot-ref", ref_name="main"))
    assert (gone.current_snapshot_id, log_ids(gone)) == (None, [1, 2, 3])


def test_the_snapshot_log_never_goes_back_when_a_clock_does() -> None:
    hour_ms = 3_600_000
    late = commit_to(BASE, add({**snapshot(4, 3), "timestamp-ms": NOW_MS - hour_ms}), point("main", 4))
    assert late.snapshot_log[-1]["timestamp-ms"] == late.snapshot_log[-2]["timestamp-ms"]
    slightly = commit_to(BASE, add({**snapshot(4, 3), "timestamp-ms": NOW_MS}), point("main", 4))
    assert slightly.snapshot_log[-1]["timestamp-ms"] == NOW_MS, "readers allow a minute"


def test_a_snapshot_from_the_future_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="before last snapshot log entry"):
        commit_to(BASE, add({**snapshot(4, 3), "timestamp-ms": NOW_MS + 10**9}), point("main", 4), now_ms=NOW_MS)


def test_a_clock_that_steps_back_does_not_stop_commits() -> None:
    metadata = commit_to(BASE, do("set-location", location=LOCATION + "2"), now_ms=5)
    assert metadata.fields["last-updated-ms"] == BASE.fields["last-updated-ms"]
