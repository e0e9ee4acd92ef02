"""The progress of a snapshot: which offsets of a topic it holds, and which rows main lacks (hazard 21). Pure.

It follows from the last round or rewrite of the pipeline in the snapshot's lineage, whose summary has the committed
offsets and what was missing then (topic_properties.py), or from the snapshot at which the table was adopted
(`Binding.base`), and from the snapshots since:

    missing = what the summary of that round says
            + the offsets that were committed after it, if main was moved back to it: exact
            + any committed offset, if a snapshot since deletes rows: its files tell which rows, its summary how many
              (removed_rows.py)

A lineage without a round holds nothing of the topic. If expiry cut it off before the first round, its content is
unknown, and any offset may be missing; the same holds for what lies before an adoption.

After a rewind (rewind.py) a snapshot may be ahead of the committed offsets. No foreign commit may set main to it: the
pipeline would write the same offsets again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from icestream import errors
from icestream.catalog.topic_rules.binding import AdoptionBase, Binding
from icestream.catalog.topic_rules.removal import (
    ROLLBACK,
    SET_CURRENT,
    Ranges,
    Removal,
    Removals,
    TopicProgress,
    added_ranges,
    bounded,
    marked_inexact,
    progress_of,
    without_ranges,
)
from icestream.catalog.topic_rules.removed_rows import count_removed_rows, removes_rows
from icestream.iceberg import snapshots
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class SnapshotProgress(NamedTuple):
    """The progress of a snapshot: its last round, and the snapshots since."""

    last_round: TopicProgress  # in the snapshot's lineage; empty if there is none
    since: list[Object]  # the snapshots after that round, the newest first
    is_known: bool  # False: the lineage is cut off by expiry, and `last_round` says nothing


def snapshot_progress(
    table: TableMetadata, snapshot_id: int | None, topic_id: int, base: AdoptionBase | None
) -> SnapshotProgress:
    """The progress of a snapshot. `base`: of a table that was adopted on an operator's word."""
    since: list[Object] = []
    for snapshot in lineage(table, snapshot_id):
        if base is not None and snapshot["snapshot-id"] == base.snapshot_id:
            return SnapshotProgress(base.progress, since, True)
        if (progress := progress_of(snapshot, topic_id)) is not None:
            return SnapshotProgress(progress, since, True)
        since.append(snapshot)
    # A lineage that ends at a snapshot without a parent is whole: no round is hidden behind it. With a base, only the
    # base states what the table holds.
    is_whole = not since or since[-1].get("parent-snapshot-id") is None
    return SnapshotProgress(TopicProgress({}), since, is_whole and (base is None or snapshot_id is None))


def lineage(table: TableMetadata, snapshot_id: int | None) -> Iterator[Object]:
    """A snapshot and its ancestors, the newest first, as far as the table has them."""
    for _ in range(len(table.snapshots)):  # bounded: a document from elsewhere may contain a cycle
        snapshot = None if snapshot_id is None else table.snapshots.find(snapshot_id)
        if snapshot is None:
            return
        yield snapshot
        snapshot_id = snapshot.get("parent-snapshot-id")


# --- main moves -------------------------------------------------------------------------------------------------------


def check_not_ahead(before: TableMetadata, after: TableMetadata, binding: Binding) -> errors.TopicTableConflict | None:
    """The error for a foreign commit that sets main ahead of the committed offsets; None if it may."""
    new_id = after.current_snapshot_id
    if new_id == before.current_snapshot_id or new_id is None:
        return None
    progress = snapshot_progress(after, new_id, binding.topic_id, binding.base)
    # Only after a rewind or an adoption can a snapshot be ahead of the committed offsets: an unknown one is refused
    # then.
    if not progress.is_known and binding.is_rewound and not _descends_from(before.current_snapshot_id, progress):
        return errors.TopicTableConflict(
            f"the history of snapshot {new_id} is cut off: it may hold offsets that would be written again",
            hint="detach it first: `icestream lake detach`; `icestream lake adopt` then takes positions",
        )
    committed = binding.committed()
    for snapshot_id, ends in ((new_id, progress.last_round.committed), *_picked_ends(after, progress.since, binding)):
        for shard, end in sorted(ends.items()):
            if end > committed.get(shard, end):
                return errors.TopicTableConflict(
                    f"snapshot {snapshot_id} holds offsets of shard {shard} up to {end}, but the topic is at "
                    f"{committed[shard]}: they would be written again",
                    hint="`icestream lake rewind --snapshot` moves main and the topic together",
                )
    return None


def _picked_ends(
    table: TableMetadata, since: list[Object], binding: Binding
) -> Iterator[tuple[int, Mapping[int, int]]]:
    """The end offsets of rounds that were cherry-picked after main's last round, by snapshot id."""
    for added in since:
        if (ranges := picked_round(table, added, binding.topic_id)) is not None:
            yield added["snapshot-id"], {shard: end for shard, (_, end) in ranges.items()}


