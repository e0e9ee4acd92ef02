"""Updates of a table's snapshots and of the branches and tags that name them.

A snapshot that was made for an older state of the table (its sequence number or first row id is used up, its schema is
gone) is a conflict, not a mistake: the client makes it anew and tries again. One whose numbers are far ahead of the
table is a mistake: it would use up those of all that come behind it, also from a branch that nobody reads.
"""

from __future__ import annotations

from icestream import errors, limits
from icestream.iceberg import snapshots, values
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.table_metadata import ROW_LINEAGE_SINCE
from icestream.iceberg.values import Object, short_repr


def add_snapshot(draft: TableMetadataBuilder, update: Object) -> None:
    added = values.as_object(values.required(update, "snapshot"), "snapshot")
    snapshots.check_snapshot(added)
    if added["snapshot-id"] == snapshots.NO_SNAPSHOT:
        raise errors.InvalidInput(f"Invalid snapshot: id {snapshots.NO_SNAPSHOT} stands for no snapshot")
    for name in ("schemas", "partition-specs", "sort-orders"):
        if not draft.fields[name]:
            raise errors.InvalidInput(f"Attempting to add a snapshot before one of {name} is added")
    if draft.snapshot(added["snapshot-id"]) is not None:
        raise errors.InvalidInput(f"Snapshot already exists for id: {added['snapshot-id']}")
    _check_schema(draft, added)
    _count_sequence(draft, added)
    if draft.format_version >= ROW_LINEAGE_SINCE:
        _count_rows(draft, added)
    draft.add_snapshot(added)


def _check_schema(draft: TableMetadataBuilder, added: Object) -> None:
    """Old writers name none."""
    named = added.get("schema-id")
    if named is not None and values.find(draft.fields["schemas"], "schema-id", named) is None:
        raise errors.CommitConflict(
            f"Validation failed, please retry: Cannot add snapshot with unknown schema: {named}"
        )


def _count_sequence(draft: TableMetadataBuilder, added: Object) -> None:
    number = snapshots.sequence_number(added)
    if draft.format_version == 1:
        if number != 0:
            raise errors.InvalidInput(f"Sequence number must be 0 in v1. Found: {number}")
        return
    last = draft.fields["last-sequence-number"]
    if not 0 <= number <= last + limits.CATALOG_SEQUENCE_LEAP_MAX:
        raise errors.InvalidInput(
            f"Cannot add snapshot with sequence number {number} far beyond last sequence number {last}, or below 0"
        )
    if number <= last and added.get("parent-snapshot-id") is not None:
        raise errors.CommitConflict(
            "Validation failed, please retry: Cannot add snapshot with sequence number "
            f"{number} older than last sequence number {last}"
        )
    draft.put("last-sequence-number", max(number, last))


def _count_rows(draft: TableMetadataBuilder, added: Object) -> None:
    first, count = values.optional_long(added, "first-row-id"), values.optional_long(added, "added-rows")
    if first is None:
        raise errors.InvalidInput("Cannot add a snapshot: first-row-id is null")
    if count is None or count < 0:
        raise errors.InvalidInput("Cannot add a snapshot: added-rows is null or below 0")
    following = draft.fields["next-row-id"]
    if first < following:
        raise errors.CommitConflict(
            "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id: "
            f"{first} < {following}"
        )
    if first + count > following + limits.CATALOG_ROW_LEAP_MAX:
        raise errors.InvalidInput(
            f"Cannot add a snapshot, {count} rows from {first} on are far beyond table next-row-id: {following}"
        )
    draft.put("next-row-id", first + count)


def remove_snapshots(draft: TableMetadataBuilder, update: Object) -> None:
    """With the statistics of those, and every branch and tag that named one. Ids that are not there are no error; the
    children of a removed snapshot keep its id, so that whoever reads on from it is told that it is gone."""
    draft.remove_snapshots(set(values.longs(update, "snapshot-ids")))


def set_reference(draft: TableMetadataBuilder, update: Object) -> None:
    name = values.text(update, "ref-name")
    if not name:
        raise errors.InvalidInput("Invalid ref name: empty")
    reference = snapshots.check_reference(name, update)
    if draft.fields["refs"].get(name) == reference:
        return
    if draft.snapshot(reference["snapshot-id"]) is None:
        raise errors.InvalidInput(f"Cannot set {name} to unknown snapshot: {reference['snapshot-id']}")
    if name == snapshots.MAIN and reference["type"] != "branch":
        raise errors.InvalidInput(f"Cannot set {short_repr(name)} to a tag, it must be a branch")
    draft.set_reference(name, reference)


def remove_reference(draft: TableMetadataBuilder, update: Object) -> None:
    draft.remove_reference(values.text(update, "ref-name"))
