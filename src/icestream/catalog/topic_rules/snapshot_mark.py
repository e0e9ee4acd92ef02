"""Snapshot marks: which offsets a snapshot of a topic's table held (docs/adr/0036). Pure.

In our own catalog a mark is made when a commit removes the snapshot from the table; in another catalog, where any
client may remove it, when the snapshot is added.

    snapshot_id    of any snapshot in the lineage of a round, also of a compaction, which holds what the round before
                   did
    time_ms        the snapshot's own timestamp
    committed      per shard the first offset that it does not hold; 0 for a shard that is left out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from icestream.catalog.topic_rules.binding import AdoptionBase
from icestream.catalog.topic_rules.snapshot_progress import lineage, snapshot_progress
from icestream.iceberg import updates as update
from icestream.iceberg import values
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class SnapshotMark(NamedTuple):
    """The offsets that one snapshot held; the head of the module explains each field."""

    snapshot_id: int
    time_ms: int
    committed: Mapping[int, int]


def marks_of_removed(
    before: TableMetadata, updates: Sequence[Object], topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """The marks of the snapshots that these updates remove from the table, the oldest first."""
    # Only updates can remove a snapshot, so the two documents need not be compared.
    removed_ids = {
        snapshot_id
        for table_update in updates
        if update.action(table_update) == "remove-snapshots"
        for snapshot_id in values.longs(table_update, "snapshot-ids")
    }
    snapshots = [snapshot for snapshot in map(before.snapshots.find, removed_ids) if snapshot is not None]
    return _marks(before, sorted(snapshots, key=_age), topic_id, base)


def marks_of_added(
    table: TableMetadata, known_id: int, count_max: int, topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """The marks of main's snapshots after `known_id`, the oldest first; of more than `count_max` the newest."""
    behind = takewhile(lambda snapshot: snapshot["snapshot-id"] != known_id, lineage(table, table.current_snapshot_id))
    snapshots = [snapshot for snapshot, _ in zip(behind, range(count_max), strict=False)]
    return _marks(table, reversed(snapshots), topic_id, base)


def _age(snapshot: Object) -> tuple[int, int]:
    return snapshot["timestamp-ms"], snapshot["snapshot-id"]


def _marks(
    table: TableMetadata, snapshots: Iterable[Object], topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """The marks of snapshots; a snapshot of unknown content gets none."""
    marks = []
    for snapshot in snapshots:
        progress = snapshot_progress(table, snapshot["snapshot-id"], topic_id, base)
        if progress.is_known:
            marks.append(SnapshotMark(snapshot["snapshot-id"], snapshot["timestamp-ms"], progress.last_round.committed))
    return marks
