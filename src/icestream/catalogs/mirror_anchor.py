"""The anchor of a table in another catalog: a snapshot whose progress is known, from which its history is read
(hazard 21). Pure.

Usually it is the last round in the history, or the base that an operator stated (`ForeignTableRecord.base`). Ordinary
maintenance of a quiet table removes both: a compaction follows our last round, then everything but the compaction
expires. Rewrites change no rows, so main still holds what the mirror says. That is accepted if

    main's history, as far as it is there, is rewrites alone (operation `replace`), and it continues further back
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
    """The anchor of a table; None if only the rounds in its history tell its progress."""
    if mirror is None:
        return None
    progress = main_progress(table, topic_id, mirror.base)
    history = progress.since  # all of it, where nothing in it is known
    if progress.is_known or not history:
        return mirror.base
    if mirror.uuid != table.uuid or any(snapshots.operation(snapshot) != "replace" for snapshot in history):
        return mirror.base
    if not _is_of(history[-1].get("parent-snapshot-id"), history[0], mirror):
        return mirror.base
    return AdoptionBase(history[-1]["snapshot-id"], TopicProgress(mirror.committed, mirror.removals))


def _is_of(parent: int | None, main: Object, mirror: ForeignTableRecord) -> bool:
    if parent is None or not mirror.snapshot_id:
        return False
    return parent == mirror.snapshot_id or -1 < mirror.rows == rows_of(main)


def rows_of(snapshot: Object | None) -> int:
    """The rows of a snapshot by its summary; -1 if that has no count."""
    text = ((snapshot or {}).get("summary") or {}).get("total-records", "")
    return int(text) if text.isascii() and text.isdigit() else -1
