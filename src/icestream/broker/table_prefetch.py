"""Caches scan replies close to the positions of table readers, and prefetches the next reply of a sequential reader.

A reader with little credit does not request the same rows again, and while one reply is delivered the lake process
works on the next.

    recent       the last reply that was returned, at the offset after it: a reader may not have used all of it, and
                 others may be behind
    leftover     the rest of a reply behind a gap, not returned yet, at the offset where it begins
    in flight    the prefetch of the next reply, until it arrives, at the offset where it begins
    prefetched   a reply that has arrived and was not read yet, at the same offset

    filtered     replies with topic filters, at the offset where they begin: for readers with the same filters, and for
                 one that used a part of it

A reader is identified by its position: when it reads on, it no longer needs the reply before, so the next one takes its
place, unless another reader is at that position too, or at one inside of the reply: readers of the same range, one
behind the other, share what the first one read. Other readers of the same shard are at other positions and keep their
replies.

Each of the five holds few entries for all shards and readers together, and for a short time (expiring_cache.py): rows
that are deleted from a table must not be served much longer, and a reader that has left must cost nothing. When the
prefetch slots are full, no further prefetch is started: the present ones are needed sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, Protocol

from icestream import limits
from icestream.broker.expiring_cache import ExpiringCache, FilteredShard, ReadSource, ShardPosition
from icestream.broker.storage import FilteredRead, ShardRead
from icestream.model.filtered_rows import FilteredSection
from icestream.model.scan_messages import ScanResponse
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.wal.tail import SectionRead

Piece = DeclaredGap | SectionRead


class _Prefetch(NamedTuple):
    """A scan that was started before its reader asked for it."""

    bytes_max: int
    reply: asyncio.Task[ScanResponse]


class _HasBody(Protocol):
    """A section of a read or of a scan reply."""

    @property
    def body(self) -> bytes: ...


class _FilteredReply(NamedTuple):
    """A read with filters, and the offset that it was asked for."""

    start: int
    read: FilteredRead


class _RecentRead:
    """A read that was returned, and how many readers are at its end."""

    __slots__ = ("read", "readers")

    def __init__(self, read: ShardRead, readers: int) -> None:
        self.read = read
        self.readers = readers

    def holds(self, offset: int) -> bool:
        """True if a reader at this offset can go on with it."""
        return bool(self.read.sections) and self.read.sections[0].base_offset <= offset < self.read.next_offset


class TablePrefetch:
    """The caches, for all shards and readers of a broker."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent = ExpiringCache[_RecentRead](self._loop)
        self._filtered = ExpiringCache[_FilteredReply](self._loop)
        self._leftover = ExpiringCache[list[Piece]](self._loop)
        self._in_flight: dict[ShardPosition, _Prefetch] = {}
        self._prefetched = ExpiringCache[_Prefetch](self._loop)

    @property
    def size_bytes(self) -> int:
        caches = self._recent, self._leftover, self._prefetched, self._filtered
        return sum(cache.size_bytes for cache in caches)

    # --- the last reply ---

    def remember(self, key: ShardKey, offset: int, read: ShardRead) -> None:
        """Keeps a read that was returned to the reader at `offset`, in place of the reply that led it there."""
        position = ShardPosition(key, read.next_offset)
        before = self._recent.get(position)
        readers = before.readers if before is not None else 0
        self._recent.put(position, _RecentRead(read, readers + 1), _size_bytes(read.sections))
        self._leave(key, offset)

    def recent_from(self, key: ShardKey, offset: int) -> ShardRead | None:
        """The part of a recent read from this offset on; None if no recent read holds the offset."""
        for recent in self._recent.items_of_shard(key):
            if recent.holds(offset):
                read = recent.read
                # A reader that comes from another reply. One that asks from the middle is at the end already: it has
                # not used all of the read.
                if self._recent.get(ShardPosition(key, offset)) is not None:
                    recent.readers += 1
                    self._leave(key, offset)
                sections = [section for section in read.sections if section.base_offset + section.rows > offset]
                return ShardRead(sections, [], read.next_offset)
        return None

    def _leave(self, key: ShardKey, offset: int) -> None:
        """A reader at this offset has read on: drops the reads that no reader is at, or will come to."""
        recent_read = self._recent.get(ShardPosition(key, offset))
        if recent_read is None:
            return
        recent_read.readers -= 1
        recent = list(self._recent.items_of_shard(key))
        positions = [other.read.next_offset for other in recent if other.readers > 0]
        for other in recent:
            if other.readers <= 0 and not any(map(other.holds, positions)):
                self._recent.drop(ShardPosition(key, other.read.next_offset))

    # --- replies with filters ---

    def remember_filtered(self, source: FilteredShard, offset: int, read: FilteredRead) -> None:
        """Keeps a read with filters that begins at `offset`, for other readers that come there."""
        self._filtered.put(ShardPosition(source, offset), _FilteredReply(offset, read), _size_bytes(read.sections))

    def filtered_from(self, source: FilteredShard, offset: int) -> FilteredRead | None:
        """The part of a recent read with these filters from this offset on; None if there is none."""
        for start, read in self._filtered.items_of_shard(source):
            if start <= offset < read.next_offset:
                sections = [section for section in read.sections if _last_offset(section) >= offset]
                return FilteredRead(sections, [gap for gap in read.gaps if gap.end > offset], read.next_offset)
        return None

    # --- the rest of a reply ---

    def put_leftover(self, key: ShardKey, offset: int, pieces: list[Piece]) -> None:
        """Keeps the pieces of a reply that follow at this offset and were not returned yet."""
        sections = (piece for piece in pieces if isinstance(piece, SectionRead))
        self._leftover.put(ShardPosition(key, offset), pieces, _size_bytes(sections))

    def take_leftover(self, key: ShardKey, offset: int) -> list[Piece] | None:
        """Removes and returns the pieces at this offset; None if there are none."""
        pieces = self._leftover.get(ShardPosition(key, offset))
        self._leftover.drop(ShardPosition(key, offset))
        return pieces

    # --- the next reply ---

    def start(self, key: ReadSource, offset: int, bytes_max: int, scan: Coroutine[Any, Any, ScanResponse]) -> None:
        """Starts the prefetch of the reply at this offset, unless it is there already or all slots are taken."""
        position = ShardPosition(key, offset)
        is_present = position in self._in_flight or self._prefetched.get(position) is not None
        if is_present or len(self._in_flight) + len(self._prefetched) >= limits.SCANS_NEAR_MAX:
            scan.close()  # never awaited
            return
        prefetch = _Prefetch(bytes_max, self._loop.create_task(scan))
        self._in_flight[position] = prefetch
        prefetch.reply.add_done_callback(lambda _: self._on_done(position, prefetch))

    def take(self, key: ReadSource, offset: int, bytes_max: int) -> asyncio.Task[ScanResponse] | None:
        """Removes and returns the prefetch at this offset; None if there is none of this size, or it has expired."""
        # Taken by one reader: another one joins its request, or gets the reply as a recent one.
        position = ShardPosition(key, offset)
        prefetch = self._in_flight.get(position) or self._prefetched.get(position)
        if prefetch is None or prefetch.bytes_max != bytes_max:
            return None
        self._in_flight.pop(position, None)
        self._prefetched.drop(position)
        return prefetch.reply

    def clear(self) -> None:
        """Cancels the prefetches in flight and drops everything."""
        in_flight, self._in_flight = self._in_flight, {}
        for prefetch in in_flight.values():
            prefetch.reply.cancel()
        self._recent.clear()
        self._leftover.clear()
        self._filtered.clear()
        self._prefetched.clear()

    def _on_done(self, position: ShardPosition, prefetch: _Prefetch) -> None:
        """Moves a finished prefetch to the cache. A failed one too: its reader gets the error."""
        has_failed = prefetch.reply.cancelled() or prefetch.reply.exception() is not None
        if self._in_flight.get(position) is prefetch:
            del self._in_flight[position]
            size = 0 if has_failed else _size_bytes(prefetch.reply.result().sections)
            self._prefetched.put(position, prefetch, size)


def _last_offset(section: SectionRead | FilteredSection) -> int:
    """The offset of the last row of a section."""
    if isinstance(section, FilteredSection):
        return section.offsets[-1]
    return section.base_offset + section.rows - 1


def _size_bytes(sections: Iterable[_HasBody]) -> int:
    return sum(len(section.body) for section in sections)
