"""Commits to tables: requirements in the words that clients look for, old files, hostile updates, and the cost."""

from __future__ import annotations

import functools
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.iceberg import requirements as requirement
from icestream.iceberg import table_commit
from icestream.iceberg import updates as update
from icestream.iceberg.table_metadata import TableMetadata, decode, load
from tests.support.hypothesis_effort import QUARTER
from tests.support.tables import (
    FILE,
    LOCATION,
    UUID,
    add,
    append,
    commit_to,
    point,
    snapshot,
    table,
    with_snapshots,
)

BASE = commit_to(with_snapshots(2), point("old", 1, "tag"))


def need(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": kind, **{name.replace("_", "-"): value for name, value in values.items()}}


@pytest.mark.parametrize(
    "met",
    [
        need("assert-table-uuid", uuid=UUID),
        need("assert-table-uuid", uuid=UUID.upper()),
        need("ASSERT-TABLE-UUID", uuid=UUID),
        need("assert-ref-snapshot-id", ref="main", snapshot_id=2),
        need("assert-ref-snapshot-id", ref="old", snapshot_id=1),
        need("assert-ref-snapshot-id", ref="none", snapshot_id=None),
        need("assert-ref-snapshot-id", ref="none"),
        need("assert-last-assigned-field-id", last_assigned_field_id=3),
        need("assert-current-schema-id", current_schema_id=0),
        need("assert-last-assigned-partition-id", last_assigned_partition_id=999),
        need("assert-default-spec-id", default_spec_id=0),
        need("assert-default-sort-order-id", default_sort_order_id=0),
    ],
)
def test_a_met_requirement_lets_a_commit_pass(met: dict[str, Any]) -> None:
    table_commit.check_requirements(BASE, [met])
    assert requirement.kind(met) in requirement.REQUIREMENTS


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (need("assert-create"), "Requirement failed: table already exists"),
        (need("assert-table-uuid", uuid="x"), f"Requirement failed: UUID does not match: expected {UUID} != x"),
        (
            need("assert-ref-snapshot-id", ref="main", snapshot_id=1),
            "Requirement failed: branch main has changed: expected id 1 != 2",
        ),
        (
            need("assert-ref-snapshot-id", ref="old", snapshot_id=None),
            "Requirement failed: tag old was created concurrently",
        ),
        (
            need("assert-ref-snapshot-id", ref="none", snapshot_id=5),
            "Requirement failed: branch or tag none is missing, expected 5",
        ),
        (
            need("assert-last-assigned-field-id", last_assigned_field_id=7),
            "Requirement failed: last assigned field id changed: expected id 7 != 3",
        ),
        (
            need("assert-current-schema-id", current_schema_id=1),
            "Requirement failed: current schema changed: expected id 1 != 0",
        ),
        (
            need("assert-last-assigned-partition-id", last_assigned_partition_id=1000),
            "Requirement failed: last assigned partition id changed: expected id 1000 != 999",
        ),
        (
            need("assert-default-spec-id", default_spec_id=3),
            "Requirement failed: default partition spec changed: expected id 3 != 0",
        ),
        (
            need("assert-default-sort-order-id", default_sort_order_id=3),
            "Requirement failed: default sort order changed: expected id 3 != 0",
        ),
    ],
)
def test_an_unmet_requirement_is_a_conflict(broken: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.CommitConflict) as refused:
        table_commit.check_requirements(BASE, [broken])
    assert refused.value.message == says


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (need("assert-weather"), "Unknown requirement of a table"),
        ({}, "missing field: type"),
        (need("assert-table-uuid"), "missing field: uuid"),
        (need("assert-ref-snapshot-id", snapshot_id=1), "missing field: ref"),
        (need("assert-ref-snapshot-id", ref="main", snapshot_id="2"), "non-integer"),
        (need("assert-default-spec-id", default_spec_id=True), "non-integer"),
    ],
)
def test_an_unknown_requirement_is_invalid(broken: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says) as refused:
        table_commit.check_requirements(BASE, [broken])
    assert not isinstance(refused.value, errors.CommitConflict)


def test_a_missing_table_can_only_be_created() -> None:
    assert table_commit.is_create([need("assert-create")])
    assert not table_commit.is_create([need("assert-table-uuid", uuid=UUID)])
    table_commit.check_requirements(None, [need("assert-create")])
    with pytest.raises(errors.InvalidInput, match="Invalid create requirements"):
        table_commit.check_requirements(None, [need("assert-create"), need("assert-table-uuid", uuid=UUID)])


def test_a_commit_is_bounded() -> None:
    table_commit.check_size([{}], [{}])
    with pytest.raises(errors.InvalidInput, match="updates, limit"):
        table_commit.check_size([], [{}] * (limits.CATALOG_UPDATES_MAX + 1))
    with pytest.raises(errors.InvalidInput, match="requirements, limit"):
        table_commit.check_size([{}] * (limits.CATALOG_REQUIREMENTS_MAX + 1), [])
    with pytest.raises(errors.InvalidInput, match="non-object"):
        table_commit.check_size([], [7])  # type: ignore[list-item]


