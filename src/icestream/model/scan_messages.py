"""Inter-process messages between the broker and the lake process for reads of a topic's table (docs/adr/0027).

ScanRequest    one request about one shard. READ: rows from an offset on. EARLIEST: the offset of the first row. TIME:
               that of the first row whose append time is at least this. SNAPSHOT: the offset after a snapshot's rows
               `topic_filters`: READ of rows whose MQTT topic one of them may match; none: all rows
ScanResponse   the response. `offset`: the result of EARLIEST, TIME and SNAPSHOT; None if there is no such row
               READ: sections and gaps sorted by offset, without a hole up to `next_offset`. With filters: sections of
               rows that match, and gaps whose reason is recorded; what is in neither was passed over
               `end`: the offset after the last one in the table; None: the topic has no table
               `snapshot_id`, `row_ranges`: the snapshot that was read, and where some of the rows stand in its files:
               hints for cursors, complete or not
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ScanKind(StrEnum):
    READ = "read"
    EARLIEST = "earliest"
    TIME = "time"
    SNAPSHOT = "snapshot"


class ScanRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    question: ScanKind
    topic: str
    topic_id: int
    shard: int
    value: int = 0  # an offset, microseconds since 1970, or the id of a snapshot
    bytes_max: int = 0
    topic_filters: list[str] = []


class ScanSection(msgspec.Struct, frozen=True, array_like=True):
    """`offsets`, `append_times_us`: of each row, as 64-bit little-endian numbers; empty: consecutive offsets, and one
    append time."""

    base_offset: int
    rows: int
    append_time_us: int
    epoch: int
    body: bytes
    offsets: bytes = b""
    append_times_us: bytes = b""


class MissingRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) without rows, and why. `state`: a GapState of model/shard.py."""

    start: int
    end: int
    state: int
    reason: str


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows of consecutive offsets that stand one after the other in one data file."""

    start: int  # the offset of the first one
    rows: int
    file_path: str
    first_row: int  # the position of the first one in the file, from 0


class ScanResponse(msgspec.Struct, frozen=True):
    end: int | None = None
    offset: int | None = None
    sections: list[ScanSection] = []
    missing: list[MissingRange] = []
    next_offset: int = 0
    is_cached: bool = False  # answered from the cache, without reading a file
    snapshot_id: int | None = None
    row_ranges: list[RowRange] = []
