"""The owner of a key: consistent hashing, so that a consumer that joins or leaves moves only its share of the keys.

Each consumer has many points on a ring; a key belongs to the next point whose consumer's filter accepts it. Consumers
with equal filters share a ring, so that a key is matched once against each filter and not against each consumer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from icestream import errors, limits

_RING_SIZE: Final = 2**64


def ring_point(data: bytes) -> int:
    """The point of a key, or of a consumer, on the ring."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


class KeyFilter:
    """Glob patterns over keys: `*` matches any bytes, `?` one byte. Without patterns every key is accepted.

    Raises InvalidInput for too many, too long or undecodable patterns.
    """

    __slots__ = ("_pattern", "patterns")

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        encoded = [_encode(pattern) for pattern in patterns]
        if len(encoded) > limits.KEY_FILTERS_MAX or any(len(pattern) > limits.NAME_BYTES_MAX for pattern in encoded):
            raise errors.InvalidInput(
                f"too many or too long key filters: {len(encoded)}, the longest of {max(map(len, encoded))} bytes",
                hint=f"at most {limits.KEY_FILTERS_MAX} of {limits.NAME_BYTES_MAX} bytes each",
            )
        self.patterns = tuple(patterns)
        self._pattern = re.compile(b"|".join(map(_translate, encoded)), re.DOTALL) if encoded else None

    def accepts(self, key: bytes) -> bool:
        return self._pattern is None or self._pattern.fullmatch(key) is not None


def _encode(pattern: str) -> bytes:
    try:
        return pattern.encode()
    except UnicodeEncodeError:
        raise errors.InvalidInput(
            f"key filter {pattern!a} is not valid Unicode", hint="it contains a lone surrogate: remove it"
        ) from None


def _translate(pattern: bytes) -> bytes:
    """A regular expression for a glob pattern.

    Between two stars the first match is as good as any other: atomic groups prevent the exponential backtracking that a
    hostile pattern could cause.
    """
    first, *others = [re.escape(part).replace(rb"\?", b".") for part in re.split(rb"\*+", pattern)]
    if not others:
        return b"(?:%b)" % first
    middle = b"".join(b"(?>.*?%b)" % part for part in others[:-1])
    return b"(?:%b%b.*%b)" % (first, middle, others[-1])


class FilterRing:
    """The points of the consumers with one filter, in order."""

    __slots__ = ("_owners", "_points", "keys")

    def __init__(self, keys: KeyFilter) -> None:
        self.keys = keys
        self._points: list[int] = []
        self._owners: list[int] = []

    def add(self, consumer_id: int) -> list[int]:
        """Adds the points of a consumer and returns them in order.

        Copies the slices between the new points: with a thousand consumers that costs a tenth of a sort.
        """
        points, owners, start = [], [], 0
        new_points = _points_of(consumer_id)
        for point in new_points:
            stop = bisect_left(self._points, point, start)
            points += self._points[start:stop]
            owners += self._owners[start:stop]
            points.append(point)
            owners.append(consumer_id)
            start = stop
        self._points = points + self._points[start:]
        self._owners = owners + self._owners[start:]
        return new_points

    def remove(self, consumer_id: int) -> None:
        """Removes the points of a consumer."""
        points, owners, start = [], [], 0
        for point in _points_of(consumer_id):
            # Two consumers may have the same point, in any order: the owner tells which entry is meant.
            stop = self._owners.index(consumer_id, bisect_left(self._points, point, start))
            points += self._points[start:stop]
            owners += self._owners[start:stop]
            start = stop + 1
        self._points = points + self._points[start:]
        self._owners = owners + self._owners[start:]

    def __len__(self) -> int:
        return len(self._points)

    def owner_of(self, point: int) -> KeyOwner:
        """The owner of the next point at or after this one, around the ring."""
        index = bisect_left(self._points, point)
        index = index if index < len(self._points) else 0
        return KeyOwner((self._points[index] - point) % _RING_SIZE, self._owners[index])


class KeyOwner(NamedTuple):
    """The consumer that owns a key, and the distance from the key's point to the consumer's."""

    distance: int
    consumer_id: int


def ring_distance(point: int, points: Sequence[int]) -> int:
    """The distance from a point to the next of some points, which are in order."""
    index = bisect_left(points, point)
    return (points[index if index < len(points) else 0] - point) % _RING_SIZE


def _points_of(consumer_id: int) -> list[int]:
    return sorted(ring_point(b"%d-%d" % (consumer_id, number)) for number in range(limits.RING_PLACES_PER_CONSUMER))


class HashRing:
    """The owner of every key among the consumers of a key-shared subscription."""

    def __init__(self) -> None:
        self._filters: dict[int, KeyFilter] = {}  # by consumer
        self._rings: dict[tuple[str, ...], FilterRing] = {}  # by the patterns of the filter
        self.version = 0  # rises whenever the owners of keys may have changed

    def join(self, consumer_id: int, keys: KeyFilter) -> list[int]:
        """Adds a consumer; returns its points, in order."""
        self.version += 1
        self._filters[consumer_id] = keys
        return self._rings.setdefault(keys.patterns, FilterRing(keys)).add(consumer_id)

    def leave(self, consumer_id: int) -> KeyFilter | None:
        """Removes a consumer and returns its filter; None if it is not in the ring."""
        keys = self._filters.pop(consumer_id, None)
        if keys is not None:
            self.version += 1
            ring = self._rings[keys.patterns]
            ring.remove(consumer_id)
            if not len(ring):
                del self._rings[keys.patterns]
        return keys

    def __len__(self) -> int:
        return len(self._filters)

    def owner(self, key: bytes, point: int) -> KeyOwner | None:
        """The owner of a key, whose point is `ring_point(key)`; None if no consumer's filter accepts it."""
        # The nearest over all rings is the owner that one common ring would have, if points of consumers that do not
        # accept the key were left out of it.
        nearest: KeyOwner | None = None
        for ring in self._rings.values():
            if ring.keys.accepts(key):
                owner = ring.owner_of(point)
                nearest = owner if nearest is None or owner < nearest else nearest
        return nearest


class DepartedFilters:
    """The filters of consumers that left recently: keys that they accept are kept for them for `grace_ms`."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._until: dict[tuple[str, ...], tuple[int, KeyFilter]] = {}  # by pattern: until when, in order of time

    def add(self, keys: KeyFilter, now_ms: int) -> None:
        self._until.pop(keys.patterns, None)  # so that it moves to the end: the order is that of the times
        self._until[keys.patterns] = (now_ms + self._grace_ms, keys)
        if len(self._until) > limits.KEY_ABSENT_FILTERS_MAX:
            del self._until[next(iter(self._until))]

    def until_ms(self, key: bytes, now_ms: int) -> int:
        """Until when a key is kept; `now_ms` if no consumer that accepted it left recently."""
        for patterns in [patterns for patterns, (until, _) in self._until.items() if until <= now_ms]:
            del self._until[patterns]
        return max((until for until, keys in self._until.values() if keys.accepts(key)), default=now_ms)
