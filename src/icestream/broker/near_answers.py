"""Answers of tables that readers are near to: the last one, of which something may be left, and the next one, asked for
before somebody wants it. So a reader with little credit does not ask for the same rows again, and while one answer is
delivered the lake process works on the next.

    last        it was told: remembered for a moment (short_memory.py)
    left        what of it was not told yet, behind a gap: the same
    under way   the next one, as long as asking takes
    next        it has come, and is remembered for a moment from then on

Of each a few are held, whichever shards they are of, and for a moment only: what somebody deletes from a table is not
handed out much longer, and a reader that has left costs nothing. Where no more can be asked for ahead nothing is: those
that are there are wanted sooner than a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, Protocol

from icestream import limits
from icestream.broker.short_memory import ShortMemory
from icestream.broker.storage import Found
from icestream.model.scan import Scanned
from icestream.model.shard import Gap, ShardKey
from icestream.wal.tail import SectionRead

Piece = Gap | SectionRead


class _Next(NamedTuple):
    offset: int
    bytes_max: int
    answer: asyncio.Task[Scanned]


class _WithBody(Protocol):
    @property
    def body(self) -> bytes: ...


class NearAnswers:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = ShortMemory[Found](self._loop)
        self._left = ShortMemory[tuple[int, list[Piece]]](self._loop)
        self._under_way: dict[ShardKey, _Next] = {}
        self._next = ShortMemory[_Next](self._loop)

    @property
    def size_bytes(self) -> int:
        return self._last.size_bytes + self._left.size_bytes + self._next.size_bytes

    # --- the last one ---

    def keep(self, key: ShardKey, found: Found) -> None:
        """It was told; its reader may have had no use for all of it."""
        self._last.keep(key, found, _size_bytes(found.sections))

    def rest(self, key: ShardKey, offset: int) -> Found | None:
        """What of it lies from this offset on."""
        found = self._last.find(key)
        if found is None or not found.sections:
            return None
        if not found.sections[0].base_offset <= offset < found.next_offset:
            return None
        left = [one for one in found.sections if one.base_offset + one.rows > offset]
        return Found(left, [], found.next_offset)

    def leave(self, key: ShardKey, offset: int, pieces: list[Piece]) -> None:
        """They follow at this offset, and were not told yet."""
        sections = (one for one in pieces if isinstance(one, SectionRead))
        self._left.keep(key, (offset, pieces), _size_bytes(sections))

    def take_left(self, key: ShardKey, offset: int) -> list[Piece] | None:
        at, pieces = self._left.find(key) or (-1, None)
        self._left.drop(key)
        return pieces if at == offset else None

    # --- the next one ---

    def begin(self, key: ShardKey, offset: int, bytes_max: int, asking: Coroutine[Any, Any, Scanned]) -> None:
        self._drop(key)
        if len(self._under_way) + len(self._next) >= limits.SCANS_NEAR_MAX:
            asking.close()
            return
        begun = _Next(offset, bytes_max, self._loop.create_task(asking))
        self._under_way[key] = begun
        begun.answer.add_done_callback(lambda _: self._ended(key, begun))

    def take(self, key: ShardKey, offset: int, bytes_max: int) -> asyncio.Task[Scanned] | None:
        """None: something else was asked for, or it came too long ago."""
        found = self._under_way.get(key) or self._next.find(key)
        if found is None or (found.offset, found.bytes_max) != (offset, bytes_max):
            return None
        self._under_way.pop(key, None)
        self._next.drop(key)
        return found.answer

    def close(self) -> None:
        for key in list(self._under_way):
            self._drop(key)
        self._last.clear()
        self._left.clear()
        self._next.clear()

    def _drop(self, key: ShardKey) -> None:
        self._next.drop(key)
        if (found := self._under_way.pop(key, None)) is not None:
            found.answer.cancel()

    def _ended(self, key: ShardKey, begun: _Next) -> None:
        """Whoever waits for it hears of an error; where nobody does it is no news."""
        failed = begun.answer.cancelled() or begun.answer.exception() is not None
        if self._under_way.get(key) is begun:
            del self._under_way[key]
            self._next.keep(key, begun, 0 if failed else _size_bytes(begun.answer.result().sections))


def _size_bytes(sections: Iterable[_WithBody]) -> int:
    return sum(len(one.body) for one in sections)
