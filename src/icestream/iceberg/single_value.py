"""Values as Iceberg stores them in manifests: bytes of a bound, and bounds of text that are cut (Iceberg's spec,
"Binary single-value serialization"; `truncate(16)` is its default for metrics)."""

from __future__ import annotations

import struct
from typing import Any, Final

BOUND_LENGTH: Final = 16
_CODE_POINT_MAX: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_PACK: Final = {"int": struct.Struct("<i"), "long": struct.Struct("<q"), "timestamptz": struct.Struct("<q")}


def lower_bound(kind: str, value: Any) -> bytes:
    """`value`: as Parquet's statistics hold it: a number, a boolean, or bytes."""
    if kind == "string":
        return _text(value)[:BOUND_LENGTH].encode()
    if kind == "binary":
        return bytes(value[:BOUND_LENGTH])
    return _fixed(kind, value)


def upper_bound(kind: str, value: Any) -> bytes | None:
    """None: there is no shorter value above it."""
    if kind == "string":
        text = _text(value)
        if len(text) <= BOUND_LENGTH:
            return text.encode()
        raised = _raised_text(text[:BOUND_LENGTH])
        return None if raised is None else raised.encode()
    if kind == "binary":
        return bytes(value) if len(value) <= BOUND_LENGTH else _raised_bytes(bytes(value[:BOUND_LENGTH]))
    return _fixed(kind, value)


def _fixed(kind: str, value: Any) -> bytes:
    if kind == "boolean":
        return b"\x01" if value else b"\x00"
    return _PACK[kind].pack(value)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _raised_text(text: str) -> str | None:
    for length in range(len(text), 0, -1):
        point = ord(text[length - 1]) + 1
        if point in _SURROGATES:
            point = _SURROGATES.stop
        if point <= _CODE_POINT_MAX:
            return text[: length - 1] + chr(point)
    return None


def _raised_bytes(data: bytes) -> bytes | None:
    for length in range(len(data), 0, -1):
        if data[length - 1] < 0xFF:
            return data[: length - 1] + bytes([data[length - 1] + 1])
    return None
