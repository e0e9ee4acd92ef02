"""Chooses the next window of offsets to read, and the files or row groups to read it from. Pure.

Files of the pipeline cover disjoint ranges, so a window is a part of one file. Where other engines wrote overlapping
ones, a window [start, stop) names everything that can hold one of its offsets, and is no wider than its bytes allow: a
reader holds one window in memory, however the table is sorted (hazard 22). `stop` never passes the next span that
begins after `start`, so that each window has as few spans as possible; unless the spans overlap and all of them fit:
row groups of one part of a clustered file (pipeline/files/clustered_rows.py) are one window instead of many tiny ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

Source = TypeVar("Source")


class OffsetSpan(NamedTuple, Generic[Source]):
    """A file or row group that can hold the offsets [low, high], both inclusive."""

    low: int
    high: int
    rows: int
    bytes: int
    source: Source


class OffsetWindow(NamedTuple, Generic[Source]):
    """The offsets [start, stop), and everything that can hold one of them."""

    start: int  # no span holds an offset between the requested position and this
    stop: int
    spans: list[OffsetSpan[Source]]


class SpanIndex(Generic[Source]):
    """Finds windows by binary search over spans that are sorted by their lowest offset."""

    def __init__(self, spans: Iterable[OffsetSpan[Source]]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.low, span.high))
        # The highest offset of all spans up to each one. It rises, so a binary search finds the first span that can
        # hold a position: all spans before it end below the position.
        self._highest = list(accumulate((span.high for span in self._spans), max))

    def __len__(self) -> int:
        return len(self._spans)

    def next_window(
        self,
        position: int,
        bytes_max: int,
        *,
        joined_bytes: int = 0,
        is_wanted: Callable[[Source], bool] | None = None,
    ) -> OffsetWindow[Source] | None:
        """Returns the first window at or after the position; None if no span reaches it.

        `joined_bytes`: overlapping spans are one window while they have at most so many bytes. `is_wanted`: spans that
        are not are passed over, as if they did not exist.
        """
        start: int | None = None
        stop: int | None = None
        spans: list[OffsetSpan[Source]] = []
        joined, highest = 0, 0
        for number in range(bisect_left(self._highest, position), len(self._spans)):
            span = self._spans[number]
            if span.high < position or (is_wanted is not None and not is_wanted(span.source)):
                continue
            if start is None:
                start = max(position, span.low)
            # The window ends where the next span begins: up to there no other file can have its offsets.
            if span.low > start and (span.low > highest or joined + span.bytes > joined_bytes):
                stop = span.low
                break
            spans.append(span)
            joined, highest = joined + span.bytes, max(highest, span.high)
        if start is None:
            return None
        spans_end = max(span.high for span in spans) + 1
        return OffsetWindow(start, min(spans_end, stop or spans_end, start + _width(spans, bytes_max)), spans)

    def uncovered(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the parts of [start, end) that no span can hold."""
        parts: list[tuple[int, int]] = []
        for number in range(bisect_left(self._highest, start), len(self._spans)):
            low, high = self._spans[number][:2]
            if low >= end:
                break
            if start < low:
                parts.append((start, low))
            start = max(start, high + 1)
        return [*parts, (start, end)] if start < end else parts


def _width(spans: list[OffsetSpan[Source]], bytes_max: int) -> int:
    """Returns how many offsets fit `bytes_max` if every span has a row for each of them; unbounded if all rows fit."""
    if sum(span.bytes for span in spans) <= bytes_max:
        return max(span.high for span in spans) + 1
    # As if each span had a row for every offset: overlapping files then fit the memory even if they do.
    bytes_per_offset = sum(span.bytes / max(span.rows, 1) for span in spans)
    return max(1, int(bytes_max / bytes_per_offset))
