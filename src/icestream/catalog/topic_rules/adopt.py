"""Adopting a table: one that has rows and no topic becomes the table of a topic that has none. Pure.

For a table that was parted from its topic (detached, replaced by force), restored from a backup, registered again, or
brought from elsewhere. Its positions must be true, or offsets are lost or doubled without a trace. They are taken from

    the last round of this topic in the lineage of main: its snapshot says how far it had come, and what was missing
    the operator, shard by shard, where no snapshot says it: nobody can check that, so it needs accept-duplicates, and
    everything below counts as suspect

and then
    others added rows behind that round        whose offsets they have, nobody knows: accept-duplicates
    others deleted rows behind it              any offset below may be missing; that is recorded
    the log no longer has what follows         a declared gap: accept-gap
    the table is ahead of the topic            refused: these are other messages under the same numbers
    it lacks what the log was to bring         after a rewind, when somebody moved main ahead meanwhile: accept-gap
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from icestream import errors
from icestream.catalog.topic_rules import rebinding
from icestream.catalog.topic_rules.binding import AdoptionBase
from icestream.catalog.topic_rules.commit_rules import TableState
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog, shard_previews
from icestream.catalog.topic_rules.rebinding import FormerTable, Rebinding
from icestream.catalog.topic_rules.removal import Removal, TopicProgress
from icestream.catalog.topic_rules.snapshot_progress import (
    SnapshotProgress,
    removals_after_snapshots,
    snapshot_progress,
)
from icestream.iceberg.table_metadata import TableMetadata

ON_WORD = "an operator says what the table holds, and no snapshot does"


def adopt(
    state: TableState,
    log: TopicLog,
    former: FormerTable,
    consents: Collection[Consent],
    now_ms: int,
    positions: Mapping[int, int] | None = None,
) -> Rebinding:
    """`positions`: per shard the first offset that the table does not have, on an operator's word."""
    rebinding.check_free(state, "it needs no adopting; `icestream lake rewind` moves its topic to where main stands")
    rebinding.check_fits(state)
    current = state.table.current_snapshot_id
    found = snapshot_progress(state.table, current, log.topic_id, None)
    if current is None:
        raise errors.TopicTableConflict(
            "the table has no rows", hint="`icestream lake bind` takes a table without rows"
        )
    if positions is None and (not found.is_known or not found.progress.committed):
        raise errors.TopicTableConflict(
            f"no snapshot in the history of main says what the table holds of topic {log.topic} (id {log.topic_id})",
            hint="say it yourself: --position SHARD=OFFSET, the first offset that the table does not have",
        )
    held = found.progress.committed if positions is None else positions
    doubts = rebinding.foreign_rows(found) if positions is None else (ON_WORD,)
    losses = _given_up(state.table, log, found, former) if positions is None else _skipped(positions, former)
    told = OperationPreview("adopt", log.topic, shard_previews(held, log, former.committed), doubts, losses)
    told.check(consents)
    if positions is None:
        binding = rebinding.resume_binding(told, log, {}, former.pipeline_epoch)
        removals = rebinding.missing(told, state.table, log, found, found.progress, current, now_ms)
        return Rebinding(rebinding.rebinding_decision(state, binding, removals, now_ms), told)
    progress = TopicProgress(dict(positions), _suspect(positions, current, now_ms))
    binding = rebinding.resume_binding(told, log, {}, former.pipeline_epoch, AdoptionBase(current, progress))
    removals = rebinding.missing(told, state.table, log, found._replace(since=[]), progress, current, now_ms)
    return Rebinding(rebinding.rebinding_decision(state, binding, removals, now_ms), told)


def _given_up(table: TableMetadata, log: TopicLog, found: SnapshotProgress, former: FormerTable) -> tuple[str, ...]:
    """What is missing there of offsets that the topic had not committed: the log has them, and will not bring them."""
    missing = removals_after_snapshots(
        found.progress.removals, table, found.since, log.topic_id, found.progress.committed, 0
    )
    return tuple(
        f"offsets of shard {shard} from {former.committed[shard]} on are given up: {one.operation} of "
        f"{one.snapshot_words}"
        for one in missing
        for shard, (_, end) in one.ranges.items()
        if end > former.committed.get(shard, end)
    )


def _skipped(positions: Mapping[int, int], former: FormerTable) -> tuple[str, ...]:
    """The same on an operator's word: beyond what was committed the log would have brought everything."""
    return tuple(
        f"offsets {former.committed[shard]} to {end - 1} of shard {shard} were never committed, and will not be"
        for shard, end in positions.items()
        if end > former.committed.get(shard, end)
    )


def _suspect(positions: Mapping[int, int], snapshot_id: int, now_ms: int) -> tuple[Removal, ...]:
    """Everything below them: a position that is too high hides what is missing."""
    ranges = {shard: (0, end) for shard, end in positions.items() if end}
    return (Removal("adopt", snapshot_id, now_ms, ranges, False),) if ranges else ()
