"""Properties of a table or view: reading them as numbers and flags, and the names that are not theirs to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from icestream import errors
from icestream.iceberg.values import short_repr

FORMAT_VERSION: Final = "format-version"
# What engines show as properties although the document has fields for it; it is never stored as one.
RESERVED: Final = frozenset(
    (
        FORMAT_VERSION,
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    )
)


def as_integer(properties: Mapping[str, str], name: str, default: int) -> int:
    """A value that is no number is refused: a table must not live by a guess."""
    found = properties.get(name)
    if found is None:
        return default
    try:
        return int(found)
    except ValueError:
        raise errors.InvalidInput(f"Table property {name} must have integer value: {short_repr(found)}") from None


def as_flag(properties: Mapping[str, str], name: str, default: bool) -> bool:
    """As Java reads one: `true` in any case, and everything else is not."""
    found = properties.get(name)
    return default if found is None else found.lower() == "true"
