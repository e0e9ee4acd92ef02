"""A watch of the metadata store from another process: the events of the broker, in order, over successive links.

Changes wait here until they are consumed, METADATA_WATCH_QUEUE_MAX of them. Beyond that, and if changes between two
links are no longer kept by the store, they become one Resync.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from icestream import errors, limits
from icestream.metadata.entry import Event
from icestream.metadata.watch import Changes, Resync
from icestream.rpc.document import Document
from icestream.rpc.link import LOST
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock

UnlessClosed = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class RemoteWatch(AsyncIterator[Changes | Resync]):
    """Close it when it is no longer consumed: until then the broker keeps sending."""

    def __init__(self, keeper: LinkKeeper, clock: Clock, unless_closed: UnlessClosed, prefix: str, after: int) -> None:
        self._keeper = keeper
        self._clock = clock
        self._unless_closed = unless_closed
        self._prefix = prefix
        self._last_revision = after  # the last revision that has arrived, consumed or not
        self._queue: deque[Changes | Resync] = deque()
        self._news = asyncio.Event()
        self._handle: int | None = None  # of the watch on the present link
        self._error: errors.IcestreamError | None = None

    async def __anext__(self) -> Changes | Resync:
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._handle is None:
                await self._unless_closed(self._begin())
                continue
            self._news.clear()
            await self._unless_closed(self._news.wait())
        return self._queue.popleft()

    async def _begin(self) -> None:
        """Starts the watch on the present link, behind the last revision that has arrived."""
        await self._keeper.wait_connected()
        link = self._keeper.link
        try:
            if link is not None:
                arguments = {"prefix": self._prefix, "after": self._last_revision}
                reply = await link.call("metadata_watch", arguments, self._on_event)
                self._handle = None if link.lost.is_set() else int(reply["handle"])
        except (errors.ConnectionLost, errors.ShuttingDown, errors.NotReady):
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MIN)

    def _on_event(self, event: Document) -> None:
        try:
            self._take(event)
        except (KeyError, TypeError, ValueError) as error:
            self._error = errors.DecodeError(f"malformed watch event from the broker: {error}")
        self._news.set()

    def _take(self, event: Document) -> None:
        kind = event["event"]
        if kind == LOST:
            self._handle = None
        elif kind == "changes":
            revision = int(event["revision"])
            self._put(Changes(revision, [Event(key, value, revision) for key, value in event["changes"]]))
        elif kind == "resync":
            self._put(Resync(int(event["revision"])))
        elif kind == "ended":
            self._end(event)

    def _put(self, change: Changes | Resync) -> None:
        self._last_revision = change.revision
        if isinstance(change, Resync) or len(self._queue) >= limits.METADATA_WATCH_QUEUE_MAX:
            self._queue.clear()
            change = Resync(change.revision)
        self._queue.append(change)

    def _end(self, event: Document) -> None:
        """Ends the watch with the broker's error.

        Except if the broker closes its store: then the next link resumes the watch.
        """
        kind = errors.BY_CODE.get(str(event.get("code")), errors.IcestreamError)
        if not issubclass(kind, errors.LogClosed):
            self._error = kind(str(event.get("message", "")))

    async def close(self) -> None:
        """Ends the watch, here and at the broker."""
        handle, self._handle = self._handle, None
        self._error = errors.LogClosed("the watch is closed")
        self._news.set()
        if handle is not None and self._keeper.link is not None:
            self._keeper.link.remove_event_handler(handle)
            with contextlib.suppress(errors.IcestreamError):
                await self._keeper.call("metadata_unwatch", {"handle": handle})
