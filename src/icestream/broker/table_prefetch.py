"""Answers of tables that readers are near to: the last one, of which something may be left, and the next one, asked for
before somebody wants it. So a reader with little credit does not ask for the same rows again, and while one answer is
delivered the lake process works on the next.

    last        it was told: remembered for a moment (short_memory.py), at the offset behind it
    left        what of it was not told yet, behind a gap: the same, at the offset where it begins
    under way   the next one, as long as asking takes, at the offset where it begins
    next        it has come, and is remembered for a moment from then on, there too

Readers are known by where they stand: whoever goes on behind an answer has no more use for it, so the next one takes
its place. Others in the same shard stand elsewhere and keep what is theirs.

Of each a few are held, whichever shards and readers they are of, and for a moment only: what somebody deletes from a
table is not handed out much longer, and a reader that has left costs nothing. Where no more can be asked for ahead
nothing is: those that are there are wanted sooner than a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, Protocol

from icestream import limits
from icestream.broker.expiring_cache import ExpiringCache, ShardPosition
from icestream.broker.storage import ShardRead
from icestream.model.scan import Scanned
from icestream.model.shard import Gap, ShardKey
from icestream.wal.tail import SectionRead

Piece = Gap | SectionRead


class _Next(NamedTuple):
    bytes_max: int
    answer: asyncio.Task[Scanned]


class _WithBody(Protocol):
    @property
    def body(self) -> bytes: ...


class TablePrefetch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = ExpiringCache[ShardRead](self._loop)
        self._left = ExpiringCache[list[Piece]](self._loop)
        self._under_way: dict[ShardPosition, _Next] = {}
        self._next = ExpiringCache[_Next](self._loop)

    @property
    def size_bytes(self) -> int:
        return self._last.size_bytes + self._left.size_bytes + self._next.size_bytes

    # --- the last one ---

    def keep(self, key: ShardKey, offset: int, found: ShardRead) -> None:
        """It was told to whoever stood at this offset, who may have had no use for all of it."""
        self._last.drop(ShardPosition(key, offset))
        self._last.keep(ShardPosition(key, found.next_offset), found, _size_bytes(found.sections))

    def rest(self, key: ShardKey, offset: int) -> ShardRead | None:
        """What of one lies from this offset on."""
        for found in self._last.of_shard(key):
            if found.sections and found.sections[0].base_offset <= offset < found.next_offset:
                left = [one for one in found.sections if one.base_offset + one.rows > offset]
                return ShardRead(left, [], found.next_offset)
        return None

    def leave(self, key: ShardKey, offset: int, pieces: list[Piece]) -> None:
        """They follow at this offset, and were not told yet."""
        sections = (one for one in pieces if isinstance(one, SectionRead))
        self._left.keep(ShardPosition(key, offset), pieces, _size_bytes(sections))

    def take_left(self, key: ShardKey, offset: int) -> list[Piece] | None:
        pieces = self._left.find(ShardPosition(key, offset))
        self._left.drop(ShardPosition(key, offset))
        return pieces

    # --- the next one ---

    def begin(self, key: ShardKey, offset: int, bytes_max: int, asking: Coroutine[Any, Any, Scanned]) -> None:
        """Nothing is asked for twice: whoever comes to this place first takes it."""
        place = ShardPosition(key, offset)
        is_begun = place in self._under_way or self._next.find(place) is not None
        if is_begun or len(self._under_way) + len(self._next) >= limits.SCANS_NEAR_MAX:
            asking.close()
            return
        begun = _Next(bytes_max, self._loop.create_task(asking))
        self._under_way[place] = begun
        begun.answer.add_done_callback(lambda _: self._ended(place, begun))

    def take(self, key: ShardKey, offset: int, bytes_max: int) -> asyncio.Task[Scanned] | None:
        """None: something else was asked for, or it came too long ago."""
        place = ShardPosition(key, offset)
        found = self._under_way.get(place) or self._next.find(place)
        if found is None or found.bytes_max != bytes_max:
            return None
        self._under_way.pop(place, None)
        self._next.drop(place)
        return found.answer

    def close(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for one in under_way.values():
            one.answer.cancel()
        self._last.clear()
        self._left.clear()
        self._next.clear()

    def _ended(self, place: ShardPosition, begun: _Next) -> None:
        """Whoever waits for it hears of an error; where nobody does it is no news."""
        failed = begun.answer.cancelled() or begun.answer.exception() is not None
        if self._under_way.get(place) is begun:
            del self._under_way[place]
            self._next.keep(place, begun, 0 if failed else _size_bytes(begun.answer.result().sections))


def _size_bytes(sections: Iterable[_WithBody]) -> int:
    return sum(len(one.body) for one in sections)
