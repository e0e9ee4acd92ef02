"""Partition specs: what is one, whether it fits a schema, whether two are the same, and the ids of their fields.

    {"spec-id": 0, "fields": [{"source-id", "field-id", "name", "transform"}, …]}

Field ids are from 1000 on and belong to (source, transform) for the life of a table. A void transform stands for a
field that was dropped from a v1 table: it fits whatever became of its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from icestream import errors
from icestream.iceberg import transforms, values
from icestream.iceberg.schema import Field
from icestream.iceberg.values import Object, short_repr

FIRST_FIELD_ID: Final = 1000
UNPARTITIONED: Final[Object] = {"spec-id": 0, "fields": []}


def spec_id(spec: Object) -> int:
    return values.optional_integer(spec, "spec-id") or 0


def fields_of(spec: Object) -> list[Object]:
    """Its fields, each of the right form; either all of them have ids, or none."""
    found = values.objects(spec, "fields")
    for field in found:
        values.text(field, "name")
        values.text(field, "transform")
        sources(field)
    numbered = [field for field in found if values.optional_integer(field, "field-id") is not None]
    if numbered and len(numbered) < len(found):
        missing = len(found) - len(numbered)
        raise errors.InvalidInput(
            f"Cannot parse spec with missing field IDs: {missing} missing of {len(found)} fields."
        )
    return found


def sources(field: Object) -> list[int]:
    """The columns that a field is made of: one, or several where a later transform takes them."""
    if field.get("source-id") is None and field.get("source-ids") is not None:
        return values.integers(field, "source-ids")
    return [values.integer(field, "source-id")]


def check(spec: Object, fields: dict[int, Field]) -> None:
    """Raises InvalidInput when the spec does not fit the schema that has these fields."""
    names: set[str] = set()
    ids_by_name = {field.name: field.id for field in fields.values()}
    for one in spec["fields"]:
        name, applied, columns = one["name"], one["transform"], sources(one)
        if not name or name in names:
            raise errors.InvalidInput(f"Cannot use partition name more than once, or an empty one: {short_repr(name)}")
        names.add(name)
        if transforms.canonical(applied) == transforms.VOID:
            continue
        for column in columns:
            _check_source(one, fields.get(column))
        if name in ids_by_name and ids_by_name[name] not in columns:
            raise errors.InvalidInput(
                f"Cannot create identity partition sourced from different field in schema: {short_repr(name)}"
            )


def check_ids(spec: Object) -> None:
    """Of a spec that is added: data files name their partitions by these."""
    known: set[int] = set()
    for field_id in (field["field-id"] for field in spec["fields"]):
        if not 1 <= field_id <= values.INT_MAX:
            raise errors.InvalidInput(f"Invalid partition field id: {field_id}")
        if field_id in known:
            raise errors.InvalidInput(f"Cannot use partition field id more than once: {field_id}")
        known.add(field_id)


def _check_source(field: Object, source: Field | None) -> None:
    if source is None:
        raise errors.InvalidInput(f"Cannot find source column for partition field: {short_repr(field)}")
    transforms.check(field["transform"], source.kind)
    if not source.in_structs:
        raise errors.InvalidInput(f"Invalid partition field parent: {short_repr(source.name)} lies in a list or map")


def same(one: Object, other: Object) -> bool:
    """Whether they make the same partitions under the same names."""
    return [_meaning(field) for field in one["fields"]] == [_meaning(field) for field in other["fields"]]


def _meaning(field: Object) -> tuple[list[int], str, str]:
    return sources(field), transforms.canonical(field["transform"]), field["name"]


def last_field_id(specs: Iterable[Object]) -> int:
    """The highest id of a field in any of them, FIRST_FIELD_ID - 1 when there is none."""
    ids = [field.get("field-id") or 0 for spec in specs for field in spec["fields"]]
    return max(ids, default=FIRST_FIELD_ID - 1)


def numbered(spec: Object, specs: list[Object], last_id: int) -> Object:
    """The spec with ids for its fields: those that it has, those that the same fields have in other specs, or new."""
    fields = fields_of(spec)
    if all(field.get("field-id") is not None for field in fields):
        return spec
    known = {_place(field): field["field-id"] for other in specs for field in other["fields"]}
    made = []
    for field in fields:
        if _place(field) not in known:
            last_id += 1
            known[_place(field)] = last_id
        made.append({**field, "field-id": known[_place(field)]})
    return {**spec, "fields": made}


def _place(field: Object) -> tuple[tuple[int, ...], str]:
    return tuple(sources(field)), transforms.canonical(field["transform"])


def check_sequential(spec: Object) -> None:
    """A v1 table has no ids in its data files: its fields are counted."""
    ids = [field["field-id"] for field in spec["fields"]]
    if ids != list(range(FIRST_FIELD_ID, FIRST_FIELD_ID + len(ids))):
        raise errors.InvalidInput(f"Spec does not use sequential IDs that are required in v1: {short_repr(ids)}")


def with_fresh_ids(spec: Object, fresh: dict[int, int], spec_id: int) -> Object:
    """The spec of a new table: the columns by their new ids, its own fields counted."""
    made = []
    for number, field in enumerate(fields_of(spec)):
        renamed = {**field, "field-id": FIRST_FIELD_ID + number}
        columns = [_fresh(fresh, column, field) for column in sources(field)]
        renamed |= {"source-id": columns[0]} if "source-id" in field else {"source-ids": columns}
        made.append(renamed)
    return {**spec, "spec-id": spec_id, "fields": made}


def _fresh(fresh: dict[int, int], column: int, field: Object) -> int:
    if column not in fresh:
        raise errors.InvalidInput(f"Cannot find source column for partition field: {short_repr(field)}")
    return fresh[column]
