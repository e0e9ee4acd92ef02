"""Committed rows that main of a topic's table lacks, told so that `verify` and readers know (hazard 21).

What lacks follows from the lineage of main (snapshot_progress.py): the snapshot of each round says how far it had come
and what was missing then. Here stand the values, their bound, and their form in the summary of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from icestream import limits
from icestream.iceberg.values import Object

ROLLBACK: Final = "rollback"
SET_CURRENT: Final = "set-current"
_AND: Final = " and "


class Removal(msgspec.Struct, frozen=True, array_like=True):
    operation: str  # rollback, set-current, delete, overwrite, or one of ours; joined by " and " for those put together
    snapshot_id: int  # the last one that did it; 0: the table had none
    time_ms: int
    ranges: dict[int, tuple[int, int]]  # per shard: rows with these offsets
    is_exact: bool  # all of them, not some
    rows: int | None = None  # some: not more than so many; None: nobody counted, as no release did at first
    first_snapshot_id: int | None = None  # of several put together, the first one; None: one alone, or nobody knows

    @property
    def rows_at_most(self) -> int | None:
        return sum(end - start for start, end in self.ranges.values()) if self.is_exact else self.rows

    @property
    def words(self) -> str:
        """Which operation removed the rows, and by which snapshot, for people."""
        return f"{self._names}, {self.snapshot_words}" if self.snapshot_id else self._names

    @property
    def snapshot_words(self) -> str:
        """The snapshot that removed the rows; of several put together, between which ones it is."""
        if self.first_snapshot_id is not None:
            return f"one of the snapshots {self.first_snapshot_id} to {self.snapshot_id}"
        return f"{'the last of them ' if self.names_several else ''}snapshot {self.snapshot_id}"

    @property
    def names_several(self) -> bool:
        """Whether the operation alone tells that removals were put together. Several of one operation do not."""
        return self._names != self.operation or _AND in self.operation

    @property
    def _names(self) -> str:
        """Earlier releases wrote `several` for operations that were put together."""
        return "several operations" if self.operation == "several" else self.operation


Removals = tuple[Removal, ...]
Ranges = Mapping[int, tuple[int, int]]  # per shard: [start, end)


class TopicProgress(msgspec.Struct, frozen=True):
    """What the snapshot of a round says: how far its table had come, and what was missing from it."""

    committed: dict[int, int]
    removals: Removals = ()


def bounded(removals: Removals) -> Removals:
    """Few enough to stand in every snapshot: those that are not exact become one, with the oldest of the others."""
    exact = [one for one in removals if one.is_exact]
    loose = [one for one in removals if not one.is_exact]
    surplus = len(exact) - limits.CATALOG_REMOVALS_KEPT
    if surplus > 0:
        loose, exact = exact[:surplus] + loose, exact[surplus:]
    return (*exact, _together(loose)) if loose else tuple(exact)


def _together(removals: list[Removal]) -> Removal:
    if len(removals) == 1 and not removals[0].is_exact:
        return removals[0]
    ranges: dict[int, tuple[int, int]] = {}
    for one in removals:
        for shard, (start, end) in one.ranges.items():
            low, high = ranges.get(shard, (start, end))
            ranges[shard] = min(low, start), max(high, end)
    last, first = removals[-1], _first_snapshot(removals)
    operations = sorted({name for removal in removals for name in removal.operation.split(_AND)})
    rows = removed_rows_total(removals)
    return Removal(_AND.join(operations), last.snapshot_id, last.time_ms, ranges, False, rows, first)


def _first_snapshot(removals: list[Removal]) -> int | None:
    """None: all are of one snapshot, or earlier releases put the oldest of them together and kept its last one."""
    oldest = min(removals, key=lambda one: one.time_ms)
    if oldest.first_snapshot_id is not None:
        return oldest.first_snapshot_id
    is_unknown = oldest.snapshot_id in (0, removals[-1].snapshot_id) or oldest.names_several
    return None if is_unknown else oldest.snapshot_id


def removed_rows_total(removals: Iterable[Removal]) -> int | None:
    """How many rows they took together, at most; None: nobody counted."""
    counts = [one.rows_at_most for one in removals]
    return None if None in counts else sum(count or 0 for count in counts)


# --- rows that came back ----------------------------------------------------------------------------------------------


def without_ranges(removals: Removals, restored: Ranges) -> Removals:
    """The removals less these offsets, which are rows of main again. Rows that may be any of a range stay counted."""
    return tuple(
        part for removal in removals for part in (_parts(removal, restored) if removal.is_exact else [removal])
    )


def _parts(removal: Removal, restored: Ranges) -> list[Removal]:
    """What is left of an exact removal: a hole in its middle makes two of it."""
    below, above = {}, {}
    for shard, (start, end) in removal.ranges.items():
        low, high = restored.get(shard, (start, start))
        low, high = max(low, start), min(high, end)
        if low >= high:
            below[shard] = start, end
            continue
        if start < low:
            below[shard] = start, low
        if high < end:
            above[shard] = high, end
    return [msgspec.structs.replace(removal, ranges=ranges) for ranges in (below, above) if ranges]


def marked_inexact(removals: Removals) -> Removals:
    """The same removals once rows of unknown offsets were added: some of what was removed may be there again."""
    return bounded(
        tuple(
            msgspec.structs.replace(removal, is_exact=False, rows=removal.rows_at_most) if removal.is_exact else removal
            for removal in removals
        )
    )


# --- as text, in the summary of a snapshot ----------------------------------------------------------------------------

TOPIC_ID: Final = "icestream.topic-id"
COMMITTED: Final = "icestream.committed"
REMOVED: Final = "icestream.removed"
ADDED: Final = "icestream.added"


def added_ranges(made: Object, topic_id: int) -> Ranges | None:
    """The offsets that the snapshot of a round brought; None for other snapshots and those of older releases."""
    summary = made.get("summary") or {}
    if summary.get(TOPIC_ID) != str(topic_id):
        return None
    try:
        return msgspec.json.decode(summary.get(ADDED, ""), type=dict[int, tuple[int, int]])
    except msgspec.MsgspecError:
        return None


def added_summary(ranges: Ranges) -> dict[str, str]:
    return {ADDED: _as_text(ranges)}


def as_summary(topic_id: int, committed: Mapping[int, int], removals: Removals) -> dict[str, str]:
    found = {TOPIC_ID: str(topic_id), COMMITTED: _as_text(committed)}
    return found | {REMOVED: _as_text(removals)} if removals else found


def _as_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def progress_of(made: Object, topic_id: int) -> TopicProgress | None:
    """None when no round of this topic made the snapshot."""
    summary = made.get("summary") or {}
    if summary.get(TOPIC_ID) != str(topic_id):
        return None
    try:
        committed = msgspec.json.decode(summary.get(COMMITTED, ""), type=dict[int, int])
        removals = msgspec.json.decode(summary.get(REMOVED, "[]"), type=Removals)
    except msgspec.MsgspecError:
        return None  # of a time when the table was not bound: anybody could have written it
    return TopicProgress(committed, removals)
