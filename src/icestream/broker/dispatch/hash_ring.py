"""Which consumer has a key: consistent hashing, so that a consumer that comes or goes moves only its share of keys.

Every consumer has many places on a circle; a key belongs to the next place whose consumer takes it. Consumers with
equal filters share a circle, so that a key is held against each filter once and not against each consumer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from icestream import errors, limits

_CIRCLE: Final = 2**64


def place_of(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


class KeyFilter:
    """Glob patterns over keys: `*` is any bytes, `?` is one. Without a pattern every key passes."""

    __slots__ = ("_pattern", "patterns")

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        encoded = [_encode(pattern) for pattern in patterns]
        if len(encoded) > limits.KEY_FILTERS_MAX or any(len(one) > limits.NAME_BYTES_MAX for one in encoded):
            raise errors.InvalidInput(
                f"{len(encoded)} key filters, the longest of {max(map(len, encoded))} bytes",
                hint=f"at most {limits.KEY_FILTERS_MAX} of {limits.NAME_BYTES_MAX} bytes",
            )
        self.patterns = tuple(patterns)
        self._pattern = re.compile(b"|".join(map(_translate, encoded)), re.DOTALL) if encoded else None

    def accepts(self, key: bytes) -> bool:
        return self._pattern is None or self._pattern.fullmatch(key) is not None


def _encode(pattern: str) -> bytes:
    try:
        return pattern.encode()
    except UnicodeEncodeError:
        raise errors.InvalidInput(f"key filter {pattern!a} is not valid Unicode") from None


def _translate(pattern: bytes) -> bytes:
    """Between two stars the first match is as good as any: atomic groups keep a hostile pattern from trying all."""
    first, *others = [re.escape(part).replace(rb"\?", b".") for part in re.split(rb"\*+", pattern)]
    if not others:
        return b"(?:%b)" % first
    middle = b"".join(b"(?>.*?%b)" % part for part in others[:-1])
    return b"(?:%b%b.*%b)" % (first, middle, others[-1])


class FilterRing:
    """The places of consumers with one filter, in order."""

    __slots__ = ("_owners", "_places", "keys")

    def __init__(self, keys: KeyFilter) -> None:
        self.keys = keys
        self._places: list[int] = []
        self._owners: list[int] = []

    def add(self, consumer_id: int) -> list[int]:
        """Copies whole stretches between the new places: with a thousand consumers that is a tenth of a sort."""
        places, owners, at = [], [], 0
        new = _places_of(consumer_id)
        for place in new:
            to = bisect_left(self._places, place, at)
            places += self._places[at:to]
            owners += self._owners[at:to]
            places.append(place)
            owners.append(consumer_id)
            at = to
        self._places = places + self._places[at:]
        self._owners = owners + self._owners[at:]
        return new

    def remove(self, consumer_id: int) -> None:
        places, owners, at = [], [], 0
        for place in _places_of(consumer_id):
            to = self._owners.index(consumer_id, bisect_left(self._places, place, at))
            places += self._places[at:to]
            owners += self._owners[at:to]
            at = to + 1
        self._places = places + self._places[at:]
        self._owners = owners + self._owners[at:]

    def __len__(self) -> int:
        return len(self._places)

    def next_to(self, place: int) -> KeyOwner:
        at = bisect_left(self._places, place)
        at = at if at < len(self._places) else 0
        return KeyOwner((self._places[at] - place) % _CIRCLE, self._owners[at])


class KeyOwner(NamedTuple):
    """Whose key it is, and how far its place on the circle is from the key's."""

    distance: int
    consumer_id: int


def distance(place: int, places: Sequence[int]) -> int:
    """To the next of some places, which are in order."""
    at = bisect_left(places, place)
    return (places[at if at < len(places) else 0] - place) % _CIRCLE


def _places_of(consumer_id: int) -> list[int]:
    return sorted(place_of(b"%d-%d" % (consumer_id, number)) for number in range(limits.RING_PLACES_PER_CONSUMER))


class HashRing:
    def __init__(self) -> None:
        self._filters: dict[int, KeyFilter] = {}
        self._circles: dict[tuple[str, ...], FilterRing] = {}
        self.version = 0  # rises whenever owners may have changed

    def join(self, consumer_id: int, keys: KeyFilter) -> list[int]:
        """Its places, in order."""
        self.version += 1
        self._filters[consumer_id] = keys
        return self._circles.setdefault(keys.patterns, FilterRing(keys)).add(consumer_id)

    def leave(self, consumer_id: int) -> KeyFilter | None:
        keys = self._filters.pop(consumer_id, None)
        if keys is not None:
            self.version += 1
            circle = self._circles[keys.patterns]
            circle.remove(consumer_id)
            if not len(circle):
                del self._circles[keys.patterns]
        return keys

    def __len__(self) -> int:
        return len(self._filters)

    def owner(self, key: bytes, place: int) -> KeyOwner | None:
        """None: no consumer takes this key. `place`: where it lies (`place_of`)."""
        nearest: KeyOwner | None = None
        for circle in self._circles.values():
            if circle.keys.accepts(key):
                found = circle.next_to(place)
                nearest = found if nearest is None or found < nearest else nearest
        return nearest


class DepartedFilters:
    """Filters of consumers that left a short while ago: what they took is kept for them for `grace_ms`."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._until: dict[tuple[str, ...], tuple[int, KeyFilter]] = {}  # in order of their times

    def left(self, keys: KeyFilter, now_ms: int) -> None:
        self._until.pop(keys.patterns, None)
        self._until[keys.patterns] = (now_ms + self._grace_ms, keys)
        if len(self._until) > limits.KEY_ABSENT_FILTERS_MAX:
            del self._until[next(iter(self._until))]

    def until_ms(self, key: bytes, now_ms: int) -> int:
        """How long the key is kept; `now_ms` when nobody is missed who took it."""
        for patterns in [one for one, (until, _) in self._until.items() if until <= now_ms]:
            del self._until[patterns]
        return max((until for until, keys in self._until.values() if keys.accepts(key)), default=now_ms)
