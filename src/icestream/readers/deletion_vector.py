"""Decodes deletion vectors of Iceberg v3: the positions of deleted rows of one data file, as a blob of a Puffin file.

    length      4 bytes, big-endian: of magic and bitmap together
    magic       D1 D3 39 64
    bitmap      Roaring, portable form for 64 bits: count (8 bytes), then for each: the high 32 bits (4 bytes) and a
                portable bitmap of the low 32 bits. Little-endian
    crc         4 bytes, big-endian: CRC-32 of magic and bitmap

A portable bitmap of 32 bits:

    cookie      12346 and the number of containers (4 bytes each), or 12347 | (number - 1) << 16 with a bit for each
                container that consists of runs
    keys        of each container: its high 16 bits, and its cardinality - 1 (2 bytes each)
    offsets     4 bytes for each, if there are no runs or at least 4 containers; skipped, because containers are read
                in order
    containers  runs: number (2 bytes), then start and length - 1 of each; up to 4,096 values: the values, 2 bytes each;
                else 8,192 bytes of bits

A delete file comes from another engine, so nothing in it is trusted: every length is checked against the bytes, every
position against the rows of the file, and positions must rise. Pure.
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
_NOT_RISING: Final = "deletion vector whose positions do not rise"
_OFFSETS_FROM: Final = 4  # from this many containers on, offsets are written even if there are runs


def decode(blob: bytes, rows: int) -> list[int]:
    """Returns the deleted positions, rising. Raises ValueError for a blob that is not a valid deletion vector of a file
    with `rows` rows."""
    if len(blob) < 20:
        raise ValueError(f"deletion vector of {len(blob)} bytes is too short")
    (length,) = struct.unpack_from(">I", blob)
    body, rest = blob[4 : 4 + length], blob[4 + length :]
    if len(body) != length or len(rest) != 4 or body[:4] != MAGIC:
        raise ValueError("not a deletion vector: wrong length or magic")
    if zlib.crc32(body) != struct.unpack(">I", rest)[0]:
        raise ValueError("deletion vector with a wrong CRC")
    try:
        return _bitmap64(body, rows)
    except struct.error as error:
        raise ValueError(f"deletion vector is cut off: {error}") from None


def _bitmap64(body: bytes, rows: int) -> list[int]:
    """Returns the positions of a 64-bit bitmap: a sequence of 32-bit bitmaps, each with its high bits."""
    (count,) = struct.unpack_from("<Q", body, 4)
    at, positions = 12, list[int]()
    for _ in range(count):
        (high,) = struct.unpack_from("<I", body, at)
        at = _bitmap32(body, at + 4, high << 32, rows, positions)
    if at != len(body):
        raise ValueError(f"deletion vector has {len(body) - at} bytes behind its bitmaps")
    return positions


def _bitmap32(body: bytes, at: int, base: int, rows: int, positions: list[int]) -> int:
    """Adds the positions of the 32-bit bitmap that begins at `at`, plus `base`; returns where the next bitmap
    begins."""
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
        raise ValueError(f"deletion vector with an unknown bitmap, cookie {cookie}")
    if count > 1 << 16:
        raise ValueError(f"deletion vector with a bitmap of {count} containers")
    heads = struct.unpack_from(f"<{2 * count}H", body, at)
    at += 4 * count
    if not run_flags or count >= _OFFSETS_FROM:
        at += 4 * count
    for number in range(count):
        start, cardinality = base + (heads[2 * number] << 16), heads[2 * number + 1] + 1
        is_runs = bool(run_flags) and bool(run_flags[number >> 3] >> (number & 7) & 1)
        values, at = _decode_container(body, at, cardinality, is_runs)
        # Checked for each container, before the next one is decoded: hostile bytes cannot make the list much longer
        # than the file has rows.
        if values and start + values[-1] >= rows:
            raise ValueError(f"deletion vector deletes row {start + values[-1]} in a file of {rows} rows")
        if values and positions and start + values[0] <= positions[-1]:
            raise ValueError(_NOT_RISING)
        positions += [start + value for value in values]
    return at


def _decode_container(body: bytes, at: int, cardinality: int, is_runs: bool) -> tuple[list[int], int]:
    """Returns the 16-bit values of a container, rising, and where the next container begins."""
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
        raise ValueError("deletion vector is cut off")
    return [value for value in range(1 << 16) if bits[value >> 3] >> (value & 7) & 1], at + _BITS_BYTES
