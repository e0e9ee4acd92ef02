"""Deletion vectors of Iceberg v3: the places of deleted rows of one data file, as a blob of a Puffin file.

    length      4 bytes, big-endian: of magic and bitmap together
    magic       D1 D3 39 64
    bitmap      Roaring, portable form for 64 bits: count (8 bytes), then for each: the high 32 bits (4 bytes) and a
                portable bitmap of 32 bits. Little-endian
    crc         4 bytes, big-endian: CRC-32 of magic and bitmap

A portable bitmap of 32 bits:

    cookie      12346 and the number of containers (4 bytes each), or 12347 | (number - 1) << 16 with a bit for each
                container that consists of runs
    keys        of each container: its high 16 bits, and its cardinality - 1 (2 bytes each)
    offsets     4 bytes for each, where there are no runs, or at least 4 containers; not needed to read in order
    containers  runs: number (2 bytes), then start and length - 1 of each; up to 4,096 values: the values, 2 bytes each;
                else 8,192 bytes of bits

Everything is checked against the bytes that are there and against the rows of the file. Pure.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import Final

MAGIC: Final = bytes.fromhex("d1d33964")
_NO_RUNS: Final = 12346
_RUNS: Final = 12347
_ARRAY_MAX: Final = 4_096
_BITS_BYTES: Final = 8_192
_NOT_RISING: Final = "a deletion vector whose places do not rise"
_OFFSETS_FROM: Final = 4  # containers: from so many on offsets are written also where there are runs


def decode(blob: bytes, rows: int) -> list[int]:
    """The places, rising. Raises ValueError when the blob is no deletion vector of a file with so many rows."""
    if len(blob) < 20:
        raise ValueError(f"a deletion vector of {len(blob)} bytes")
    (length,) = struct.unpack_from(">I", blob)
    body, rest = blob[4 : 4 + length], blob[4 + length :]
    if len(body) != length or len(rest) != 4 or body[:4] != MAGIC:
        raise ValueError("not a deletion vector: length or magic do not fit")
    if zlib.crc32(body) != struct.unpack(">I", rest)[0]:
        raise ValueError("a deletion vector with a wrong CRC")
    try:
        return _bitmap64(body, rows)
    except struct.error as error:
        raise ValueError(f"a deletion vector that ends too early: {error}") from None


def _bitmap64(body: bytes, rows: int) -> list[int]:
    (count,) = struct.unpack_from("<Q", body, 4)
    at, places = 12, list[int]()
    for _ in range(count):
        (high,) = struct.unpack_from("<I", body, at)
        at = _bitmap32(body, at + 4, high << 32, rows, places)
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes behind the bitmaps")
    return places


def _bitmap32(body: bytes, at: int, base: int, rows: int, places: list[int]) -> int:
    """Adds the places of one bitmap; returns where the next one begins."""
    (cookie,) = struct.unpack_from("<I", body, at)
    at += 4
    run_flags = b""
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        run_flags = body[at : at + (count + 7) // 8]
        at += (count + 7) // 8
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", body, at)
        at += 4
    else:
        raise ValueError(f"an unknown bitmap, cookie {cookie}")
    if count > 1 << 16:
        raise ValueError(f"a bitmap of {count} containers")
    heads = struct.unpack_from(f"<{2 * count}H", body, at)
    at += 4 * count
    if not run_flags or count >= _OFFSETS_FROM:
        at += 4 * count
    for number in range(count):
        start, cardinality = base + (heads[2 * number] << 16), heads[2 * number + 1] + 1
        is_runs = bool(run_flags) and bool(run_flags[number >> 3] >> (number & 7) & 1)
        positions, at = _container(body, at, cardinality, is_runs)
        if positions and start + positions[-1] >= rows:
            raise ValueError(f"row {start + positions[-1]} is deleted in a file of {rows} rows")
        if positions and places and start + positions[0] <= places[-1]:
            raise ValueError(_NOT_RISING)
        places += [start + value for value in positions]
    return at


def _container(body: bytes, at: int, cardinality: int, is_runs: bool) -> tuple[list[int], int]:
    if is_runs:
        (count,) = struct.unpack_from("<H", body, at)
        pairs = struct.unpack_from(f"<{2 * count}H", body, at + 2)
        values: list[int] = []
        for start, more in zip(pairs[::2], pairs[1::2], strict=True):
            if values and start <= values[-1]:
                raise ValueError(_NOT_RISING)
            values += range(start, min(start + more, 0xFFFF) + 1)
        return values, at + 2 + 4 * count
    if cardinality <= _ARRAY_MAX:
        values = list(struct.unpack_from(f"<{cardinality}H", body, at))
        if any(low >= high for low, high in pairwise(values)):
            raise ValueError(_NOT_RISING)
        return values, at + 2 * cardinality
    bits = body[at : at + _BITS_BYTES]
    if len(bits) < _BITS_BYTES:
        raise ValueError("a deletion vector that ends too early")
    return [value for value in range(1 << 16) if bits[value >> 3] >> (value & 7) & 1], at + _BITS_BYTES
