"""Properties of a table or view: typed access, and the reserved names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from icestream import errors
from icestream.iceberg.values import short_repr

FORMAT_VERSION: Final = "format-version"
# Engines show these as properties although the document has fields for them; they are never stored as properties.
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
    """Returns the number. Raises InvalidInput for other text: falling back to the default would hide the mistake."""
    text = properties.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise errors.InvalidInput(f"Table property {name} must have integer value: {short_repr(text)}") from None


def as_flag(properties: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns the flag as Java reads it: `true` in any case is true, every other text is false."""
    text = properties.get(name)
    return default if text is None else text.lower() == "true"
