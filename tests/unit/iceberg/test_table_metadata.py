"""Reading and writing tables: every version of the format, what is completed, what is kept, what is refused."""

from __future__ import annotations

import copy
import functools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.table_metadata import decode, load
from tests.support.hypothesis_effort import HALF
from tests.support.tables import FILE, LOCATION, NOW_MS, SCHEMA, UUID, add, commit_to, point, snapshot, with_snapshots

OLD_V1: dict[str, Any] = {
    "format-version": 1,
    "location": LOCATION,
    "last-updated-ms": NOW_MS,
    "last-column-id": 3,
    "schema": SCHEMA,
    "partition-spec": [{"name": "data", "transform": "identity", "source-id": 2}],
    "properties": {},
    "current-snapshot-id": 1,
    "snapshots": [{"snapshot-id": 1, "timestamp-ms": NOW_MS, "manifests": ["file:/m.avro"]}],
}


def document(version: int = 2) -> dict[str, Any]:
    """With three snapshots, a tag, and unknown fields at every level."""
    return copy.deepcopy(_document(version))


@functools.cache
def _document(version: int) -> dict[str, Any]:
    metadata = with_snapshots(3, version)
    fields: dict[str, Any] = copy.deepcopy(
        commit_to(metadata, point("old", 1, "tag", **{"max-ref-age-ms": 5})).as_json()
    )
    fields["x-engine"] = {"deep": [1, {"a": None}]}
    for part in (
        fields["schemas"][0],
        fields["schemas"][0]["fields"][0],
        fields["snapshots"][1],
        fields["refs"]["old"],
    ):
        part["x-engine"] = 1.5
    fields["partition-specs"][0]["x-engine"] = [True]
    return fields


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_document_round_trips(version: int) -> None:
    fields = document(version)
    read = load(fields)
    assert read.as_json() == fields
    assert orjson.loads(read.encode()) == fields
    assert decode(read.encode()).as_json() == fields


def test_fields_of_other_engines_survive_a_commit() -> None:
    fields = document()
    after = commit_to(load(fields), add(snapshot(4, 3)), point("main", 4)).as_json()
    for path in (("x-engine",), ("schemas", 0, "fields", 0, "x-engine"), ("snapshots", 1, "x-engine")):
        before, now = fields, after
        for step in path:
            before, now = before[step], now[step]  # type: ignore[index]
        assert now == before
    assert after["refs"]["old"] == fields["refs"]["old"]


def test_a_table_of_the_first_writers_is_completed() -> None:
    read = load(OLD_V1)
    assert read.uuid is None
    assert read.fields["schemas"] == [SCHEMA | {"schema-id": 0}]
    assert read.fields["partition-specs"] == [
        {"spec-id": 0, "fields": [{"name": "data", "transform": "identity", "source-id": 2, "field-id": 1000}]}
    ]
    assert (read.fields["last-partition-id"], read.fields["default-sort-order-id"]) == (1000, 0)
    assert read.references == {"main": {"snapshot-id": 1, "type": "branch"}}
    written = read.as_json()
    assert written["schema"] == SCHEMA | {"schema-id": 0}, "a reader of v1 finds the fields of v1"
    assert written["partition-spec"] == read.fields["partition-specs"][0]["fields"]
    assert load(written).as_json() == written


