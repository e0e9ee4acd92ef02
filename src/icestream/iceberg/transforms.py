"""Transforms of partition specs and sort orders: which source types each accepts. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from icestream import errors
from icestream.iceberg import types
from icestream.iceberg.values import INT_MAX, short_repr

VOID: Final = "void"
_WITH_WIDTH: Final = re.compile(r"(bucket|truncate)\[(\d{1,10})\]")
_TIMESTAMPS: Final = frozenset(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"))
_WHOLE: Final = frozenset(("int", "long"))
_SOURCE_TYPES: Final[dict[str, frozenset[str]]] = {
    "bucket": _WHOLE | _TIMESTAMPS | frozenset(("date", "time", "string", "binary", "fixed", "decimal", "uuid")),
    "truncate": _WHOLE | frozenset(("string", "binary", "decimal")),
    "year": _TIMESTAMPS | {"date"},
    "month": _TIMESTAMPS | {"date"},
    "day": _TIMESTAMPS | {"date"},
    "hour": _TIMESTAMPS,
}
# Types whose values have neither equality nor an order.
_NOT_IDENTITY: Final = frozenset(("variant", "geometry", "geography", "unknown"))


def canonical(transform: str) -> str:
    return transform.lower()


def check(transform: str, source_type: Any) -> None:
    """Raises InvalidInput if the transform cannot be applied to a column of this type."""
    if types.is_nested(source_type) or (source_family := types.family(source_type)) == "variant":
        raise errors.InvalidInput(f"Cannot partition by non-primitive source field: {short_repr(source_type)}")
    name = canonical(transform)
    if (widths := _WITH_WIDTH.fullmatch(name)) is not None:
        name = widths[1]
        if not 0 < int(widths[2]) <= INT_MAX:
            raise errors.InvalidInput(f"Invalid width of transform: {short_repr(transform)}")
    if name == "identity":
        is_valid = source_family not in _NOT_IDENTITY
    else:
        # void, and transforms of later format versions, accept every type
        is_valid = source_family in _SOURCE_TYPES.get(name, {source_family})
    if not is_valid:
        raise errors.InvalidInput(f"Invalid source type {source_type} for transform: {short_repr(transform)}")
