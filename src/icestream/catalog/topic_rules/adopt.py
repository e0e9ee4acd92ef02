"""Adopts a table: one that has rows and no topic becomes the table of a topic that has none. Pure.

For a table that was detached from its topic, restored from a backup, registered again, or brought from elsewhere. Its
positions must be right, or offsets are lost or duplicated without a trace. They are taken from

    the last round of this topic in the lineage of main: its summary has the committed offsets and what was missing
    the operator, shard by shard, if no snapshot has them: that cannot be checked, so it needs accept-duplicates, and
    every row below counts as possibly missing

and then
    rows added by other engines since          their offsets are unknown: accept-duplicates
    rows deleted by other engines since        any offset below may be missing; that is recorded
    the log no longer has what follows         a declared gap: accept-gap
    the table is ahead of the topic            refused: these are other messages under the same offsets
    the table lacks uncommitted offsets        after a rewind, if main was moved ahead meanwhile: accept-gap
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

UNVERIFIED_POSITIONS = "the positions are the operator's, no snapshot confirms them"


def adopt(
    state: TableState,
    log: TopicLog,
    former: FormerTable,
    consents: Collection[Consent],
    now_ms: int,
    positions: Mapping[int, int] | None = None,
) -> Rebinding:
    """Decides to adopt a table. `positions`: per shard the first offset that it lacks, if the operator states them."""
    rebinding.check_free(
        state, "adopt is for tables without a topic; `icestream lake rewind` sets its topic to what main holds"
    )
    rebinding.check_fits(state)
    current = state.table.current_snapshot_id
    progress = snapshot_progress(state.table, current, log.topic_id, None)
    if current is None:
        raise errors.TopicTableConflict(
            "the table has no rows", hint="`icestream lake bind` takes a table without rows"
        )
    if positions is None and (not progress.is_known or not progress.last_round.committed):
        raise errors.TopicTableConflict(
            f"no snapshot in the history of main states the offsets of topic {log.topic} (id {log.topic_id})",
            hint="state it with --position SHARD=OFFSET, the first offset that the table does not have",
        )
    next_offsets = progress.last_round.committed if positions is None else positions
    # A snapshot is evidence; the word of an operator is not, so it needs consent and makes every row suspect.
    doubts = rebinding.foreign_rows(progress) if positions is None else (UNVERIFIED_POSITIONS,)
    losses = (
        _lost_offsets(state.table, log, progress, former) if positions is None else _skipped_offsets(positions, former)
    )
    preview = OperationPreview("adopt", log.topic, shard_previews(next_offsets, log, former.committed), doubts, losses)
    preview.check(consents)
    if positions is None:
        binding = rebinding.resume_binding(preview, log, {}, former.pipeline_epoch)
        removals = rebinding.missing(preview, state.table, log, progress, progress.last_round, current, now_ms)
        return Rebinding(rebinding.rebinding_decision(state, binding, removals, now_ms), preview)
    # Stored with the binding: older snapshots state nothing about this topic, and are never asked again.
    adopted_progress = TopicProgress(dict(positions), _possibly_missing(positions, current, now_ms))
    binding = rebinding.resume_binding(preview, log, {}, former.pipeline_epoch, AdoptionBase(current, adopted_progress))
    removals = rebinding.missing(
        preview, state.table, log, progress._replace(since=[]), adopted_progress, current, now_ms
    )
    return Rebinding(rebinding.rebinding_decision(state, binding, removals, now_ms), preview)


def _lost_offsets(
    table: TableMetadata, log: TopicLog, progress: SnapshotProgress, former: FormerTable
) -> tuple[str, ...]:
    """Losses: missing rows of offsets that the topic had not committed; the pipeline will not write them."""
    missing = removals_after_snapshots(
        progress.last_round.removals, table, progress.since, log.topic_id, progress.last_round.committed, 0
    )
    return tuple(
        f"offsets of shard {shard} from {former.committed[shard]} on will not be written: {removal.operation} of "
        f"{removal.snapshot_words}"
        for removal in missing
        for shard, (_, end) in removal.ranges.items()
        if end > former.committed.get(shard, end)
    )


def _skipped_offsets(positions: Mapping[int, int], former: FormerTable) -> tuple[str, ...]:
    """Losses by stated positions: offsets that were never committed and will be skipped."""
    return tuple(
        f"offsets {former.committed[shard]} to {end - 1} of shard {shard} were never committed, and will not be"
        for shard, end in positions.items()
        if end > former.committed.get(shard, end)
    )


def _possibly_missing(positions: Mapping[int, int], snapshot_id: int, now_ms: int) -> tuple[Removal, ...]:
    """An inexact removal of everything below the stated positions: a position that is too high hides missing rows."""
    ranges = {shard: (0, end) for shard, end in positions.items() if end}
    return (Removal("adopt", snapshot_id, now_ms, ranges, False),) if ranges else ()
