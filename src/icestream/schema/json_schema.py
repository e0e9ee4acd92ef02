"""JSON Schema: whether all that one schema lets pass, another one lets pass too. Through every level of it.

What a schema says is compared keyword by keyword; where that cannot be decided (`not`, `if`, a pattern that is another
one) the two must be equal. Two rules are Danube's, and its users rely on them:
    an optional property may come and go, although a schema that is open may have let other values of its name pass
    a property that is always there must be known: a required one does not come or go unnoticed
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
    """Raises InvalidInput for what is no schema."""
    try:
        found = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidInput(f"a JSON Schema is JSON: {error}", hint="send the schema as it is") from None
    if not isinstance(found, dict | bool):
        raise errors.InvalidInput("a JSON Schema is an object", hint="send the schema as it is")
    return found


class Side(NamedTuple):
    """A part of a schema, and the whole that its references point into."""

    part: Schema
    root: Schema

    def at(self, part: Schema) -> Side:
        return Side(part, self.root)


class Trail:
    """The pairs that are being compared, and how many steps are left: branches of branches multiply."""

    __slots__ = ("_left", "pairs")

    def __init__(self, pairs: frozenset[tuple[int, int]] = frozenset(), left: list[int] | None = None) -> None:
        self.pairs = pairs
        self._left = left if left is not None else [limits.SCHEMA_STEPS_MAX]

    def step(self, pair: tuple[int, int]) -> Trail:
        self._left[0] -= 1
        if self._left[0] < 0 or len(self.pairs) > limits.SCHEMA_DEPTH_MAX:
            raise too_complex()
        return Trail(self.pairs | {pair}, self._left)


def too_complex() -> errors.InvalidInput:
    return errors.InvalidInput(
        "the schema is nested too deep, or has too many branches, to be compared", hint="use the mode none, or simplify"
    )


def unreadable(reader: Schema, writer: Schema) -> list[str]:
    """Why some document that `writer` lets pass does not pass `reader`. Nothing: all do."""
    return list(_compare(Side(reader, reader), Side(writer, writer), "", Trail()))


def _resolve(side: Side) -> Side:
    seen = 0
    while isinstance(side.part, dict) and isinstance(reference := side.part.get("$ref"), str):
        seen += 1
        if seen > 100 or not reference.startswith("#"):
            raise errors.InvalidInput(f"JSON Schema: {reference[:100]} is not a reference into the schema itself")
        found: Any = side.root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise errors.InvalidInput(f"JSON Schema: there is nothing at {reference[:100]}", hint="define it first")
        side = side.at(found)
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
            yield f"{path or '$'}: no schema of {word} lets pass what was written"


def _plain(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    types, written = _types(mine), _types(theirs)
    if extra := {one for one in written if one not in types and not (one == "integer" and "number" in types)}:
        yield f"{path or '$'}: {', '.join(sorted(extra))} is not {' or '.join(sorted(types))}"
        return
    yield from _values(mine, theirs, path)
    yield from _bounds(mine, theirs, path)
    if "object" in written:
        yield from _objects(reader, writer, path, trail)
    if "array" in written:
        yield from _arrays(reader, writer, path, trail)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    found = schema.get("type")
    if isinstance(found, str):
        return frozenset((found,))
    if isinstance(found, list):
        return frozenset(found)
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
    elif extra := [one for one in written if one not in allowed]:
        yield f"{path or '$'}: {extra[0]!r} is not allowed"


def _bounds(mine: dict[str, Any], theirs: dict[str, Any], path: str) -> Iterator[str]:
    for name in _LEAST:
        is_nothing = name not in ("minimum", "exclusiveMinimum") and mine.get(name) == 0
        if name in mine and not is_nothing and not (name in theirs and theirs[name] >= mine[name]):
            yield f"{path or '$'}: {name} {mine[name]} was not so before"
    for name in _MOST:
        if name in mine and not (name in theirs and theirs[name] <= mine[name]):
            yield f"{path or '$'}: {name} {mine[name]} was not so before"
    if "multipleOf" in mine and (theirs.get("multipleOf", 0) % mine["multipleOf"] or "multipleOf" not in theirs):
        yield f"{path or '$'}: multipleOf {mine['multipleOf']} was not so before"
    for name in _SAME:
        if name in mine and mine[name] != theirs.get(name):
            yield f"{path or '$'}: {name} is another one"


def _objects(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    known, written = mine.get("properties", {}), theirs.get("properties", {})
    required, given = set(mine.get("required", ())), set(theirs.get("required", ()))
    rest, open_rest = mine.get("additionalProperties", True), theirs.get("additionalProperties", True)
    for name in sorted(required - given):
        yield f"{_below(path, name)}: is required, and was not"
    for name in known.keys() & written.keys():
        yield from _compare(reader.at(known[name]), writer.at(written[name]), _below(path, name), trail)
    for name in sorted(known.keys() - written.keys()):
        if isinstance(open_rest, dict) and open_rest:
            yield from _compare(reader.at(known[name]), writer.at(open_rest), _below(path, name), trail)
    for name in sorted(written.keys() - known.keys()):
        if rest is False:
            yield f"{_below(path, name)}: is not allowed"
        elif isinstance(rest, dict) and rest:
            yield from _compare(reader.at(rest), writer.at(written[name]), _below(path, name), trail)
        elif name in given and "properties" in mine:
            yield f"{_below(path, name)}: is always there, and not known"
    if rest is False and open_rest is not False:
        yield f"{path or '$'}: other properties are not allowed, and were"
    elif isinstance(rest, dict) and rest and open_rest is not False:
        yield from _compare(reader.at(rest), writer.at(open_rest), _below(path, "*"), trail)
    if mine.get("patternProperties", {}) != theirs.get("patternProperties", {}) and "patternProperties" in mine:
        yield f"{path or '$'}: patternProperties is another one"


def _arrays(reader: Side, writer: Side, path: str, trail: Trail) -> Iterator[str]:
    mine, theirs = reader.part, writer.part
    assert isinstance(mine, dict)
    assert isinstance(theirs, dict)
    first, written = mine.get("prefixItems", []), theirs.get("prefixItems", [])
    items, written_items = mine.get("items", True), theirs.get("items", True)
    if isinstance(items, list) or isinstance(written_items, list):  # older drafts
        if items != written_items:
            yield f"{path}[]: items is another one"
        return
    for number in range(max(len(first), len(written))):
        one = first[number] if number < len(first) else items
        other = written[number] if number < len(written) else written_items
        yield from _compare(reader.at(one), writer.at(other), f"{path}[{number}]", trail)
    yield from _compare(reader.at(items), writer.at(written_items), f"{path}[]", trail)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
