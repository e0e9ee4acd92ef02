"""The sections of a stretch of the log as columns: no object is created for each section or message.

`Sections` holds bytes and, for each section, where its body is in them; sections are in the order of their bytes.
Entries are read as 64-bit words: everything in the log starts at a multiple of 8 (wal/format.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icestream.pipeline.round_plan import OffsetRange
from icestream.wal.format import ENTRY_BYTES, HEADER_BYTES, SectionKind

Ints = NDArray[np.int64]
_LOW: Final = np.uint64(0xFFFF_FFFF)
_HIGH: Final = np.uint64(32)
_FIELDS: Final = ("topic_id", "shard", "epoch", "base", "time_us", "rows", "start", "size")


@dataclass(frozen=True)
class Sections:
    """Sections of many topics, as columns over one buffer."""

    data: Any  # bytes, or a buffer of them, padded to a multiple of 8
    topic_id: Ints
    shard: Ints
    epoch: Ints
    base: Ints
    time_us: Ints
    rows: Ints
    start: Ints  # of the body, in `data`
    size: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, indices: NDArray[Any]) -> Sections:
        """Returns the sections of a mask, or of rising indices."""
        return Sections(self.data, *(getattr(self, name)[indices] for name in _FIELDS))

    @property
    def end(self) -> Ints:
        return self.base + self.rows

    @property
    def bytes(self) -> int:
        return int(self.size.sum())


def no_sections() -> Sections:
    return Sections(b"", *(np.empty(0, np.int64) for _ in _FIELDS))


def sections_of(data: Any, position: int, records: Sequence[tuple[int, ...]]) -> Sections:
    """Returns all MESSAGES sections of good records, as `scan_records` returns them. `data` begins at `position` of its
    file."""
    if not records:
        return no_sections()
    places = np.array([(record[0], record[7]) for record in records], np.int64)
    first = np.repeat(places[:, 0] - position + HEADER_BYTES, places[:, 1])
    entries = first + ENTRY_BYTES * _count_up(places[:, 1])
    words = np.frombuffer(data, "<u8", len(data) // 8)
    at = entries >> 3
    # The 64-bit words of a section entry (wal/format.py): 0 topic id | 1 shard, kind, flags | 2 epoch | 3 base offset |
    # 4 append time | 5 rows, position of the body | 6 bytes of the body, previous.
    kinds = (words[at + 1] >> _HIGH) & np.uint64(0xFF)
    at = at[kinds == SectionKind.MESSAGES]
    rows_and_place, size = words[at + 5], words[at + 6] & _LOW
    return Sections(
        data,
        words[at].astype(np.int64),
        (words[at + 1] & _LOW).astype(np.int64),
        words[at + 2].astype(np.int64),
        words[at + 3].view(np.int64),
        words[at + 4].view(np.int64),
        (rows_and_place & _LOW).astype(np.int64),
        (rows_and_place >> _HIGH).astype(np.int64) - position,
        size.astype(np.int64),
    )


def _count_up(counts: Ints) -> Ints:
    """0, 1, … counts[0] - 1, 0, 1, … counts[1] - 1, …"""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def select_offsets(sections: Sections, ranges: Iterable[OffsetRange]) -> Sections:
    """Returns the sections that hold an offset of one of the ranges, under its epoch."""
    spans: dict[tuple[int, int, int], tuple[int, int]] = {}
    for offsets in ranges:
        key = offsets.topic_id, offsets.shard, offsets.epoch
        start, end = spans.get(key, (offsets.start, offsets.end))
        spans[key] = min(start, offsets.start), max(end, offsets.end)
    if not spans or not len(sections):
        return sections.select(np.zeros(len(sections), bool))
    keys = np.array(sorted(spans), np.int64)
    bounds = np.array([spans[tuple(key)] for key in keys.tolist()], np.int64)
    index = indices_of(keys, np.stack((sections.topic_id, sections.shard, sections.epoch), axis=1))
    is_selected = index >= 0
    is_selected &= (sections.base < bounds[index, 1]) & (sections.end > bounds[index, 0])
    return sections.select(is_selected)


def indices_of(keys: Ints, rows: Ints) -> Ints:
    """Returns, for each row, the index of the equal key (keys are distinct); -1 if there is none."""
    _, codes = np.unique(np.concatenate((keys, rows)), axis=0, return_inverse=True)
    index = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    index[codes[: len(keys)]] = np.arange(len(keys))
    return index[codes[len(keys) :]]


def join(parts: Sequence[Sections]) -> Sections:
    """Returns all sections, with their bodies alone one after the other: small enough to be sent."""
    bodies: list[memoryview] = []
    for part in parts:
        view = memoryview(part.data)
        bodies += [
            view[start : start + size] for start, size in zip(part.start.tolist(), part.size.tolist(), strict=True)
        ]
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS]
    size = columns[-1]
    columns[-2] = np.cumsum(size) - size
    return Sections(b"".join(bodies), *columns)


def pack(sections: Sections) -> bytes:
    """Encodes sections for another process: their number, the columns, the bodies."""
    compact = join([sections])
    columns = [np.array([len(compact)], "<i8"), *(getattr(compact, name) for name in _FIELDS)]
    return b"".join((*(column.tobytes() for column in columns), compact.data))


def unpack(data: bytes) -> Sections:
    count = int(np.frombuffer(data, "<i8", 1)[0])
    columns = np.frombuffer(data, "<i8", count * len(_FIELDS), 8).reshape(len(_FIELDS), count)
    start = 8 + columns.nbytes
    fields = [columns[number] for number in range(len(_FIELDS))]
    # Bodies were packed from 0 on; here they follow the columns in the same buffer.
    fields[-2] = fields[-2] + start
    return Sections(data, *fields)
