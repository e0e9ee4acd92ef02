"""The sections of a round's topics in a stretch of the log, as columns: nothing is made for each section or message.

A `Sections` holds bytes and, for each section, where its body lies in them; sections stand in the order of their bytes.
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

    def chosen(self, which: NDArray[Any]) -> Sections:
        """Those of a mask, or of rising numbers."""
        return Sections(self.data, *(getattr(self, name)[which] for name in _FIELDS))

    @property
    def end(self) -> Ints:
        return self.base + self.rows

    @property
    def bytes(self) -> int:
        return int(self.size.sum())


def nothing() -> Sections:
    return Sections(b"", *(np.empty(0, np.int64) for _ in _FIELDS))


def sections_of(data: Any, position: int, records: Sequence[tuple[int, ...]]) -> Sections:
    """All MESSAGES sections of good records, as `scan_records` tells them. `data` begins at `position` of its file."""
    if not records:
        return nothing()
    places = np.array([(record[0], record[7]) for record in records], np.int64)
    first = np.repeat(places[:, 0] - position + HEADER_BYTES, places[:, 1])
    entries = first + ENTRY_BYTES * _counted(places[:, 1])
    words = np.frombuffer(data, "<u8", len(data) // 8)
    at = entries >> 3
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


def _counted(counts: Ints) -> Ints:
    """0, 1, … counts[0] - 1, 0, 1, … counts[1] - 1, …"""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def wanted_of(found: Sections, wanted: Iterable[OffsetRange]) -> Sections:
    """Those that hold a wanted offset of their shard, under its epoch."""
    spans: dict[tuple[int, int, int], tuple[int, int]] = {}
    for one in wanted:
        key = one.topic_id, one.shard, one.epoch
        start, end = spans.get(key, (one.start, one.end))
        spans[key] = min(start, one.start), max(end, one.end)
    if not spans or not len(found):
        return found.chosen(np.zeros(len(found), bool))
    keys = np.array(sorted(spans), np.int64)
    bounds = np.array([spans[tuple(key)] for key in keys.tolist()], np.int64)
    place = places_of(keys, np.stack((found.topic_id, found.shard, found.epoch), axis=1))
    is_wanted = place >= 0
    is_wanted &= (found.base < bounds[place, 1]) & (found.end > bounds[place, 0])
    return found.chosen(is_wanted)


def places_of(keys: Ints, sought: Ints) -> Ints:
    """Which of the keys (distinct rows) each sought row is; -1 for none."""
    _, codes = np.unique(np.concatenate((keys, sought)), axis=0, return_inverse=True)
    place = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    place[codes[: len(keys)]] = np.arange(len(keys))
    return place[codes[len(keys) :]]


def joined(parts: Sequence[Sections]) -> Sections:
    """Only the bodies of the sections, one behind the other: small enough to be sent."""
    bodies: list[memoryview] = []
    for part in parts:
        view = memoryview(part.data)
        bodies += [view[a : a + b] for a, b in zip(part.start.tolist(), part.size.tolist(), strict=True)]
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS]
    size = columns[-1]
    columns[-2] = np.cumsum(size) - size
    return Sections(b"".join(bodies), *columns)


def packed(sections: Sections) -> bytes:
    """For another process: the number of sections, the columns, the bodies."""
    whole = joined([sections])
    columns = [np.array([len(whole)], "<i8"), *(getattr(whole, name) for name in _FIELDS)]
    return b"".join((*(column.tobytes() for column in columns), whole.data))


def unpacked(data: bytes) -> Sections:
    count = int(np.frombuffer(data, "<i8", 1)[0])
    columns = np.frombuffer(data, "<i8", count * len(_FIELDS), 8).reshape(len(_FIELDS), count)
    start = 8 + columns.nbytes
    fields = [columns[number] for number in range(len(_FIELDS))]
    fields[-2] = fields[-2] + start
    return Sections(data, *fields)
