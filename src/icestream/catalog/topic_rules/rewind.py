"""Rewinding a topic: committed goes to where a snapshot of its table stands, and main with it. Pure.

A rollback by another engine leaves committed where it was: the rows that went are recorded as missing, and the topic
goes on behind them. That is honest, but often the rows are still in the log. Rewinding accepts what happened to the
table and goes on from there:

    before     main at snapshot 7, which holds [0, 60); committed 100; the log has [80, …)
    after      committed 80: [80, 100) are written again, [60, 80) are a declared gap (accept-gap)

The point is a snapshot, because only a snapshot says what rows it holds: a number alone could put a row there twice.
Another snapshot than main becomes main in the same step, which undoes what was done since, also by others. It may lie
ahead of committed after an earlier rewind: then committed goes forward to it. If it lacks rows that main has and that
the log will not bring again, that is a loss (accept-gap).

Without a snapshot id the target is chosen (`default_target`):

    main at 7, rolled back to, no round since          7
    rolled back to 7, rounds 8 and 9 since             7: 8 and 9 stand on the hole, their rows come again from the log
    … and another engine changed rows in 8             refused: the operator names the snapshot and knows what is undone
    the log holds none of the rows that are missing    main; nothing changes, and the reply says what stays missing

A snapshot whose history is cut off says nothing: refused. A table with rows of unknown offsets: accept-duplicates.
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
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.snapshots import operation as snapshot_operation
from icestream.iceberg.values import Object

OTHER_TOPIC: Final = "`icestream lake detach TABLE` parts them"


def rewind(
    state: TableState, log: TopicLog, consents: Collection[Consent], now_ms: int, snapshot_id: int | None = None
) -> Rebinding:
    """Decides a rewind to `snapshot_id`, or to `default_target`.

    The outcome equals the state if there is nothing to do. Raises TopicTableConflict for a table of another topic,
    for a target whose content is unknown, and for consequences that `consents` does not name.
    """
    binding = state.binding
    if binding is None:
        raise errors.TopicTableConflict("the table belongs to no topic", hint="`icestream lake adopt` takes it over")
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
    found = snapshot_progress(state.table, target, binding.topic_id, binding.base)
    if not found.is_known:
        raise errors.TopicTableConflict(
            f"the history of snapshot {target} is cut off: nobody knows what it holds",
            hint="choose another: `icestream lake snapshots`; or detach the table and adopt it with positions",
        )
    before = binding.committed()
    shard_fates = shard_previews(found.progress.committed, log, before)
    lost = (
        () if target == current else (*_lacking(state, log, found, target), *_undone(state, log, target, shard_fates))
    )
    told = OperationPreview(
        "rewind",
        log.topic,
        shard_fates,
        rebinding.foreign_rows(found),
        lost,
        () if target == current else (f"main goes from snapshot {current} to {target}: what was done since is undone",),
    )
    if target == current and {fate.shard: fate.goes_on_at for fate in told.shards} == before:
        stay = tuple(fate._replace(held=fate.goes_on_at) for fate in told.shards)
        unchanged = told._replace(shards=stay, doubts=(), changes=_nothing_to_do(state.removals, log))
        return Rebinding(CommitDecision(state.table, binding, state.removals), unchanged)
    told.check(consents)
    after = rebinding.resume_binding(told, log, binding.runs, binding.pipeline_epoch, binding.base)
    removals = rebinding.missing(told, state.table, log, found, found.progress, target, now_ms)
    return Rebinding(rebinding.rebinding_decision(state, after, removals, now_ms, _pointing(state, target)), told)


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
        held = snapshot_progress(state.table, snapshot["snapshot-id"], topic_id, base)
        if not held.is_known:
            break
        is_below = all(held.progress.committed.get(shard, 0) <= start for shard, start in starts.items())
        is_picked = picked_round(state.table, snapshot, topic_id) is not None and _log_reaches(log, starts)
        if is_below and not is_picked:
            if undone is not None:
                raise errors.TopicTableConflict(
                    f"{_first_words(starts)} can be written again from the log, but going back to snapshot "
                    f"{snapshot['snapshot-id']} undoes {snapshot_operation(undone)} {undone['snapshot-id']} "
                    "of another engine",
                    hint=f"if that is meant: `icestream lake rewind … --snapshot {snapshot['snapshot-id']}`",
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
    """Which rows another engine deleted is unknown: the log may have them, and nobody can say which to write again."""
    loose = [removal for removal in removals if not removal.is_exact]
    if not loose:
        return "the log has none of the offsets that are known to be missing"
    if not any(_log_has_some(removal, log) for removal in loose):
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
    start, end = removal.ranges[shard]
    if removal.is_exact:
        begins = f": the log begins at {log.shards[shard].earliest}" if shard in log.shards else ""
        return f"shard {shard}: offsets {start} to {end - 1} stay missing ({removal.words}){begins}"
    count = "some" if removal.rows is None else f"up to {removal.rows}"
    return (
        f"shard {shard}: {count} of offsets {start} to {end - 1} stay missing ({removal.words}): "
        "`icestream lake rewind --snapshot` goes back to before it"
    )


def _lacking(state: TableState, log: TopicLog, found: SnapshotProgress, target: int | None) -> tuple[str, ...]:
    """What is known to be missing there, and is not known to be missing from main."""
    topic_id, committed = log.topic_id, found.progress.committed
    there = removals_after_snapshots(found.progress.removals, state.table, found.since, topic_id, committed, 0)
    return tuple(
        f"snapshot {target} lacks rows: {one.operation} of {one.snapshot_words}"
        for one in there
        if not any(_covers(now, one) for now in state.removals)
    )


def _undone(
    state: TableState, log: TopicLog, target: int | None, shard_fates: Iterable[ShardPreview]
) -> tuple[str, ...]:
    """Rows that other engines added behind the target, and that the log will not bring again."""
    resumes_at = {fate.shard: fate.goes_on_at for fate in shard_fates}
    kept = {snapshot["snapshot-id"] for snapshot in lineage(state.table, target)}
    lost = []
    for snapshot in lineage(state.table, state.table.current_snapshot_id):
        if (
            snapshot["snapshot-id"] in kept
            or progress_of(snapshot, log.topic_id) is not None
            or not adds_rows(snapshot)
        ):
            continue
        ranges = picked_round(state.table, snapshot, log.topic_id)
        comes_again = ranges is not None and all(start >= resumes_at[shard] for shard, (start, _) in ranges.items())
        if snapshot_operation(snapshot) == "append" and not comes_again:
            lost.append(f"rows that snapshot {snapshot['snapshot-id']} added are undone")
    return tuple(lost)


def _covers(now: Removal, there: Removal) -> bool:
    """Whether all that is missing there is missing now. Deletes are known by the snapshot that made them."""
    if not now.is_exact:
        return (now.operation, now.snapshot_id) == (there.operation, there.snapshot_id) and not there.is_exact
    return all(
        shard in now.ranges and now.ranges[shard][0] <= start and end <= now.ranges[shard][1]
        for shard, (start, end) in there.ranges.items()
    )


def _pointing(state: TableState, target: int | None) -> list[Object]:
    if target is None or target == state.table.current_snapshot_id:
        return []
    kept = {name: value for name, value in (state.table.references.get(MAIN) or {}).items() if name != "snapshot-id"}
    return [{"type": "branch", **kept, "action": "set-snapshot-ref", "ref-name": MAIN, "snapshot-id": target}]
