"""Sort orders: what is one, whether it fits a schema, whether two are the same.

    {"order-id": 1, "fields": [{"source-id", "transform", "direction": "asc", "null-order": "nulls-first"}, …]}

Order 0 is the unsorted one and has no fields; every other has some.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.iceberg import transforms, values
from icestream.iceberg.schema import Field
from icestream.iceberg.values import Object, short_repr

UNSORTED: Final[Object] = {"order-id": 0, "fields": []}
FIRST_ID: Final = 1


def order_id(order: Object) -> int:
    return values.optional_integer(order, "order-id") or 0


def fields_of(order: Object) -> list[Object]:
    """Its fields, each of the right form."""
    found = values.objects(order, "fields")
    for field in found:
        values.text(field, "transform")
        _sources(field)
        if values.text(field, "direction").lower() not in ("asc", "desc"):
            raise errors.InvalidInput(f"Invalid sort direction: {short_repr(field['direction'])}")
        if values.text(field, "null-order").lower() not in ("nulls-first", "nulls-last"):
            raise errors.InvalidInput(f"Unexpected null order: {short_repr(field['null-order'])}")
    if found and values.optional_integer(order, "order-id") == 0:
        raise errors.InvalidInput("Sort order ID 0 is reserved for unsorted order")
    return found


def _sources(field: Object) -> list[int]:
    if field.get("source-id") is None and field.get("source-ids") is not None:
        return values.integers(field, "source-ids")
    return [values.integer(field, "source-id")]


def check(order: Object, fields: dict[int, Field]) -> None:
    """Raises InvalidInput when the order does not fit the schema that has these fields."""
    for one in order["fields"]:
        for column in _sources(one):
            source = fields.get(column)
            if source is None:
                raise errors.InvalidInput(f"Cannot find source column for sort field: {short_repr(one)}")
            transforms.check(one["transform"], source.kind)


def same(one: Object, other: Object) -> bool:
    return [_meaning(field) for field in one["fields"]] == [_meaning(field) for field in other["fields"]]


def _meaning(field: Object) -> tuple[list[int], str, str, str]:
    applied = transforms.canonical(field["transform"])
    return _sources(field), applied, field["direction"].lower(), field["null-order"].lower()


def with_fresh_ids(order: Object, fresh: dict[int, int]) -> Object:
    """The order of a new table: the columns by their new ids."""
    made = []
    for field in fields_of(order):
        columns = _sources(field)
        if not all(column in fresh for column in columns):
            raise errors.InvalidInput(f"Cannot find source column for sort field: {short_repr(field)}")
        renamed = [fresh[column] for column in columns]
        made.append({**field, **({"source-id": renamed[0]} if "source-id" in field else {"source-ids": renamed})})
    return {**order, "order-id": FIRST_ID if made else 0, "fields": made}
