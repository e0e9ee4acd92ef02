"""Versions of a view: what is one, whether two behave alike, which SQL dialects one speaks.

{"version-id", "timestamp-ms", "schema-id", "summary", "representations": [{"type": "sql", "sql", "dialect"}, …],
 "default-namespace": […], "default-catalog"}
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.values import Object

# What makes two versions behave differently: not their numbers, and not when they were made.
_MEANING: Final = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")


def check_version(version: Object) -> None:
    """Raises InvalidInput when it has not the form of a version, or says something twice in one dialect."""
    values.integer(version, "version-id")
    values.long(version, "timestamp-ms")
    values.integer(version, "schema-id")
    values.text_map(version, "summary")
    values.texts(version, "default-namespace")
    values.optional_text(version, "default-catalog")
    for one in values.objects(version, "representations"):
        if values.text(one, "type").lower() == "sql":
            values.text(one, "sql")
            values.text(one, "dialect")
    spoken = dialects(version)
    for dialect in spoken:
        if spoken.count(dialect) > 1:
            raise errors.InvalidInput(f"Invalid view version: Cannot add multiple queries for dialect {dialect[:80]}")


def dialects(version: Object) -> list[str]:
    return [one["dialect"].lower() for one in version["representations"] if one["type"].lower() == "sql"]


def same(one: Object, other: Object) -> bool:
    return all(one.get(name) == other.get(name) for name in _MEANING)
