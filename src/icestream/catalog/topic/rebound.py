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
from icestream.catalog.topic import envelope, properties, run
from icestream.catalog.topic.binding import Base, Binding
from icestream.catalog.topic.commit import Outcome, State
from icestream.catalog.topic.consequence import Consequence, TopicLog
from icestream.catalog.topic.guard import INGEST_FORMAT_VERSION_MAX
from icestream.catalog.topic.removal import Progress, Removals
from icestream.catalog.topic.run import Runs
from icestream.catalog.topic.standing import Standing, adds_rows, with_changes
from icestream.iceberg import table_commit
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class Rebound(NamedTuple):
    outcome: Outcome
    consequence: Consequence


class Former(NamedTuple):
    """What the topic had before, as far as it is known."""

    committed: Mapping[int, int]
    pipeline_epoch: int


NO_FORMER = Former({}, 0)


def check_fits(state: State) -> None:
    """Raises InvalidInput when the pipeline could not write into the table."""
    if state.table.format_version > INGEST_FORMAT_VERSION_MAX:
        raise errors.InvalidInput(f"the pipeline cannot write format version {state.table.format_version}")
    envelope.check_bindable(state.table.current_schema)


def check_free(state: State, hint: str) -> None:
    if state.binding is not None:
        raise errors.AlreadyExists(
            f"the table belongs to topic {state.binding.topic} (id {state.binding.topic_id})", hint=hint
        )


def going_on(
    consequence: Consequence,
    log: TopicLog,
    runs: Mapping[int, Runs],
    pipeline_epoch: int,
    base: Base | None = None,
    is_fresh: bool = False,
) -> Binding:
    """The binding of a topic that goes on where the consequence says. `is_fresh`: the table never had a snapshot."""
    made = {
        fate.shard: run.resumed(runs.get(fate.shard, ()), log.shards[fate.shard].epoch, fate.goes_on_at)
        for fate in consequence.fates
    }
    return Binding(log.topic, log.topic_id, made, pipeline_epoch, base=base, is_rewound=not is_fresh)


def outcome(state: State, binding: Binding, removals: Removals, now_ms: int, updates: Sequence[Object] = ()) -> Outcome:
    """The table with this binding, after `updates`."""
    written = [*updates, *properties.set_written(state.table.properties, binding)]
    return Outcome(table_commit.apply_updates(state.table, state.location, written, now_ms), binding, removals)


def foreign_rows(found: Standing) -> tuple[str, ...]:
    """Doubts about a table to which others added rows since its last round: whose offsets they have, nobody knows."""
    added = [one["snapshot-id"] for one in found.since if adds_rows(one)]
    return tuple(f"snapshot {one} added rows and is no round of this topic" for one in added[:1])


def missing(
    consequence: Consequence,
    table: TableMetadata,
    log: TopicLog,
    found: Standing,
    progress: Progress,
    snapshot_id: int | None,
    now_ms: int,
) -> Removals:
    """What main lacks, once it stands at this snapshot."""
    there = {fate.shard: fate.goes_on_at for fate in consequence.fates}
    gaps = consequence.gaps(snapshot_id, now_ms)
    return with_changes((*progress.removals, *gaps), table, found.since, log.topic_id, there, now_ms)
