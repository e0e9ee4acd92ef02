"""Schemas of tables and views: validation, their fields by id, equality, and the assignment of fresh ids. Pure.

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
FIELD_ID_MAX: Final = values.INT_MAX - 200  # higher ids are reserved for metadata columns, like _file and _pos
_COMPARED: Final = ("id", "name", "required", "doc", "initial-default", "write-default")


class SchemaField(NamedTuple):
    id: int
    name: str  # the full name, with dots
    type: Any  # as JSON has it
    is_required: bool
    in_structs: bool  # all its parents are structs: only such fields can partition a table
    holder: Object  # the JSON object that defines it


def fields_of(schema: Object) -> dict[int, SchemaField]:
    """Returns the fields of all levels by id. Raises InvalidInput for an invalid schema."""
    if schema.get("type", "struct") != "struct":
        raise errors.InvalidInput(f"Cannot create schema, not a struct type: {short_repr(schema.get('type'))}")
    fields: dict[int, SchemaField] = {}
    ids_by_name: dict[str, int] = {}
    for field in _walk(schema, "", True, 0):
        if field.id in fields:
            raise errors.InvalidInput(f"Invalid schema: multiple fields for id {field.id}")
        if field.name in ids_by_name:
            ids = f"{ids_by_name[field.name]} and {field.id}"
            raise errors.InvalidInput(f"Invalid schema: multiple fields for name {short_repr(field.name)}: {ids}")
        fields[field.id] = field
        ids_by_name[field.name] = field.id
        if len(fields) > limits.CATALOG_SCHEMA_FIELDS_MAX:
            raise errors.InvalidInput(f"Invalid schema: more than {limits.CATALOG_SCHEMA_FIELDS_MAX} fields")
    _check_identifiers(schema, fields)
    return fields


def _walk(struct: Object, path: str, in_structs: bool, depth: int) -> Iterator[SchemaField]:
    """Yields the fields of a struct, each followed by the fields inside it."""
    for holder in values.objects(struct, "fields"):
        name = values.text(holder, "name")
        field_type = values.required(holder, "type")
        is_required = values.flag(holder, "required")
        values.optional_text(holder, "doc")
        yield SchemaField(values.integer(holder, "id"), path + name, field_type, is_required, in_structs, holder)
        yield from _walk_type(field_type, f"{path}{name}.", in_structs, depth + 1)


def _walk_type(field_type: Any, path: str, in_structs: bool, depth: int) -> Iterator[SchemaField]:
    if depth > limits.CATALOG_TYPE_DEPTH_MAX:
        raise errors.InvalidInput(f"Invalid schema: types nested deeper than {limits.CATALOG_TYPE_DEPTH_MAX}")
    match types.family(field_type):
        case "struct":
            yield from _walk(field_type, path, in_structs, depth)
        case "list":
            yield from _walk_part(field_type, "element", path, values.flag(field_type, "element-required"), depth)
        case "map":
            yield from _walk_part(field_type, "key", path, True, depth)
            yield from _walk_part(field_type, "value", path, values.flag(field_type, "value-required"), depth)


def _walk_part(holder: Object, part: str, path: str, is_required: bool, depth: int) -> Iterator[SchemaField]:
    part_type = values.required(holder, part)
    yield SchemaField(values.integer(holder, f"{part}-id"), path + part, part_type, is_required, False, holder)
    yield from _walk_type(part_type, f"{path}{part}.", False, depth + 1)


def _check_identifiers(schema: Object, fields: dict[int, SchemaField]) -> None:
    by_name = {field.name: field for field in fields.values()}
    for field_id in identifiers(schema):
        field = fields.get(field_id)
        if field is None:
            raise errors.InvalidInput(f"Cannot add fieldId {field_id} as an identifier field: field does not exist")
        parents = field.name.split(".")[:-1]
        above = [by_name.get(".".join(parents[: number + 1])) for number in range(len(parents))]
        if types.is_nested(field.type) or types.family(field.type) in ("float", "double"):
            raise errors.InvalidInput(
                f"Cannot add field {short_repr(field.name)} as an identifier field: not such a type"
            )
        if not field.in_structs or not all(level is None or level.is_required for level in (field, *above)):
            raise errors.InvalidInput(
                f"Cannot add field {short_repr(field.name)} as an identifier field: it is optional"
            )


def identifiers(schema: Object) -> list[int]:
    return [] if schema.get("identifier-field-ids") is None else values.integers(schema, "identifier-field-ids")


def schema_id(schema: Object) -> int:
    return values.optional_integer(schema, "schema-id") or 0


def highest_id(fields: dict[int, SchemaField]) -> int:
    return max(fields, default=0)


def check_new(fields: dict[int, SchemaField], existing: Sequence[Object]) -> None:
    """Raises InvalidInput for new columns with an invalid id or an empty name. Columns that a schema of the table has
    already are accepted: old writers numbered them so."""
    suspects = [
        field for field in fields.values() if not 1 <= field.id <= FIELD_ID_MAX or field.holder.get("name") == ""
    ]
    if not suspects:
        return
    existing_ids = {field_id for schema in existing for field_id in fields_of(schema)}
    for field in suspects:
        if field.id not in existing_ids:
            if field.holder.get("name") == "":
                raise errors.InvalidInput(f"Invalid column name: column {field.id} has none")
            raise errors.InvalidInput(f"Invalid column id: {field.id} is not from 1 to {FIELD_ID_MAX}")


def check_version(fields: dict[int, SchemaField], version: int) -> None:
    """Raises InvalidInput for types and default values that need a later format version."""
    problems = []
    for field in fields.values():
        since = types.SINCE_VERSION.get(types.family(field.type), 1)
        if version < since:
            problems.append(f"Invalid type for {field.name}: {field.type} is not supported until v{since}")
        if version < DEFAULTS_SINCE_VERSION and field.holder.get("initial-default") is not None:
            problems.append(
                f"Invalid initial default for {field.name}: non-null default "
                f"({short_repr(field.holder['initial-default'])}) is not supported until v{DEFAULTS_SINCE_VERSION}"
            )
    if problems:
        raise errors.InvalidInput(f"Invalid schema for v{version}:\n- " + "\n- ".join(problems))


def same(schema: Object, other: Object) -> bool:
    """True if both have the same fields and identifier fields. Their schema ids may differ."""
    return _comparable(schema) == _comparable(other) and set(identifiers(schema)) == set(identifiers(other))


def _comparable(field_type: Any) -> Any:
    if isinstance(field_type, str):
        return types.canonical(field_type)
    match types.family(field_type if "type" in field_type else {"type": "struct"}):
        case "struct":
            return [(*map(field.get, _COMPARED), _comparable(field["type"])) for field in field_type["fields"]]
        case "list":
            element = _comparable(field_type["element"])
            return "list", field_type["element-id"], field_type["element-required"], element
        case _:
            key, value = _comparable(field_type["key"]), _comparable(field_type["value"])
            return "map", field_type["key-id"], key, field_type["value-id"], field_type["value-required"], value


def with_fresh_ids(schema: Object, schema_id: int) -> tuple[Object, dict[int, int]]:
    """Returns the schema with ids from 1 on, and the new id of each old one.

    The fields of a struct get their ids before the fields inside them, as Iceberg's own library assigns them.
    """
    fields_of(schema)
    new_ids: dict[int, int] = {}

    def next_id(old_id: int) -> int:
        new_ids[old_id] = len(new_ids) + 1
        return new_ids[old_id]

    renumbered = _renumber_struct(schema, next_id)
    renumbered |= {"type": "struct", "schema-id": schema_id}
    if identifiers(schema):
        renumbered["identifier-field-ids"] = [new_ids[old_id] for old_id in identifiers(schema)]
    return renumbered, new_ids


def _renumber(field_type: Any, next_id: Callable[[int], int]) -> Any:
    if isinstance(field_type, str):
        return field_type
    match field_type["type"]:
        case "struct":
            return _renumber_struct(field_type, next_id)
        case "list":
            renumbered = {**field_type, "element-id": next_id(field_type["element-id"])}
            renumbered["element"] = _renumber(field_type["element"], next_id)
        case _:
            key_id, value_id = next_id(field_type["key-id"]), next_id(field_type["value-id"])
            renumbered = {**field_type, "key-id": key_id, "value-id": value_id}
            renumbered["key"] = _renumber(field_type["key"], next_id)
            renumbered["value"] = _renumber(field_type["value"], next_id)
    return renumbered


def _renumber_struct(struct: Object, next_id: Callable[[int], int]) -> Object:
    fields = [{**field, "id": next_id(field["id"])} for field in struct["fields"]]
    return {**struct, "fields": [{**field, "type": _renumber(field["type"], next_id)} for field in fields]}
