"""What `bind`, `adopt`, `rewind` and `recreate` have in common: a table stands somewhere, and its topic goes on there.

the table has    everything below `held`, apart from the removals that its snapshots tell
the topic        goes on at the first offset from there that the log has, under the epoch of the shard's owner
rounds           are forgotten: what an old one claims begins elsewhere and is refused, or begins here and is wanted.
                 Remembered, a round that is no longer in main would be answered as a repeat, and its rows lost
the removals     get what is missing now, so that `verify` and readers know
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
    decision: CommitDecision
    preview: OperationPreview


class FormerTable(NamedTuple):
    """What the topic had before, as far as it is known."""

    committed: Mapping[int, int]
    pipeline_epoch: int


NO_FORMER_TABLE = FormerTable({}, 0)


def check_fits(state: TableState) -> None:
    """Raises InvalidInput when the pipeline could not write into the table."""
    if state.table.format_version > INGEST_FORMAT_VERSION_MAX:
        raise errors.InvalidInput(f"the pipeline cannot write format version {state.table.format_version}")
    topic_schema.check_bindable(state.table.current_schema)


def check_free(state: TableState, hint: str) -> None:
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
    """The binding of a topic that goes on where the preview says. `is_fresh`: the table never had a snapshot."""
    made = {
        fate.shard: offset_run.resumed(runs.get(fate.shard, ()), log.shards[fate.shard].epoch, fate.goes_on_at)
        for fate in preview.shards
    }
    return Binding(log.topic, log.topic_id, made, pipeline_epoch, base=base, is_rewound=not is_fresh)


def rebinding_decision(
    state: TableState, binding: Binding, removals: Removals, now_ms: int, updates: Sequence[Object] = ()
) -> CommitDecision:
    """The table with this binding, after `updates`."""
    written = [*updates, *topic_properties.set_written(state.table.properties, binding)]
    return CommitDecision(table_commit.apply_updates(state.table, state.location, written, now_ms), binding, removals)


def foreign_rows(found: SnapshotProgress) -> tuple[str, ...]:
    """Doubts about a table to which others added rows since its last round: whose offsets they have, nobody knows."""
    added = [one["snapshot-id"] for one in found.since if adds_rows(one)]
    return tuple(f"snapshot {one} added rows and is no round of this topic" for one in added[:1])


def missing(
    preview: OperationPreview,
    table: TableMetadata,
    log: TopicLog,
    found: SnapshotProgress,
    progress: TopicProgress,
    snapshot_id: int | None,
    now_ms: int,
) -> Removals:
    """What main lacks, once it stands at this snapshot."""
    there = {fate.shard: fate.goes_on_at for fate in preview.shards}
    gaps = preview.gaps(snapshot_id, now_ms)
    return removals_after_snapshots((*progress.removals, *gaps), table, found.since, log.topic_id, there, now_ms)
