"""Every committed document can be read again: no update stores metadata that the next start refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.iceberg.table_metadata import TableMetadata, decode, load
from icestream.iceberg.values import INT_MAX, LONG_MAX
from tests.support.tables import SCHEMA, add, append, column, commit_to, point, schema, snapshot, table, with_snapshots

NUMBERS = st.sampled_from([-1, 1, 2, 3, LONG_MAX])
SMALL = st.sampled_from([-1, 0, 1, 2, 1000, INT_MAX])
NAMES = st.sampled_from(["main", "side", "id"])


def upgrade(version: int) -> dict[str, Any]:
    return {"action": "upgrade-format-version", "format-version": version}


def check_read_again(metadata: TableMetadata) -> TableMetadata:
    read_back = decode(metadata.encode())
    assert read_back.as_json() == metadata.as_json()
    return read_back


# --- numbers of snapshots ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_id_for_no_snapshot_is_refused_for_snapshots(version: int) -> None:
    new_snapshot = snapshot(1, **{"snapshot-id": -1, "first-row-id": 0, "added-rows": 1})
    with pytest.raises(errors.InvalidInput, match="Invalid snapshot: id -1 stands for no snapshot"):
        commit_to(table(version), add(new_snapshot), point("main", -1))


def test_a_v1_table_refuses_snapshots_with_sequence_numbers() -> None:
    """Java's library refuses to read such a table, in v1 and after an upgrade."""
    with pytest.raises(errors.InvalidInput, match=r"Sequence number must be 0 in v1\. Found: 5"):
        commit_to(table(1), add(snapshot(5)), point("main", 5))


def test_a_v1_table_of_another_writer_that_counted_can_be_upgraded() -> None:
    counted = append(table(1), 5, **{"sequence-number": 0}).as_json()
    counted["snapshots"] = [{**entry, "sequence-number": 7} for entry in counted["snapshots"]]
    upgraded = check_read_again(commit_to(load(counted), upgrade(2)))
    assert upgraded.fields["last-sequence-number"] == 7
    assert check_read_again(append(upgraded, 8)).fields["last-sequence-number"] == 8


def test_a_sequence_number_below_0_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="sequence number -5"):
        commit_to(table(), add(snapshot(1, **{"sequence-number": -5})))


@pytest.mark.parametrize("parent", [None, 2])
def test_no_snapshot_exhausts_the_sequence_numbers(parent: int | None) -> None:
    base, most = with_snapshots(2), 2 + limits.CATALOG_SEQUENCE_LEAP_MAX
    for number in (LONG_MAX, most + 1):
        far = snapshot(9, parent, **{"sequence-number": number})
        with pytest.raises(errors.InvalidInput, match=f"sequence number {number} far beyond last sequence number 2"):
            commit_to(base, add(far), point("side", 9))
    last = check_read_again(commit_to(base, add(snapshot(9, parent, **{"sequence-number": most})), point("side", 9)))
    assert last.fields["last-sequence-number"] == most


@pytest.mark.parametrize(("first", "rows"), [(2, LONG_MAX - 1), (LONG_MAX, LONG_MAX), (LONG_MAX, 0)])
def test_no_snapshot_exhausts_the_row_ids(first: int, rows: int) -> None:
    far = snapshot(7, 2, **{"first-row-id": first, "added-rows": rows})
    with pytest.raises(errors.InvalidInput, match="far beyond table next-row-id: 2"):
        commit_to(with_snapshots(2, 3), add(far), point("main", 7))


# --- anything ---------------------------------------------------------------------------------------------------------


@st.composite
def snapshots(draw: st.DrawFn) -> dict[str, Any]:
    new_snapshot = snapshot(draw(st.integers(1, 3)), draw(st.none() | st.integers(1, 3)))
    for name in ("snapshot-id", "sequence-number", "timestamp-ms", "schema-id", "first-row-id", "added-rows"):
        if draw(st.integers(0, 2)) == 0:
            new_snapshot[name] = draw(NUMBERS)
    return add(new_snapshot)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    more = [column(draw(SMALL), draw(NAMES)) for _ in range(draw(st.integers(0, 2)))]
    return {"action": "add-schema", "schema": schema(*SCHEMA["fields"][: draw(st.integers(0, 3))], *more)}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    fields = [
        {"source-id": draw(SMALL), "name": draw(NAMES), "transform": draw(st.sampled_from(["void", "identity", "x"]))}
        | ({"field-id": draw(SMALL)} if draw(st.booleans()) else {})
        for _ in range(draw(st.integers(0, 2)))
    ]
    return {"action": "add-spec", "spec": {"fields": fields}}


UPDATES = (
    snapshots()
    | schemas()
    | specs()
    | st.builds(upgrade, st.integers(1, 3))
    | st.builds(point, NAMES, NUMBERS, st.sampled_from(["branch", "tag"]))
    | st.builds(lambda number: {"action": "set-current-schema", "schema-id": number}, SMALL)
    | st.builds(lambda number: {"action": "set-default-spec", "spec-id": number}, SMALL)
    | st.builds(lambda number: {"action": "remove-schemas", "schema-ids": [number]}, SMALL)
    | st.builds(lambda number: {"action": "remove-partition-specs", "spec-ids": [number]}, SMALL)
    | st.builds(lambda number: {"action": "remove-snapshots", "snapshot-ids": [number]}, NUMBERS)
    | st.builds(lambda name: {"action": "remove-snapshot-ref", "ref-name": name}, NAMES)
)


@given(st.integers(1, 3), st.lists(st.lists(UPDATES, min_size=1, max_size=3), min_size=1, max_size=8))
def test_every_committed_document_can_be_read(version: int, commits: list[list[dict[str, Any]]]) -> None:
    metadata = table(version)
    for updates in commits:
        try:
            changed = commit_to(metadata, *updates, now_ms=2**41)
        except errors.InvalidInput:
            continue
        metadata = check_read_again(changed)
