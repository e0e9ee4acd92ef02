"""Schemas: what is one, in which format version, whether two are the same, and the ids of a new table."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors, limits
from icestream.iceberg import schema, transforms, types
from tests.support.tables import column
from tests.support.tables import schema as of

LIST = {"type": "list", "element-id": 11, "element": "string", "element-required": True}
MAP = {"type": "map", "key-id": 12, "key": "string", "value-id": 13, "value": "long", "value-required": False}
STRUCT = {"type": "struct", "fields": [column(14, "street", "string", True)]}
NESTED = of(column(1, "tags", LIST), column(2, "labels", MAP), column(3, "address", STRUCT, True), column(4, "n"))


def deep(levels: int) -> Any:
    kind: Any = "int"
    for number in range(levels):
        kind = {"type": "list", "element-id": 100 + number, "element": kind, "element-required": False}
    return kind


def test_fields_of_all_levels_have_full_names() -> None:
    fields = schema.fields_of(NESTED)
    assert {number: field.name for number, field in fields.items()} == {
        1: "tags",
        11: "tags.element",
        2: "labels",
        12: "labels.key",
        13: "labels.value",
        3: "address",
        14: "address.street",
        4: "n",
    }
    assert [number for number, field in fields.items() if not field.in_structs] == [11, 12, 13]
    assert schema.highest_id(fields) == 14
    assert schema.highest_id({}) == 0


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"type": "list", "fields": []}, "not a struct type"),
        ({"type": "struct"}, "missing field: fields"),
        ({"type": "struct", "fields": {}}, "fields from non-array"),
        ({"type": "struct", "fields": ["a"]}, "from non-object"),
        (of({"id": 1, "name": "a", "type": "int"}), "missing field: required"),
        (of(column(1, "a", "int", required=1)), "required from non-boolean"),  # type: ignore[arg-type]
        (of(column(True, "a")), "id from non-integer"),
        (of(column(2**31, "a")), "id from non-integer"),
        (of({"id": 1.0, "name": "a", "type": "int", "required": True}), "id from non-integer"),
        (of(column(1, 7)), "name from non-string"),  # type: ignore[arg-type]
        (of(column(1, "a", doc=7)), "doc from non-string"),
        (of(column(1, "a"), column(1, "b")), "multiple fields for id 1"),
        (of(column(1, "a"), column(2, "a")), "multiple fields for name"),
        (of(column(1, "a.b"), column(2, "a", of(column(3, "b")))), "multiple fields for name"),
        (of(column(1, "a", "integer")), "type string to primitive"),
        (of(column(1, "a", 7)), "Cannot parse type"),
        (of(column(1, "a", {"type": "set"})), "Cannot parse type"),
        (of(column(1, "a", "decimal(39,2)")), "precision larger than 38"),
        (of(column(1, "a", {"type": "list", "element-id": 2, "element": "int"})), "element-required"),
        (of(column(1, "a", {**MAP, "key-id": None})), "missing field: key-id"),
        (of(column(1, "a", deep(limits.CATALOG_TYPE_DEPTH_MAX + 1))), "nested deeper"),
        (of(column(1, "a"), **{"identifier-field-ids": [2]}), "field does not exist"),
        (of(column(1, "a"), **{"identifier-field-ids": [1]}), "it is optional"),
        (of(column(1, "a", "double", True), **{"identifier-field-ids": [1]}), "not such a type"),
        (of(column(1, "a", LIST, True), **{"identifier-field-ids": [1]}), "not such a type"),
        (of(column(1, "a", LIST, True), **{"identifier-field-ids": [11]}), "it is optional"),
        (of(column(1, "a", STRUCT, False), **{"identifier-field-ids": [14]}), "it is optional"),
        (of(column(1, "a"), **{"identifier-field-ids": "1"}), "non-array"),
    ],
)
def test_invalid_schemas_are_refused(broken: Any, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        schema.fields_of(broken)


def test_identifier_fields_may_be_in_required_structs() -> None:
    fields = schema.fields_of({**NESTED, "identifier-field-ids": [14]})
    assert 14 in fields
    assert schema.fields_of(of(column(1, "a", deep(limits.CATALOG_TYPE_DEPTH_MAX - 1))))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("long", "long"),
        ("LONG", "long"),
        ("fixed[16]", "fixed"),
        ("decimal( 9 , 2 )", "decimal"),
        ("timestamp_ns", "timestamp_ns"),
        ("geometry", "geometry"),
        ("geometry(srid:4326)", "geometry"),
        ("geography(srid:4326, vincenty)", "geography"),
        (LIST, "list"),
    ],
)
def test_types_belong_to_families(kind: Any, family: str) -> None:
    assert types.family(kind) == family


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography"])
def test_types_of_v3_are_refused_before(kind: str) -> None:
    fields = schema.fields_of(of(column(1, "data", kind)))
    schema.check_version(fields, 3)
    for version in (1, 2):
        with pytest.raises(errors.InvalidInput, match=f"Invalid type for data: {kind} is not supported until v3"):
            schema.check_version(fields, version)


def test_default_values_are_of_v3() -> None:
    fields = schema.fields_of(of(column(1, "n", **{"initial-default": 7, "write-default": 8})))
    schema.check_version(fields, 3)
    with pytest.raises(errors.InvalidInput, match="Invalid initial default for n"):
        schema.check_version(fields, 2)
    schema.check_version(schema.fields_of(of(column(1, "n", **{"initial-default": None, "write-default": 8}))), 2)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (NESTED | {"schema-id": 9}, True),
        (NESTED | {"identifier-field-ids": []}, True),
        (NESTED | {"identifier-field-ids": [14]}, False),
        (of(*NESTED["fields"][:3]), False),
        (of(*NESTED["fields"][:3], column(4, "m")), False),
        (of(*NESTED["fields"][:3], column(4, "n", "int")), False),
        (of(*NESTED["fields"][:3], column(4, "n", "LONG")), True),
        (of(*NESTED["fields"][:3], column(4, "n", required=True)), False),
        (of(*NESTED["fields"][:3], column(4, "n", doc="more")), False),
        (of(*NESTED["fields"][:3], column(4, "n", doc=None)), True),
        (of(*NESTED["fields"][:3], column(4, "n", **{"write-default": 1})), False),
        (of(column(1, "tags", {**LIST, "element-required": False}), *NESTED["fields"][1:]), False),
    ],
)
def test_two_schemas_are_the_same_when_their_fields_are(other: Any, expected: bool) -> None:
    assert schema.same(NESTED, other) is expected
    assert schema.same(other, NESTED) is expected


def test_a_new_table_numbers_its_fields_struct_by_struct() -> None:
    request_schema = of(
        column(70, "a", STRUCT, True, doc="where", **{"x-engine": 1}), column(71, "b", MAP), column(72, "c", LIST)
    )
    numbered, fresh = schema.with_fresh_ids(
        {**request_schema, "identifier-field-ids": [14], "schema-id": 5, "x": "y"}, 0
    )
    assert fresh == {70: 1, 71: 2, 72: 3, 14: 4, 12: 5, 13: 6, 11: 7}
    assert {number: field.name for number, field in schema.fields_of(numbered).items()} == {
        1: "a",
        4: "a.street",
        2: "b",
        5: "b.key",
        6: "b.value",
        3: "c",
        7: "c.element",
    }
    assert (numbered["schema-id"], numbered["identifier-field-ids"], numbered["x"]) == (0, [4], "y")
    assert numbered["fields"][0]["x-engine"] == 1
    assert request_schema["fields"][0]["id"] == 70, "what was given is not changed"


@pytest.mark.parametrize(
    ("applied", "kind", "fits"),
    [
        ("identity", "string", True),
        ("identity", "variant", False),
        ("identity", "geometry", False),
        ("bucket[16]", "uuid", True),
        ("bucket[16]", "boolean", False),
        ("bucket[16]", "double", False),
        ("bucket[0]", "int", False),
        ("truncate[4]", "decimal(9,2)", True),
        ("truncate[4]", "date", False),
        ("YEAR", "date", True),
        ("month", "timestamptz_ns", True),
        ("day", "time", False),
        ("hour", "timestamp", True),
        ("hour", "date", False),
        ("void", "double", True),
        ("zorder", "double", True),  # of a later version
        ("identity", LIST, False),
    ],
)
def test_transforms_accept_the_types_they_can_read(applied: str, kind: Any, fits: bool) -> None:
    if fits:
        transforms.check(applied, kind)
    else:
        with pytest.raises(errors.InvalidInput):
            transforms.check(applied, kind)
    assert transforms.canonical(applied) == applied.lower()
