"""What a task of the pipeline tells its driver: the files that it wrote, or why not. Errors are data (hazard 29).

A file is one Parquet file of one table: rows of one topic, one partition value (hazard 12), contiguous offsets for each
of its shards, disjoint from every other file's (hazard 22). It is synced before it is told.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class CoveredRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of a shard; declared gaps in between hold no row."""

    shard: int
    start: int
    end: int


class WrittenFile(msgspec.Struct, frozen=True):
    topic_id: int
    location: str
    size_bytes: int
    rows: int
    covered: list[CoveredRange]
    schema_id: int
    spec_id: int
    partition: list[object]  # a value for each field of the spec, as Iceberg stores it in a manifest
    column_sizes: dict[int, int]  # this and what follows: by field id
    value_counts: dict[int, int]
    null_counts: dict[int, int]
    lower_bounds: dict[int, bytes]  # as Iceberg serialises single values
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]


class TaskErrorKind(StrEnum):
    STALE = "stale"  # the range is not there any more, or not this one: the round is planned anew
    DAMAGED = (
        "damaged"  # a CRC does not fit at the right generation: read again from the owner before anyone believes it
    )
    UNREACHABLE = "unreachable"  # the log or the table's storage did not answer
    FAILED = "failed"  # anything else: a mistake of ours, most likely


class TaskError(msgspec.Struct, frozen=True):
    trouble: TaskErrorKind
    message: str


class TopicTaskResult(msgspec.Struct, frozen=True):
    """Of one topic in one range, or of a gathered topic in all of them. `range_number`: its place in the round."""

    topic_id: int
    range_number: int
    covered: list[CoveredRange]  # what was found and written; empty with an error
    files: list[WrittenFile]
    error: TaskError | None = None
    is_cut: bool = False  # it had too many partition values: this is the front, the rest comes with another round
