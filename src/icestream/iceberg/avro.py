"""Avro files as Iceberg's manifests are: written here by hand, because a commit writes two of them for each table.

    "Obj" 1 | map of metadata | sync marker (16 bytes) | blocks: records, bytes, the records deflated, sync marker

A library writes the same in about three times the time: it works out the schema anew for each file. Here the head is
made once for each schema, records come encoded, and what is encoded once is copied from file to file (merge.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

_MAGIC: Final = b"Obj\x01"
# The fastest: these files are small, and most of a manifest is paths and bounds that hardly repeat.
_LEVEL: Final = 1
SYNC_BYTES: Final = 16


def long(value: int) -> bytes:
    """Zigzag, then seven bits at a time, the lowest first."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    return _long(value)


def _long(value: int) -> bytes:
    left = value << 1 ^ value >> 63
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


_SMALL: Final = [_long(value) for value in range(1_024)]


def optional_long(value: int | None) -> bytes:
    """Of a union of null and long, in this order."""
    return b"\x00" if value is None else b"\x02" + long(value)


def block_of_bytes(data: bytes) -> bytes:
    return long(len(data)) + data


def head(metadata: Mapping[str, bytes]) -> bytes:
    """Everything before the sync marker."""
    named = {**metadata, "avro.codec": b"deflate"}
    pairs = b"".join(block_of_bytes(name.encode()) + block_of_bytes(value) for name, value in named.items())
    return _MAGIC + long(len(named)) + pairs + b"\x00"


def file(head: bytes, records: Sequence[bytes], sync: bytes) -> list[bytes]:
    """The file in pieces."""
    if not records:
        return [head, sync]
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(b"".join(records)) + packer.flush()
    return [head, sync, long(len(records)), long(len(packed)), packed, sync]
