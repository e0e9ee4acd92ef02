"""Inter-process messages from a pipeline task to its driver: the files it wrote, or its error as data (hazard 29).

A file is one Parquet file of one table: rows of one topic, one partition value (hazard 12), contiguous offsets for each
of its shards, disjoint from those of every other file (hazard 22). It is synced before it is reported.
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
    """A data file on disk or in the object store, with all that its manifest entry records."""

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
    row_digest: str = ""  # of its rows, as in its footer (model/row_digest.py); empty: read from a manifest


class TaskErrorKind(StrEnum):
    """What a failed task means for its round."""

    STALE = "stale"  # the range was freed or recycled: the round is planned again
    # A CRC does not match although the generation is right: read again from the owner before it counts as damage.
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"  # the log or the table's storage did not answer
    FAILED = "failed"  # anything else, most likely a bug


class TaskError(msgspec.Struct, frozen=True):
    """Why a task wrote nothing, or less than planned."""

    trouble: TaskErrorKind
    message: str


class TopicTaskResult(msgspec.Struct, frozen=True):
    """The result for one topic in one range, or for a collected topic in all ranges.

    `range_number`: the index of the range in the round.
    """

    topic_id: int
    range_number: int
    covered: list[CoveredRange]  # the offsets written; empty with an error
    files: list[WrittenFile]
    error: TaskError | None = None
    is_cut: bool = False  # too many partition values: these are the first offsets, the rest follows in another round
    new_topics: list[str] = []  # MQTT topics for the learned structure, at most LEARNED_TOPICS_MAX
