"""Whether a table that was read back is the one that we created: after a lost reply nothing else tells. Pure.

The catalog assigns column ids and may add properties; so names, types and the requested properties are compared, and
that the table has no snapshot.
"""

from __future__ import annotations

from typing import Any

from icestream.iceberg.values import Object


def matches_creation(metadata: Object, definition: Object) -> bool:
    schemas = metadata.get("schemas") or [metadata.get("schema") or {}]
    current = [schema for schema in schemas if schema.get("schema-id") == metadata.get("current-schema-id")] or schemas[
        :1
    ]
    properties = metadata.get("properties") or {}
    requested = {
        name: value for name, value in (definition.get("properties") or {}).items() if name != "format-version"
    }
    return (
        not metadata.get("snapshots")
        and _shape(current[0]) == _shape(definition.get("schema") or {})
        and all(properties.get(name) == value for name, value in requested.items())
        and (definition.get("location") or metadata.get("location")) == metadata.get("location")
    )


def _shape(field_type: Any) -> Any:
    """A type without the ids of its fields."""
    if not isinstance(field_type, dict):
        return field_type
    if "fields" in field_type:
        return [
            (field.get("name"), bool(field.get("required")), _shape(field.get("type")))
            for field in field_type["fields"]
        ]
    return {name: _shape(value) for name, value in field_type.items() if not name.endswith("-id")}
