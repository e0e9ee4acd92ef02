"""Checks that a file holds rows of its partition value alone: the last check before a commit (hazard 12). Pure.

Engines skip files by their partition value: rows that do not belong to it would silently be missing from query results.
So the bounds of the partition's source column are checked: the transform of both must be the partition value. A bucket
cannot be derived from bounds, unless the column has a single value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from icestream import errors
from icestream.iceberg.manifests import PartitionField
from icestream.model.task_messages import WrittenFile

_US: Final = 1_000_000


def _date(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us // _US, UTC)


def _months(time_us: int) -> int:
    date = _date(time_us)
    return (date.year - 1970) * 12 + date.month - 1


_TIME_TRANSFORMS: Final[Mapping[str, Callable[[int], int]]] = {
    "hour": lambda time_us: time_us // (3_600 * _US),
    "day": lambda time_us: time_us // (86_400 * _US),
    "month": _months,
    "year": lambda time_us: _date(time_us).year - 1970,
}


def check_partition(written: WrittenFile, fields: tuple[PartitionField, ...]) -> None:
    """Raises Contradiction for a file that engines would skip although it has rows that they need."""
    if len(written.partition) != len(fields):
        raise _contradiction(written, f"{len(written.partition)} values for {len(fields)} partition fields")
    for field, value in zip(fields, written.partition, strict=True):
        lower, upper = written.lower_bounds.get(field.source_id), written.upper_bounds.get(field.source_id)
        if field.transform == "void":
            continue
        if lower is None or upper is None:
            _check_all_null(written, field, value)
        elif field.transform in _TIME_TRANSFORMS:
            transform = _TIME_TRANSFORMS[field.transform]
            row_values = {transform(struct.unpack("<q", bound)[0]) for bound in (lower, upper)}
            if row_values != {value}:
                raise _contradiction(written, f"{field.name} is {value}, but the rows are of {sorted(row_values)}")
        elif field.transform == "identity":
            _check_same(written, field, value, lower, upper)


def _check_all_null(written: WrittenFile, field: PartitionField, value: Any) -> None:
    nulls = written.null_counts.get(field.source_id)
    if nulls == written.rows and value is not None:
        raise _contradiction(written, f"{field.name} is {value!r}, but all rows are null")
    if nulls == 0 and value is None:
        raise _contradiction(written, f"{field.name} is null, but no row is")


def _check_same(written: WrittenFile, field: PartitionField, value: Any, lower: bytes, upper: bytes) -> None:
    """Bounds of long values are truncated, so that only their common prefix can be compared."""
    if not isinstance(value, bytes):
        return
    # An upper bound that was truncated has its last byte raised, so only the bytes before that are compared.
    if not value.startswith(lower) or (upper != value and not value.startswith(upper[:-1])):
        raise _contradiction(written, f"{field.name} is {value!r}, but the rows are from {lower!r} to {upper!r}")
    if written.null_counts.get(field.source_id, 0):
        raise _contradiction(written, f"{field.name} is {value!r}, but some rows are null")


def _contradiction(written: WrittenFile, problem: str) -> errors.Contradiction:
    return errors.Contradiction(
        f"{written.location} holds rows of another partition: {problem}",
        hint="this is a bug of Icestream: please report it; the rows are still in the log",
    )
