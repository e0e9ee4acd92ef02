"""The hot tail: the newest sections of every shard in memory, so that a consumer that is caught up needs no disk.

There is one chunk per shard and record, never one object per message. All shards share one budget in bytes, overhead
per chunk included; the oldest chunk of all shards is evicted first. A chunk beyond the time to live is evicted when the
next one is added. A chunk is added when its offsets are assigned: readers pass the end of what is visible
(`Shard.written`). After a failed write the whole tail is dropped (`clear`), rolled back sections included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from icestream import limits
from icestream.model.shard import ShardKey


class SectionRead(NamedTuple):
    """One section of a shard: messages [base_offset, base_offset + rows), as blocks (model/block.py)."""

    base_offset: int
    rows: int
    append_time_us: int
    epoch: int
    body: bytes


class _ShardTail:
    """The chunks of one shard; those before `head` are evicted."""

    __slots__ = ("bases", "chunks", "head")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.chunks: list[SectionRead | None] = []
        self.head = 0

    def add(self, chunk: SectionRead) -> None:
        self.bases.append(chunk.base_offset)
        self.chunks.append(chunk)

    def evict_first(self) -> SectionRead:
        """Removes and returns the oldest chunk."""
        chunk = self.chunks[self.head]
        assert chunk is not None
        self.chunks[self.head] = None
        self.head += 1
        # Amortised: deleting the front of a list moves all of the rest, so it happens when at least half is evicted.
        if self.head >= 64 and self.head * 2 >= len(self.chunks):
            del self.chunks[: self.head], self.bases[: self.head]
            self.head = 0
        return chunk

    @property
    def is_empty(self) -> bool:
        return self.head == len(self.chunks)

    def find(self, offset: int) -> int | None:
        """Index of the chunk that holds the offset."""
        at = bisect_right(self.bases, offset, lo=self.head) - 1
        if at < self.head:
            return None
        chunk = self.chunks[at]
        assert chunk is not None
        return at if offset < chunk.base_offset + chunk.rows else None


class Tail:
    """The chunks of all shards, with one budget."""

    def __init__(self, bytes_max: int = limits.TAIL_BYTES_DEFAULT, ttl_ms: int = 0) -> None:
        """`ttl_ms` 0: a chunk stays until its memory is needed."""
        self._bytes_max = bytes_max
        self._ttl_us = 1000 * ttl_ms
        self._shards: dict[ShardKey, _ShardTail] = {}
        self._order: deque[ShardKey] = deque()  # the shard of each chunk, oldest first
        self._times: deque[int] = deque()  # the append time of each chunk, oldest first
        self.held_bytes = 0

    def add(self, key: ShardKey, chunk: SectionRead) -> None:
        """Adds the newest chunk of a shard; evicts the oldest chunks of all shards beyond budget and time to live."""
        shard_tail = self._shards.get(key)
        if shard_tail is None:
            shard_tail = self._shards[key] = _ShardTail()
        shard_tail.add(chunk)
        self._order.append(key)
        self._times.append(chunk.append_time_us)
        self.held_bytes += len(chunk.body) + limits.TAIL_CHUNK_BYTES
        while self.held_bytes > self._bytes_max:
            self._evict_oldest()
        if self._ttl_us:
            while self._times and self._times[0] < chunk.append_time_us - self._ttl_us:
                self._evict_oldest()

    def _evict_oldest(self) -> None:
        key = self._order.popleft()
        self._times.popleft()
        shard_tail = self._shards[key]
        self.held_bytes -= len(shard_tail.evict_first().body) + limits.TAIL_CHUNK_BYTES
        if shard_tail.is_empty:
            del self._shards[key]

    def read(self, key: ShardKey, offset: int, visible: int, bytes_max: int) -> list[SectionRead]:
        """Sections from the one that contains `offset`, up to `visible`; empty if the offset is not in the tail."""
        shard_tail = self._shards.get(key)
        at = shard_tail.find(offset) if shard_tail is not None else None
        sections: list[SectionRead] = []
        size = 0
        while shard_tail is not None and at is not None and at < len(shard_tail.chunks):
            chunk = shard_tail.chunks[at]
            assert chunk is not None
            size += len(chunk.body)
            # The first section is handed out whatever its size: a reader with a small limit must still make progress.
            if chunk.base_offset >= visible or (sections and size > bytes_max):
                break
            sections.append(chunk)
            at += 1
        return sections

    def clear(self) -> None:
        """Drops everything, after a failed write; readers then use the files."""
        self._shards.clear()
        self._order.clear()
        self._times.clear()
        self.held_bytes = 0
