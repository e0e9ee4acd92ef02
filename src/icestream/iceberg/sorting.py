"""Sort orders: validation, whether an order fits a schema, equality. Pure.

    {"order-id": 1, "fields": [{"source-id", "transform", "direction": "asc", "null-order": "nulls-first"}, …]}

Order 0 is the unsorted order and has no fields; every other order has some.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.iceberg import transforms, values
from icestream.iceberg.schema import SchemaField
from icestream.iceberg.values import Object, short_repr

UNSORTED: Final[Object] = {"order-id": 0, "fields": []}
FIRST_ID: Final = 1


def fields_of(order: Object) -> list[Object]:
    """Returns the fields, validated. Raises InvalidInput."""
    fields = values.objects(order, "fields")
    for field in fields:
        values.text(field, "transform")
        _sources(field)
        if values.text(field, "direction").lower() not in ("asc", "desc"):
            raise errors.InvalidInput(f"Invalid sort direction: {short_repr(field['direction'])}")
        if values.text(field, "null-order").lower() not in ("nulls-first", "nulls-last"):
            raise errors.InvalidInput(f"Unexpected null order: {short_repr(field['null-order'])}")
    if fields and values.optional_integer(order, "order-id") == 0:
        raise errors.InvalidInput("Sort order ID 0 is reserved for unsorted order")
    return fields


def _sources(field: Object) -> list[int]:
    if field.get("source-id") is None and field.get("source-ids") is not None:
        return values.integers(field, "source-ids")
    return [values.integer(field, "source-id")]


def check(order: Object, fields: dict[int, SchemaField]) -> None:
    """Raises InvalidInput if the order does not fit the schema with these fields."""
    for field in order["fields"]:
        for column in _sources(field):
            source = fields.get(column)
            if source is None:
                raise errors.InvalidInput(f"Cannot find source column for sort field: {short_repr(field)}")
            transforms.check(field["transform"], source.type)


def same(order: Object, other: Object) -> bool:
    """True if both sort alike. Ids may differ."""
    return [_comparable(field) for field in order["fields"]] == [_comparable(field) for field in other["fields"]]


def _comparable(field: Object) -> tuple[list[int], str, str, str]:
    transform = transforms.canonical(field["transform"])
    return _sources(field), transform, field["direction"].lower(), field["null-order"].lower()


def with_fresh_ids(order: Object, new_ids: dict[int, int]) -> Object:
    """Returns the sort order of a new table: source columns by their new ids."""
    fields = []
    for field in fields_of(order):
        columns = _sources(field)
        if not all(column in new_ids for column in columns):
            raise errors.InvalidInput(f"Cannot find source column for sort field: {short_repr(field)}")
        new_columns = [new_ids[column] for column in columns]
        source = {"source-id": new_columns[0]} if "source-id" in field else {"source-ids": new_columns}
        fields.append({**field, **source})
    return {**order, "order-id": FIRST_ID if fields else 0, "fields": fields}
