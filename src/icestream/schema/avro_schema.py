"""Avro: which schema reads what another one wrote, by the resolution rules of its specification.

record    by field name or alias; a field that the writer does not have needs a default
enum      every symbol of the writer, or the reader has a default
union     every branch of the writer; any branch of the reader
numbers   int -> long -> float -> double; string and bytes are the same
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from icestream import errors, limits

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_READS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}


@dataclass(slots=True, eq=False)
class Type:
    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    has_default: bool = False
    size: int = 0
    items: list[Type] = field(default_factory=list)  # of an array or map one, of a union its branches


@dataclass(slots=True, eq=False)
class Field:
    name: str
    aliases: tuple[str, ...]
    type: Type
    has_default: bool


def parse(definition: bytes) -> Type:
    """Parses a schema. Raises InvalidInput if the bytes are not one."""
    try:
        document = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidInput(f"an Avro schema is JSON: {error}", hint="send the .avsc as it is") from None
    try:
        return _Reader().read(document, "")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidInput(f"not an Avro schema: {error!r}", hint="send the .avsc as it is") from None


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def read(self, node: Any, namespace: str) -> Type:
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return Type("union", items=[self.read(branch, namespace) for branch in node])
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, namespace)
        if kind == "array":
            return Type("array", items=[self.read(node["items"], namespace)])
        if kind == "map":
            return Type("map", items=[self.read(node["values"], namespace)])
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(kind, node, namespace)
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        named_type = self._named.get(_full(name, namespace)) or self._named.get(name)
        if named_type is None:
            raise errors.InvalidInput(f"Avro schema: unknown type {name[:100]}", hint="define it before it is used")
        return named_type

    def _named_type(self, kind: str, node: dict[str, Any], namespace: str) -> Type:
        name = _full(node["name"], node.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        aliases = tuple(_full(alias, inner) for alias in node.get("aliases", ()))
        named_type = self._named[name] = Type("record" if kind == "error" else kind, name, aliases)
        if kind == "enum":
            named_type.symbols, named_type.has_default = tuple(node["symbols"]), "default" in node
        elif kind == "fixed":
            named_type.size = int(node["size"])
        else:
            named_type.fields = [
                Field(
                    member["name"],
                    tuple(member.get("aliases", ())),
                    self.read(member["type"], inner),
                    "default" in member,
                )
                for member in node["fields"]
            ]
        return named_type


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def unreadable(reader: Type, writer: Type) -> list[str]:
    """Returns the reasons why `reader` cannot read everything that `writer` writes; empty if it can."""
    return list(_compare(reader, writer, "", set()))


def _compare(reader: Type, writer: Type, path: str, visited: set[tuple[int, int]]) -> Iterator[str]:
    if (id(reader), id(writer)) in visited:
        return
    visited.add((id(reader), id(writer)))
    if len(visited) > limits.SCHEMA_STEPS_MAX:
        raise errors.InvalidInput("the schema has too many branches to be compared", hint="use the mode none")
    if writer.kind == "union":
        for branch in writer.items:
            yield from _compare(reader, branch, path, visited)
    elif reader.kind == "union":
        if not any(not list(_compare(branch, writer, path, set(visited))) for branch in reader.items):
            yield f"{path or 'schema'}: no branch of the union reads {_display_name(writer)}"
    elif reader.kind != writer.kind:
        if writer.kind not in _READS.get(reader.kind, ()):
            yield f"{path or 'schema'}: {_display_name(reader)} does not read {_display_name(writer)}"
    else:
        yield from _compare_same(reader, writer, path, visited)


def _compare_same(reader: Type, writer: Type, path: str, visited: set[tuple[int, int]]) -> Iterator[str]:
    if reader.kind in ("record", "enum", "fixed") and not _is_same_name(reader, writer):
        yield f"{path or 'schema'}: {reader.name} is not {writer.name}"
        return
    match reader.kind:
        case "record":
            yield from _compare_records(reader, writer, path, visited)
        case "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if missing and not reader.has_default:
                yield f"{path or 'schema'}: enum {reader.name} has no {', '.join(missing)}"
        case "fixed":
            if reader.size != writer.size:
                yield f"{path or 'schema'}: fixed {reader.name} has {reader.size} bytes, not {writer.size}"
        case "array" | "map":
            yield from _compare(reader.items[0], writer.items[0], f"{path}[]", visited)


def _compare_records(reader: Type, writer: Type, path: str, visited: set[tuple[int, int]]) -> Iterator[str]:
    written_by_name = {written.name: written for written in writer.fields}
    for read_field in reader.fields:
        names = (read_field.name, *read_field.aliases)
        written_field = next((written_by_name[name] for name in names if name in written_by_name), None)
        where = f"{path}.{read_field.name}" if path else read_field.name
        if written_field is not None:
            yield from _compare(read_field.type, written_field.type, where, visited)
        elif not read_field.has_default:
            yield f"{where}: the writer has no such field, and it has no default"


def _is_same_name(reader: Type, writer: Type) -> bool:
    """True if the last part of the names is equal, as most implementations compare, or an alias matches."""
    last = writer.name.rpartition(".")[2]
    return last == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _display_name(schema_type: Type) -> str:
    return schema_type.name or schema_type.kind
