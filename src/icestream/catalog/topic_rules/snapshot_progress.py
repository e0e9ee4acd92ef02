"""Where a snapshot stands: how far its table had come with the messages of a topic, and what main lacks (hazard 21).

It follows from the last round in its lineage, whose snapshot says how far it had come and what was missing then
(properties.py), or from the snapshot at which the table was taken over (`Binding.base`), and from what was done since:

    missing = what that round said
            + the offsets that were committed behind it, when main was moved there: exact
            + any offset that was committed, when a snapshot in between deletes rows: which ones stands in its files,
              how many in its summary (taken_rows.py)

A lineage without a round holds nothing of the topic. If expiry cut it off before the first round, nobody knows, and any
offset may be missing; the same holds for what lies before a take-over.

Once committed has gone back (rewind.py), a snapshot may be ahead of it. Main never goes there by itself: the pipeline
would write the same offsets again.
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
    progress: TopicProgress  # of the last round; nothing, when there is none
    since: list[Object]  # the snapshots behind it, the newest first
    is_known: bool  # False: its history is cut off, and the progress says nothing


def snapshot_progress(
    table: TableMetadata, snapshot_id: int | None, topic_id: int, base: AdoptionBase | None
) -> SnapshotProgress:
    since: list[Object] = []
    for one in lineage(table, snapshot_id):
        if base is not None and one["snapshot-id"] == base.snapshot_id:
            return SnapshotProgress(base.progress, since, True)
        if (progress := progress_of(one, topic_id)) is not None:
            return SnapshotProgress(progress, since, True)
        since.append(one)
    is_whole = not since or since[-1].get("parent-snapshot-id") is None
    return SnapshotProgress(TopicProgress({}), since, is_whole and (base is None or snapshot_id is None))


def lineage(table: TableMetadata, snapshot_id: int | None) -> Iterator[Object]:
    """A snapshot and those before it, as far as they are known."""
    for _ in range(len(table.snapshots)):  # a document from outside may go in circles
        found = None if snapshot_id is None else table.snapshots.find(snapshot_id)
        if found is None:
            return
        yield found
        snapshot_id = found.get("parent-snapshot-id")


# --- main moves -------------------------------------------------------------------------------------------------------


def check_not_ahead(before: TableMetadata, after: TableMetadata, binding: Binding) -> errors.TopicTableConflict | None:
    """Why main may not go where a foreign commit moves it; None when it may."""
    new = after.current_snapshot_id
    if new == before.current_snapshot_id or new is None:
        return None
    found = snapshot_progress(after, new, binding.topic_id, binding.base)
    if not found.is_known and binding.is_rewound and not _goes_on_from(before.current_snapshot_id, found):
        return errors.TopicTableConflict(
            f"the history of snapshot {new} is cut off: it may hold offsets that would be written again",
            hint="part them first: `icestream lake detach`; `icestream lake adopt` then takes positions",
        )
    committed = binding.committed()
    for snapshot_id, ends in ((new, found.progress.committed), *_picked_ends(after, found.since, binding)):
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
    """Where the rounds end that were cherry-picked behind main's last round."""
    for added in since:
        if (ranges := picked_round(table, added, binding.topic_id)) is not None:
            yield added["snapshot-id"], {shard: end for shard, (_, end) in ranges.items()}


def removals_after_commit(
    removals: Removals, before: TableMetadata, after: TableMetadata, binding: Binding, time_ms: int
) -> Removals:
    """What main lacks once a foreign commit is in force."""
    old, new = before.current_snapshot_id, after.current_snapshot_id
    if old == new or old is None or new is None:
        return removals
    found = snapshot_progress(after, new, binding.topic_id, binding.base)
    if _goes_on_from(old, found):
        since = _behind(old, found.since)
        return removals_after_snapshots(removals, after, since, binding.topic_id, binding.committed(), time_ms)
    operation = ROLLBACK if any(one["snapshot-id"] == new for one in lineage(before, old)) else SET_CURRENT
    lost = _lost(operation, new, time_ms, found.progress.committed, binding.committed(), found.is_known)
    known = (*found.progress.removals, *lost)
    return removals_after_snapshots(known, after, found.since, binding.topic_id, binding.committed(), time_ms)


