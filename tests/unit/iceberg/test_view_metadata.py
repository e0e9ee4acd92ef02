"""Views: documents, every update and requirement, history and dialects."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.iceberg import view_updates
from icestream.iceberg.view_metadata import ViewMetadata, decode, load
from icestream.iceberg.view_updates import commit, new_view_metadata
from tests.support.hypothesis_effort import QUARTER
from tests.support.tables import NOW_MS, SCHEMA, UUID, column, schema

LOCATION = "file:/warehouse/ns/view"


def version(number: int, sql: str = "select 1", dialect: str = "spark", **more: Any) -> dict[str, Any]:
    return {
        "version-id": number,
        "timestamp-ms": NOW_MS + number,
        "schema-id": 0,
        "summary": {"engine-name": "test"},
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect}],
        "default-namespace": ["ns"],
    } | more


def view(**more: Any) -> ViewMetadata:
    request = {"schema": SCHEMA, "view-version": version(1, **{"schema-id": 7}), "properties": {"a": "b"}} | more
    return new_view_metadata(request, LOCATION, UUID, NOW_MS)


BASE = view()
BASE_JSON = copy.deepcopy(BASE.as_json())


@pytest.fixture(autouse=True)
def _the_base_is_never_touched() -> Any:
    yield
    assert BASE.as_json() == BASE_JSON


def do(action: str, **values: Any) -> dict[str, Any]:
    return {"action": action, **{name.replace("_", "-"): value for name, value in values.items()}}


def change(*updates: dict[str, Any], base: ViewMetadata = BASE) -> ViewMetadata:
    view = commit(base, [], updates, NOW_MS + 10_000)
    assert decode(view.encode()).as_json() == view.as_json()
    return view


USE_LAST = do("set-current-view-version", view_version_id=-1)


def replace(base: ViewMetadata, number: int, **more: Any) -> ViewMetadata:
    return change(do("add-view-version", view_version=version(number, f"select {number}", **more)), USE_LAST, base=base)


def test_a_new_view_has_one_version_with_the_schema_beside_it() -> None:
    fields = BASE.fields
    assert (BASE.uuid, BASE.location, fields["current-version-id"]) == (UUID, LOCATION, 1)
    assert [entry["schema-id"] for entry in fields["schemas"]] == [0]
    assert BASE.current_version["schema-id"] == 0
    assert fields["version-log"] == [{"version-id": 1, "timestamp-ms": NOW_MS + 1}]
    assert fields["properties"] == {"a": "b"}


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([do("assign-uuid", uuid=UUID.upper())], {}),
        ([do("upgrade-format-version", format_version=1)], {}),
        ([do("set-location", location="file:/x/")], {"location": "file:/x"}),
        ([do("set-properties", updates={"a": "c", "d": "e"})], {"properties": {"a": "c", "d": "e"}}),
        ([do("remove-properties", removals=["a", "none"])], {"properties": {}}),
        ([do("remove-properties", removals=["none"])], {}),
        ([do("add-schema", schema=SCHEMA)], {}),
        ([do("add-view-version", view_version=version(9)), USE_LAST], {}),
        ([do("add-view-version", view_version=version(9, "select 2")), USE_LAST], {"current-version-id": 9}),
        ([do("add-view-version", view_version=version(1, "select 2")), USE_LAST], {"current-version-id": 2}),
        (
            [
                do("add-schema", schema=schema(column(1, "n"))),
                do("add-view-version", view_version=version(2, "select n", **{"schema-id": -1})),
                USE_LAST,
            ],
            {"current-version-id": 2},
        ),
    ],
)
def test_an_update_changes_only_what_it_names(updates: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    view = change(*updates)
    for name, value in expected.items():
        assert view.fields[name] == value
    assert (view is BASE) == (not expected)


@pytest.mark.parametrize(
    ("updates", "says"),
    [
        ([do("add-snapshot")], "Unknown update of a view"),
        ([do("assign-uuid", uuid="other")], "Cannot reassign uuid"),
        ([do("upgrade-format-version", format_version=2)], "Unsupported format version: 2"),
        ([do("upgrade-format-version", format_version=0)], "Cannot downgrade v1 view to v0"),
        ([do("set-location", location="/")], "Invalid location"),
        ([do("set-properties", updates={"a": 1})], "non-string"),
        ([do("add-schema", schema={})], "missing field: fields"),
        ([do("add-view-version", view_version={})], "missing field"),
        ([do("add-view-version", view_version=version(2**31 - 1, "select 2"))], "the next free number is 2"),
        ([do("add-view-version", view_version=version(2, **{"schema-id": -1}))], "no schema has been added"),
        ([do("add-view-version", view_version=version(2, **{"schema-id": 5}))], "unknown schema: 5"),
        ([do("add-view-version", view_version=version(2, representations=[{"type": "sql"}]))], "missing field: sql"),
        (
            [
                do(
                    "add-view-version",
                    view_version=version(
                        2,
                        representations=[
                            {"type": "sql", "sql": "a", "dialect": "trino"},
                            {"type": "sql", "sql": "b", "dialect": "TRINO"},
                        ],
                    ),
                )
            ],
            "^Invalid view version: Cannot add multiple queries for dialect trino$",
        ),
        ([USE_LAST], "no current version id has been set"),
        ([do("set-current-view-version", view_version_id=7)], "unknown version: 7"),
        (
            [do("add-view-version", view_version=version(2, dialect="trino")), USE_LAST],
            "Cannot replace view due to loss of view dialects",
        ),
        ([do("set-properties", updates={"version.history.num-entries": "0"})], "must be positive but was 0"),
    ],
)
def test_an_invalid_update_is_refused(updates: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says) as refused:
        change(*updates)
    assert not isinstance(refused.value, errors.CommitConflict)


def test_a_dialect_may_be_dropped_if_the_view_allows_it() -> None:
    allowed = view(properties={"replace.drop-dialect.allowed": "true"})
    assert replace(allowed, 2, dialect="trino").fields["current-version-id"] == 2


def test_a_requirement_compares_the_uuid() -> None:
    assert commit(BASE, [{"type": "assert-view-uuid", "uuid": UUID.upper()}], [], NOW_MS) is BASE
    with pytest.raises(errors.CommitConflict, match="view UUID does not match: expected"):
        commit(BASE, [{"type": "assert-view-uuid", "uuid": "x"}], [], NOW_MS)
    with pytest.raises(errors.InvalidInput, match="Unknown requirement of a view"):
        commit(BASE, [{"type": "assert-table-uuid", "uuid": UUID}], [], NOW_MS)


def test_the_oldest_versions_expire_and_history_starts_after_them() -> None:
    view = change(do("set-properties", updates={"version.history.num-entries": "3"}))
    for number in range(2, 6):
        view = replace(view, number)
    assert [entry["version-id"] for entry in view.fields["versions"]] == [3, 4, 5]
    assert [entry["version-id"] for entry in view.fields["version-log"]] == [3, 4, 5]
    back = change(do("set-current-view-version", view_version_id=3), base=view)
    again = replace(back, 6)
    assert [entry["version-id"] for entry in again.fields["versions"]] == [4, 5, 6]
    assert [entry["version-id"] for entry in again.fields["version-log"]] == [6]


def test_a_restored_version_counts_from_now() -> None:
    view = replace(BASE, 2)
    back = change(do("set-current-view-version", view_version_id=1), base=view)
    assert back.fields["version-log"][-1] == {"version-id": 1, "timestamp-ms": NOW_MS + 10_000}
    assert view.fields["version-log"][-1] == {"version-id": 2, "timestamp-ms": NOW_MS + 2}


def test_unknown_fields_survive() -> None:
    fields = copy.deepcopy(BASE.as_json())
    fields["x"] = fields["versions"][0]["x"] = fields["schemas"][0]["x"] = {"y": 1}
    replaced = replace(load(fields), 2).as_json()
    assert replaced["x"] == replaced["versions"][0]["x"] == replaced["schemas"][0]["x"] == {"y": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format-version", 2),
        ("view-uuid", None),
        ("location", 1),
        ("schemas", []),
        ("versions", []),
        ("current-version-id", 9),
        ("version-log", [{}]),
        ("properties", []),
    ],
)
def test_a_document_that_is_not_valid_is_refused(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        load(BASE.as_json() | {name: value})


def test_a_view_without_a_version_is_invalid() -> None:
    for broken in ({"view-version": None}, {"schema": None}):
        with pytest.raises(errors.InvalidInput):
            view(**broken)


FIELDS = ("uuid", "schema", "view-version", "view-version-id", "updates", "removals", "location", "representations")
JSON = st.recursive(
    st.none() | st.integers(-1, 3) | st.sampled_from(["", "sql"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)
UPDATES = st.fixed_dictionaries(
    {"action": st.sampled_from(sorted(view_updates.UPDATES))}, optional=dict.fromkeys(FIELDS, JSON)
)


@QUARTER
@given(st.lists(UPDATES, max_size=3))
def test_any_update_is_accepted_or_refused(updates: list[dict[str, Any]]) -> None:
    try:
        view = change(*updates)
    except errors.InvalidInput:
        view = BASE
    assert load(view.as_json()).as_json() == view.as_json()
