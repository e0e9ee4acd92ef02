"""Watches: every change with a prefix, in order, exactly once; or a reset if changes were missed.

The hub keeps the newest batches of events, within a bound. A watch is a position in them: everything up to revision
`after` was delivered or does not concern it. A watch that starts at a revision which is too old, or that falls behind
what is kept, gets `Resync` and must read everything again: never silence, never a gap. So a slow watch costs no memory.

    caught up      no change with its prefix is waiting; each published one moves `after`, or makes it behind
    behind         `after` stays until the watch takes its next change; if the hub's floor passes it, it is lost
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple
from weakref import ref

from icestream import errors, limits
from icestream.metadata.entry import Event


class Changes(NamedTuple):
    """The changes of one revision with the watched prefix."""

    revision: int
    events: list[Event]


class Resync(NamedTuple):
    """Changes were missed: read the prefix again, then continue with revisions above `revision`."""

    revision: int


class WatchHub:
    """The history of changes. Revisions are contiguous, so batches are indexed by revision."""

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
        self.floor = revision  # changes up to here are no longer kept
        self.revision = revision
        self.ended: errors.IcestreamError | None = None
        self._watches: set[ref[Watch]] = set()  # weak: a watch that its user dropped needs no close

    def publish(self, events: list[Event]) -> None:
        """Adds the events of one revision, in order of revisions."""
        if not events:
            return
        self.revision = events[0].revision
        size = _size(events)
        self._kept[self.revision] = events, size
        self._kept_bytes += size
        # By count and by bytes: many small changes cost objects, a few large ones cost memory.
        while len(self._kept) > self._batches_max or self._kept_bytes > self._bytes_max:
            self.floor += 1
            self._kept_bytes -= self._kept.pop(self.floor)[1]
        for reference in tuple(self._watches) if self._watches else ():
            if (watch := reference()) is not None:
                watch.published(self.revision, events)

    def kept(self, revision: int) -> list[Event]:
        """The changes of a revision above the floor."""
        return self._kept[revision][0]

    def reset(self, revision: int) -> None:
        """Resets all watches: the state was replaced by a snapshot of another node."""
        self._kept.clear()
        self._kept_bytes = 0
        self.floor = self.revision = revision
        for reference in tuple(self._watches):
            if (watch := reference()) is not None:
                watch.lose()

    def end(self, error: errors.IcestreamError) -> None:
        """Ends all watches: the store is closed or has stopped."""
        self.ended = error
        for reference in tuple(self._watches):
            if (watch := reference()) is not None:
                watch.news.set()

    @property
    def lag(self) -> int:
        """The number of revisions that the slowest watch has not consumed."""
        watches = [watch for reference in self._watches if (watch := reference()) is not None]
        return max((self.revision - watch.after for watch in watches), default=0)

    def watch(self, prefix: str, after: int) -> Watch:
        """Watches changes of revisions above `after`, without end."""
        watch = Watch(self, prefix, after)
        self._watches.add(ref(watch, self._watches.discard))
        return watch

    def forget(self, watch: Watch) -> None:
        """Removes a closed watch."""
        self._watches.discard(ref(watch))


class Watch(AsyncIterator[Changes | Resync]):
    """An endless iterator over changes with a prefix; close it when it is no longer consumed."""

    def __init__(self, hub: WatchHub, prefix: str, after: int) -> None:
        self._hub = hub
        self._prefix = prefix
        self.after = after
        self._lost = not hub.floor <= after <= hub.revision
        self._behind = after < hub.revision
        self.news = asyncio.Event()

    def published(self, revision: int, events: list[Event]) -> None:
        """Called by the hub with each revision: moves `after` past changes without the prefix, or wakes the watch."""
        if self._behind or self._lost:
            return
        # A watch that is caught up moves along with changes that do not concern it. Else a watch of a rarely changed
        # prefix would fall behind the floor and be reset without having missed anything.
        if any(event.key.startswith(self._prefix) for event in events):
            self._behind = True
            self.news.set()
        else:
            self.after = revision

    def lose(self) -> None:
        """The kept changes are gone: the next event is a Resync."""
        self._lost = True
        self.news.set()

    def close(self) -> None:
        """Ends the watch."""
        self._hub.forget(self)

    async def __anext__(self) -> Changes | Resync:
        while (event := self._next()) is None:
            if self._hub.ended is not None:
                raise self._hub.ended
            self.news.clear()
            await self.news.wait()
        return event

    def _next(self) -> Changes | Resync | None:
        """The next event; None if nothing waits."""
        hub = self._hub
        if self._lost or self.after < hub.floor:
            self._lost = self._behind = False
            # The position jumps to the present: what the consumer reads after a Resync is at least as new.
            self.after = hub.revision
            return Resync(hub.revision)
        while self.after < hub.revision:
            self.after += 1
            events = [event for event in hub.kept(self.after) if event.key.startswith(self._prefix)]
            if events:
                return Changes(self.after, events)
        self._behind = False
        return None


def _size(events: list[Event]) -> int:
    size = 0
    for event in events:
        size += len(event.key) + len(event.value or b"")
    return size