def test_a_no_op_commit_returns_the_table_itself() -> None:
    same = commit_to(BASE, {"action": "set-properties", "updates": {}}, point("main", 2))
    assert same is BASE


# --- metadata files ---------------------------------------------------------------------------------------------------


def test_old_metadata_files_are_dropped_as_the_properties_say() -> None:
    metadata = table()
    for number in range(5):
        metadata = commit_to(
            metadata, {"action": "set-properties", "updates": {"n": str(number)}}, location=f"file:/{number}"
        )
    keep_two = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "TRUE"}
    after = commit_to(metadata, {"action": "set-properties", "updates": keep_two}, location="file:/5")
    assert [entry["metadata-file"] for entry in after.metadata_log] == ["file:/4", "file:/5"]
    assert table_commit.dropped_metadata_files(metadata, after) == ["file:/0", "file:/1", "file:/2", "file:/3"]
    silent = commit_to(metadata, {"action": "set-properties", "updates": {"n": "x"}}, location="file:/5")
    assert table_commit.dropped_metadata_files(metadata, silent) == []
    assert [entry["timestamp-ms"] for entry in silent.metadata_log][-1] == metadata.fields["last-updated-ms"]


def test_at_least_one_metadata_file_is_remembered() -> None:
    none = {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "0"}}
    first = commit_to(table(), none, location="file:/0")
    second = commit_to(first, {"action": "set-properties", "updates": {"a": "b"}}, location="file:/1")
    assert [entry["metadata-file"] for entry in second.metadata_log] == ["file:/1"]
    with pytest.raises(errors.InvalidInput, match="must have integer value"):
        commit_to(first, {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "few"}})


# --- hostile updates --------------------------------------------------------------------------------------------------

FIELDS = (
    "uuid", "format-version", "schema", "schema-id", "schema-ids", "spec", "spec-id", "spec-ids", "sort-order",
    "sort-order-id", "snapshot", "snapshot-id", "snapshot-ids", "ref-name", "type", "updates", "removals", "location",
    "statistics", "partition-statistics", "encryption-key", "key-id", "fields", "name", "id", "required", "transform",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from(["", "main", "long", "branch", "struct"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
UPDATES = st.fixed_dictionaries(
    {"action": st.sampled_from(sorted(update.UPDATES))}, optional=dict.fromkeys(FIELDS, JSON)
)


@QUARTER
@given(st.lists(UPDATES, max_size=3))
def test_any_update_is_refused_or_makes_a_valid_table(updates: list[dict[str, Any]]) -> None:
    try:
        metadata = commit_to(BASE, *updates)
    except errors.InvalidInput:
        metadata = BASE
    assert load(metadata.as_json()).as_json() == metadata.as_json()
    assert decode(metadata.encode()).as_json() == metadata.as_json()


# --- cost -------------------------------------------------------------------------------------------------------------


def calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def allocated(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@functools.cache
def grown(count: int) -> TableMetadata:
    metadata = with_snapshots(count)
    metadata.pieces()
    return metadata


def one_commit(base: TableMetadata) -> TableMetadata:
    number = len(base.snapshots) + 1
    requirements = [
        need("assert-table-uuid", uuid=UUID),
        need("assert-ref-snapshot-id", ref="main", snapshot_id=base.current_snapshot_id),
    ]
    updates = [
        add(snapshot(number, base.current_snapshot_id)),
        point("main", number),
        {"action": "set-properties", "updates": {"n": str(number)}},
    ]
    table_commit.check_requirements(base, requirements)
    metadata = table_commit.apply_updates(base, FILE, updates, snapshot(number)["timestamp-ms"])
    metadata.pieces()
    return metadata


def test_a_commit_costs_the_same_at_a_thousand_snapshots() -> None:
    """Counted in calls and in bytes: nothing is gone through, and nothing but the last chunk is joined."""
    few, many = grown(130), grown(1_000)
    assert calls(lambda: one_commit(many)) <= 1.2 * calls(lambda: one_commit(few)) + 20
    few, many = append(few, 131), append(many, 1_001)
    assert allocated(lambda: one_commit(many)) <= 2 * allocated(lambda: one_commit(few)) + 20_000


def test_a_commit_from_a_version_with_successors_joins_no_chunk_again() -> None:
    base = grown(1_000)
    one_commit(base)
    encoded = calls(lambda: one_commit(base))
    assert encoded <= 1.5 * calls(lambda: one_commit(grown(130)))


def test_expiring_the_oldest_snapshot_copies_no_others() -> None:
    base = append(grown(1_000), 1_001)
    expire = {"action": "remove-snapshots", "snapshot-ids": [1, 2, 3]}
    metadata = commit_to(base, expire)
    assert metadata.snapshots._storage is base.snapshots._storage
    assert (len(metadata.snapshots), metadata.snapshots[0]["snapshot-id"], len(metadata.snapshot_log)) == (998, 4, 998)
    assert decode(metadata.encode()).as_json() == metadata.as_json()


def test_a_location_is_immutable() -> None:
    assert append(BASE, 3).location == LOCATION
