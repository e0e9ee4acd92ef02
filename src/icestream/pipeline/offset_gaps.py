"""Declared gaps of a shard: offsets that hold no message, and whose absence is not a hole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Gaps = Iterable[tuple[int, int]]


def past(gaps: Gaps, offset: int) -> int:
    """Returns the first offset from here on that lies in no gap."""
    for start, end in sorted(gaps):
        if start <= offset < end:
            offset = end
    return offset


def rows_between(gaps: Gaps, start: int, end: int) -> int:
    """Returns how many messages [start, end) holds. Gaps do not overlap each other."""
    missing = sum(max(0, min(end, gap_end) - max(start, gap_start)) for gap_start, gap_end in gaps)
    return end - start - missing
