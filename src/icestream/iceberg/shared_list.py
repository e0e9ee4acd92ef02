"""A long list of a document: it grows at its end, and what was written once is neither copied nor encoded again.

A table with 1,000 snapshots has 0.7 MB of them, and each commit adds one. So the versions of a table share one growing
list, of which each sees a part, and the bytes of the items that are there, joined in chunks:

    shared    items  0 1 2 3 4 5 6 7        grown by whoever sees its end; nobody removes from it
    one version      [0, 7)                 plus(x): the item at 7 is another's, so the part is copied first
    the next one     [0, 8)                 plus(x): the list grows
    chunks           items [0, C), [C, 2C), … joined, from the first time that somebody writes them

Entries never change. They are used from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from icestream.iceberg.values import Object, encode

# Items joined at once: what is behind the last full chunk is joined for every version anew, half of this on average.
_CHUNK: Final = 128


class _Shared:
    """`parts`, `chunks` and `positions` follow `items` when somebody asks for them."""

    __slots__ = ("chunks", "items", "key", "parts", "positions")

    def __init__(self, items: list[Object], key: str) -> None:
        self.items = items
        self.key = key
        self.parts: list[bytes] = []
        self.chunks: list[bytes] = []
        self.positions: dict[int, int] = {}

    def encode_to(self, end: int) -> None:
        parts, chunks = self.parts, self.chunks
        for item in self.items[len(parts) : end]:
            parts.append(encode(item))
        while (len(chunks) + 1) * _CHUNK <= end:
            begin = len(chunks) * _CHUNK
            chunks.append(b",".join(parts[begin : begin + _CHUNK]))

    def position(self, wanted: int) -> int | None:
        """Nothing is removed and no id comes twice, so the items behind the known ones are the new ones."""
        known = len(self.positions)
        if known < len(self.items):
            key = self.key
            self.positions.update((item[key], known + number) for number, item in enumerate(self.items[known:]))
        return self.positions.get(wanted)


class SharedList:
    __slots__ = ("_begin", "_end", "_shared")

    def __init__(self, items: list[Object], key: str = "") -> None:
        """The list is taken over: it is not the caller's any more. `key` is the field by which items are found."""
        self._shared = _Shared(items, key)
        self._begin = 0
        self._end = len(items)

    def _part(self, begin: int, end: int) -> SharedList:
        made = SharedList.__new__(SharedList)
        made._shared, made._begin, made._end = self._shared, begin, end
        return made

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[Object]:
        return iter(self._shared.items[self._begin : self._end])

    def __getitem__(self, number: int) -> Object:
        """From the begin, or with a number below 0 from the end."""
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self._shared.items[self._begin + number if number >= 0 else self._end + number]

    def find(self, wanted: int) -> Object | None:
        """The item with this id."""
        position = self._shared.position(wanted)
        return None if position is None or not self._begin <= position < self._end else self._shared.items[position]

    def plus(self, item: Object) -> SharedList:
        items = self._shared.items
        # Somebody else went on from here, or most of the list is of the past: a list of one's own.
        if self._end < len(items) or self._begin > len(self) + _CHUNK:
            return self._copied().plus(item)
        items.append(item)
        return self._part(self._begin, self._end + 1)

    def _copied(self) -> SharedList:
        old, begin, end = self._shared, self._begin, self._end
        made = SharedList(old.items[begin:end], old.key)
        made._shared.parts = old.parts[begin:end]
        if begin % _CHUNK == 0:
            made._shared.chunks = old.chunks[begin // _CHUNK : end // _CHUNK]
        if begin == 0 and len(old.positions) == len(old.items):
            made._shared.positions = dict(old.positions)
            for item in old.items[end:]:
                del made._shared.positions[item[old.key]]
        return made

    def without_first(self, count: int) -> SharedList:
        return self._part(min(self._begin + count, self._end), self._end) if count > 0 else self

    def without(self, ids: AbstractSet[int]) -> SharedList:
        """Without the items of these ids, all of which are there. Usually the oldest go, which costs nothing."""
        key = self._shared.key
        first = 0
        while first < len(self) and self[first][key] in ids:
            first += 1
        return self.without_first(first) if first == len(ids) else self.kept(lambda item: item[key] not in ids)

    def kept(self, keep: Callable[[Object], bool]) -> SharedList:
        items, parts = self._shared.items, self._shared.parts
        chosen = [number for number in range(self._begin, self._end) if keep(items[number])]
        if len(chosen) == len(self):
            return self
        made = SharedList([items[number] for number in chosen], self._shared.key)
        if len(parts) >= self._end:
            made._shared.parts = [parts[number] for number in chosen]
        return made

    def pieces(self) -> list[bytes]:
        """The bytes of the items, with commas between them and no brackets around them: to be written one after the
        other. A piece is a whole chunk wherever that is possible."""
        shared, begin, end = self._shared, self._begin, self._end
        shared.encode_to(end)
        first, last = -(-begin // _CHUNK), end // _CHUNK  # whole chunks
        if first >= last:
            found = [b",".join(shared.parts[begin:end])]
        else:
            head, tail = shared.parts[begin : first * _CHUNK], shared.parts[last * _CHUNK : end]
            found = [b",".join(head), *shared.chunks[first:last], b",".join(tail)]
        joined: list[bytes] = []
        for piece in filter(None, found):
            joined += (b",", piece) if joined else (piece,)
        return joined
