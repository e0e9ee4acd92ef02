"""The common part of `bind`, `adopt`, `rewind` and `recreate`: a topic resumes where its table ends. Pure.

the table     holds everything below `held`, apart from the removals in the summaries of its snapshots
the topic     resumes at the first offset from there that the log has, under the epoch of the shard's owner
rounds        are forgotten. A round that main no longer has would otherwise be answered as a repeat, and its rows lost.
              Forgetting is safe: the claim of an old round begins at another offset and is refused, or begins exactly
              here and is valid
removals      record what is missing now, for `verify` and readers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icestream import errors
from icestream.catalog.topic_rules import offset_run, topic_properties, topic_schema
from icestream.catalog.topic_rules.binding import AdoptionBase, Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.foreign_changes import INGEST_FORMAT_VERSION_MAX
from icestream.catalog.topic_rules.offset_run import OffsetRuns
from icestream.catalog.topic_rules.operation_preview import OperationPreview, TopicLog
from icestream.catalog.topic_rules.removal import Removals, TopicProgress
from icestream.catalog.topic_rules.snapshot_progress import SnapshotProgress, adds_rows, removals_after_snapshots
from icestream.iceberg import table_commit
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class Rebinding(NamedTuple):
    """The decision about an operation, and its preview."""

    decision: CommitDecision
    preview: OperationPreview


class FormerTable(NamedTuple):
    """The former table of a topic, as far as it is known."""

    committed: Mapping[int, int]
    pipeline_epoch: int


NO_FORMER_TABLE = FormerTable({}, 0)


def check_fits(state: TableState) -> None:
    """Raises InvalidInput if the pipeline cannot write to the table."""
    if state.table.format_version > INGEST_FORMAT_VERSION_MAX:
        raise errors.InvalidInput(f"the pipeline cannot write format version {state.table.format_version}")
    topic_schema.check_bindable(state.table.current_schema)


def check_free(state: TableState, hint: str) -> None:
    """Raises AlreadyExists for a table that belongs to a topic."""
    if state.binding is not None:
        raise errors.AlreadyExists(
            f"the table belongs to topic {state.binding.topic} (id {state.binding.topic_id})", hint=hint
        )


def resume_binding(
    preview: OperationPreview,
    log: TopicLog,
    runs: Mapping[int, OffsetRuns],
    pipeline_epoch: int,
    base: AdoptionBase | None = None,
    is_fresh: bool = False,
) -> Binding:
    """The binding of a topic that resumes as the preview says. `is_fresh`: the table never had a snapshot."""
    new_runs = {
        shard.shard: offset_run.resumed(runs.get(shard.shard, ()), log.shards[shard.shard].epoch, shard.goes_on_at)
        for shard in preview.shards
    }
    return Binding(log.topic, log.topic_id, new_runs, pipeline_epoch, base=base, is_rewound=not is_fresh)


def rebinding_decision(
    state: TableState, binding: Binding, removals: Removals, now_ms: int, updates: Sequence[Object] = ()
) -> CommitDecision:
    """The decision to apply `updates` and to give the table this binding."""
    written = [*updates, *topic_properties.set_written(state.table.properties, binding)]
    return CommitDecision(table_commit.apply_updates(state.table, state.location, written, now_ms), binding, removals)


def foreign_rows(progress: SnapshotProgress) -> tuple[str, ...]:
    """The doubt about a table to which another engine added rows since its last round: their offsets are unknown."""
    added = [snapshot["snapshot-id"] for snapshot in progress.since if adds_rows(snapshot)]
    return tuple(f"snapshot {snapshot} added rows and is not a round of this topic" for snapshot in added[:1])


def missing(
    preview: OperationPreview,
    table: TableMetadata,
    log: TopicLog,
    main_progress: SnapshotProgress,
    progress: TopicProgress,
    snapshot_id: int | None,
    now_ms: int,
) -> Removals:
    """The removals once main is at this snapshot."""
    resume_offsets = {shard.shard: shard.goes_on_at for shard in preview.shards}
    gaps = preview.gaps(snapshot_id, now_ms)
    return removals_after_snapshots(
        (*progress.removals, *gaps), table, main_progress.since, log.topic_id, resume_offsets, now_ms
    )
