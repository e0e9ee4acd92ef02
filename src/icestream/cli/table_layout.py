"""Partition spec and sort order of a table as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Metadata = Mapping[str, Any]
NOTHING: Final = "none"


def partition_text(metadata: Metadata) -> str:
    """The current spec, such as `day(publish_time), bucket[4](key)`; `none` for a table without partitions."""
    specs = {spec["spec-id"]: spec for spec in metadata.get("partition-specs") or ()}
    fields = (specs.get(metadata.get("default-spec-id")) or {}).get("fields") or ()
    names = _column_names(metadata)
    return ", ".join(_transformed(field["transform"], _source(field, names)) for field in fields) or NOTHING


def sort_text(metadata: Metadata) -> str:
    """The current order, such as `shard asc nulls first, offset asc nulls first`; `none` for an unsorted table."""
    orders = {order["order-id"]: order for order in metadata.get("sort-orders") or ()}
    fields = (orders.get(metadata.get("default-sort-order-id")) or {}).get("fields") or ()
    names = _column_names(metadata)
    return ", ".join(_sorted_by(field, names) for field in fields) or NOTHING


def _sorted_by(field: Metadata, names: Mapping[int, str]) -> str:
    nulls = str(field["null-order"]).replace("-", " ")
    return f"{_transformed(field['transform'], _source(field, names))} {field['direction']} {nulls}"


def _transformed(transform: str, column: str) -> str:
    return column if transform == "identity" else f"{transform}({column})"


def _source(field: Metadata, names: Mapping[int, str]) -> str:
    """The columns behind a field: one by `source-id`, several by `source-ids` (format version 3)."""
    ids = field.get("source-ids") or [field.get("source-id")]
    return ", ".join(names.get(number, f"column {number}") for number in ids)


def _column_names(metadata: Metadata) -> dict[int, str]:
    """Column names by field id, over all schemas: a spec may name a column that the current schema no longer has."""
    current = metadata.get("current-schema-id")
    schemas = sorted(metadata.get("schemas") or (), key=lambda schema: bool(schema.get("schema-id") == current))
    return {number: name for schema in schemas for number, name in _named(schema["fields"], "")}


def _named(fields: Any, prefix: str) -> Iterator[tuple[int, str]]:
    for field in fields:
        name = prefix + str(field["name"])
        yield field["id"], name
        kind = field["type"]
        if isinstance(kind, Mapping) and kind.get("type") == "struct":
            yield from _named(kind["fields"], f"{name}.")
