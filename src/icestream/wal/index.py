"""The index of one log file: where each shard's sections are. In memory while the file is written, then its footer.

The footer is a record of kind FOOTER whose lsn is the file's last. It has a TOPIC section for every topic id in the
file and an INDEX section for every shard, rising by (topic_id, shard). Entry fields of an INDEX section: epoch and
append_time_us are the last ones, base_offset the first offset in the file, rows the offsets (at most 2^32 - 1).
Its body:
    0   i64  end_offset: one past the last offset in the file
    8   u64  own_bytes: section bodies and entries of this shard in the file (live bytes, hazard 8)
    16  u32  last_position: of the shard's last section entry
    20  u32  point_count
    24  i64  max_time_us: highest append_time_us of the shard in this file
    32  i64  base_offset[point_count]        of the section at a point
    ..  i64  running_max_time[point_count]   highest append_time_us of the shard in this file before that section
    ..  u32  position[point_count]           of its section entry
A MARKS section follows (OPTIONAL: a reader that does not know it begins at the first record). rows is the number of
marks, its body for each of them
    0   u64  lsn                             of a record where a reader of the whole file may begin, about every MiB
    8   u64  position
A point is added for the first section of a shard, then at most one per 64 KiB of its own bytes (hazard 20). Between two
points the sections of a shard are chained backwards by `previous`, so a reader reaches each of them without reading
bytes of other shards. Running maxima make a search by time correct even if the clock went back (hazard 32).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from icestream import errors, limits
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.wal.format import ENTRY_BYTES, HEADER_BYTES, OPTIONAL, RecordSection, SectionEntry, SectionKind, padded
from icestream.wal.notes import topic_section

_HEAD = struct.Struct("<qQIIq")
_POINT_BYTES = 20
_MARK = struct.Struct("<QQ")
MARK_BYTES: Final = _MARK.size
_TIME_MIN = -(2**63)


@dataclass(slots=True)
class ShardIndex:
    """One shard in one file."""

    first_offset: int
    end_offset: int = 0
    epoch: int = 0
    append_time_us: int = 0
    max_time_us: int = _TIME_MIN
    own_bytes: int = 0
    last_position: int = 0
    point_due_bytes: int = 0  # own_bytes at which the next section becomes a point
    base_offsets: array[int] = field(default_factory=lambda: array("q"))
    running_max: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("I"))

    def add(self, base: int, count: int, epoch: int, time_us: int, position: int, body_bytes: int) -> bool:
        """Adds one section; True if it became a point."""
        is_point = self.own_bytes >= self.point_due_bytes
        if is_point:
            self.add_point(base, position)
        self.end_offset = base + count
        self.epoch = epoch
        self.append_time_us = time_us
        self.max_time_us = max(self.max_time_us, time_us)
        self.own_bytes += body_bytes + ENTRY_BYTES
        self.last_position = position
        return is_point

    def add_point(self, base: int, position: int) -> None:
        """Makes the section at `position` an index point."""
        self.base_offsets.append(base)
        # The maximum before this section, not with it: a search by time must not step over the section itself.
        self.running_max.append(self.max_time_us)
        self.positions.append(position)
        self.point_due_bytes = self.own_bytes + limits.INDEX_STRIDE_BYTES

    def chain_for_offset(self, offset: int, points: int = 1) -> tuple[int, int]:
        """(position to walk back from, position to stop at) for the sections from `offset` on, over `points` points."""
        point = max(bisect_right(self.base_offsets, offset) - 1, 0)
        return self._chain(point, points)

    def chain_for_time(self, time_us: int) -> tuple[int, int] | None:
        """The chain with the first section whose append time is at least `time_us`; None if there is none."""
        if self.max_time_us < time_us:
            return None
        # running_max rises: the first point whose running maximum reaches the time comes after the section we look for.
        point = max(bisect_left(self.running_max, time_us) - 1, 0)
        return self._chain(point)

    def _chain(self, point: int, points: int = 1) -> tuple[int, int]:
        """From the entry `points` points further (or the last one of the file) back to this point."""
        after = point + points
        start = self.positions[after] if after < len(self.positions) else self.last_position
        return start, self.positions[point]


class FileIndex:
    """Every shard of one file, and how large the footer would be if the file were sealed now."""

    __slots__ = ("footer_bytes", "mark_due", "marks", "shards", "topics")

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []  # (position, lsn) of records, about every MiB
        self.mark_due = 0  # the next record at or after this position becomes a mark
        self.shards: dict[ShardKey, ShardIndex] = {}
        self.topics: dict[int, TopicIdentity] = {}
        self.footer_bytes = HEADER_BYTES

    def add_topic(self, topic: TopicIdentity) -> None:
        """Remembers a topic of the file and the room for its name in the footer."""
        if topic.id not in self.topics:
            self.topics[topic.id] = topic
            self.footer_bytes += ENTRY_BYTES + padded(len(topic_section(topic).body))

    def add(self, key: ShardKey, base: int, count: int, epoch: int, time_us: int, at: int, body_bytes: int) -> None:
        """Adds one section of a shard."""
        shard = self.shards.get(key) or self.open(key, base)
        if shard.add(base, count, epoch, time_us, at, body_bytes):
            self._count_point(shard)

    def open(self, key: ShardKey, base: int) -> ShardIndex:
        """Adds a shard that has its first section in this file."""
        shard = self.shards[key] = ShardIndex(base)
        self.footer_bytes += ENTRY_BYTES + padded(_HEAD.size)
        return shard

    def add_point(self, shard: ShardIndex, base: int, position: int) -> None:
        """Adds an index point of a shard."""
        shard.add_point(base, position)
        self._count_point(shard)

    def _count_point(self, shard: ShardIndex) -> None:
        """Adds the room for the newest point to the footer."""
        points = len(shard.positions)
        self.footer_bytes += padded(_POINT_BYTES * points) - padded(_POINT_BYTES * (points - 1))

    def mark(self, position: int, lsn: int) -> None:
        """Adds a mark: a reader may begin at this record."""
        self.footer_bytes += MARK_BYTES if self.marks else ENTRY_BYTES + MARK_BYTES
        self.marks.append((position, lsn))
        self.mark_due = position + limits.MARK_STRIDE_BYTES

    def mark_records(self, records: Sequence[tuple[int, ...]]) -> None:
        """Adds the marks for scanned records, (position, lsn, …) sorted by position."""
        at = 0
        while (at := bisect_left(records, self.mark_due, at, key=_position)) < len(records):
            self.mark(records[at][0], records[at][1])

    def live_bytes(self) -> dict[int, int]:
        """Bytes in this file by topic id."""
        bytes_by_topic: dict[int, int] = {}
        for key, shard in self.shards.items():
            bytes_by_topic[key.topic_id] = bytes_by_topic.get(key.topic_id, 0) + shard.own_bytes
        return bytes_by_topic

    def sections(self) -> list[RecordSection]:
        """The footer's sections."""
        topics = [topic_section(topic) for _, topic in sorted(self.topics.items())]
        shards = [_index_section(key, shard) for key, shard in sorted(self.shards.items())]
        return topics + shards + ([_marks_section(self.marks)] if self.marks else [])


