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
    """Raises InvalidInput for what is no schema."""
    try:
        found = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidInput(f"an Avro schema is JSON: {error}", hint="send the .avsc as it is") from None
    try:
        return _Reader().read(found, "")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidInput(f"not an Avro schema: {error!r}", hint="send the .avsc as it is") from None


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def read(self, found: Any, namespace: str) -> Type:
        if isinstance(found, str):
            return self._by_name(found, namespace)
        if isinstance(found, list):
            return Type("union", items=[self.read(one, namespace) for one in found])
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, namespace)
        if kind == "array":
            return Type("array", items=[self.read(found["items"], namespace)])
        if kind == "map":
            return Type("map", items=[self.read(found["values"], namespace)])
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(kind, found, namespace)
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        known = self._named.get(_full(name, namespace)) or self._named.get(name)
        if known is None:
            raise errors.InvalidInput(f"Avro schema: there is no type {name[:100]}", hint="define it before it is used")
        return known

    def _named_type(self, kind: str, found: dict[str, Any], namespace: str) -> Type:
        name = _full(found["name"], found.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        aliases = tuple(_full(alias, inner) for alias in found.get("aliases", ()))
        made = self._named[name] = Type("record" if kind == "error" else kind, name, aliases)
        if kind == "enum":
            made.symbols, made.has_default = tuple(found["symbols"]), "default" in found
        elif kind == "fixed":
            made.size = int(found["size"])
        else:
            made.fields = [
                Field(one["name"], tuple(one.get("aliases", ())), self.read(one["type"], inner), "default" in one)
                for one in found["fields"]
            ]
        return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def unreadable(reader: Type, writer: Type) -> list[str]:
    """Why `reader` does not read all that `writer` writes. Nothing: it does."""
    return list(_compare(reader, writer, "", set()))


def _compare(reader: Type, writer: Type, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    if (id(reader), id(writer)) in seen:
        return
    seen.add((id(reader), id(writer)))
    if len(seen) > limits.SCHEMA_STEPS_MAX:
        raise errors.InvalidInput("the schema has too many branches to be compared", hint="use the mode none")
    if writer.kind == "union":
        for branch in writer.items:
            yield from _compare(reader, branch, path, seen)
    elif reader.kind == "union":
        if not any(not list(_compare(branch, writer, path, set(seen))) for branch in reader.items):
            yield f"{path or 'schema'}: no branch of the union reads {_shown(writer)}"
    elif reader.kind != writer.kind:
        if writer.kind not in _READS.get(reader.kind, ()):
            yield f"{path or 'schema'}: {_shown(reader)} does not read {_shown(writer)}"
    else:
        yield from _compare_same(reader, writer, path, seen)


def _compare_same(reader: Type, writer: Type, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    if reader.kind in ("record", "enum", "fixed") and not _is_same_name(reader, writer):
        yield f"{path or 'schema'}: {reader.name} is not {writer.name}"
        return
    match reader.kind:
        case "record":
            yield from _compare_records(reader, writer, path, seen)
        case "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if missing and not reader.has_default:
                yield f"{path or 'schema'}: enum {reader.name} has no {', '.join(missing)}"
        case "fixed":
            if reader.size != writer.size:
                yield f"{path or 'schema'}: fixed {reader.name} has {reader.size} bytes, not {writer.size}"
        case "array" | "map":
            yield from _compare(reader.items[0], writer.items[0], f"{path}[]", seen)


def _compare_records(reader: Type, writer: Type, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    known = {one.name: one for one in writer.fields}
    for wanted in reader.fields:
        names = (wanted.name, *wanted.aliases)
        found = next((known[name] for name in names if name in known), None)
        where = f"{path}.{wanted.name}" if path else wanted.name
        if found is not None:
            yield from _compare(wanted.type, found.type, where, seen)
        elif not wanted.has_default:
            yield f"{where}: was not written, and has no default"


def _is_same_name(reader: Type, writer: Type) -> bool:
    """The last part of the name counts, as in most implementations; or an alias."""
    last = writer.name.rpartition(".")[2]
    return last == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _shown(found: Type) -> str:
    return found.name or found.kind
