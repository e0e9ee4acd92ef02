"""How many rows a snapshot removed, by the counts in its summary. Pure.

    removed less added data files     deleted-records - added-records: 0 for an UPDATE that rewrites files
    position deletes                  added-position-deletes, which also counts deletion vectors
    replaced deletion vectors         less removed-position-deletes, if vectors were removed: the new one repeats them

Of other removed position deletes it is unknown whether their data files still exist: they are not subtracted. So the
number is never too low, provided that the added rows replace removed ones. The rows of equality deletes cannot be
counted, nor those of an engine whose summary has no counts: the number is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from icestream.iceberg import snapshots
from icestream.iceberg.values import Object

_ADDED: Final = "added-records"
_DELETED: Final = "deleted-records"
_BY_POSITION: Final = "added-position-deletes"
_BY_VALUE: Final = "added-equality-deletes"
_VECTORS: Final = "added-dvs"
_DELETE_FILES: Final = (_BY_POSITION, _BY_VALUE, _VECTORS)


def removes_rows(snapshot: Object) -> bool:
    """Whether rows may be missing after a snapshot. With delete files also if it added as many: they may be others."""
    if snapshots.operation(snapshot) not in ("delete", "overwrite"):
        return False
    summary = snapshot.get("summary") or {}
    return count_removed_rows(snapshot) != 0 or any(summary.get(name, "0") != "0" for name in _DELETE_FILES)


def count_removed_rows(snapshot: Object) -> int | None:
    """The rows that a snapshot removed, never too few; None if unknown."""
    summary = snapshot.get("summary") or {}
    if not any(name in summary for name in (_ADDED, _DELETED, *_DELETE_FILES)):
        return None
    names = (_ADDED, _DELETED, _BY_POSITION, _BY_VALUE, _VECTORS, "removed-dvs", "removed-position-deletes")
    counts = [_count(summary, name) for name in names]
    if None in counts:
        return None
    added_rows, deleted_rows, by_position, by_value, vectors, old_vectors, old_by_position = (
        count or 0 for count in counts
    )
    # Equality deletes state how many values they delete, not how many rows match them.
    if by_value or (vectors and not by_position):
        return None
    return max(0, deleted_rows - added_rows + by_position - (old_by_position if old_vectors else 0))


def _count(summary: Mapping[str, str], name: str) -> int | None:
    text = summary.get(name, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