def removals_after_commit(
    removals: Removals, before: TableMetadata, after: TableMetadata, binding: Binding, time_ms: int
) -> Removals:
    """The removals of main after a foreign commit."""
    old, new = before.current_snapshot_id, after.current_snapshot_id
    if old == new or old is None or new is None:
        return removals
    progress = snapshot_progress(after, new, binding.topic_id, binding.base)
    if _descends_from(old, progress):
        since = _after(old, progress.since)
        return removals_after_snapshots(removals, after, since, binding.topic_id, binding.committed(), time_ms)
    operation = ROLLBACK if any(snapshot["snapshot-id"] == new for snapshot in lineage(before, old)) else SET_CURRENT
    lost = _lost(operation, new, time_ms, progress.last_round.committed, binding.committed(), progress.is_known)
    known_removals = (*progress.last_round.removals, *lost)
    return removals_after_snapshots(
        known_removals, after, progress.since, binding.topic_id, binding.committed(), time_ms
    )


def picked_round(table: TableMetadata, added: Object, topic_id: int) -> Ranges | None:
    """The offsets that a cherry-picked snapshot restored; None if its source is unknown or no round of the topic."""
    source_id = (added.get("summary") or {}).get("source-snapshot-id", "")
    source = table.snapshots.find(int(source_id)) if source_id.isascii() and source_id.isdigit() else None
    return None if source is None else added_ranges(source, topic_id)


def _has_round_before(table: TableMetadata, added: Object, topic_id: int) -> bool:
    before = lineage(table, added.get("parent-snapshot-id"))
    return any(progress_of(snapshot, topic_id) is not None for snapshot in before)


def _descends_from(old: int | None, progress: SnapshotProgress) -> bool:
    """Whether main was moved to a descendant of snapshot `old`, without a round in between."""
    return old is not None and old in {snapshot.get("parent-snapshot-id") for snapshot in progress.since}


def _after(old: int, since: list[Object]) -> list[Object]:
    """The snapshots after `old`."""
    ids = [snapshot["snapshot-id"] for snapshot in since]
    return since[: ids.index(old)] if old in ids else since


def main_progress(table: TableMetadata, topic_id: int, base: AdoptionBase | None) -> SnapshotProgress:
    """The progress of main, by the table alone. `base`: what an operator said; snapshot id 0: the table had none
    then."""
    anchor = base if base is not None and base.snapshot_id else None
    progress = snapshot_progress(table, table.current_snapshot_id, topic_id, anchor)
    if base is not None and anchor is None and progress.is_known and not progress.last_round.committed:
        return progress._replace(last_round=base.progress)
    return progress


def missing_from_main(
    table: TableMetadata, topic_id: int, committed: Mapping[int, int], base: AdoptionBase | None = None
) -> Removals:
    """The removals of main, by the table alone: another catalog does not record them with each commit."""
    current = table.current_snapshot_id
    progress = main_progress(table, topic_id, base)
    time_ms = int(table.fields["last-updated-ms"])
    lost = _lost(ROLLBACK, current or 0, time_ms, progress.last_round.committed, committed, progress.is_known)
    return removals_after_snapshots(
        (*progress.last_round.removals, *lost), table, progress.since, topic_id, committed, time_ms
    )


def _lost(
    operation: str,
    snapshot_id: int,
    time_ms: int,
    next_by_shard: Mapping[int, int],
    committed: Mapping[int, int],
    is_exact: bool,
) -> Removals:
    """A removal of the committed offsets that the snapshot does not hold."""
    ranges = {shard: (next_by_shard.get(shard, 0), end) for shard, end in committed.items()}
    lost = {shard: (start, end) for shard, (start, end) in ranges.items() if start < end}
    return (Removal(operation, snapshot_id, time_ms, lost, is_exact),) if lost else ()


def removals_after_snapshots(
    removals: Removals,
    table: TableMetadata,
    since: list[Object],
    topic_id: int,
    committed: Mapping[int, int],
    time_ms: int,
) -> Removals:
    """The removals of a table that had `removals` before the snapshots `since`, the newest first.

    Rows that were added after a round may be some of the missing ones: a cherry-picked round tells which, other
    snapshots do not. Which rows a delete removed is unknown.
    """
    ranges = {shard: (0, end) for shard, end in committed.items()}
    for changed in reversed(since):
        if (restored := picked_round(table, changed, topic_id)) is not None:
            removals = without_ranges(removals, restored)
        elif adds_rows(changed) and _has_round_before(table, changed, topic_id):
            removals = marked_inexact(removals)
        if removes_rows(changed):
            operation, row_count = snapshots.operation(changed), count_removed_rows(changed)
            removals = (*removals, Removal(operation, changed["snapshot-id"], time_ms, ranges, False, row_count))
    return bounded(removals)


def adds_rows(added: Object) -> bool:
    """Whether a snapshot added rows. A compaction (`replace`) adds the rows that it removes."""
    if snapshots.operation(added) not in ("append", "overwrite"):
        return False
    return bool((added.get("summary") or {}).get("added-records", "") != "0")
