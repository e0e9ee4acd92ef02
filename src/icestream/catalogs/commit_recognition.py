"""Recognises whether a commit is in a table that was read back. Pure.

    THERE        one of its snapshots is in the table; of a commit without snapshots: applying it changes nothing
    ELSEWHERE    another table has the name now: the original was dropped or renamed, perhaps with the commit in it
    IMPOSSIBLE   it is not in the table, and its requirements no longer hold: it cannot be applied later either
    OPEN         it is not in the table, but a copy that is still in flight would be accepted

An open commit may be sent again if it can be applied only once: its own success makes its requirement false (it moves a
branch that it compares), or it is idempotent (properties, schemas). That is not a blind retry: it is the same commit,
with the same snapshot id and requirements. A snapshot is recognised by its id and not by the round that it claims:
another driver may have committed other files for the same offsets (hazard 14).
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

# Idempotent updates.
_IDEMPOTENT: Final = frozenset(
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
        return all(entry.get("action") in _IDEMPOTENT for entry in change.updates)
    if any(entry.get("type") == RANGE for entry in change.requirements):
        return True  # our own catalog knows the round
    compared = {entry.get("ref") for entry in change.requirements if entry.get("type") == "assert-ref-snapshot-id"}
    return any(
        entry.get("action") == "set-snapshot-ref" and entry.get("ref-name") in compared for entry in change.updates
    )


def _is_another(metadata: Object, change: TableChange) -> bool:
    """Whether the table has another UUID than the commit requires; a commit without that requirement fits any."""
    uuids = {
        str(requirement.get("uuid"))
        for requirement in change.requirements
        if requirement.get("type") == "assert-table-uuid"
    }
    uuid = metadata.get("table-uuid")
    return bool(uuids) and isinstance(uuid, str) and uuid.lower() not in {requirement.lower() for requirement in uuids}


def _added_snapshots(change: TableChange) -> Iterator[int]:
    for table_update in change.updates:
        snapshot = table_update.get("snapshot")
        if table_update.get("action") == "add-snapshot" and isinstance(snapshot, dict):
            yield int(snapshot.get("snapshot-id", 0))


def _snapshots(metadata: Object) -> set[int]:
    return {int(snapshot.get("snapshot-id", 0)) for snapshot in metadata.get("snapshots") or ()}


def _changes_nothing(metadata: Object, change: TableChange) -> bool:
    try:
        base = table_metadata.load(metadata)
        updated = table_commit.apply_updates(base, None, change.updates, int(metadata.get("last-updated-ms", 0)))
    except errors.IcestreamError:
        return False
    return _stripped(base.as_json()) == _stripped(updated.as_json())


def _stripped(document: Object) -> Object:
    return {name: value for name, value in document.items() if name not in ("last-updated-ms", "metadata-log")}


def _holds(metadata: Object, change: TableChange) -> bool:
    """Whether the requirements may still hold; those of an unknown kind may."""
    try:
        base = table_metadata.load(metadata)
    except errors.IcestreamError:
        return True
    for requirement in change.requirements:
        try:
            table_commit.check_requirements(base, [requirement])
        except errors.CommitConflict:
            return False
        except errors.IcestreamError:
            continue  # our own claim, or one of a newer protocol
    return True
