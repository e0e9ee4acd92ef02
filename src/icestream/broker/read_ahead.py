"""The read-ahead cache: blocks that were read from the log or a table, for readers that take their messages one by one.

A key-shared subscription reads the keys of a whole block and hands its messages out as keys become free; a shared one
hands a block to several consumers, and redelivers some of its messages. Without this cache each of these messages would
cost a read of its own. A consumer keeps what a read returned beyond its credit until the next one.

    bytes   READ_AHEAD_BYTES_MAX for all subscriptions together; the least recently used goes first
    age     READ_AHEAD_SECONDS_MAX, so that rows that were deleted from a table, or dropped from the log, are not
            delivered much longer; a timer frees the memory when no reader comes again

Blocks of one shard do not overlap: a newer one replaces those that it overlaps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.tail import SectionRead


class _Block:
    """Sections that follow one another without a hole: offsets [start, end)."""

    __slots__ = ("bases", "end", "key", "sections", "since_seconds", "size_bytes", "start")

    def __init__(self, key: ShardKey, sections: list[SectionRead], since_seconds: float) -> None:
        self.key = key
        self.sections = sections
        self.bases = [section.base_offset for section in sections]
        self.start = self.bases[0]
        self.end = self.bases[-1] + sections[-1].rows
        self.since_seconds = since_seconds
        self.size_bytes = sum(len(section.body) + limits.TAIL_CHUNK_BYTES for section in sections)


class ReadAhead:
    """The cache of all shards of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._recent: OrderedDict[_Block, None] = OrderedDict()  # the least recently used first
        self._shards: dict[ShardKey, tuple[list[int], list[_Block]]] = {}  # starts and blocks, rising
        self._timer: asyncio.TimerHandle | None = None  # runs while there is a block
        self.size_bytes = 0

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._recent)

    def keep(self, key: ShardKey, sections: Sequence[SectionRead]) -> None:
        """Caches the sections of a read, up to the first hole between them."""
        contiguous = _contiguous(sections)
        if not contiguous:
            return
        block = _Block(key, contiguous, self._loop.time())
        if block.size_bytes > limits.READ_AHEAD_BYTES_MAX:  # it would evict everything, then itself
            return
        # Replaces what overlaps: a lookup by start must find one block, and the newer one has the same messages.
        self.drop(key, block.start, block.end)
        starts, blocks = self._shards.setdefault(key, ([], []))
        index = bisect_right(starts, block.start)
        starts.insert(index, block.start)
        blocks.insert(index, block)
        self._recent[block] = None
        self.size_bytes += block.size_bytes
        while self.size_bytes > limits.READ_AHEAD_BYTES_MAX:
            self._evict(next(iter(self._recent)))
        if self._timer is None:
            self._timer = self._loop.call_later(limits.READ_AHEAD_SECONDS_MAX, self._evict_expired)

    def find(self, key: ShardKey, offset: int) -> list[SectionRead]:
        """The cached sections from the one that holds `offset` on; empty if the offset is not cached."""
        starts, blocks = self._shards.get(key, ((), ()))
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= blocks[index].end:
            return []
        block = blocks[index]
        if self._is_expired(block):  # the timer may be late
            self._evict(block)
            return []
        self._recent.move_to_end(block)
        return block.sections[bisect_right(block.bases, offset) - 1 :]

    def drop(self, key: ShardKey, start: int, end: int) -> None:
        """Evicts the blocks of a shard that overlap [start, end)."""
        _, blocks = self._shards.get(key, ((), ()))
        for block in [block for block in blocks if block.start < end and start < block.end]:
            self._evict(block)

    def clear(self) -> None:
        """Evicts everything and stops the timer."""
        self._recent.clear()
        self._shards.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _evict(self, block: _Block) -> None:
        """Removes a block from both indexes."""
        starts, blocks = self._shards[block.key]
        index = bisect_right(starts, block.start) - 1
        del starts[index], blocks[index], self._recent[block]
        if not blocks:
            del self._shards[block.key]
        self.size_bytes -= block.size_bytes

    def _is_expired(self, block: _Block) -> bool:
        return self._loop.time() - block.since_seconds >= limits.READ_AHEAD_SECONDS_MAX

    def _evict_expired(self) -> None:
        self._timer = None
        for block in [block for block in self._recent if self._is_expired(block)]:
            self._evict(block)
        if self._recent:  # half the age: an entry outlives its age by half of it at most
            self._timer = self._loop.call_later(limits.READ_AHEAD_SECONDS_MAX / 2, self._evict_expired)


def _contiguous(sections: Sequence[SectionRead]) -> list[SectionRead]:
    """The sections up to the first hole between them: a reader that finds a block must not step over a gap."""
    contiguous: list[SectionRead] = []
    for section in sections:
        if contiguous and section.base_offset != contiguous[-1].base_offset + contiguous[-1].rows:
            break
        contiguous.append(section)
    return contiguous
