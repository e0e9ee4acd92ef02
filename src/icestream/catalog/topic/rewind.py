"""Rewinding a topic: committed goes to where a snapshot of its table stands, and main with it. Pure.

A rollback by another engine leaves committed where it was: the rows that went are recorded as missing, and the topic
goes on behind them. That is honest, but often the rows are still in the log. Rewinding accepts what happened to the
table and goes on from there:

    before     main at snapshot 7, which holds [0, 60); committed 100; the log has [80, …)
    after      committed 80: [80, 100) are written again, [60, 80) are a declared gap (accept-gap)

The point is a snapshot, main unless another is named, because only a snapshot says what rows it holds: a number alone
could put a row there twice. Another snapshot becomes main in the same step, which undoes what was done since, also by
others. It may lie ahead of committed after an earlier rewind: then committed goes forward to it. If it lacks rows that
main has and that the log will not bring again, that is a loss (accept-gap).

A snapshot whose history is cut off says nothing: refused. A table with rows of unknown offsets: accept-duplicates.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from icestream import errors
from icestream.catalog.document.values import Object
from icestream.catalog.table.snapshot import MAIN
from icestream.catalog.topic import rebound
from icestream.catalog.topic.commit import Outcome, State
from icestream.catalog.topic.consequence import Consent, Consequence, TopicLog, fates
from icestream.catalog.topic.rebound import Rebound
from icestream.catalog.topic.removal import Removal
from icestream.catalog.topic.standing import Standing, standing, with_deletes

OTHER_TOPIC: Final = "`icestream lake detach TABLE` parts them"


def rewind(
    state: State, log: TopicLog, consents: Collection[Consent], now_ms: int, snapshot_id: int | None = None
) -> Rebound:
    """`snapshot_id`: where to; None: where main stands. The same outcome as the state when there is nothing to do."""
    binding = state.binding
    if binding is None:
        raise errors.TopicTable("the table belongs to no topic", hint="`icestream lake adopt` takes it over")
    if binding.topic_id != log.topic_id:
        owner = "a deleted topic" if binding.topic == log.topic else "topic"
        raise errors.TopicTable(
            f"the table belongs to {owner} {binding.topic} (id {binding.topic_id})", hint=OTHER_TOPIC
        )
    current = state.table.current_snapshot_id
    target = current if snapshot_id is None else snapshot_id
    if target is not None and state.table.snapshots.find(target) is None:
        raise errors.InvalidInput(
            f"the table has no snapshot {target}", hint="`icestream lake snapshots` lists those that it has"
        )
    found = standing(state.table, target, binding.topic_id, binding.base)
    if not found.is_known:
        raise errors.TopicTable(
            f"the history of snapshot {target} is cut off: nobody knows what it holds",
            hint="choose another: `icestream lake snapshots`; or detach the table and adopt it with positions",
        )
    before = binding.committed()
    told = Consequence(
        "rewind",
        log.topic,
        fates(found.progress.committed, log, before),
        rebound.foreign_rows(found),
        () if target == current else _lacking(state, found, target),
        () if target == current else (f"main goes from snapshot {current} to {target}: what was done since is undone",),
    )
    if target == current and {fate.shard: fate.goes_on_at for fate in told.fates} == before:
        stay = tuple(fate._replace(held=fate.goes_on_at) for fate in told.fates)
        return Rebound(Outcome(state.table, binding, state.removals), told._replace(fates=stay, doubts=()))
    told.check(consents)
    after = rebound.going_on(told, log, binding.runs, binding.pipeline_epoch, binding.base)
    removals = rebound.missing(told, found, found.progress, target, now_ms)
    return Rebound(rebound.outcome(state, after, removals, now_ms, _pointing(state, target)), told)


def _lacking(state: State, found: Standing, target: int | None) -> tuple[str, ...]:
    """What is known to be missing there, and is not known to be missing from main."""
    there = with_deletes(found.progress.removals, found.since, found.progress.committed, 0)
    return tuple(
        f"snapshot {target} lacks rows: {one.operation} of snapshot {one.snapshot_id}"
        for one in there
        if not any(_covers(now, one) for now in state.removals)
    )


def _covers(now: Removal, there: Removal) -> bool:
    """Whether all that is missing there is missing now. Deletes are known by the snapshot that made them."""
    if not now.is_exact:
        return (now.operation, now.snapshot_id) == (there.operation, there.snapshot_id) and not there.is_exact
    return all(
        shard in now.ranges and now.ranges[shard][0] <= start and end <= now.ranges[shard][1]
        for shard, (start, end) in there.ranges.items()
    )


def _pointing(state: State, target: int | None) -> list[Object]:
    if target is None or target == state.table.current_snapshot_id:
        return []
    kept = {name: value for name, value in (state.table.references.get(MAIN) or {}).items() if name != "snapshot-id"}
    return [{"type": "branch", **kept, "action": "set-snapshot-ref", "ref-name": MAIN, "snapshot-id": target}]
