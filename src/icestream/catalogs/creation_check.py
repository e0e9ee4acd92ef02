"""Is a table that was found the one that we asked for? After a lost answer nothing else tells. Pure.

Column ids are assigned by the catalog, and a table may get properties that nobody asked for; so names, types and the
properties that were asked for are compared, and that nobody has written to it.
"""

from __future__ import annotations

from typing import Any

from icestream.iceberg.values import Object


def matches_creation(metadata: Object, asked: Object) -> bool:
    schemas = metadata.get("schemas") or [metadata.get("schema") or {}]
    current = [one for one in schemas if one.get("schema-id") == metadata.get("current-schema-id")] or schemas[:1]
    found = metadata.get("properties") or {}
    wanted = {name: value for name, value in (asked.get("properties") or {}).items() if name != "format-version"}
    return (
        not metadata.get("snapshots")
        and _shape(current[0]) == _shape(asked.get("schema") or {})
        and all(found.get(name) == value for name, value in wanted.items())
        and (asked.get("location") or metadata.get("location")) == metadata.get("location")
    )


def _shape(kind: Any) -> Any:
    """A type without the numbers of its fields."""
    if not isinstance(kind, dict):
        return kind
    if "fields" in kind:
        return [(one.get("name"), bool(one.get("required")), _shape(one.get("type"))) for one in kind["fields"]]
    return {name: _shape(value) for name, value in kind.items() if not name.endswith("-id")}