def picked_round(table: TableMetadata, added: Object, topic_id: int) -> Ranges | None:
    """The offsets that a cherry-pick brought back, when its source is a round of the topic; None when it is unknown."""
    source_id = (added.get("summary") or {}).get("source-snapshot-id", "")
    source = table.snapshots.find(int(source_id)) if source_id.isascii() and source_id.isdigit() else None
    return None if source is None else added_ranges(source, topic_id)


def _has_round_before(table: TableMetadata, made: Object, topic_id: int) -> bool:
    before = lineage(table, made.get("parent-snapshot-id"))
    return any(progress_of(one, topic_id) is not None for one in before)


def _goes_on_from(old: int | None, found: SnapshotProgress) -> bool:
    """Whether main was moved to a descendant of what it was, with no round in between."""
    return old is not None and old in {one.get("parent-snapshot-id") for one in found.since}


def _behind(old: int, since: list[Object]) -> list[Object]:
    """The snapshots after it."""
    ids = [one["snapshot-id"] for one in since]
    return since[: ids.index(old)] if old in ids else since


def main_progress(table: TableMetadata, topic_id: int, base: AdoptionBase | None) -> SnapshotProgress:
    """Of main, by the table alone. `base`: what an operator said of it; of snapshot 0: when it had none."""
    anchor = base if base is not None and base.snapshot_id else None
    found = snapshot_progress(table, table.current_snapshot_id, topic_id, anchor)
    if base is not None and anchor is None and found.is_known and not found.progress.committed:
        return found._replace(progress=base.progress)
    return found


def missing_from_main(
    table: TableMetadata, topic_id: int, committed: Mapping[int, int], base: AdoptionBase | None = None
) -> Removals:
    """What main lacks, by the table alone: in a catalog that is not ours nobody notes it with each commit."""
    current = table.current_snapshot_id
    found = main_progress(table, topic_id, base)
    time_ms = int(table.fields["last-updated-ms"])
    lost = _lost(ROLLBACK, current or 0, time_ms, found.progress.committed, committed, found.is_known)
    return removals_after_snapshots((*found.progress.removals, *lost), table, found.since, topic_id, committed, time_ms)


def _lost(
    operation: str,
    snapshot_id: int,
    time_ms: int,
    there: Mapping[int, int],
    committed: Mapping[int, int],
    is_exact: bool,
) -> Removals:
    """The offsets that were committed behind where the current snapshot stands."""
    ranges = {shard: (there.get(shard, 0), end) for shard, end in committed.items()}
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
    """What is missing once these snapshots, the newest first, changed rows of a table that lacked `removals`.

    Rows that were added behind a round may be some that were missing: a cherry-picked round tells which, others do
    not. Which rows a delete took is unknown.
    """
    ranges = {shard: (0, end) for shard, end in committed.items()}
    for changed in reversed(since):
        if (restored := picked_round(table, changed, topic_id)) is not None:
            removals = without_ranges(removals, restored)
        elif adds_rows(changed) and _has_round_before(table, changed, topic_id):
            removals = marked_inexact(removals)
        if removes_rows(changed):
            operation, taken = snapshots.operation(changed), count_removed_rows(changed)
            removals = (*removals, Removal(operation, changed["snapshot-id"], time_ms, ranges, False, taken))
    return bounded(removals)


def adds_rows(added: Object) -> bool:
    """The same for what it added. A compaction (`replace`) adds what it removes."""
    if snapshots.operation(added) not in ("append", "overwrite"):
        return False
    return bool((added.get("summary") or {}).get("added-records", "") != "0")
