"""What the broker asks the lake process about the table of a topic, and what it is told (docs/adr/0027).

Asked       one question about one shard. READ: what lies at an offset. EARLIEST: the first row. TIME: the first row
            whose append time is at least this. SNAPSHOT: behind what is in a snapshot
Scanned     the answer. `offset`: what EARLIEST, TIME and SNAPSHOT asked for, None for nothing found
            READ: sections and gaps in the order of their offsets, without a hole up to `next_offset`
            `end`: behind the last offset that the table knows of; None: the topic has no table
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


class ScanSection(msgspec.Struct, frozen=True, array_like=True):
    base_offset: int
    rows: int
    append_time_us: int
    epoch: int
    body: bytes


class MissingRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) that are no rows, and why. `state`: of model/shard.py (GapState)."""

    start: int
    end: int
    state: int
    reason: str


class ScanResponse(msgspec.Struct, frozen=True):
    end: int | None = None
    offset: int | None = None
    sections: list[ScanSection] = []
    missing: list[MissingRange] = []
    next_offset: int = 0
    is_cached: bool = False  # nothing was read for it
