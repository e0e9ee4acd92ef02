"""Options of the row group cache; apart from the cache, whose library the broker process does not load."""

from __future__ import annotations

from dataclasses import dataclass

from icestream import limits


@dataclass(frozen=True, slots=True)
class RowGroupCacheOptions:
    """Bounds of the cache of decoded row groups (row_group_cache.py)."""

    enabled: bool = True
    max_bytes: int = limits.GROUP_CACHE_BYTES_DEFAULT
    ttl_ms: int = limits.GROUP_CACHE_TTL_MS_DEFAULT
