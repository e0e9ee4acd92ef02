"""Binary single-value serialisation: the bytes of partition values and of column bounds in manifests. Pure.

Bounds of strings and binaries are truncated to 16 code points or bytes, Iceberg's default for metrics (`truncate(16)`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

BOUND_LENGTH: Final = 16
_CODE_POINT_MAX: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_TO_BYTES: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "int": struct.Struct("<i").pack,
    "date": struct.Struct("<i").pack,
    "long": struct.Struct("<q").pack,
    "timestamp": struct.Struct("<q").pack,
    "timestamptz": struct.Struct("<q").pack,
    "string": str.encode,
    "binary": bytes,
}
_INTEGER_FORMATS: Final = {4: "<i", 8: "<q"}


def to_bytes(type_name: str, value: Any) -> bytes:
    """Serialises a value of one of the primitive types that the pipeline writes; dates and times as numbers."""
    return _TO_BYTES[type_name](value)


def integer_from_bytes(value: bytes | None) -> int | None:
    """Returns the number of a serialised int, long, date or timestamp; None for any other size.

    The size decides, not the type of the column: a bound that was written before a column was widened from int to long
    has four bytes.
    """
    integer_format = _INTEGER_FORMATS.get(len(value)) if value is not None else None
    return int(struct.unpack(integer_format, value)[0]) if integer_format is not None and value is not None else None


def lower_bound(type_name: str, value: Any) -> bytes:
    """Serialises the smallest value of a column. `value` is what Parquet's statistics hold: a number, bool or bytes."""
    if type_name == "string":
        return _as_text(value)[:BOUND_LENGTH].encode()
    if type_name == "binary":
        return bytes(value[:BOUND_LENGTH])
    return to_bytes(type_name, value)


def upper_bound(type_name: str, value: Any) -> bytes | None:
    """Serialises the largest value of a column; None if no truncated value is greater than or equal to it."""
    if type_name == "string":
        text = _as_text(value)
        if len(text) <= BOUND_LENGTH:
            return text.encode()
        successor = _increment_text(text[:BOUND_LENGTH])
        return None if successor is None else successor.encode()
    if type_name == "binary":
        return bytes(value) if len(value) <= BOUND_LENGTH else _increment_bytes(bytes(value[:BOUND_LENGTH]))
    return to_bytes(type_name, value)


def _as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _increment_text(text: str) -> str | None:
    """Returns the smallest text of at most this length that is greater than all texts with this prefix."""
    for length in range(len(text), 0, -1):
        code_point = ord(text[length - 1]) + 1
        if code_point in _SURROGATES:  # no valid text contains one
            code_point = _SURROGATES.stop
        if code_point <= _CODE_POINT_MAX:
            return text[: length - 1] + chr(code_point)
    return None


def _increment_bytes(data: bytes) -> bytes | None:
    for length in range(len(data), 0, -1):
        if data[length - 1] < 0xFF:
            return data[: length - 1] + bytes([data[length - 1] + 1])
    return None
