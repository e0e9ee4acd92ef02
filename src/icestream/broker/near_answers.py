"""Answers of tables that readers are near to: the last one, of which something may be left, and the next one, asked for
before somebody wants it. So a reader with little credit does not ask for the same rows again, and while one answer is
delivered the lake process works on the next.

Of each a few are held, whichever shards they are of, and for a moment only: what somebody deletes from a table is not
handed out much longer, and a reader that has left costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, NamedTuple

from icestream import limits
from icestream.broker.storage import Found
from icestream.model.scan import Scanned
from icestream.model.shard import ShardKey


class _Next(NamedTuple):
    offset: int
    bytes_max: int
    asked_seconds: float  # of the loop's clock
    answer: asyncio.Task[Scanned]


class NearAnswers:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last: OrderedDict[ShardKey, tuple[float, Found]] = OrderedDict()
        self._next: OrderedDict[ShardKey, _Next] = OrderedDict()

    # --- the last one ---

    def keep(self, key: ShardKey, found: Found) -> None:
        """It was told; its reader may have had no use for all of it."""
        self._last[key] = self._loop.time(), found
        self._last.move_to_end(key)
        while len(self._last) > limits.SCANS_NEAR_MAX:
            self._last.popitem(last=False)

    def rest(self, key: ShardKey, offset: int) -> Found | None:
        """What of it lies from this offset on."""
        since_seconds, found = self._last.get(key, (0.0, None))
        if found is None or self._is_old(since_seconds):
            self._last.pop(key, None)
            return None
        if not found.sections or not found.sections[0].base_offset <= offset < found.next_offset:
            return None
        left = [one for one in found.sections if one.base_offset + one.rows > offset]
        return Found(left, [], found.next_offset)

    # --- the next one ---

    def begin(self, key: ShardKey, offset: int, bytes_max: int, asking: Coroutine[Any, Any, Scanned]) -> None:
        answer = self._loop.create_task(asking)
        answer.add_done_callback(_heard)
        self._drop(key)
        self._next[key] = _Next(offset, bytes_max, self._loop.time(), answer)
        while len(self._next) > limits.SCANS_NEAR_MAX:
            self._drop(next(iter(self._next)))

    def take(self, key: ShardKey, offset: int, bytes_max: int) -> asyncio.Task[Scanned] | None:
        """None: something else was asked for, or that is too long ago."""
        found = self._next.get(key)
        if found is None or (found.offset, found.bytes_max) != (offset, bytes_max):
            return None
        if self._is_old(found.asked_seconds):
            self._drop(key)
            return None
        return self._next.pop(key).answer

    def close(self) -> None:
        for key in list(self._next):
            self._drop(key)

    def _drop(self, key: ShardKey) -> None:
        if (found := self._next.pop(key, None)) is not None:
            found.answer.cancel()

    def _is_old(self, since_seconds: float) -> bool:
        return self._loop.time() - since_seconds > limits.SCAN_NEAR_SECONDS_MAX


def _heard(answer: asyncio.Task[Scanned]) -> None:
    """Whoever takes it learns what went wrong; if nobody does, it is no news."""
    if not answer.cancelled():
        answer.exception()
