"""A small cache of entries that belong to a position in a shard and expire soon. The oldest are evicted first.

count   SCANS_NEAR_MAX
bytes   SCANS_NEAR_BYTES_MAX
age     SCAN_NEAR_SECONDS_MAX by the loop's clock; a timer evicts expired entries even if no reader comes again
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from icestream import limits
from icestream.model.shard import ShardKey

Item = TypeVar("Item")


class FilteredShard(NamedTuple):
    """A shard as readers with the same topic filters see it."""

    topic_id: int
    shard: int
    topic_filters: tuple[str, ...]


ReadSource = ShardKey | FilteredShard


class ShardPosition(NamedTuple):
    """The position of a reader. Readers of one shard are told apart by their offsets."""

    key: ReadSource
    offset: int


class _CacheEntry(NamedTuple, Generic[Item]):
    """An item, when it was stored, and its share of the bytes."""

    since_seconds: float
    size_bytes: int
    item: Item


class ExpiringCache(Generic[Item]):
    """Items by position, bounded in count, bytes and age."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: OrderedDict[ShardPosition, _CacheEntry[Item]] = OrderedDict()  # the oldest first
        self._timer: asyncio.TimerHandle | None = None  # runs while there is an entry
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, position: ShardPosition, item: Item, size_bytes: int) -> None:
        """Stores the item at the position, replaces the one there, and evicts the oldest beyond the bounds."""
        self.drop(position)  # so that the new entry is the last one in the order of age
        self._entries[position] = _CacheEntry(self._loop.time(), size_bytes, item)
        self.size_bytes += size_bytes
        while len(self._entries) > limits.SCANS_NEAR_MAX or self.size_bytes > limits.SCANS_NEAR_BYTES_MAX:
            self.drop(next(iter(self._entries)))
        self._set_timer()

    def get(self, position: ShardPosition) -> Item | None:
        entry = self._entries.get(position)
        if entry is None or self._is_expired(entry):  # the timer may be late
            self.drop(position)
            return None
        return entry.item

    def items_of_shard(self, key: ReadSource) -> Iterator[Item]:
        """The items at any position of a shard. A linear search: the cache holds few entries of all shards together."""
        return (
            entry.item
            for position, entry in self._entries.items()
            if position.key == key and not self._is_expired(entry)
        )

    def drop(self, position: ShardPosition) -> None:
        if (entry := self._entries.pop(position, None)) is not None:
            self.size_bytes -= entry.size_bytes

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- expiry ---

    def _is_expired(self, entry: _CacheEntry[Item]) -> bool:
        return self._loop.time() - entry.since_seconds >= limits.SCAN_NEAR_SECONDS_MAX

    def _set_timer(self) -> None:
        """Sets the timer to the expiry of the oldest entry, unless it runs already."""
        if self._timer is None and self._entries:
            oldest = next(iter(self._entries.values()))
            self._timer = self._loop.call_at(oldest.since_seconds + limits.SCAN_NEAR_SECONDS_MAX, self._drop_expired)

    def _drop_expired(self) -> None:
        self._timer = None
        for position, entry in list(self._entries.items()):
            if self._is_expired(entry):
                self.drop(position)
        self._set_timer()
