"""Is a commit of ours in a table that was read back? Pure.

    there        one of its snapshots is in the table; a commit without snapshots: once more, it would change nothing
    elsewhere    another table has the name by now: the one that it was made for was dropped or renamed, perhaps with it
    impossible   it is not, and what it requires no longer holds: it cannot come later either
    open         it is not, but a copy that is still on its way would be taken

A commit may be sent again while it is open when at most one copy can count: its own success makes its requirement false
(it moves a branch that it compares), or it says the same thing twice (properties, schemas). That is not a blind retry:
it is the same commit, with the same snapshot id, under the same requirement. A snapshot is known by its id and not by
the round that it claims: another driver may have committed other files for the same offsets (hazard 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from icestream import errors
from icestream.catalog.topic_rules.claim import CLAIM_TYPE as RANGE
from icestream.catalogs.table_catalog import TableChange
from icestream.iceberg import table_commit, table_metadata
from icestream.iceberg.values import Object

# Updates after which the same update changes nothing.
_SAME_TWICE: Final = frozenset(
    {
        "assign-uuid",
        "upgrade-format-version",
        "add-schema",
        "set-current-schema",
        "remove-schemas",
        "add-spec",
        "set-default-spec",
        "remove-partition-specs",
        "add-sort-order",
        "set-default-sort-order",
        "remove-snapshots",
        "remove-snapshot-ref",
        "set-location",
        "set-properties",
        "remove-properties",
        "set-statistics",
        "remove-statistics",
        "set-partition-statistics",
        "remove-partition-statistics",
    }
)


class CommitPresence(Enum):
    THERE = auto()
    ELSEWHERE = auto()
    IMPOSSIBLE = auto()
    OPEN = auto()


def commit_presence(metadata: Object, change: TableChange) -> CommitPresence:
    if _is_another(metadata, change):
        return CommitPresence.ELSEWHERE
    added = set(_added_snapshots(change))
    if added:
        if added & _snapshots(metadata):
            return CommitPresence.THERE
    elif _changes_nothing(metadata, change):
        return CommitPresence.THERE
    return CommitPresence.OPEN if _holds(metadata, change) else CommitPresence.IMPOSSIBLE


def is_safe_to_resend(change: TableChange) -> bool:
    if not any(_added_snapshots(change)):
        return all(one.get("action") in _SAME_TWICE for one in change.updates)
    if any(one.get("type") == RANGE for one in change.requirements):
        return True  # our own catalog knows the round
    compared = {one.get("ref") for one in change.requirements if one.get("type") == "assert-ref-snapshot-id"}
    return any(one.get("action") == "set-snapshot-ref" and one.get("ref-name") in compared for one in change.updates)


def _is_another(metadata: Object, change: TableChange) -> bool:
    """Only of a commit that names its table by its uuid: another one is made for whatever has the name."""
    wanted = {str(one.get("uuid")) for one in change.requirements if one.get("type") == "assert-table-uuid"}
    found = metadata.get("table-uuid")
    return bool(wanted) and isinstance(found, str) and found.lower() not in {one.lower() for one in wanted}


def _added_snapshots(change: TableChange) -> Iterator[int]:
    for one in change.updates:
        snapshot = one.get("snapshot")
        if one.get("action") == "add-snapshot" and isinstance(snapshot, dict):
            yield int(snapshot.get("snapshot-id", 0))


def _snapshots(metadata: Object) -> set[int]:
    return {int(one.get("snapshot-id", 0)) for one in metadata.get("snapshots") or ()}


def _changes_nothing(metadata: Object, change: TableChange) -> bool:
    try:
        base = table_metadata.load(metadata)
        made = table_commit.apply_updates(base, None, change.updates, int(metadata.get("last-updated-ms", 0)))
    except errors.IcestreamError:
        return False
    return _stripped(base.as_json()) == _stripped(made.as_json())


def _stripped(document: Object) -> Object:
    return {name: value for name, value in document.items() if name not in ("last-updated-ms", "metadata-log")}


def _holds(metadata: Object, change: TableChange) -> bool:
    """Whether the requirements may still hold: what we cannot judge may."""
    try:
        base = table_metadata.load(metadata)
    except errors.IcestreamError:
        return True
    for one in change.requirements:
        try:
            table_commit.check_requirements(base, [one])
        except errors.CommitConflict:
            return False
        except errors.IcestreamError:
            continue  # ours, or one that is newer than we are
    return True
