"""Committed rows that a foreign commit took out of main, told so that `verify` and readers know (hazard 21).

What main lacks follows from the last round in its lineage, whose snapshot says how far it had come and what was missing
then (properties.py), and from what was done to the table since:

    missing = what that round said
            + the offsets that were committed behind it, when main was moved there: exact
            + any offset that was committed, when a snapshot in between deletes rows: which ones stands in its files

A lineage without a round holds nothing of the topic. If expiry cut it off before the first round, nobody knows, and any
offset may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from icestream import limits
from icestream.catalog.document.values import Object
from icestream.catalog.table import snapshot
from icestream.catalog.table.table import Table
from icestream.catalog.topic.binding import Binding

ROLLBACK: Final = "rollback"
SET_CURRENT: Final = "set-current"
SEVERAL: Final = "several"
_REMOVED_COUNTS: Final = ("deleted-records", "added-position-deletes", "added-equality-deletes", "added-dvs")


class Removal(msgspec.Struct, frozen=True, array_like=True):
    operation: str  # rollback, set-current, delete, overwrite; `several` for those that were put together
    snapshot_id: int  # the last one that did it
    time_ms: int
    ranges: dict[int, tuple[int, int]]  # per shard: rows with these offsets
    is_exact: bool  # all of them, not some


Removals = tuple[Removal, ...]


class Progress(msgspec.Struct, frozen=True):
    """What the snapshot of a round says: how far its table had come, and what was missing from it."""

    committed: dict[int, int]
    removals: Removals


def after_commit(removals: Removals, before: Table, after: Table, binding: Binding, time_ms: int) -> Removals:
    """What main lacks once a foreign commit is in force."""
    old, new = before.current_snapshot_id, after.current_snapshot_id
    if old == new or old is None or new is None:
        return removals
    since: list[Object] = []
    for one in _lineage(after, new):
        if one["snapshot-id"] == old:
            return _with_deletes(removals, since, binding, time_ms)
        if (progress := progress_of(one, binding.topic_id)) is not None:
            break
        since.append(one)
    else:
        progress = None
    is_known = progress is not None or since[-1].get("parent-snapshot-id") is None
    there = progress or Progress({}, ())
    operation = ROLLBACK if any(one["snapshot-id"] == new for one in _lineage(before, old)) else SET_CURRENT
    lost = _lost(operation, new, time_ms, there.committed, binding, is_known)
    return _with_deletes((*there.removals, *lost), since, binding, time_ms)


def _lineage(table: Table, snapshot_id: int | None) -> Iterator[Object]:
    """A snapshot and those before it, as far as they are known."""
    for _ in range(len(table.snapshots)):  # a document from outside may go in circles
        found = None if snapshot_id is None else table.snapshots.find(snapshot_id)
        if found is None:
            return
        yield found
        snapshot_id = found.get("parent-snapshot-id")


def _lost(
    operation: str, snapshot_id: int, time_ms: int, there: Mapping[int, int], binding: Binding, is_exact: bool
) -> Removals:
    """The offsets that were committed behind where the new current snapshot stands."""
    ranges = {shard: (there.get(shard, 0), end) for shard, end in binding.committed().items()}
    lost = {shard: (start, end) for shard, (start, end) in ranges.items() if start < end}
    return (Removal(operation, snapshot_id, time_ms, lost, is_exact),) if lost else ()


def _with_deletes(removals: Removals, since: list[Object], binding: Binding, time_ms: int) -> Removals:
    ranges = {shard: (0, end) for shard, end in binding.committed().items()}
    deleted = [
        Removal(snapshot.operation(one), one["snapshot-id"], time_ms, ranges, False)
        for one in reversed(since)
        if _takes_rows(one)
    ]
    return _bounded((*removals, *deleted))


def _takes_rows(added: Object) -> bool:
    """An engine that does not count what it removed may have removed anything."""
    if snapshot.operation(added) not in ("delete", "overwrite"):
        return False
    summary = added.get("summary") or {}
    if not any(name in summary for name in ("added-records", *_REMOVED_COUNTS)):
        return True
    return any(summary.get(name, "0") != "0" for name in _REMOVED_COUNTS)


def _bounded(removals: Removals) -> Removals:
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
    last = removals[-1]
    words = {one.operation for one in removals}
    return Removal(words.pop() if len(words) == 1 else SEVERAL, last.snapshot_id, last.time_ms, ranges, False)


# --- as text, in the summary of a snapshot ----------------------------------------------------------------------------

TOPIC_ID: Final = "icestream.topic-id"
COMMITTED: Final = "icestream.committed"
REMOVED: Final = "icestream.removed"


def as_summary(binding: Binding, removals: Removals) -> dict[str, str]:
    found = {TOPIC_ID: str(binding.topic_id), COMMITTED: _as_text(binding.committed())}
    return found | {REMOVED: _as_text(removals)} if removals else found


def _as_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def progress_of(made: Object, topic_id: int) -> Progress | None:
    """None when no round of this topic made the snapshot."""
    summary = made.get("summary") or {}
    if summary.get(TOPIC_ID) != str(topic_id):
        return None
    try:
        committed = msgspec.json.decode(summary.get(COMMITTED, ""), type=dict[int, int])
        removals = msgspec.json.decode(summary.get(REMOVED, "[]"), type=Removals)
    except msgspec.MsgspecError:
        return None  # of a time when the table was not bound: anybody could have written it
    return Progress(committed, removals)
