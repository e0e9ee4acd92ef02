"""Blocks of messages that were read from the log or a table a moment ago, for readers that take them one by one.

A key-shared subscription sees the keys of a whole block and hands its messages out as keys become free; a shared one
hands a block to several consumers, and some of its messages again when they failed. Without this memory each of these
messages costs a read of its own.

    bytes   READ_AHEAD_BYTES_MAX for all subscriptions together; what was used least recently goes first
    age     READ_AHEAD_SECONDS_MAX, so that rows that were deleted from a table, or dropped from the log, are not
            handed out much longer; a timer frees the memory when no reader comes again

Blocks of one shard do not overlap: a newer one takes the place of those that it overlaps.
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
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._recent: OrderedDict[_Block, None] = OrderedDict()  # the least recently used first
        self._shards: dict[ShardKey, tuple[list[int], list[_Block]]] = {}  # starts and blocks, rising
        self._timer: asyncio.TimerHandle | None = None  # runs while there is a block
        self.size_bytes = 0

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._recent)

    def keep(self, key: ShardKey, sections: Sequence[SectionRead]) -> None:
        """Keeps what a read returned, as far as it has no hole."""
        joined = _without_hole(sections)
        if not joined:
            return
        block = _Block(key, joined, self._loop.time())
        if block.size_bytes > limits.READ_AHEAD_BYTES_MAX:
            return
        self.drop(key, block.start, block.end)
        starts, blocks = self._shards.setdefault(key, ([], []))
        at = bisect_right(starts, block.start)
        starts.insert(at, block.start)
        blocks.insert(at, block)
        self._recent[block] = None
        self.size_bytes += block.size_bytes
        while self.size_bytes > limits.READ_AHEAD_BYTES_MAX:
            self._forget(next(iter(self._recent)))
        if self._timer is None:
            self._timer = self._loop.call_later(limits.READ_AHEAD_SECONDS_MAX, self._forget_old)

    def find(self, key: ShardKey, offset: int) -> list[SectionRead]:
        """The sections of a block from the one with `offset` on; none when it is not here."""
        starts, blocks = self._shards.get(key, ((), ()))
        at = bisect_right(starts, offset) - 1
        if at < 0 or offset >= blocks[at].end:
            return []
        block = blocks[at]
        if self._is_old(block):  # the timer may be late
            self._forget(block)
            return []
        self._recent.move_to_end(block)
        return block.sections[bisect_right(block.bases, offset) - 1 :]

    def drop(self, key: ShardKey, start: int, end: int) -> None:
        """Forgets the blocks of a shard that reach into [start, end)."""
        _, blocks = self._shards.get(key, ((), ()))
        for block in [one for one in blocks if one.start < end and start < one.end]:
            self._forget(block)

    def clear(self) -> None:
        self._recent.clear()
        self._shards.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self, block: _Block) -> None:
        starts, blocks = self._shards[block.key]
        at = bisect_right(starts, block.start) - 1
        del starts[at], blocks[at], self._recent[block]
        if not blocks:
            del self._shards[block.key]
        self.size_bytes -= block.size_bytes

    def _is_old(self, block: _Block) -> bool:
        return self._loop.time() - block.since_seconds >= limits.READ_AHEAD_SECONDS_MAX

    def _forget_old(self) -> None:
        self._timer = None
        for block in [one for one in self._recent if self._is_old(one)]:
            self._forget(block)
        if self._recent:
            self._timer = self._loop.call_later(limits.READ_AHEAD_SECONDS_MAX / 2, self._forget_old)


def _without_hole(sections: Sequence[SectionRead]) -> list[SectionRead]:
    joined: list[SectionRead] = []
    for section in sections:
        if joined and section.base_offset != joined[-1].base_offset + joined[-1].rows:
            break
        joined.append(section)
    return joined
