"""Schemas of tables and views: what is one, which fields it has, whether two are the same, and fresh ids.

A schema is a struct with `schema-id` and, optionally, `identifier-field-ids`. Ids are unique over all levels, and so
are full names (`address.street`, `tags.element`, `labels.value`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.iceberg import types, values
from icestream.iceberg.values import Object, short_repr

DEFAULTS_SINCE_VERSION: Final = 3
FIELD_ID_MAX: Final = values.INT_MAX - 200  # those behind it are Iceberg's own columns, like _file and _pos
_COMPARED: Final = ("id", "name", "required", "doc", "initial-default", "write-default")


class Field(NamedTuple):
    id: int
    name: str  # from the top, with dots
    kind: Any  # its type as JSON
    is_required: bool
    in_structs: bool  # nothing but structs above it: only such fields partition a table
    holder: Object  # where it is defined


def fields_of(schema: Object) -> dict[int, Field]:
    """Every field of every level by its id. Raises InvalidInput for what is no schema."""
    if schema.get("type", "struct") != "struct":
        raise errors.InvalidInput(f"Cannot create schema, not a struct type: {short_repr(schema.get('type'))}")
    found: dict[int, Field] = {}
    names: dict[str, int] = {}
    for field in _walk(schema, "", True, 0):
        if field.id in found:
            raise errors.InvalidInput(f"Invalid schema: multiple fields for id {field.id}")
        if field.name in names:
            raise errors.InvalidInput(
                f"Invalid schema: multiple fields for name {short_repr(field.name)}: {names[field.name]} and {field.id}"
            )
        found[field.id] = field
        names[field.name] = field.id
        if len(found) > limits.CATALOG_SCHEMA_FIELDS_MAX:
            raise errors.InvalidInput(f"Invalid schema: more than {limits.CATALOG_SCHEMA_FIELDS_MAX} fields")
    _check_identifiers(schema, found)
    return found


def _walk(struct: Object, path: str, in_structs: bool, depth: int) -> Iterator[Field]:
    for holder in values.objects(struct, "fields"):
        name = values.text(holder, "name")
        kind = values.required(holder, "type")
        is_required = values.flag(holder, "required")
        values.optional_text(holder, "doc")
        yield Field(values.integer(holder, "id"), path + name, kind, is_required, in_structs, holder)
        yield from _inside(kind, f"{path}{name}.", in_structs, depth + 1)


def _inside(kind: Any, path: str, in_structs: bool, depth: int) -> Iterator[Field]:
    if depth > limits.CATALOG_TYPE_DEPTH_MAX:
        raise errors.InvalidInput(f"Invalid schema: types nested deeper than {limits.CATALOG_TYPE_DEPTH_MAX}")
    match types.family(kind):
        case "struct":
            yield from _walk(kind, path, in_structs, depth)
        case "list":
            yield from _part(kind, "element", path, values.flag(kind, "element-required"), depth)
        case "map":
            yield from _part(kind, "key", path, True, depth)
            yield from _part(kind, "value", path, values.flag(kind, "value-required"), depth)


def _part(holder: Object, part: str, path: str, is_required: bool, depth: int) -> Iterator[Field]:
    kind = values.required(holder, part)
    yield Field(values.integer(holder, f"{part}-id"), path + part, kind, is_required, False, holder)
    yield from _inside(kind, f"{path}{part}.", False, depth + 1)


def _check_identifiers(schema: Object, fields: dict[int, Field]) -> None:
    by_name = {field.name: field for field in fields.values()}
    for wanted in identifiers(schema):
        field = fields.get(wanted)
        if field is None:
            raise errors.InvalidInput(f"Cannot add fieldId {wanted} as an identifier field: field does not exist")
        parents = field.name.split(".")[:-1]
        above = [by_name.get(".".join(parents[: number + 1])) for number in range(len(parents))]
        if types.is_nested(field.kind) or types.family(field.kind) in ("float", "double"):
            raise errors.InvalidInput(
                f"Cannot add field {short_repr(field.name)} as an identifier field: not such a type"
            )
        if not field.in_structs or not all(one is None or one.is_required for one in (field, *above)):
            raise errors.InvalidInput(
                f"Cannot add field {short_repr(field.name)} as an identifier field: it is optional"
            )


def identifiers(schema: Object) -> list[int]:
    return [] if schema.get("identifier-field-ids") is None else values.integers(schema, "identifier-field-ids")


def schema_id(schema: Object) -> int:
    return values.optional_integer(schema, "schema-id") or 0


def highest_id(fields: dict[int, Field]) -> int:
    return max(fields, default=0)


def check_new(fields: dict[int, Field], known: Sequence[Object]) -> None:
    """Ids and names of columns that come with a change of a table. Those that it has already stay, as old writers
    numbered them."""
    new = [field for field in fields.values() if not 1 <= field.id <= FIELD_ID_MAX or field.holder.get("name") == ""]
    if not new:
        return
    present = {field_id for one in known for field_id in fields_of(one)}
    for field in new:
        if field.id not in present:
            if field.holder.get("name") == "":
                raise errors.InvalidInput(f"Invalid column name: column {field.id} has none")
            raise errors.InvalidInput(f"Invalid column id: {field.id} is not from 1 to {FIELD_ID_MAX}")


def check_version(fields: dict[int, Field], version: int) -> None:
    """Types and default values that came with a later version of the format."""
    problems = []
    for field in fields.values():
        since = types.SINCE_VERSION.get(types.family(field.kind), 1)
        if version < since:
            problems.append(f"Invalid type for {field.name}: {field.kind} is not supported until v{since}")
        if version < DEFAULTS_SINCE_VERSION and field.holder.get("initial-default") is not None:
            problems.append(
                f"Invalid initial default for {field.name}: non-null default "
                f"({short_repr(field.holder['initial-default'])}) is not supported until v{DEFAULTS_SINCE_VERSION}"
            )
    if problems:
        raise errors.InvalidInput(f"Invalid schema for v{version}:\n- " + "\n- ".join(problems))


def same(one: Object, other: Object) -> bool:
    """Whether they have the same fields and identifiers. Their own ids do not count."""
    return _comparable(one) == _comparable(other) and set(identifiers(one)) == set(identifiers(other))


def _comparable(kind: Any) -> Any:
    if isinstance(kind, str):
        return types.canonical(kind)
    match types.family(kind if "type" in kind else {"type": "struct"}):
        case "struct":
            return [(*map(one.get, _COMPARED), _comparable(one["type"])) for one in kind["fields"]]
        case "list":
            return "list", kind["element-id"], kind["element-required"], _comparable(kind["element"])
        case _:
            key, value = _comparable(kind["key"]), _comparable(kind["value"])
            return "map", kind["key-id"], key, kind["value-id"], kind["value-required"], value


def with_fresh_ids(schema: Object, schema_id: int) -> tuple[Object, dict[int, int]]:
    """The schema with ids from 1 on, and the old ids with their new ones. The fields of a struct come before what is
    inside them, as Iceberg's own library numbers them."""
    fields_of(schema)
    fresh: dict[int, int] = {}

    def next_id(old: int) -> int:
        fresh[old] = len(fresh) + 1
        return fresh[old]

    made = _renumbered_struct(schema, next_id)
    made |= {"type": "struct", "schema-id": schema_id}
    if identifiers(schema):
        made["identifier-field-ids"] = [fresh[old] for old in identifiers(schema)]
    return made, fresh


def _renumbered(kind: Any, next_id: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return _renumbered_struct(kind, next_id)
        case "list":
            made = {**kind, "element-id": next_id(kind["element-id"])}
            made["element"] = _renumbered(kind["element"], next_id)
        case _:
            made = {**kind, "key-id": next_id(kind["key-id"]), "value-id": next_id(kind["value-id"])}
            made["key"] = _renumbered(kind["key"], next_id)
            made["value"] = _renumbered(kind["value"], next_id)
    return made


def _renumbered_struct(struct: Object, next_id: Callable[[int], int]) -> Object:
    fields = [{**field, "id": next_id(field["id"])} for field in struct["fields"]]
    return {**struct, "fields": [{**field, "type": _renumbered(field["type"], next_id)} for field in fields]}