def _position(record: tuple[int, ...]) -> int:
    return record[0]


def _marks_section(marks: Sequence[tuple[int, int]]) -> RecordSection:
    body = b"".join(_MARK.pack(lsn, position) for position, lsn in marks)
    return RecordSection(0, 0, SectionKind.MARKS, OPTIONAL, 0, 0, 0, len(marks), 0, body)


def decode_marks(body: bytes) -> list[tuple[int, int]]:
    """Decodes a MARKS section. Raises DecodeError."""
    if len(body) % MARK_BYTES:
        raise errors.DecodeError("marks are cut off")
    return [(position, lsn) for lsn, position in _MARK.iter_unpack(body)]


def _index_section(key: ShardKey, shard: ShardIndex) -> RecordSection:
    head = _HEAD.pack(shard.end_offset, shard.own_bytes, shard.last_position, len(shard.positions), shard.max_time_us)
    parts = (head, shard.base_offsets.tobytes(), shard.running_max.tobytes(), shard.positions.tobytes())
    # A declared gap can make it larger than the field. Readers go by end_offset.
    rows = min(shard.end_offset - shard.first_offset, 2**32 - 1)
    fields = (shard.epoch, shard.first_offset, shard.append_time_us, rows)
    return RecordSection(key.topic_id, key.shard, SectionKind.INDEX, 0, *fields, 0, b"".join(parts))


def decode_index(entry: SectionEntry, body: bytes) -> ShardIndex:
    """Decodes the INDEX section of one shard. Raises DecodeError."""
    try:
        end, own_bytes, last, points, max_time = _HEAD.unpack_from(body)
    except struct.error:
        raise errors.DecodeError("index section cut off") from None
    at = _HEAD.size
    if not points or len(body) != at + _POINT_BYTES * points:
        raise errors.DecodeError("index section has an inconsistent length")
    base_offsets = array("q", body[at : at + 8 * points])
    running_max = array("q", body[at + 8 * points : at + 16 * points])
    positions = array("I", body[at + 16 * points : at + 20 * points])
    shard = ShardIndex(entry.base_offset, end, entry.epoch, entry.append_time_us, max_time, own_bytes, last)
    shard.base_offsets, shard.running_max, shard.positions = base_offsets, running_max, positions
    return shard


def index_entries(index: FileIndex, entries: Iterable[SectionEntry]) -> None:
    """Adds the message sections of one record to an index, to rebuild a missing footer."""
    for entry in entries:
        if entry.kind == SectionKind.MESSAGES:
            key = ShardKey(entry.topic_id, entry.shard)
            index.add(
                key, entry.base_offset, entry.rows, entry.epoch, entry.append_time_us, entry.position, entry.body_bytes
            )
