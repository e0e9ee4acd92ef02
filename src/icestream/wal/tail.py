"""The hot tail: the newest sections of every shard, in memory, so that a consumer that is caught up needs no disk.

One chunk per shard and record, never one object per message. All shards share one budget in bytes, in which a chunk
counts with what it costs beside its bytes; the oldest chunk of all goes first, and so does one that is older than it
may be, when the next one comes. A chunk is here from the moment its
offsets are assigned; whoever reads bounds himself by what may be seen (`Shard.written`), and what a failed write took
back is forgotten with everything else (`clear`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from icestream import limits
from icestream.model.shard import ShardKey


class SectionRead(NamedTuple):
    """One section of a shard: messages [base_offset, base_offset + rows), as blocks (block.py)."""

    base_offset: int
    rows: int
    append_time_us: int
    epoch: int
    body: bytes


class _ShardTail:
    """The chunks of one shard; those before `head` are gone."""

    __slots__ = ("bases", "chunks", "head")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.chunks: list[SectionRead | None] = []
        self.head = 0

    def add(self, chunk: SectionRead) -> None:
        self.bases.append(chunk.base_offset)
        self.chunks.append(chunk)

    def drop_first(self) -> SectionRead:
        """Forgets the oldest chunk."""
        chunk = self.chunks[self.head]
        assert chunk is not None
        self.chunks[self.head] = None
        self.head += 1
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
    def __init__(self, bytes_max: int = limits.TAIL_BYTES_DEFAULT, ttl_ms: int = 0) -> None:
        """`ttl_ms`: 0: a chunk goes when its memory is needed, not before."""
        self._bytes_max = bytes_max
        self._ttl_us = 1000 * ttl_ms
        self._shards: dict[ShardKey, _ShardTail] = {}
        self._order: deque[ShardKey] = deque()  # the shard of each chunk, oldest first
        self._times: deque[int] = deque()  # and its append time
        self.held_bytes = 0

    def add(self, key: ShardKey, chunk: SectionRead) -> None:
        held = self._shards.get(key)
        if held is None:
            held = self._shards[key] = _ShardTail()
        held.add(chunk)
        self._order.append(key)
        self._times.append(chunk.append_time_us)
        self.held_bytes += len(chunk.body) + limits.TAIL_CHUNK_BYTES
        while self.held_bytes > self._bytes_max:
            self._drop_oldest()
        if self._ttl_us:
            while self._times and self._times[0] < chunk.append_time_us - self._ttl_us:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = self._order.popleft()
        self._times.popleft()
        held = self._shards[key]
        self.held_bytes -= len(held.drop_first().body) + limits.TAIL_CHUNK_BYTES
        if held.is_empty:
            del self._shards[key]

    def read(self, key: ShardKey, offset: int, visible: int, bytes_max: int) -> list[SectionRead]:
        """Sections from the one with `offset` on, as far as they may be seen; none when it is not here."""
        held = self._shards.get(key)
        at = held.find(offset) if held is not None else None
        found: list[SectionRead] = []
        size = 0
        while held is not None and at is not None and at < len(held.chunks):
            chunk = held.chunks[at]
            assert chunk is not None
            size += len(chunk.body)
            if chunk.base_offset >= visible or (found and size > bytes_max):
                break
            found.append(chunk)
            at += 1
        return found

    def clear(self) -> None:
        """After a failed write: what is left is read from the files."""
        self._shards.clear()
        self._order.clear()
        self._times.clear()
        self.held_bytes = 0
