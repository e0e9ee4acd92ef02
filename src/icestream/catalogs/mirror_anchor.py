"""What the history of a table elsewhere is read by: a snapshot of which we know how far it had come (hazard 21). Pure.

Mostly the last round in it says so, or an operator did (`Mirror.base`). Ordinary maintenance of a quiet table takes
both away: a compaction follows our last round, then an expiry lets everything but the compaction go. Rewrites change no
row, so main still stands where the mirror says. That is believed when

    main's history, as far as it is there, is rewrites alone (operation `replace`), and it goes on further back
    and      the oldest of them was made of the snapshot that the mirror notes: nothing can lie between,
    or       main says that it has as many rows as that snapshot had, whatever rewrites were expired in between

A rollback behind our last round has fewer rows, rows of others are more, deletes and appends are no rewrites, a fresh
table has another uuid: all of these still stop the topic (pipeline/tables/foreign_position.py).
"""

from __future__ import annotations

from icestream.catalog.topic_rules.binding import AdoptionBase
from icestream.catalog.topic_rules.removal import TopicProgress
from icestream.catalog.topic_rules.snapshot_progress import main_progress
from icestream.catalogs.mirror import ForeignTableRecord
from icestream.iceberg import snapshots
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


def anchor(table: TableMetadata, topic_id: int, mirror: ForeignTableRecord | None) -> AdoptionBase | None:
    """None: nothing but the rounds in its history says anything."""
    if mirror is None:
        return None
    found = main_progress(table, topic_id, mirror.base)
    history = found.since  # all of it, where nothing in it is known
    if found.is_known or not history:
        return mirror.base
    if mirror.uuid != table.uuid or any(snapshots.operation(one) != "replace" for one in history):
        return mirror.base
    if not _is_of(history[-1].get("parent-snapshot-id"), history[0], mirror):
        return mirror.base
    return AdoptionBase(history[-1]["snapshot-id"], TopicProgress(mirror.committed, mirror.removals))


def _is_of(parent: int | None, main: Object, mirror: ForeignTableRecord) -> bool:
    if parent is None or not mirror.snapshot_id:
        return False
    return parent == mirror.snapshot_id or -1 < mirror.rows == rows_of(main)


def rows_of(made: Object | None) -> int:
    """As its summary says; -1: it does not."""
    told = ((made or {}).get("summary") or {}).get("total-records", "")
    return int(told) if told.isascii() and told.isdigit() else -1
