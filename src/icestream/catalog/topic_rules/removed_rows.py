"""How many rows a snapshot took away, by the counts in its summary. Pure.

    files that went, less those that came   deleted-records - added-records: 0 of an UPDATE that writes files anew
    rows deleted by their places            added-position-deletes, which counts deletion vectors, too
    of a vector that another replaces       removed-position-deletes, where vectors went: the new one has them again

Of other removed position deletes nobody knows whether their files are still there: they take nothing off. So the number
is never below what was taken, as long as the rows that were added stand for rows that went. Nobody can count what a
delete by values takes, nor what an engine does that counts nothing: it may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from icestream.iceberg import snapshots
from icestream.iceberg.values import Object

_ADDED: Final = "added-records"
_DELETED: Final = "deleted-records"
_BY_PLACE: Final = "added-position-deletes"
_BY_VALUE: Final = "added-equality-deletes"
_VECTORS: Final = "added-dvs"
_DELETE_FILES: Final = (_BY_PLACE, _BY_VALUE, _VECTORS)


def removes_rows(added: Object) -> bool:
    """Whether rows may be missing behind it. With delete files also where it added as many: they may be other rows."""
    if snapshots.operation(added) not in ("delete", "overwrite"):
        return False
    summary = added.get("summary") or {}
    return count_removed_rows(added) != 0 or any(summary.get(name, "0") != "0" for name in _DELETE_FILES)


def count_removed_rows(added: Object) -> int | None:
    """None: nobody counted. Never too few."""
    summary = added.get("summary") or {}
    if not any(name in summary for name in (_ADDED, _DELETED, *_DELETE_FILES)):
        return None
    names = (_ADDED, _DELETED, _BY_PLACE, _BY_VALUE, _VECTORS, "removed-dvs", "removed-position-deletes")
    counts = [_count(summary, name) for name in names]
    if None in counts:
        return None
    came, went, by_place, by_value, vectors, old_vectors, old_by_place = (one or 0 for one in counts)
    if by_value or (vectors and not by_place):
        return None
    return max(0, went - came + by_place - (old_by_place if old_vectors else 0))


def _count(summary: Mapping[str, str], name: str) -> int | None:
    told = summary.get(name, "0")
    return int(told) if told.isascii() and told.isdigit() and len(told) <= 19 else None
