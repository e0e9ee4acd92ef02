"""What a snapshot of a topic's table held: a mark, made when the table lets the snapshot go, or when it is made where
others decide about that (docs/adr/0036). Pure.

    snapshot_id    of any snapshot in the history of a round: also a compaction's, which holds what the round before did
    time_ms        when it was made, as the snapshot says
    committed      per shard the first offset that it does not hold; a shard that is not there: none of it
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
    snapshot_id: int
    time_ms: int
    committed: Mapping[int, int]


def marks_of_removed(
    before: TableMetadata, updates: Sequence[Object], topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """Of the snapshots that these updates take from the table, the oldest first."""
    gone = {
        one
        for taken in updates
        if update.action(taken) == "remove-snapshots"
        for one in values.longs(taken, "snapshot-ids")
    }
    found = [one for one in map(before.snapshots.find, gone) if one is not None]
    return _marks(before, sorted(found, key=_age), topic_id, base)


def marks_of_added(
    table: TableMetadata, known: int, count_max: int, topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """Of the snapshots of main behind the one that is known, the oldest first; at most so many, the newest."""
    behind = takewhile(lambda one: one["snapshot-id"] != known, lineage(table, table.current_snapshot_id))
    found = [one for one, _ in zip(behind, range(count_max), strict=False)]
    return _marks(table, reversed(found), topic_id, base)


def _age(snapshot: Object) -> tuple[int, int]:
    return snapshot["timestamp-ms"], snapshot["snapshot-id"]


def _marks(
    table: TableMetadata, snapshots: Iterable[Object], topic_id: int, base: AdoptionBase | None
) -> list[SnapshotMark]:
    """Where nobody knows what a snapshot held, it gets none."""
    found = []
    for one in snapshots:
        stood = snapshot_progress(table, one["snapshot-id"], topic_id, base)
        if stood.is_known:
            found.append(SnapshotMark(one["snapshot-id"], one["timestamp-ms"], stood.progress.committed))
    return found
