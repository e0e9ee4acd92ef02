"""The anchor of a table in another catalog: a snapshot whose progress is known, from which its history is read
(hazard 21). Pure.

Usually it is the last round in the history, or the base that an operator stated (`ForeignTableRecord.base`). Ordinary
maintenance of a quiet table removes both: a compaction follows our last round, then everything but the compaction
expires. Rewrites change no rows, so main still has the offsets of the mirror. That is accepted if

    main's remaining history consists of rewrites (operation `replace`) and began earlier, and either
        the parent of the oldest rewrite is the snapshot of the mirror, so nothing can lie between, or
        main has as many rows as the mirror's snapshot had, whatever rewrites were expired in between

Everything else still stops the topic (pipeline/tables/foreign_position.py): a rollback behind our last round has fewer
rows, foreign appends have more, deletes and appends are not rewrites, and a new table has another UUID.
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
    """Returns the anchor of a table; None if only the rounds in its history state its progress."""
    if mirror is None:
        return None
    progress = main_progress(table, topic_id, mirror.base)
    history = progress.since  # newest first; all of it if no snapshot in it states the progress
    if progress.is_known or not history:
        return mirror.base
    if mirror.uuid != table.uuid or any(snapshots.operation(snapshot) != "replace" for snapshot in history):
        return mirror.base
    if not _follows_mirror(history[-1].get("parent-snapshot-id"), history[0], mirror):
        return mirror.base
    return AdoptionBase(history[-1]["snapshot-id"], TopicProgress(mirror.committed, mirror.removals))


def _follows_mirror(parent: int | None, main: Object, mirror: ForeignTableRecord) -> bool:
    """True if only rewrites can lie between the mirror's snapshot and main. `parent`: of the oldest rewrite."""
    if parent is None or not mirror.snapshot_id:
        return False
    return parent == mirror.snapshot_id or -1 < mirror.rows == rows_of(main)


def rows_of(snapshot: Object | None) -> int:
    """Returns the number of rows by the summary of a snapshot; -1 if the summary has no count."""
    text = ((snapshot or {}).get("summary") or {}).get("total-records", "")
    return int(text) if text.isascii() and text.isdigit() else -1
