"""What is remembered of places in shards for a moment: few things, of so many bytes, not for long. The oldest go first.

count   SCANS_NEAR_MAX
bytes   SCANS_NEAR_BYTES_MAX
age     SCAN_NEAR_SECONDS_MAX by the loop's clock; a timer sees to it, whether or not anybody comes again
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from icestream import limits
from icestream.model.shard import ShardKey

What = TypeVar("What")


class ShardPosition(NamedTuple):
    """Readers of one shard stand at different offsets of it, and each has a place of its own."""

    key: ShardKey
    offset: int


class _Held(NamedTuple, Generic[What]):
    since_seconds: float
    size_bytes: int
    what: What


class ExpiringCache(Generic[What]):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: OrderedDict[ShardPosition, _Held[What]] = OrderedDict()  # the oldest first
        self._timer: asyncio.TimerHandle | None = None  # runs while something is held
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, place: ShardPosition, what: What, size_bytes: int) -> None:
        self.drop(place)
        self._held[place] = _Held(self._loop.time(), size_bytes, what)
        self.size_bytes += size_bytes
        while len(self._held) > limits.SCANS_NEAR_MAX or self.size_bytes > limits.SCANS_NEAR_BYTES_MAX:
            self.drop(next(iter(self._held)))
        self._wind()

    def find(self, place: ShardPosition) -> What | None:
        held = self._held.get(place)
        if held is None or self._is_old(held):  # a timer may be late
            self.drop(place)
            return None
        return held.what

    def of_shard(self, key: ShardKey) -> Iterator[What]:
        """At any place in it. There are few of all shards together."""
        return (held.what for place, held in self._held.items() if place.key == key and not self._is_old(held))

    def drop(self, place: ShardPosition) -> None:
        if (held := self._held.pop(place, None)) is not None:
            self.size_bytes -= held.size_bytes

    def clear(self) -> None:
        self._held.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- age ---

    def _is_old(self, held: _Held[What]) -> bool:
        return self._loop.time() - held.since_seconds >= limits.SCAN_NEAR_SECONDS_MAX

    def _wind(self) -> None:
        """For the oldest."""
        if self._timer is None and self._held:
            oldest = next(iter(self._held.values()))
            self._timer = self._loop.call_at(oldest.since_seconds + limits.SCAN_NEAR_SECONDS_MAX, self._drop_old)

    def _drop_old(self) -> None:
        self._timer = None
        for place, held in list(self._held.items()):
            if self._is_old(held):
                self.drop(place)
        self._wind()
