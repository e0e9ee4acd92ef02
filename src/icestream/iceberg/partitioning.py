"""Partition specs: validation, whether a spec fits a schema, equality, and the ids of partition fields. Pure.

    {"spec-id": 0, "fields": [{"source-id", "field-id", "name", "transform"}, …]}

Field ids start at 1000 and belong to (source, transform) for the life of a table. A void transform stands for a field
that was dropped from a v1 table: it is valid whatever happened to its source column.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from icestream import errors
from icestream.iceberg import transforms, values
from icestream.iceberg.schema import SchemaField
from icestream.iceberg.values import Object, short_repr

FIRST_FIELD_ID: Final = 1000
UNPARTITIONED: Final[Object] = {"spec-id": 0, "fields": []}


def spec_id(spec: Object) -> int:
    return values.optional_integer(spec, "spec-id") or 0


def fields_of(spec: Object) -> list[Object]:
    """Returns the fields, validated: either all of them have ids, or none. Raises InvalidInput."""
    fields = values.objects(spec, "fields")
    for field in fields:
        values.text(field, "name")
        values.text(field, "transform")
        sources(field)
    missing = sum(values.optional_integer(field, "field-id") is None for field in fields)
    if 0 < missing < len(fields):
        raise errors.InvalidInput(
            f"Cannot parse spec with missing field IDs: {missing} missing of {len(fields)} fields."
        )
    return fields


def sources(field: Object) -> list[int]:
    """Returns the ids of the source columns: one, or several for transforms of later format versions."""
    if field.get("source-id") is None and field.get("source-ids") is not None:
        return values.integers(field, "source-ids")
    return [values.integer(field, "source-id")]


def check(spec: Object, fields: dict[int, SchemaField]) -> None:
    """Raises InvalidInput if the spec does not fit the schema with these fields."""
    names: set[str] = set()
    ids_by_name = {field.name: field.id for field in fields.values()}
    for field in spec["fields"]:
        name, transform, columns = field["name"], field["transform"], sources(field)
        if not name or name in names:
            raise errors.InvalidInput(f"Cannot use partition name more than once, or an empty one: {short_repr(name)}")
        names.add(name)
        if transforms.canonical(transform) == transforms.VOID:
            continue
        for column in columns:
            _check_source(field, fields.get(column))
        if name in ids_by_name and ids_by_name[name] not in columns:
            raise errors.InvalidInput(
                f"Cannot create identity partition sourced from different field in schema: {short_repr(name)}"
            )


def check_ids(spec: Object) -> None:
    """Raises InvalidInput for invalid or repeated field ids of a new spec: data files name partitions by them."""
    field_ids: set[int] = set()
    for field_id in (field["field-id"] for field in spec["fields"]):
        if not 1 <= field_id <= values.INT_MAX:
            raise errors.InvalidInput(f"Invalid partition field id: {field_id}")
        if field_id in field_ids:
            raise errors.InvalidInput(f"Cannot use partition field id more than once: {field_id}")
        field_ids.add(field_id)


def _check_source(field: Object, source: SchemaField | None) -> None:
    if source is None:
        raise errors.InvalidInput(f"Cannot find source column for partition field: {short_repr(field)}")
    transforms.check(field["transform"], source.type)
    if not source.in_structs:
        raise errors.InvalidInput(f"Invalid partition field parent: {short_repr(source.name)} lies in a list or map")


def same(spec: Object, other: Object) -> bool:
    """True if both produce the same partitions under the same names. Ids may differ."""
    return [_comparable(field) for field in spec["fields"]] == [_comparable(field) for field in other["fields"]]


def _comparable(field: Object) -> tuple[list[int], str, str]:
    return sources(field), transforms.canonical(field["transform"]), field["name"]


def last_field_id(specs: Iterable[Object]) -> int:
    """Returns the highest field id of the specs, FIRST_FIELD_ID - 1 if they have no fields."""
    ids = [field.get("field-id") or 0 for spec in specs for field in spec["fields"]]
    return max(ids, default=FIRST_FIELD_ID - 1)


def numbered(spec: Object, specs: list[Object], last_id: int) -> Object:
    """Returns the spec with field ids: its own, those of equal fields in other specs, or new ones after `last_id`."""
    fields = fields_of(spec)
    if all(field.get("field-id") is not None for field in fields):
        return spec
    ids = {_field_key(field): field["field-id"] for other in specs for field in other["fields"]}
    numbered_fields = []
    for field in fields:
        key = _field_key(field)
        if key not in ids:
            last_id += 1
            ids[key] = last_id
        numbered_fields.append({**field, "field-id": ids[key]})
    return {**spec, "fields": numbered_fields}


def _field_key(field: Object) -> tuple[tuple[int, ...], str]:
    return tuple(sources(field)), transforms.canonical(field["transform"])


def check_sequential(spec: Object) -> None:
    """Raises InvalidInput unless the ids are sequential: manifests of v1 tables carry no ids, fields are counted."""
    ids = [field["field-id"] for field in spec["fields"]]
    if ids != list(range(FIRST_FIELD_ID, FIRST_FIELD_ID + len(ids))):
        raise errors.InvalidInput(f"Spec does not use sequential IDs that are required in v1: {short_repr(ids)}")


def with_fresh_ids(spec: Object, new_ids: dict[int, int], spec_id: int) -> Object:
    """Returns the spec of a new table: source columns by their new ids, partition fields numbered from the first id."""
    fields = []
    for number, field in enumerate(fields_of(spec)):
        columns = [_new_id(new_ids, column, field) for column in sources(field)]
        source = {"source-id": columns[0]} if "source-id" in field else {"source-ids": columns}
        fields.append({**field, "field-id": FIRST_FIELD_ID + number} | source)
    return {**spec, "spec-id": spec_id, "fields": fields}


def _new_id(new_ids: dict[int, int], column: int, field: Object) -> int:
    if column not in new_ids:
        raise errors.InvalidInput(f"Cannot find source column for partition field: {short_repr(field)}")
    return new_ids[column]
