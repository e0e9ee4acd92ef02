"""Avro: which schema reads what another one wrote; checked against fastavro, which does it."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors
from icestream.schema.avro_schema import parse, unreadable
from icestream.schema.definition import define, incompatible
from icestream.schema.kinds import Compatibility, SchemaType


def record(*fields: Any, name: str = "User") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def reads(reader: Any, writer: Any) -> bool:
    return not unreadable(parse(orjson.dumps(reader)), parse(orjson.dumps(writer)))


NAME = record(field("name"))


@pytest.mark.parametrize(
    ("reader", "writer", "is_fine"),
    [
        (record(field("name"), field("age", "int", default=0)), NAME, True),
        (record(field("name"), field("age", "int")), NAME, False),
        (NAME, record(field("name"), field("age", "int")), True),
        (record(field("full", aliases=["name"])), NAME, True),
        ("long", "int", True),
        ("int", "long", False),
        ("double", "float", True),
        ("string", "bytes", True),
        (["null", "string"], "string", True),
        ("string", ["null", "string"], False),
        (["null", "long"], ["null", "int"], True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "enum", "name": "E", "symbols": ["a", "b"]}, False),
        (
            {"type": "enum", "name": "E", "symbols": ["a"], "default": "a"},
            {"type": "enum", "name": "E", "symbols": ["a", "b"]},
            True,
        ),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
        (record(field("inner", record(field("x", "long"), name="I"))),
         record(field("inner", record(field("x", "string"), name="I"))), False),
        (record(field("next", ["null", "User"])), record(field("next", ["null", "User"]), field("n", "int")), True),
        (NAME, record(field("name"), name="Other"), False),
    ],
)  # fmt: skip
def test_the_rules_of_the_specification(reader: Any, writer: Any, is_fine: bool) -> None:
    assert reads(reader, writer) == is_fine


def test_modes() -> None:
    last, new = (
        define(SchemaType.AVRO, orjson.dumps(schema)) for schema in (NAME, record(field("name"), field("age", "int")))
    )
    assert incompatible(last, new, Compatibility.BACKWARD)
    assert not incompatible(last, new, Compatibility.FORWARD)
    assert incompatible(last, new, Compatibility.FULL)
    assert not incompatible(last, new, Compatibility.NONE)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'"strin"', b'{"type":"record"}', b'{"type":"record","name":"A","fields":3}', b"[1]"]
)
def test_invalid_schemas_are_refused(raw: bytes) -> None:
    with pytest.raises(errors.InvalidInput):
        define(SchemaType.AVRO, raw)


def test_payloads() -> None:
    schema = define(SchemaType.AVRO, orjson.dumps(NAME))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(NAME), {"name": "x"})
    schema.check(out.getvalue())
    for bad in (b"", b"\x08abc", out.getvalue() + b"x", b"\xff" * 20):
        with pytest.raises(errors.InvalidInput):
            schema.check(bad)


KINDS = st.sampled_from(
    ["int", "long", "float", "double", "string", "bytes", "boolean", ["null", "int"], ["null", "string"]]
)
VALUE = {"int": 1, "long": 2**40, "float": 1.5, "double": 1.5, "string": "x", "bytes": b"x", "boolean": True}
RECORDS = st.dictionaries(st.sampled_from("abc"), st.tuples(KINDS, st.booleans()), max_size=3)


@settings(max_examples=150)
@given(RECORDS, RECORDS)
def test_schemas_called_readable_are_readable(reader: Any, writer: Any) -> None:
    schemas = [
        record(
            *(field(name, kind, **({"default": _default(kind)} if has else {})) for name, (kind, has) in schema.items())
        )
        for schema in (reader, writer)
    ]
    if not reads(*schemas):
        return
    out = io.BytesIO()
    written = fastavro.parse_schema(schemas[1])
    fastavro.schemaless_writer(out, written, {name: _value(kind) for name, (kind, _) in writer.items()})
    out.seek(0)
    value = fastavro.schemaless_reader(out, written, fastavro.parse_schema(schemas[0]))
    assert set(value) == set(reader)


def _value(kind: Any) -> Any:
    return None if isinstance(kind, list) else VALUE[kind]


def _default(kind: Any) -> Any:
    return None if isinstance(kind, list) else "x" if kind == "bytes" else VALUE[kind]
