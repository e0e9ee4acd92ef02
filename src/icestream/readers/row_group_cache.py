"""Cache of decoded row groups. Files never change, so a row group is identified by its file and number: no commit
invalidates the cache, and deletes are applied to what it returns (hazard 40).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cachebox import TTLCache

from icestream.observability import metrics
from icestream.readers.row_group_cache_options import RowGroupCacheOptions


class RowGroupKey(NamedTuple):
    path: str
    group: int


class RowGroupCache(Protocol):
    """A cache of decoded row groups. Called by several threads."""

    def get(self, key: RowGroupKey) -> Any | None: ...

    def put(self, key: RowGroupKey, rows: Any) -> None: ...

    @property
    def held_bytes(self) -> int: ...


class NoRowGroupCache:
    held_bytes = 0

    def get(self, key: RowGroupKey) -> Any | None:
        return None

    def put(self, key: RowGroupKey, rows: Any) -> None:
        """Does nothing."""


class BoundedRowGroupCache:
    """Bounded by bytes and age (`ttl_ms`); evicts the oldest first. Thread-safe."""

    def __init__(self, options: RowGroupCacheOptions) -> None:
        self._max_bytes = options.max_bytes
        self._groups: TTLCache[RowGroupKey, Any] = TTLCache(
            options.max_bytes, options.ttl_ms / 1000, getsizeof=lambda _, rows: rows.nbytes + 1
        )

    def get(self, key: RowGroupKey) -> Any | None:
        rows = self._groups.get(key)
        metrics.GROUP_CACHE.labels("miss" if rows is None else "hit").inc()
        return rows

    def put(self, key: RowGroupKey, rows: Any) -> None:
        # A group as large as the cache would evict everything else for one read.
        if rows.nbytes < self._max_bytes:
            self._groups.insert(key, rows)
            metrics.GROUP_CACHE_BYTES.set(self._groups.current_size())

    @property
    def held_bytes(self) -> int:
        return self._groups.current_size()


def open_row_group_cache(options: RowGroupCacheOptions) -> RowGroupCache:
    return BoundedRowGroupCache(options) if options.enabled and options.max_bytes else NoRowGroupCache()
