"""Row groups that were read lately, decoded. Files never change, so a row group is known by its file and its number:
no commit empties the cache, and deletes are applied behind it (hazard 40).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cachebox import TTLCache

from icestream.observability import metrics
from icestream.readers.cache_options import CacheOptions


class GroupKey(NamedTuple):
    path: str
    group: int


class GroupCache(Protocol):
    def get(self, key: GroupKey) -> Any | None: ...

    def put(self, key: GroupKey, rows: Any) -> None: ...

    @property
    def held_bytes(self) -> int: ...


class NoCache:
    held_bytes = 0

    def get(self, key: GroupKey) -> Any | None:
        return None

    def put(self, key: GroupKey, rows: Any) -> None:
        """It is forgotten."""


class BoundedCache:
    """So many bytes, and none older than `ttl_ms`; the oldest go first. For several threads."""

    def __init__(self, options: CacheOptions) -> None:
        self._max_bytes = options.max_bytes
        self._groups: TTLCache[GroupKey, Any] = TTLCache(
            options.max_bytes, options.ttl_ms / 1000, getsizeof=lambda _, rows: rows.nbytes + 1
        )

    def get(self, key: GroupKey) -> Any | None:
        found = self._groups.get(key)
        metrics.GROUP_CACHE.labels("miss" if found is None else "hit").inc()
        return found

    def put(self, key: GroupKey, rows: Any) -> None:
        if rows.nbytes < self._max_bytes:
            self._groups.insert(key, rows)
            metrics.GROUP_CACHE_BYTES.set(self._groups.current_size())

    @property
    def held_bytes(self) -> int:
        return self._groups.current_size()


def open_cache(options: CacheOptions) -> GroupCache:
    return BoundedCache(options) if options.enabled and options.max_bytes else NoCache()
