"""JSON Schema: which schema lets pass all that another one lets pass; checked against a validator."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors
from icestream.schema.definition import define, incompatible
from icestream.schema.json_schema import unreadable
from icestream.schema.kinds import Compatibility, SchemaType

BACKWARD, FORWARD, FULL, NONE = (
    Compatibility.BACKWARD, Compatibility.FORWARD, Compatibility.FULL, Compatibility.NONE,
)  # fmt: skip
STRING, INTEGER, CLOSED = {"type": "string"}, {"type": "integer"}, {"additionalProperties": False}


def record(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def problems(last: Any, new: Any, mode: Compatibility) -> list[str]:
    both = [define(SchemaType.JSON_SCHEMA, orjson.dumps(schema)) for schema in (last, new)]
    return incompatible(both[0], both[1], mode)


NAME = record("name", name=STRING)
NAME_AND_AGE = record("name age", name=STRING, age=INTEGER)
NAME_MAYBE_AGE = record("name", name=STRING, age=INTEGER)


@pytest.mark.parametrize(
    ("last", "new", "mode", "is_fine"),
    [
        (NAME, NAME_MAYBE_AGE, BACKWARD, True),
        (NAME_AND_AGE, NAME, BACKWARD, False),
        (NAME, NAME_AND_AGE, BACKWARD, False),
        (NAME_MAYBE_AGE, NAME, FORWARD, True),
        (NAME, NAME_AND_AGE, FORWARD, False),
        (NAME_AND_AGE, NAME, FORWARD, False),
        (NAME, NAME_MAYBE_AGE, FULL, True),
        (NAME_AND_AGE, NAME, FULL, False),
        (NAME_AND_AGE, NAME_MAYBE_AGE, BACKWARD, True),
        (NAME_AND_AGE, NAME_MAYBE_AGE, FORWARD, False),
        (NAME, record("age", age=INTEGER), NONE, True),
    ],
)
def test_properties_can_be_added_and_removed(last: Any, new: Any, mode: Compatibility, is_fine: bool) -> None:
    assert (not problems(last, new, mode)) == is_fine


@pytest.mark.parametrize(
    ("last", "new"),
    [
        (record(a=STRING), record(a=INTEGER)),
        (record(a=record(b=STRING)), record(a=record(b=INTEGER))),
        ({"items": record("x", x=INTEGER)}, {"items": record("x y", x=INTEGER, y=STRING)}),
        ({"type": "number"}, {"type": "integer"}),
        ({"type": "string"}, {"enum": ["a"]}),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}),
        ({"type": "integer"}, {"type": "integer", "minimum": 0}),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 8}),
        (record(a=STRING), record(a=STRING) | {"additionalProperties": False}),
        (record(a=STRING, b=STRING) | CLOSED, record(a=STRING) | CLOSED),
        ({"anyOf": [STRING, INTEGER]}, STRING),
        ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, {"$ref": "#/$defs/a", "$defs": {"a": INTEGER}}),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}),
        ({}, False),
        ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 4}),
    ],
)  # fmt: skip
def test_incompatible_changes_are_detected_at_any_depth(last: Any, new: Any) -> None:
    assert problems(last, new, BACKWARD)
    assert problems(new, last, FORWARD)
    assert problems(last, new, FULL)


@pytest.mark.parametrize(
    ("last", "new"),
    [
        ({"type": "integer"}, {"type": "number"}),
        (STRING, {"type": ["string", "null"]}),
        (STRING, {"anyOf": [STRING, INTEGER]}),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}),
        ({"const": "a"}, STRING),
        ({"type": "integer", "minimum": 5}, {"type": "integer", "minimum": 0}),
        (record(a=record("b", b=INTEGER)), record(a=record("b", b={"type": "number"}))),
        ({"allOf": [STRING, {"maxLength": 5}]}, {"allOf": [STRING, {"maxLength": 6}]}),
        ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}),
        ({"$ref": "#/$defs/t", "$defs": {"t": record(next={"$ref": "#/$defs/t"})}},) * 2,
    ],
)
def test_compatible_changes_are_accepted(last: Any, new: Any) -> None:
    assert problems(last, new, BACKWARD) == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b'{"type": "strin"}', b'{"minimum": "x"}', b"\xff"])
def test_invalid_schemas_are_refused(raw: bytes) -> None:
    with pytest.raises(errors.InvalidInput):
        define(SchemaType.JSON_SCHEMA, raw)


LEAVES = st.sampled_from(
    [STRING, INTEGER, {"type": "number"}, {"type": "boolean"}, {"enum": ["a", 1]}, {"enum": ["a"]}, {"minimum": 3},
     {"type": "integer", "maximum": 4}, {"type": ["string", "null"]}, {"type": "string", "maxLength": 1}]
)  # fmt: skip


def bigger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda properties, required, rest: {
            "type": "object", "properties": properties, "required": [name for name in required if name in properties],
            "additionalProperties": rest,
        },
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        st.sets(st.sampled_from("ab")),
        st.just(False),
    )  # fmt: skip
    arrays = st.builds(lambda items: {"type": "array", "items": items}, inner)
    return objects | arrays | st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2))


SCHEMAS = st.recursive(LEAVES, bigger, max_leaves=4)
VALUES = st.recursive(
    st.sampled_from([None, True, "a", "", "abc", 1, 3, 5, 2.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150)
@given(SCHEMAS, SCHEMAS, st.lists(VALUES, min_size=5, max_size=20))
def test_schemas_called_readable_are_readable(reader: Any, writer: Any, values: list[Any]) -> None:
    """Schemas are closed here: that an open one may get a property is a rule of Danube's, not of logic."""
    if not unreadable(reader, writer):
        writes, reads = jsonschema_rs.validator_for(writer), jsonschema_rs.validator_for(reader)
        wrong = [value for value in values if writes.is_valid(value) and not reads.is_valid(value)]
        assert not wrong


def test_branches_within_branches_and_depth_without_end_are_refused() -> None:
    """Such schemas would keep the event loop of the broker busy for hours."""
    wide: Any = STRING
    for _ in range(5):
        wide = {"anyOf": [{"type": "array", "items": wide, "minItems": number} for number in range(4)]}
    with pytest.raises(errors.InvalidInput, match="too many branches"):
        problems(wide, orjson.loads(orjson.dumps(wide).replace(b"string", b"integer")), BACKWARD)
    deep: list[Any] = [STRING, INTEGER]
    for _ in range(150):
        deep = [{"items": schema} for schema in deep]
    with pytest.raises(errors.InvalidInput, match="too deep"):
        problems(deep[0], deep[1], BACKWARD)
