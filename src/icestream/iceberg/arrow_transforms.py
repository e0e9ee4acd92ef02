"""Iceberg's partition transforms over a whole Arrow column: the value of each row, as a manifest stores it.

    identity, void, bucket[N]                     of numbers, text and bytes
    truncate[W]                                   of text and bytes
    year, month, day, hour                        of timestamps; floors, also before 1970

A null stays null. Times are counted from 1970, UTC. `bucket` uses Murmur3 (x86 variant, 32 bits, seed 0), which is
computed for all values of a column together: the first word of each value, then the second, ….
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import errors

_WITH_PARAMETER: Final = re.compile(r"(bucket|truncate)\[(\d{1,9})\]")
_UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def transform_column(transform: str, column: Any) -> Any:
    """Returns an Arrow array of 32-bit integers, or of the column's type (identity, truncate). Raises InvalidInput."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.utf8())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    parametrised = _WITH_PARAMETER.fullmatch(transform)
    if transform == "identity":
        return column
    if transform == "void":
        return pa.nulls(len(column), column.type)
    if transform in _UNITS and pa.types.is_timestamp(column.type):
        return _times(column, _UNITS[transform])
    if parametrised is not None and int(parametrised[2]) > 0:
        parameter = int(parametrised[2])
        return _bucket(column, parameter) if parametrised[1] == "bucket" else _truncate(column, parameter)
    raise errors.InvalidInput(
        f"the table is partitioned by {transform} of {column.type}", hint="Icestream writes no such partitions"
    )


def _times(column: Any, unit: str) -> Any:
    us, is_null = _numbers(column)
    return pa.array(
        us.view("datetime64[us]").astype(f"datetime64[{unit}]").view(np.int64).astype(np.int32), mask=is_null
    )


def _numbers(column: Any) -> tuple[Any, Any]:
    """Returns the values as int64, with 0 for nulls, and a mask of the nulls."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return column.cast(pa.int64()).fill_null(0).to_numpy(), is_null


def _bucket(column: Any, count: int) -> Any:
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        numbers, is_null = _numbers(column)
        ends = np.arange(len(numbers) + 1) * 8
        hashes = murmur3(numbers.astype("<i8").tobytes(), ends[:-1], ends[1:])
    elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        filled = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
        distinct = filled.dictionary_encode()
        # Keys repeat: each distinct value is hashed once.
        texts, is_null = distinct.dictionary, column.is_null().to_numpy(zero_copy_only=False)
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
        hashes = murmur3(data or b"", ends[:-1], ends[1:])[distinct.indices.to_numpy()]
    else:
        raise errors.InvalidInput(f"the table is partitioned by buckets of {column.type}")
    buckets = (hashes & np.uint32(0x7FFF_FFFF)) % np.uint32(count)
    return pa.array(buckets.astype(np.int32), mask=is_null)


def _truncate(column: Any, width: int) -> Any:
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_binary(column.type):
        return pc.binary_slice(column, 0, width)
    raise errors.InvalidInput(f"the table is partitioned by truncated {column.type}")


# --- Murmur3 ----------------------------------------------------------------------------------------------------------

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_ADD: Final = 0xE6546B64
# Hashing a word of all values in numpy costs about as much as chaining this many words of one value in Python
# (measured: 10 us and 0.1 us). Starting a chain costs a few steps, so it does not pay for short values.
_FEW_VALUES: Final = 100
_SHORT_WORDS: Final = 64
# A long value is converted in parts of this size: Python's numbers take ten times the bytes.
_CHAIN_BYTES: Final = 1 << 18
Octets = NDArray[np.uint8]
Words = NDArray[np.uint32]


def murmur3(data: Any, start: Any, end: Any) -> Words:
    """Returns the hash of each slice [start, end) of the bytes."""
    octets = np.frombuffer(data, np.uint8) if len(data) else np.zeros(1, np.uint8)
    size = (end - start).astype(np.int64)
    hashes = np.zeros(len(size), np.uint32)
    position, words_end = start.astype(np.int64), (start + (size & ~3)).astype(np.int64)
    unfinished, steps = np.flatnonzero(position < words_end), 0
    while len(unfinished) > _FEW_VALUES or (len(unfinished) and steps < _SHORT_WORDS):
        word = _word(octets, position[unfinished], 4)
        hashes[unfinished] = _rotate(hashes[unfinished] ^ _mix(word), 13) * np.uint32(5) + np.uint32(_ADD)
        position[unfinished] += 4
        steps += 1
        unfinished = unfinished[position[unfinished] < words_end[unfinished]]
    for number in unfinished.tolist():
        hashes[number] = _chain(int(hashes[number]), octets[position[number] : words_end[number]])
    _add_tails(hashes, octets, end, size & 3)
    return _finalize(hashes ^ size.astype(np.uint32))


def _chain(value: int, octets: Octets) -> int:
    """Returns the hash state of one long value after these bytes. Mixing is independent of the state, so it is done for
    many words at once; only the chaining itself is done word by word."""
    for start in range(0, len(octets), _CHAIN_BYTES):
        for word in _mix(octets[start : start + _CHAIN_BYTES].view("<u4")).tolist():
            value ^= word
            value = ((value << 13 | value >> 19) * 5 + _ADD) & 0xFFFF_FFFF
    return value


def _add_tails(hashes: Words, octets: Octets, end: Any, tail: Any) -> None:
    """Adds the bytes after the last whole word of each value."""
    for length in (1, 2, 3):
        values = np.flatnonzero(tail == length)
        hashes[values] ^= _mix(_word(octets, (end - length)[values].astype(np.int64), length))


def _word(octets: Octets, position: Any, length: int) -> Words:
    word: Words = octets[position].astype(np.uint32)
    for byte in range(1, length):
        word |= octets[position + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _rotate(value: Words, bits: int) -> Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _mix(word: Words) -> Words:
    return _rotate(word * _C1, 15) * _C2


def _finalize(value: Words) -> Words:
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return value ^ (value >> np.uint32(16))
