"""Iceberg's partition transforms over a whole column: the value of each row, as a manifest stores it.

    identity, void, bucket[N]                     of numbers, text and bytes
    truncate[W]                                   of text and bytes
    year, month, day, hour                        of timestamps; floors, also before 1970

A null stays null. Times are counted from 1970, UTC.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream import errors
from icestream.iceberg.murmur import murmur3

_NAMED: Final = re.compile(r"(bucket|truncate)\[(\d{1,9})\]")
_UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def transform_column(transform: str, column: Any) -> Any:
    """An Arrow array: of 32-bit integers, or of the column's type (identity, truncate). Raises InvalidInput."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.utf8())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    named = _NAMED.fullmatch(transform)
    if transform == "identity":
        return column
    if transform == "void":
        return pa.nulls(len(column), column.type)
    if transform in _UNITS and pa.types.is_timestamp(column.type):
        return _times(column, _UNITS[transform])
    if named is not None and int(named[2]) > 0:
        return _bucket(column, int(named[2])) if named[1] == "bucket" else _truncate(column, int(named[2]))
    raise errors.InvalidInput(
        f"the table is partitioned by {transform} of {column.type}", hint="Icestream writes no such partitions"
    )


def _times(column: Any, unit: str) -> Any:
    us, is_null = _numbers(column)
    return pa.array(
        us.view("datetime64[us]").astype(f"datetime64[{unit}]").view(np.int64).astype(np.int32), mask=is_null
    )


def _numbers(column: Any) -> tuple[Any, Any]:
    """As int64, and which are null."""
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
        words, is_null = distinct.dictionary, column.is_null().to_numpy(zero_copy_only=False)
        _, ends, data = words.buffers()
        places = np.frombuffer(ends, np.int32, len(words) + 1, words.offset * 4)
        hashes = murmur3(data or b"", places[:-1], places[1:])[distinct.indices.to_numpy()]
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
