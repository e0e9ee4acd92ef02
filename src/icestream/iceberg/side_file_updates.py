"""Updates of what lies beside the snapshots: statistics files (one of a kind for each snapshot) and encryption keys."""

from __future__ import annotations

from collections.abc import Callable

from icestream.iceberg import side_files, values
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.values import Object


def set_statistics(draft: TableMetadataBuilder, update: Object) -> None:
    _set(draft, "statistics", update, side_files.check_statistics)


def remove_statistics(draft: TableMetadataBuilder, update: Object) -> None:
    _remove(draft, "statistics", "snapshot-id", values.long(update, "snapshot-id"))


def set_partition_statistics(draft: TableMetadataBuilder, update: Object) -> None:
    _set(draft, "partition-statistics", update, side_files.check_partition_statistics)


def remove_partition_statistics(draft: TableMetadataBuilder, update: Object) -> None:
    _remove(draft, "partition-statistics", "snapshot-id", values.long(update, "snapshot-id"))


def add_encryption_key(draft: TableMetadataBuilder, update: Object) -> None:
    """A key that is there already stays as it is."""
    added = values.as_object(values.required(update, "encryption-key"), "encryption key")
    side_files.check_encryption_key(added)
    known = draft.fields.get("encryption-keys") or []
    if all(one["key-id"] != added["key-id"] for one in known):
        draft.put("encryption-keys", [*known, added])


def remove_encryption_key(draft: TableMetadataBuilder, update: Object) -> None:
    _remove(draft, "encryption-keys", "key-id", values.text(update, "key-id"))


def _set(draft: TableMetadataBuilder, name: str, update: Object, check: Callable[[Object], None]) -> None:
    added = values.as_object(values.required(update, name), name)
    check(added)
    others = [one for one in draft.fields.get(name) or [] if one["snapshot-id"] != added["snapshot-id"]]
    draft.put(name, [*others, added])


def _remove(draft: TableMetadataBuilder, name: str, id_name: str, wanted: int | str) -> None:
    known = draft.fields.get(name) or []
    kept = [one for one in known if one[id_name] != wanted]
    if len(kept) < len(known):
        draft.put(name, kept)