def test_a_v1_table_shows_old_readers_its_present_schema() -> None:
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 4, "name": "more", "type": "int", "required": False}]}
    after = commit_to(
        load(OLD_V1), {"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert after.as_json()["schema"]["fields"] == wider["fields"]
    upgraded = commit_to(
        after,
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": 2},
    )
    assert {"schema", "partition-spec"} & set(upgraded.as_json()) == set()
    assert upgraded.fields["last-sequence-number"] == 0


def test_no_snapshot_is_written_as_each_version_does() -> None:
    for version, expected in ((1, -1), (2, -1), (3, None)):
        assert with_snapshots(0, version).as_json()["current-snapshot-id"] == expected
        assert with_snapshots(0, version).current_snapshot_id is None
    plain = with_snapshots(0).as_json()
    del plain["current-snapshot-id"]
    assert load(plain).current_snapshot_id is None


def test_a_client_may_request_referenced_snapshots_only() -> None:
    read = load(document())
    small = read.with_referenced_snapshots()
    assert [entry["snapshot-id"] for entry in small.snapshots] == [1, 3]
    assert [entry["snapshot-id"] for entry in small.snapshot_log] == [1, 2, 3]
    assert len(read.snapshots) == 3


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with another value at a path; `...` removes it."""
    fields = document()
    holder: Any = fields
    *parents, last = path.split("/")
    for step in parents:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    if value is ...:
        del holder[last]
    else:
        holder[int(last) if isinstance(holder, list) else last] = value
    return fields


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format-version", ..., "missing field: format-version"),
        ("format-version", 0, "unsupported version 0"),
        ("format-version", 4, "unsupported version 4"),
        ("format-version", "2", "non-integer"),
        ("table-uuid", ..., "missing field: table-uuid"),
        ("location", 7, "location from non-string"),
        ("last-sequence-number", ..., "missing field"),
        ("last-sequence-number", 2, "sequence number 3 greater than last sequence number 2"),
        ("last-updated-ms", 2**63, "non-integer"),
        ("last-column-id", None, "missing field"),
        ("schemas", ..., "missing field: schemas"),
        ("schemas/0/fields/0/type", "what", "type string"),
        ("current-schema-id", 7, "Cannot find one of schemas with current-schema-id=7"),
        ("partition-specs", {}, "non-array"),
        ("default-spec-id", 1, "Cannot find one of partition-specs"),
        ("last-partition-id", ..., "missing field"),
        ("sort-orders/0/fields", [{}], "missing field: transform"),
        ("default-sort-order-id", 9, "Cannot find one of sort-orders"),
        ("properties", {"a": 1}, "properties 'a' from non-string"),
        ("current-snapshot-id", 99, "Cannot find current version"),
        ("current-snapshot-id", 2, "does not match main branch"),
        ("current-snapshot-id", -1, "does not match main branch"),
        ("snapshots/0/snapshot-id", 2, "two snapshots with id 2"),
        ("snapshots/0/manifest-list", "", "empty manifest-list"),
        ("snapshots/0/manifest-list", None, "missing field: manifests"),
        ("snapshots/0/summary", {"operation": 1}, "summary 'operation' from non-string"),
        ("snapshots/1/parent-snapshot-id", 2**63, "parent-snapshot-id from non-integer"),
        ("snapshots", 7, "non-array"),
        ("snapshot-log/0/snapshot-id", "x", "non-integer"),
        ("metadata-log/0/metadata-file", 1, "non-string"),
        ("refs/old/snapshot-id", 99, "Snapshot for reference old does not exist"),
        ("refs/old/type", "twig", "ref type"),
        ("refs/old", [], "ref old from non-object"),
        ("statistics", [{"snapshot-id": 1}], "missing field"),
        ("encryption-keys", [{"key-id": "k"}], "missing field"),
    ],
)
def test_a_document_that_is_not_valid_is_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        load(changed(path, value))


def test_a_v3_table_needs_its_next_row() -> None:
    fields = document(3)
    del fields["next-row-id"]
    with pytest.raises(errors.InvalidInput, match="next-row-id"):
        load(fields)


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", errors.InvalidInput, "Cannot parse JSON"),
        (b"{", errors.InvalidInput, "Cannot parse JSON"),
        (b"[]", errors.InvalidInput, "non-object"),
        (b'{"a": NaN}', errors.InvalidInput, "Cannot parse JSON"),
        (b'{"a": "\xff"}', errors.InvalidInput, "Cannot parse JSON"),
        (b'{"a": "\\ud800"}', errors.InvalidInput, "Cannot parse JSON"),
        (b"[" * 100_000, errors.InvalidInput, "Cannot parse JSON"),
        (b" " * 100, errors.MessageTooLarge, "100 bytes exceeds the limit of 50"),
    ],
)
def test_bytes_that_are_no_json_object_are_refused(data: bytes, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        values.decode(data, 50 if data.startswith(b" ") else 10**6)


def test_documents_that_cannot_be_encoded_are_refused_before_they_are_stored() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(errors.InvalidInput, match="Cannot write as JSON"):
        load({**document(), "x-deep": deep}).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def paths(holder: Any, path: str = "") -> list[str]:
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
    return [path, *(inner_path for key, value in pairs for inner_path in paths(value, f"{path}/{key}"))]


PATHS = [path.removeprefix("/") for path in paths(document()) if path]


@HALF
@given(st.sampled_from(PATHS), JSON)
def test_any_value_anywhere_is_read_or_refused(path: str, value: Any) -> None:
    """Only our own errors are raised, and an accepted document can be encoded or is refused then."""
    fields = changed(path, value)
    outcome = committed_bytes(fields)
    assert outcome is None or decode(outcome).as_json() == orjson.loads(outcome)


def committed_bytes(fields: dict[str, Any]) -> bytes | None:
    """A commit to a document from outside, written; None: refused."""
    try:
        read = load(fields)
        return commit_to(read, add(snapshot(4, read.current_snapshot_id)), point("main", 4)).encode()
    except errors.InvalidInput:
        return None


def test_the_metadata_file_is_named_in_the_next_one() -> None:
    after = commit_to(with_snapshots(0), {"action": "set-properties", "updates": {"a": "b"}})
    assert [entry["metadata-file"] for entry in after.metadata_log] == [FILE]
