"""Options of the row group cache. The broker process passes them to the lake process, so this imports no reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icestream import limits


@dataclass(frozen=True, slots=True)
class RowGroupCacheOptions:
    """Bounds of the cache of decoded row groups (row_group_cache.py)."""

    enabled: bool = True
    max_bytes: int = limits.GROUP_CACHE_BYTES_DEFAULT
    ttl_ms: int = limits.GROUP_CACHE_TTL_MS_DEFAULT

    def arguments(self) -> Sequence[str]:
        return ("--cache-bytes", str(self.max_bytes if self.enabled else 0), "--cache-ttl-ms", str(self.ttl_ms))
