"""Removals: committed rows that main of a topic's table lacks, recorded for `verify` and readers (hazard 21).

They follow from the lineage of main (snapshot_progress.py): the summary of each round has the committed offsets and the
removals at that time. This module has the values, their bound, and their form in the summary of a snapshot.
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
    """Committed rows that main lacks since one operation, or since several that were merged."""

    operation: str  # rollback, set-current, delete, overwrite, or one of ours; several, merged: joined by " and "
    snapshot_id: int  # of the last such operation; 0: the table had none
    time_ms: int
    ranges: dict[int, tuple[int, int]]  # per shard: rows with these offsets
    is_exact: bool  # all of these rows, not some
    rows: int | None = None  # if not exact: at most so many; None: unknown, as in records of early releases
    first_snapshot_id: int | None = None  # of merged removals the first snapshot; None: a single one, or unknown

    @property
    def rows_at_most(self) -> int | None:
        return sum(end - start for start, end in self.ranges.values()) if self.is_exact else self.rows

    @property
    def words(self) -> str:
        """The operation that removed the rows, and its snapshot, as text."""
        return f"{self._names}, {self.snapshot_words}" if self.snapshot_id else self._names

    @property
    def snapshot_words(self) -> str:
        """The snapshot that removed the rows, as text; of merged removals the range of snapshots."""
        if self.first_snapshot_id is not None:
            return f"one of the snapshots {self.first_snapshot_id} to {self.snapshot_id}"
        return f"{'the last of them ' if self.names_several else ''}snapshot {self.snapshot_id}"

    @property
    def names_several(self) -> bool:
        """True if the operation shows that removals were merged; merged ones of the same operation do not."""
        return self._names != self.operation or _AND in self.operation

    @property
    def _names(self) -> str:
        """Earlier releases wrote `several` for merged operations."""
        return "several operations" if self.operation == "several" else self.operation


Removals = tuple[Removal, ...]
Ranges = Mapping[int, tuple[int, int]]  # per shard: [start, end)


class TopicProgress(msgspec.Struct, frozen=True):
    """The progress in the summary of a round: the committed offsets of its table, and what was missing from it."""

    committed: dict[int, int]
    removals: Removals = ()


def bounded(removals: Removals) -> Removals:
    """At most CATALOG_REMOVALS_KEPT exact removals, so that they fit every summary; the inexact ones and the oldest of
    the others are merged into one."""
    exact = [removal for removal in removals if removal.is_exact]
    inexact = [removal for removal in removals if not removal.is_exact]
    surplus = len(exact) - limits.CATALOG_REMOVALS_KEPT
    # The oldest exact ones become inexact: readers then know that rows are missing, not which.
    if surplus > 0:
        inexact, exact = exact[:surplus] + inexact, exact[surplus:]
    return (*exact, _merge(inexact)) if inexact else tuple(exact)


def _merge(removals: list[Removal]) -> Removal:
    """Returns one inexact removal that covers all of these."""
    if len(removals) == 1 and not removals[0].is_exact:
        return removals[0]
    ranges: dict[int, tuple[int, int]] = {}
    for removal in removals:
        for shard, (start, end) in removal.ranges.items():
            low, high = ranges.get(shard, (start, end))
            ranges[shard] = min(low, start), max(high, end)
    last, first = removals[-1], _first_snapshot(removals)
    operations = sorted({name for removal in removals for name in removal.operation.split(_AND)})
    rows = removed_rows_total(removals)
    return Removal(_AND.join(operations), last.snapshot_id, last.time_ms, ranges, False, rows, first)


def _first_snapshot(removals: list[Removal]) -> int | None:
    """The first snapshot of merged removals; None if all are of one snapshot, or if the oldest was merged by an early
    release, which kept the last snapshot only."""
    oldest = min(removals, key=lambda removal: removal.time_ms)
    if oldest.first_snapshot_id is not None:
        return oldest.first_snapshot_id
    is_unknown = oldest.snapshot_id in (0, removals[-1].snapshot_id) or oldest.names_several
    return None if is_unknown else oldest.snapshot_id


def removed_rows_total(removals: Iterable[Removal]) -> int | None:
    """The rows that they removed together, at most; None if unknown."""
    counts = [removal.rows_at_most for removal in removals]
    return None if None in counts else sum(count or 0 for count in counts)


# --- rows that came back ----------------------------------------------------------------------------------------------


def without_ranges(removals: Removals, restored: Ranges) -> Removals:
    """The removals without these offsets, which are rows of main again. Inexact removals stay as they are."""
    return tuple(
        part for removal in removals for part in (_parts(removal, restored) if removal.is_exact else [removal])
    )


def _parts(removal: Removal, restored: Ranges) -> list[Removal]:
    """What is left of an exact removal: two parts if the restored offsets lie in its middle."""
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
    """The removals after rows of unknown offsets were added, which may be some of the removed rows: none is exact."""
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


def added_ranges(snapshot: Object, topic_id: int) -> Ranges | None:
    """The offsets that the snapshot of a round added; None for other snapshots, and those of early releases."""
    summary = snapshot.get("summary") or {}
    if summary.get(TOPIC_ID) != str(topic_id):
        return None
    try:
        return msgspec.json.decode(summary.get(ADDED, ""), type=dict[int, tuple[int, int]])
    except msgspec.MsgspecError:
        return None


def added_summary(ranges: Ranges) -> dict[str, str]:
    return {ADDED: as_text(ranges)}


def as_summary(topic_id: int, committed: Mapping[int, int], removals: Removals) -> dict[str, str]:
    summary = {TOPIC_ID: str(topic_id), COMMITTED: as_text(committed)}
    return summary | {REMOVED: as_text(removals)} if removals else summary


def as_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def progress_of(snapshot: Object, topic_id: int) -> TopicProgress | None:
    """The progress in the summary of a snapshot; None if no round or rewrite of this topic made it."""
    summary = snapshot.get("summary") or {}
    if summary.get(TOPIC_ID) != str(topic_id):
        return None
    try:
        committed = msgspec.json.decode(summary.get(COMMITTED, ""), type=dict[int, int])
        removals = msgspec.json.decode(summary.get(REMOVED, "[]"), type=Removals)
    except msgspec.MsgspecError:
        return None  # not written by the server: it was added while the table was not bound
    return TopicProgress(committed, removals)
