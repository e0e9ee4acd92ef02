"""Transforms of partitions and sort orders: which types each of them takes."""

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
_TAKES: Final[dict[str, frozenset[str]]] = {
    "bucket": _WHOLE | _TIMESTAMPS | frozenset(("date", "time", "string", "binary", "fixed", "decimal", "uuid")),
    "truncate": _WHOLE | frozenset(("string", "binary", "decimal")),
    "year": _TIMESTAMPS | {"date"},
    "month": _TIMESTAMPS | {"date"},
    "day": _TIMESTAMPS | {"date"},
    "hour": _TIMESTAMPS,
}
# Values that cannot be told apart or put in an order.
_NOT_IDENTITY: Final = frozenset(("variant", "geometry", "geography", "unknown"))


def canonical(transform: str) -> str:
    return transform.lower()


def check(transform: str, kind: Any) -> None:
    """Raises InvalidInput when the transform cannot be applied to a column of this type."""
    if types.is_nested(kind) or (kind_family := types.family(kind)) == "variant":
        raise errors.InvalidInput(f"Cannot partition by non-primitive source field: {short_repr(kind)}")
    name = canonical(transform)
    if (widths := _WITH_WIDTH.fullmatch(name)) is not None:
        name = widths[1]
        if not 0 < int(widths[2]) <= INT_MAX:
            raise errors.InvalidInput(f"Invalid width of transform: {short_repr(transform)}")
    if name == "identity":
        fits = kind_family not in _NOT_IDENTITY
    else:
        fits = kind_family in _TAKES.get(name, {kind_family})  # void, and transforms of a later version, take all
    if not fits:
        raise errors.InvalidInput(f"Invalid source type {kind} for transform: {short_repr(transform)}")
