"""How far back the offsets of a shard reach without a hole. What lies before a hole may be there, but nobody goes on
from it: a spill file stays whole for the one shard that needs it (hazard 8), while the log behind another's part of it
was freed."""

from __future__ import annotations

from collections.abc import Iterable


def reaches_back(spans: Iterable[tuple[int, int]], offset: int) -> int:
    """Where an unbroken row of spans that leads to the offset begins: what files hold, and declared gaps. They may
    overlap."""
    for start, end in sorted(spans, key=lambda span: span[1], reverse=True):
        if end < offset:
            break  # none that follows reaches further
        offset = min(offset, start)
    return offset
