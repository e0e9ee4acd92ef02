"""Watches: every change below a prefix, in order, once; or the word that it cannot be told any more.

The hub keeps the newest batches of events, within a bound. A watch is a place in them: everything up to revision
`after` was told or does not concern it. A watch that starts at a revision which is too old, or that falls behind what
is kept, gets `Resync` and must read everything again: never silence, never a gap. So a slow watch costs no memory.

    caught up      no change that it wants is waiting; each published one moves `after`, or makes it behind
    behind         `after` stands still until the watch takes its next change; passed by the hub's floor it is lost
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple
from weakref import ref

from icestream import errors, limits
from icestream.metadata.entry import Event


class Changes(NamedTuple):
    """What one revision changed below the watched prefix."""

    revision: int
    events: list[Event]


class Resync(NamedTuple):
    """Changes were missed: read the prefix again, then go on with what comes behind `revision`."""

    revision: int


class WatchHub:
    """Revisions follow each other without a hole, so the batches are found by their numbers."""

    def __init__(
        self,
        revision: int,
        batches_max: int = limits.METADATA_WATCH_BATCHES_MAX,
        bytes_max: int = limits.METADATA_WATCH_BYTES_MAX,
    ) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._kept: dict[int, tuple[list[Event], int]] = {}  # with their bytes
        self._kept_bytes = 0
        self.floor = revision  # changes up to here can not be told any more
        self.revision = revision
        self.ended: errors.IcestreamError | None = None
        self._watches: set[ref[Watch]] = set()  # a watch that nobody holds any more is gone

    def publish(self, events: list[Event]) -> None:
        """The events of one revision, in order of revisions."""
        if not events:
            return
        self.revision = events[0].revision
        size = _size(events)
        self._kept[self.revision] = events, size
        self._kept_bytes += size
        while len(self._kept) > self._batches_max or self._kept_bytes > self._bytes_max:
            self.floor += 1
            self._kept_bytes -= self._kept.pop(self.floor)[1]
        for held in tuple(self._watches) if self._watches else ():
            if (watch := held()) is not None:
                watch.published(self.revision, events)

    def kept(self, revision: int) -> list[Event]:
        """What a revision above the floor changed."""
        return self._kept[revision][0]

    def reset(self, revision: int) -> None:
        """The state was replaced as a whole (a snapshot of another node): everybody must read again."""
        self._kept.clear()
        self._kept_bytes = 0
        self.floor = self.revision = revision
        for held in tuple(self._watches):
            if (watch := held()) is not None:
                watch.lose()

    def end(self, error: errors.IcestreamError) -> None:
        """Nothing more is told: the store is closed or has stopped."""
        self.ended = error
        for held in tuple(self._watches):
            if (watch := held()) is not None:
                watch.news.set()

    @property
    def lag(self) -> int:
        """Revisions that the watch which is furthest behind has not taken."""
        watches = [watch for held in self._watches if (watch := held()) is not None]
        return max((self.revision - watch.after for watch in watches), default=0)

    def watch(self, prefix: str, after: int) -> Watch:
        """Changes of revisions above `after`, without end."""
        watch = Watch(self, prefix, after)
        self._watches.add(ref(watch, self._watches.discard))
        return watch

    def forget(self, watch: Watch) -> None:
        self._watches.discard(ref(watch))


class Watch(AsyncIterator[Changes | Resync]):
    def __init__(self, hub: WatchHub, prefix: str, after: int) -> None:
        self._hub = hub
        self._prefix = prefix
        self.after = after
        self._lost = not hub.floor <= after <= hub.revision
        self._behind = after < hub.revision
        self.news = asyncio.Event()

    def published(self, revision: int, events: list[Event]) -> None:
        if self._behind or self._lost:
            return
        if any(event.key.startswith(self._prefix) for event in events):
            self._behind = True
            self.news.set()
        else:
            self.after = revision

    def lose(self) -> None:
        self._lost = True
        self.news.set()

    def close(self) -> None:
        self._hub.forget(self)

    async def __anext__(self) -> Changes | Resync:
        while (found := self._next()) is None:
            if self._hub.ended is not None:
                raise self._hub.ended
            self.news.clear()
            await self.news.wait()
        return found

    def _next(self) -> Changes | Resync | None:
        hub = self._hub
        if self._lost or self.after < hub.floor:
            self._lost = self._behind = False
            self.after = hub.revision
            return Resync(hub.revision)
        while self.after < hub.revision:
            self.after += 1
            wanted = [event for event in hub.kept(self.after) if event.key.startswith(self._prefix)]
            if wanted:
                return Changes(self.after, wanted)
        self._behind = False
        return None


def _size(events: list[Event]) -> int:
    size = 0
    for event in events:
        size += len(event.key) + len(event.value or b"")
    return size
