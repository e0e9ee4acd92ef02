"""A list of a metadata document that many versions share: it grows at its end, and no item is copied or encoded twice.

A table with 1,000 snapshots has 0.7 MB of them, and each commit adds one. So the versions of a table share one growing
list, of which each sees a range, and the encoded bytes of its items, joined in chunks:

    shared storage   items 0 1 2 3 4 5 6 7   appended to by the version that ends at its end; never shortened
    one version      [0, 7)                  plus(x): item 7 belongs to another version, so the range is copied first
    the next one     [0, 8)                  plus(x): the storage grows
    chunks           items [0, C), [C, 2C), … joined, from the first time that a version is encoded

A SharedList is immutable. Not thread-safe: all versions of a table are used on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from icestream.iceberg.values import Object, encode

# Items per chunk. Those after the last full chunk are joined again for every version: half of this on average.
_CHUNK: Final = 128


class _Storage:
    """`encoded`, `chunks` and `positions` are derived from `items` on demand."""

    __slots__ = ("chunks", "encoded", "items", "key", "positions")

    def __init__(self, items: list[Object], key: str) -> None:
        self.items = items
        self.key = key
        self.encoded: list[bytes] = []
        self.chunks: list[bytes] = []
        self.positions: dict[int, int] = {}

    def encode_to(self, end: int) -> None:
        encoded, chunks = self.encoded, self.chunks
        for item in self.items[len(encoded) : end]:
            encoded.append(encode(item))
        while (len(chunks) + 1) * _CHUNK <= end:
            start = len(chunks) * _CHUNK
            chunks.append(b",".join(encoded[start : start + _CHUNK]))

    def position(self, item_id: int) -> int | None:
        indexed = len(self.positions)
        # No item is ever removed and ids are unique, so the items after the indexed ones are the new ones.
        if indexed < len(self.items):
            key = self.key
            self.positions.update((item[key], indexed + number) for number, item in enumerate(self.items[indexed:]))
        return self.positions.get(item_id)


class SharedList:
    __slots__ = ("_end", "_start", "_storage")

    def __init__(self, items: list[Object], key: str = "") -> None:
        """Takes ownership of `items`. `key` is the id field for `find` and `without`."""
        self._storage = _Storage(items, key)
        self._start = 0
        self._end = len(items)

    def _range(self, start: int, end: int) -> SharedList:
        view = SharedList.__new__(SharedList)
        view._storage, view._start, view._end = self._storage, start, end
        return view

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Object]:
        return iter(self._storage.items[self._start : self._end])

    def __getitem__(self, number: int) -> Object:
        """Returns the item at a position; negative ones count from the end."""
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self._storage.items[self._start + number if number >= 0 else self._end + number]

    def find(self, item_id: int) -> Object | None:
        """Returns the item with this id, or None."""
        position = self._storage.position(item_id)
        return None if position is None or not self._start <= position < self._end else self._storage.items[position]

    def plus(self, item: Object) -> SharedList:
        """Returns the list with the item appended."""
        items = self._storage.items
        # Another version has appended here, or most of the storage precedes this range: continue on a copy.
        if self._end < len(items) or self._start > len(self) + _CHUNK:
            return self._copy().plus(item)
        items.append(item)
        return self._range(self._start, self._end + 1)

    def _copy(self) -> SharedList:
        old, start, end = self._storage, self._start, self._end
        copy = SharedList(old.items[start:end], old.key)
        copy._storage.encoded = old.encoded[start:end]
        if start % _CHUNK == 0:
            copy._storage.chunks = old.chunks[start // _CHUNK : end // _CHUNK]
        if start == 0 and len(old.positions) == len(old.items):
            copy._storage.positions = dict(old.positions)
            for item in old.items[end:]:
                del copy._storage.positions[item[old.key]]
        return copy

    def without_first(self, count: int) -> SharedList:
        return self._range(min(self._start + count, self._end), self._end) if count > 0 else self

    def without(self, ids: AbstractSet[int]) -> SharedList:
        """Returns the list without the items of these ids, all of which exist. Removing the oldest ones is free."""
        key = self._storage.key
        first = 0
        while first < len(self) and self[first][key] in ids:
            first += 1
        return self.without_first(first) if first == len(ids) else self.filter(lambda item: item[key] not in ids)

    def filter(self, predicate: Callable[[Object], bool]) -> SharedList:
        """Returns the items for which the predicate holds, without encoding them again."""
        items, encoded = self._storage.items, self._storage.encoded
        chosen = [number for number in range(self._start, self._end) if predicate(items[number])]
        if len(chosen) == len(self):
            return self
        filtered = SharedList([items[number] for number in chosen], self._storage.key)
        if len(encoded) >= self._end:
            filtered._storage.encoded = [encoded[number] for number in chosen]
        return filtered

    def pieces(self) -> list[bytes]:
        """Returns the encoded items with commas between them, without brackets, to be written one after the other.

        A piece is a whole chunk wherever possible, so that most of a long list is not copied.
        """
        storage, start, end = self._storage, self._start, self._end
        storage.encode_to(end)
        first_chunk, last_chunk = -(-start // _CHUNK), end // _CHUNK  # whole chunks
        if first_chunk >= last_chunk:
            joined = [b",".join(storage.encoded[start:end])]
        else:
            head, tail = storage.encoded[start : first_chunk * _CHUNK], storage.encoded[last_chunk * _CHUNK : end]
            joined = [b",".join(head), *storage.chunks[first_chunk:last_chunk], b",".join(tail)]
        pieces: list[bytes] = []
        for piece in filter(None, joined):
            pieces += (b",", piece) if pieces else (piece,)
        return pieces
