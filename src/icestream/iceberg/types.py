"""The types of Iceberg's columns, as they stand in JSON.

    "long", "decimal(9,2)", "fixed[16]", …              a primitive: text
    {"type": "struct", "fields": […]}                   fields with id, name, required, type
    {"type": "list", "element-id", "element", "element-required"}
    {"type": "map", "key-id", "key", "value-id", "value", "value-required"}

An unknown name is refused: it could not be decided whether a partition by such a column is valid. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from icestream import errors
from icestream.iceberg.values import short_repr

# The first format version of a type; all other types exist since v1.
SINCE_VERSION: Final[dict[str, int]] = {
    "timestamp_ns": 3,
    "timestamptz_ns": 3,
    "variant": 3,
    "unknown": 3,
    "geometry": 3,
    "geography": 3,
}
_ALWAYS: Final = "boolean int long float double date time timestamp timestamptz string uuid binary"
_PLAIN: Final = frozenset((*_ALWAYS.split(), *SINCE_VERSION))
_FIXED: Final = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_DECIMAL_PRECISION_MAX: Final = 38
_GEOMETRY: Final = re.compile(r"geometry\s*\(\s*([^)]*?)\s*\)")
_GEOGRAPHY: Final = re.compile(r"geography\s*\(\s*([^),]*?)\s*(?:,\s*(\w+)\s*)?\)")


def primitive(name: str) -> str:
    """Returns the family of a primitive type (`decimal` for `decimal(9,2)`). Raises InvalidInput."""
    lower = name.lower()
    if lower in _PLAIN:
        return lower
    if _FIXED.fullmatch(lower):
        return "fixed"
    if (decimal := _DECIMAL.fullmatch(lower)) is not None:
        if not 0 < int(decimal[1]) <= _DECIMAL_PRECISION_MAX:
            raise errors.InvalidInput(f"Decimals with precision larger than 38 are not supported: {decimal[1]}")
        return "decimal"
    if _GEOMETRY.fullmatch(lower):
        return "geometry"
    if _GEOGRAPHY.fullmatch(lower):
        return "geography"
    raise errors.InvalidInput(f"Cannot parse type string to primitive: {short_repr(name)}")


def family(field_type: Any) -> str:
    """Returns `struct`, `list`, `map`, or the family of a primitive type. Raises InvalidInput."""
    if isinstance(field_type, str):
        return primitive(field_type)
    nested = field_type.get("type") if isinstance(field_type, dict) else None
    if nested not in ("struct", "list", "map"):
        raise errors.InvalidInput(f"Cannot parse type from json: {short_repr(field_type)}")
    return str(nested)


def is_nested(field_type: Any) -> bool:
    return not isinstance(field_type, str)


def canonical(name: str) -> str:
    """Returns the canonical text of a primitive type: engines differ in blanks and case."""
    return re.sub(r"\s+", "", name).lower()
