"""JSON Schema compatibility: whether every document that one schema accepts is accepted by another, at every level.

Schemas are compared keyword by keyword; where acceptance cannot be decided (`not`, `if`, different patterns) the
keywords must be equal. Two rules are Danube's, and its users rely on them:
    an optional property may be added or removed, although an open schema may have accepted other values of its name
    a required property must be known to both sides: it cannot be added or removed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from icestream import errors, limits

Schema = dict[str, Any] | bool

TYPES: Final = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SAME: Final = (
    "pattern", "uniqueItems", "not", "if", "then", "else", "contains", "propertyNames", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip


def parse(definition: bytes) -> Schema:
    """Parses a schema. Raises InvalidInput if the bytes are not one."""
    try:
        document = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidInput(f"a JSON Schema is JSON: {error}", hint="send the schema as it is") from None
    if not isinstance(document, dict | bool):
        raise errors.InvalidInput("a JSON Schema is an object", hint="send the schema as it is")
    return document


class Side(NamedTuple):
    """A subschema, and the document that its references point into."""

    part: Schema
    root: Schema

    def at(self, part: Schema) -> Side:
        return Side(part, self.root)


class Trail:
    """The pairs of subschemas under comparison (references may be cyclic) and the steps left (branches multiply)."""

    __slots__ = ("_steps_left", "pairs")

    def __init__(self, pairs: frozenset[tuple[int, int]] = frozenset(), steps_left: list[int] | None = None) -> None:
        self.pairs = pairs
        self._steps_left = steps_left if steps_left is not None else [limits.SCHEMA_STEPS_MAX]

    def step(self, pair: tuple[int, int]) -> Trail:
        self._steps_left[0] -= 1
        if self._steps_left[0] < 0 or len(self.pairs) > limits.SCHEMA_DEPTH_MAX:
            raise too_complex()
        return Trail(self.pairs | {pair}, self._steps_left)


def too_complex() -> errors.InvalidInput:
    return errors.InvalidInput(
        "the schema is nested too deep, or has too many branches, to be compared", hint="use the mode none, or simplify"
    )


def unreadable(reader: Schema, writer: Schema) -> list[str]:
    """Returns the reasons why a document accepted by `writer` may be rejected by `reader`; empty if none is."""
    return list(_compare(Side(reader, reader), Side(writer, writer), "", Trail()))


def _resolve(side: Side) -> Side:
    hops = 0
    while isinstance(side.part, dict) and isinstance(reference := side.part.get("$ref"), str):
        hops += 1
        if hops > 100 or not reference.startswith("#"):
            raise errors.InvalidInput(f"JSON Schema: {reference[:100]} is not a reference into the schema itself")
        target: Any = side.root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict | bool):
            raise errors.InvalidInput(f"JSON Schema: reference {reference[:100]} has no target", hint="define it first")
        side = side.at(target)
    return side


def _compare(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    reader, writer = _resolve(reader), _resolve(writer)
    mine, theirs = reader.part, writer.part
    key = (id(mine), id(theirs))
    if key in trail.pairs or mine is True or theirs is False or mine == {}:
        return
    if mine == theirs and reader.root == writer.root:
        return
    trail = trail.step(key)
    if mine is False:
        yield f"{path or '$'}: nothing is allowed here"
        return
    assert isinstance(mine, dict)
    theirs = {} if theirs is True else theirs
    assert isinstance(theirs, dict)
    writer = writer.at(theirs)
    branches = [*theirs.get("anyOf", ()), *theirs.get("oneOf", ())]
    if branches and "type" not in theirs:
        for branch in branches:
            yield from _compare(reader, writer.at(branch), path, trail)
        return
    if any(not list(_compare(reader, writer.at(part), path, trail)) for part in theirs.get("allOf", ())):
        return
    yield from _combined(reader, writer, path, trail)
    plain = {name: value for name, value in mine.items() if name not in ("allOf", "anyOf", "oneOf")}
    yield from _plain(reader.at(plain), writer, path, trail)


def _combined(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    assert isinstance(reader.part, dict)
    for part in reader.part.get("allOf", ()):
        yield from _compare(reader.at(part), writer, path, trail)
    for word in ("anyOf", "oneOf"):
        parts = reader.part.get(word)
        if parts and not any(not list(_compare(reader.at(part), writer, path, trail)) for part in parts):
            yield f"{path or '$'}: no schema of {word} accepts what was written"


def _plain(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    types, written = _types(mine), _types(theirs)
    if extra := {
        type_name
        for type_name in written
        if type_name not in types and not (type_name == "integer" and "number" in types)
    }:
        yield f"{path or '$'}: {', '.join(sorted(extra))} is not {' or '.join(sorted(types))}"
        return
    yield from _values(mine, theirs, path)
    yield from _bounds(mine, theirs, path)
    if "object" in written:
        yield from _objects(reader, writer, path, trail)
    if "array" in written:
        yield from _arrays(reader, writer, path, trail)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(declared)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(map(_type_of, values)) if values is not None else TYPES


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _values(mine: dict[str, Any], theirs: dict[str, Any], path: str) -> Iterator[str]:
    allowed = mine.get("enum", [mine["const"]] if "const" in mine else None)
    if allowed is None:
        return
    written = theirs.get("enum", [theirs["const"]] if "const" in theirs else None)
    if written is None:
        yield f"{path or '$'}: only some values are allowed now"
    elif extra := [value for value in written if value not in allowed]:
        yield f"{path or '$'}: {extra[0]!r} is not allowed"


def _bounds(mine: dict[str, Any], theirs: dict[str, Any], path: str) -> Iterator[str]:
    for name in _LEAST:
        is_nothing = name not in ("minimum", "exclusiveMinimum") and mine.get(name) == 0
        if name in mine and not is_nothing and not (name in theirs and theirs[name] >= mine[name]):
            yield f"{path or '$'}: {name} {mine[name]} is stricter than before"
    for name in _MOST:
        if name in mine and not (name in theirs and theirs[name] <= mine[name]):
            yield f"{path or '$'}: {name} {mine[name]} is stricter than before"
    if "multipleOf" in mine and (theirs.get("multipleOf", 0) % mine["multipleOf"] or "multipleOf" not in theirs):
        yield f"{path or '$'}: multipleOf {mine['multipleOf']} is stricter than before"
    for name in _SAME:
        if name in mine and mine[name] != theirs.get(name):
            yield f"{path or '$'}: {name} differs"


def _objects(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    read_properties, written_properties = mine.get("properties", {}), theirs.get("properties", {})
    required, always_written = set(mine.get("required", ())), set(theirs.get("required", ()))
    rest, open_rest = mine.get("additionalProperties", True), theirs.get("additionalProperties", True)
    for name in sorted(required - always_written):
        yield f"{_below(path, name)}: is required, and was optional"
    for name in read_properties.keys() & written_properties.keys():
        yield from _compare(
            reader.at(read_properties[name]), writer.at(written_properties[name]), _below(path, name), trail
        )
    for name in sorted(read_properties.keys() - written_properties.keys()):
        if isinstance(open_rest, dict) and open_rest:
            yield from _compare(reader.at(read_properties[name]), writer.at(open_rest), _below(path, name), trail)
    for name in sorted(written_properties.keys() - read_properties.keys()):
        if rest is False:
            yield f"{_below(path, name)}: is not allowed"
        elif isinstance(rest, dict) and rest:
            yield from _compare(reader.at(rest), writer.at(written_properties[name]), _below(path, name), trail)
        elif name in always_written and "properties" in mine:
            yield f"{_below(path, name)}: is always written, and not declared"
    if rest is False and open_rest is not False:
        yield f"{path or '$'}: other properties are not allowed, and were"
    elif isinstance(rest, dict) and rest and open_rest is not False:
        yield from _compare(reader.at(rest), writer.at(open_rest), _below(path, "*"), trail)
    if mine.get("patternProperties", {}) != theirs.get("patternProperties", {}) and "patternProperties" in mine:
        yield f"{path or '$'}: patternProperties differs"


def _arrays(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    first, written = mine.get("prefixItems", []), theirs.get("prefixItems", [])
    items, written_items = mine.get("items", True), theirs.get("items", True)
    if isinstance(items, list) or isinstance(written_items, list):  # older drafts
        if items != written_items:
            yield f"{path}[]: items differs"
        return
    for number in range(max(len(first), len(written))):
        read_item = first[number] if number < len(first) else items
        written_item = written[number] if number < len(written) else written_items
        yield from _compare(reader.at(read_item), writer.at(written_item), f"{path}[{number}]", trail)
    yield from _compare(reader.at(items), writer.at(written_items), f"{path}[]", trail)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
