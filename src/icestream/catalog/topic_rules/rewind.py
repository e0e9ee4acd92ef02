"""Rewinds a topic: sets the committed offsets to what a snapshot of its table holds, and main to that snapshot. Pure.

A rollback by another engine leaves the committed offsets as they were: the removed rows are recorded as missing, and
the topic continues after them. Often the log still has these rows. A rewind resumes from the table as it is:

    before     main at snapshot 7, which holds [0, 60); committed 100; the log has [80, …)
    after      committed 80: [80, 100) are written again, [60, 80) are a declared gap (accept-gap)

The target is a snapshot, because only a snapshot says which rows it holds: an offset alone could duplicate rows. A
target other than main becomes main in the same transaction, which undoes what was done since, also by other engines.
After an earlier rewind it may be ahead of the committed offsets: then these go forward. If it lacks rows that main has
and that the log does not have, that is a loss (accept-gap).

Without a snapshot id the target is chosen (`default_target`):

    main at 7, rolled back to, no round since          7
    rolled back to 7, rounds 8 and 9 since             7: 8 and 9 are based on the hole, their rows are written again
    … and another engine changed rows in 8             refused: the operator must name the snapshot, and accept what is
                                                       undone
    the log holds none of the rows that are missing    main: nothing changes, and the preview says what stays missing

A snapshot whose lineage is cut off is refused: its content is unknown. Rows of unknown offsets: accept-duplicates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from icestream import errors
from icestream.catalog.topic_rules import rebinding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.operation_preview import (
    Consent,
    OperationPreview,
    ShardPreview,
    TopicLog,
    shard_previews,
)
from icestream.catalog.topic_rules.rebinding import Rebinding
from icestream.catalog.topic_rules.removal import Removal, Removals, progress_of
from icestream.catalog.topic_rules.removed_rows import removes_rows
from icestream.catalog.topic_rules.snapshot_progress import (
    SnapshotProgress,
    adds_rows,
    lineage,
    picked_round,
    removals_after_snapshots,
    snapshot_progress,
)
from icestream.iceberg import table_commit
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.snapshots import operation as snapshot_operation
from icestream.iceberg.values import Object

OTHER_TOPIC: Final = "`icestream lake detach TABLE` detaches it"


def rewind(
    state: TableState, log: TopicLog, consents: Collection[Consent], now_ms: int, snapshot_id: int | None = None
) -> Rebinding:
    """Decides a rewind to `snapshot_id`, or to `default_target`.

    The outcome equals the state if there is nothing to do. Raises TopicTableConflict for a table of another topic,
    for a target whose content is unknown, and for effects without consent.
    """
    binding = state.binding
    if binding is None:
        raise errors.TopicTableConflict("the table does not belong to a topic", hint="`icestream lake adopt` adopts it")
    if binding.topic_id != log.topic_id:
        owner = "a deleted topic" if binding.topic == log.topic else "topic"
        raise errors.TopicTableConflict(
            f"the table belongs to {owner} {binding.topic} (id {binding.topic_id})", hint=OTHER_TOPIC
        )
    current = state.table.current_snapshot_id
    target = default_target(state, log) if snapshot_id is None else snapshot_id
    if target is not None and state.table.snapshots.find(target) is None:
        raise errors.InvalidInput(
            f"the table has no snapshot {target}", hint="`icestream lake snapshots` lists those that it has"
        )
    progress = snapshot_progress(state.table, target, binding.topic_id, binding.base)
    if not progress.is_known:
        raise errors.TopicTableConflict(
            f"the history of snapshot {target} is cut off by expiry: its content is unknown",
            hint="choose another: `icestream lake snapshots`; or detach the table and adopt it with positions",
        )
    before = binding.committed()
    shards = shard_previews(progress.last_round.committed, log, before)
    losses = (
        () if target == current else (*_lacking(state, log, progress, target), *_undone(state, log, target, shards))
    )
    preview = OperationPreview(
        "rewind",
        log.topic,
        shards,
        rebinding.foreign_rows(progress),
        losses,
        () if target == current else (f"main goes from snapshot {current} to {target}: what was done since is undone",),
    )
    if (
        target == current
        and {shard_preview.shard: shard_preview.goes_on_at for shard_preview in preview.shards} == before
    ):
        # Nothing changes: rows that were missing before are no effect of this operation, and need no consent.
        stay = tuple(shard_preview._replace(held=shard_preview.goes_on_at) for shard_preview in preview.shards)
        unchanged = preview._replace(shards=stay, doubts=(), changes=_nothing_to_do(state.removals, log))
        return Rebinding(CommitDecision(state.table, binding, state.removals), unchanged)
    preview.check(consents)
    after = rebinding.resume_binding(preview, log, binding.runs, binding.pipeline_epoch, binding.base)
    removals = rebinding.missing(preview, state.table, log, progress, progress.last_round, target, now_ms)
    return Rebinding(rebinding.rebinding_decision(state, after, removals, now_ms, _pointing(state, target)), preview)


def undo_round(state: TableState, log: TopicLog, snapshot_id: int, now_ms: int) -> Rebinding:
    """Decides to undo the newest round, which made `snapshot_id`: main and the committed offsets go back to before it.

    For a round whose files were removed around its commit: another engine took them for orphans while the commit that
    names them was in flight. The log still has the offsets, and they are written again (docs/adr/0042). Only the round
    that is main can be undone: what other engines did since must stay. Its snapshot is removed from the table, because
    it cannot be read.

    Raises CommitConflict if main is another snapshot, and TopicTableConflict if the log lacks some of the round's
    offsets, or the content of the snapshot before it is unknown.
    """
    binding, snapshot = state.binding, state.table.snapshots.find(snapshot_id)
    if binding is None or binding.topic_id != log.topic_id:
        raise errors.TopicTableConflict(f"the table does not belong to topic {log.topic} any more")
    if snapshot is None or state.table.current_snapshot_id != snapshot_id:
        raise errors.CommitConflict(f"main is no longer at snapshot {snapshot_id}")
    remove_snapshot: Object = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
    if (parent := snapshot.get("parent-snapshot-id")) is not None:
        decision, preview = rewind(state, log, (), now_ms, parent)
        return Rebinding(
            decision._replace(table=table_commit.apply_updates(decision.table, None, [remove_snapshot], now_ms)),
            preview,
        )
    # The round was the first snapshot of the table: main goes away instead of back.
    first_offsets = {shard: runs[0].start for shard, runs in binding.runs.items()}
    preview = OperationPreview("undo", log.topic, shard_previews(first_offsets, log, binding.committed()))
    preview.check(())
    after = rebinding.resume_binding(preview, log, binding.runs, binding.pipeline_epoch, binding.base)
    remove_main: Object = {"action": "remove-snapshot-ref", "ref-name": MAIN}
    return Rebinding(
        rebinding.rebinding_decision(state, after, state.removals, now_ms, [remove_main, remove_snapshot]), preview
    )


def default_target(state: TableState, log: TopicLog) -> int | None:
    """The snapshot to rewind to when the operator names none: the newest one in main's lineage below the first missing
    offset that the log still has. Main itself when there is no such offset.

    Raises TopicTableConflict if that snapshot has expired, or if the rewind would undo row changes of other engines.
    """
    current = state.table.current_snapshot_id
    starts = _first_recoverable(state.removals, log)
    if state.binding is None or not starts:
        return current
    topic_id, base = state.binding.topic_id, state.binding.base
    undone: Object | None = None
    for snapshot in lineage(state.table, current):
        progress = snapshot_progress(state.table, snapshot["snapshot-id"], topic_id, base)
        if not progress.is_known:
            break  # nor is that of any older snapshot: which offsets they hold cannot be told
        is_below = all(progress.last_round.committed.get(shard, 0) <= start for shard, start in starts.items())
        is_picked = picked_round(state.table, snapshot, topic_id) is not None and _log_reaches(log, starts)
        if is_below and not is_picked:
            # Rows that another engine has changed since are not in the log: only an operator may give them up.
            if undone is not None:
                raise errors.TopicTableConflict(
                    f"{_first_words(starts)} can be written again from the log, but going back to snapshot "
                    f"{snapshot['snapshot-id']} undoes {snapshot_operation(undone)} {undone['snapshot-id']} "
                    "of another engine",
                    hint=f"to accept that: `icestream lake rewind … --snapshot {snapshot['snapshot-id']}`",
                )
            return int(snapshot["snapshot-id"])
        is_round = progress_of(snapshot, topic_id) is not None
        if not is_round and not is_picked and (adds_rows(snapshot) or removes_rows(snapshot)):
            undone = undone or snapshot
    raise errors.TopicTableConflict(
        f"{_first_words(starts)} can be written again from the log, but the snapshot before them has expired",
        hint="detach the table and `icestream lake recreate` the topic's table from the log, or leave them missing",
    )


def _first_recoverable(removals: Removals, log: TopicLog) -> dict[int, int]:
    """Per shard the first offset that is known to be missing and lies in a range of which the log has something."""
    starts: dict[int, int] = {}
    for removal in removals:
        # An inexact removal does not tell which offsets are gone: writing its range again would double the others.
        for shard, (start, end) in removal.ranges.items() if removal.is_exact else ():
            if shard in log.shards and end > log.shards[shard].earliest:
                starts[shard] = min(start, starts.get(shard, start))
    return starts


def _log_reaches(log: TopicLog, starts: Mapping[int, int]) -> bool:
    return all(log.shards[shard].earliest <= start for shard, start in starts.items())


def _first_words(starts: Mapping[int, int]) -> str:
    shard, start = min(starts.items())
    return f"missing rows of shard {shard} from offset {start} on"


def _nothing_to_do(removals: Removals, log: TopicLog) -> tuple[str, ...]:
    """Why a rewind changes nothing, and which rows stay missing."""
    if not removals:
        return ("nothing to do: the table has every row that was committed",)
    return (
        f"nothing to do: {_why_not_again(removals, log)}",
        *(_stays_missing(removal, shard, log) for removal in removals for shard in sorted(removal.ranges)),
    )


def _why_not_again(removals: Removals, log: TopicLog) -> str:
    """Why no row is written again. Which rows another engine deleted is unknown, also if the log has them."""
    inexact = [removal for removal in removals if not removal.is_exact]
    if not inexact:
        return "the log has none of the offsets that are known to be missing"
    if not any(_log_has_some(removal, log) for removal in inexact):
        return "the log has none of the offsets that may be missing"
    if any(removal.is_exact for removal in removals):
        return (
            "the log has none of the offsets that are known to be missing; whether it has those that were deleted is "
            "not known"
        )
    return "which offsets were deleted is not known, and so neither whether the log has them"


def _log_has_some(removal: Removal, log: TopicLog) -> bool:
    return any(shard in log.shards and end > log.shards[shard].earliest for shard, (_, end) in removal.ranges.items())


def _stays_missing(removal: Removal, shard: int, log: TopicLog) -> str:
    """Returns the sentence about rows that a rewind cannot restore."""
    start, end = removal.ranges[shard]
    if removal.is_exact:
        begins = f": the log begins at {log.shards[shard].earliest}" if shard in log.shards else ""
        return f"shard {shard}: offsets {start} to {end - 1} stay missing ({removal.words}){begins}"
    count = "some" if removal.rows is None else f"up to {removal.rows}"
    return (
        f"shard {shard}: {count} of offsets {start} to {end - 1} stay missing ({removal.words}): "
        "`icestream lake rewind --snapshot` goes back to before it"
    )


def _lacking(state: TableState, log: TopicLog, progress: SnapshotProgress, target: int | None) -> tuple[str, ...]:
    """Losses: rows that the target lacks and main does not."""
    topic_id, committed = log.topic_id, progress.last_round.committed
    missing_there = removals_after_snapshots(
        progress.last_round.removals, state.table, progress.since, topic_id, committed, 0
    )
    return tuple(
        f"snapshot {target} lacks rows: {removal.operation} of {removal.snapshot_words}"
        for removal in missing_there
        if not any(_covers(known_removal, removal) for known_removal in state.removals)
    )


def _undone(state: TableState, log: TopicLog, target: int | None, shards: Iterable[ShardPreview]) -> tuple[str, ...]:
    """Losses: rows that other engines added after the target, and that the log does not have."""
    resumes_at = {preview.shard: preview.goes_on_at for preview in shards}
    kept_ids = {snapshot["snapshot-id"] for snapshot in lineage(state.table, target)}
    lost = []
    for snapshot in lineage(state.table, state.table.current_snapshot_id):
        if (
            snapshot["snapshot-id"] in kept_ids
            or progress_of(snapshot, log.topic_id) is not None
            or not adds_rows(snapshot)
        ):
            continue
        ranges = picked_round(state.table, snapshot, log.topic_id)
        # An append whose rows all lie above the resume offset is written again from the log: undoing it loses nothing.
        comes_again = ranges is not None and all(start >= resumes_at[shard] for shard, (start, _) in ranges.items())
        if snapshot_operation(snapshot) == "append" and not comes_again:
            lost.append(f"rows that snapshot {snapshot['snapshot-id']} added are undone")
    return tuple(lost)


def _covers(current: Removal, other: Removal) -> bool:
    """Whether `current` includes `other`. Inexact removals are the same if made by the same snapshot."""
    if not current.is_exact:
        return (current.operation, current.snapshot_id) == (other.operation, other.snapshot_id) and not other.is_exact
    return all(
        shard in current.ranges and current.ranges[shard][0] <= start and end <= current.ranges[shard][1]
        for shard, (start, end) in other.ranges.items()
    )


def _pointing(state: TableState, target: int | None) -> list[Object]:
    if target is None or target == state.table.current_snapshot_id:
        return []
    # set-snapshot-ref replaces the whole reference: its retention must be handed on.
    settings = {
        name: value for name, value in (state.table.references.get(MAIN) or {}).items() if name != "snapshot-id"
    }
    return [{"type": "branch", **settings, "action": "set-snapshot-ref", "ref-name": MAIN, "snapshot-id": target}]
