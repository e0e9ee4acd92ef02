"""Recognises whether a commit, or a creation, is in a table that was read back after a lost reply. Pure.

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
from typing import Any, Final

from icestream import errors
from icestream.catalog.topic_rules.commit_rules import pipeline_claims
from icestream.catalogs.table_catalog import TableChange
from icestream.iceberg import table_commit, table_metadata
from icestream.iceberg.values import Object

# Updates that change nothing when they are applied a second time.
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
    """Whether a commit is in a table; the head of the module explains each state."""

    THERE = auto()
    ELSEWHERE = auto()
    IMPOSSIBLE = auto()
    OPEN = auto()


def commit_presence(metadata: Object, change: TableChange) -> CommitPresence:
    """Returns whether the table with this metadata has the commit. The states: see the head of the module."""
    if _is_other_table(metadata, change):
        return CommitPresence.ELSEWHERE
    # The id is random and chosen by the writer: no other commit has it, so its presence proves this one, also behind
    # later commits.
    added = set(_added_snapshots(change))
    if added:
        if added & _snapshot_ids(metadata):
            return CommitPresence.THERE
    # Without a snapshot there is nothing to recognise it by. If applying it changes nothing, it was applied, or need
    # not be.
    elif _changes_nothing(metadata, change):
        return CommitPresence.THERE
    return CommitPresence.OPEN if _requirements_may_hold(metadata, change) else CommitPresence.IMPOSSIBLE


def is_safe_to_resend(change: TableChange) -> bool:
    """True if a second copy cannot be applied on top of the first."""
    if not any(_added_snapshots(change)):
        return all(entry.get("action") in _IDEMPOTENT for entry in change.updates)
    if pipeline_claims(change.requirements):
        # Our own catalog remembers the rounds and rewrites of a table, and answers a second copy with the first result.
        return True
    # The first copy moves the reference that the second one compares.
    compared = {entry.get("ref") for entry in change.requirements if entry.get("type") == "assert-ref-snapshot-id"}
    return any(
        entry.get("action") == "set-snapshot-ref" and entry.get("ref-name") in compared for entry in change.updates
    )


def _is_other_table(metadata: Object, change: TableChange) -> bool:
    """True if the table has another UUID than the commit requires; a commit without that requirement fits any table."""
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


def _snapshot_ids(metadata: Object) -> set[int]:
    return {int(snapshot.get("snapshot-id", 0)) for snapshot in metadata.get("snapshots") or ()}


def _changes_nothing(metadata: Object, change: TableChange) -> bool:
    try:
        base = table_metadata.load(metadata)
        updated = table_commit.apply_updates(base, None, change.updates, int(metadata.get("last-updated-ms", 0)))
    except errors.IcestreamError:
        return False
    # The time of the last update and the log of metadata files change with every commit.
    return _without_history(base.as_json()) == _without_history(updated.as_json())


def _without_history(document: Object) -> Object:
    return {name: value for name, value in document.items() if name not in ("last-updated-ms", "metadata-log")}


def _requirements_may_hold(metadata: Object, change: TableChange) -> bool:
    """True unless a requirement is violated. A requirement that cannot be evaluated here may hold."""
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
            continue  # our own claim, which only our catalog evaluates, or a requirement of a newer protocol
    return True


def matches_creation(metadata: Object, definition: Object) -> bool:
    """True if a table that was read back is the one that `definition` created, as far as that can be known.

    The catalog assigns the table's UUID and column ids, and may add properties. So names, types and the requested
    properties are compared, and the table must have no snapshot yet.
    """
    schemas = metadata.get("schemas") or [metadata.get("schema") or {}]
    current_id = metadata.get("current-schema-id")
    current = next((schema for schema in schemas if schema.get("schema-id") == current_id), schemas[0])
    properties = metadata.get("properties") or {}
    requested = {
        name: value for name, value in (definition.get("properties") or {}).items() if name != "format-version"
    }
    return (
        not metadata.get("snapshots")
        and _without_ids(current) == _without_ids(definition.get("schema") or {})
        and all(properties.get(name) == value for name, value in requested.items())
        and (definition.get("location") or metadata.get("location")) == metadata.get("location")
    )


def _without_ids(field_type: Any) -> Any:
    """Returns a type without the ids of its fields."""
    if not isinstance(field_type, dict):
        return field_type
    if "fields" in field_type:
        return [
            (field.get("name"), bool(field.get("required")), _without_ids(field.get("type")))
            for field in field_type["fields"]
        ]
    return {name: _without_ids(value) for name, value in field_type.items() if not name.endswith("-id")}
