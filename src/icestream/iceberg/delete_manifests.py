"""Takes delete files out of a manifest: the other entries stay as their writer made them. Pure.

A manifest of delete files comes from another engine, and may have fields that this code does not know. So its records
are decoded, get another status, and are encoded by the schema of the same file:

    removed    DELETED, by the snapshot that removes the file
    live       EXISTING, with the snapshot and the sequence numbers that it inherited until now
    DELETED    left out: an earlier snapshot removed the file
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from icestream import errors
from icestream.iceberg import avro
from icestream.iceberg.avro import Record
from icestream.iceberg.manifests import (
    DELETED,
    EQUALITY_DELETES_CONTENT,
    EXISTING,
    ManifestEntry,
    ManifestFile,
    manifest_file_of_record,
)


class DeleteRemoval(NamedTuple):
    """A manifest of delete files without some of them, and what the summary of its snapshot counts."""

    replaced_path: str
    data: bytes
    record: Record  # for the manifest list, without what belongs to the commit
    removed_position_files: int
    removed_equality_files: int
    removed_position_deletes: int
    removed_equality_deletes: int
    removed_bytes: int


def without_deletes(manifest: ManifestFile, data: bytes, removed: Collection[str], snapshot_id: int) -> DeleteRemoval:
    """Returns the manifest with the delete files of these names (`ManifestEntry.delete_name`) as DELETED.

    Raises MetadataFileDamaged for bytes that are not a manifest.
    """
    try:
        file = avro.read_file(data)
        records = [record for record in file.records if record["status"] != DELETED]
        entries = [ManifestEntry(record) for record in records]
        numbers = [entry.sequence_number(manifest.sequence_number) for entry in entries]
        dropped = [entry for entry in entries if entry.delete_name in removed]
        for record, entry, number in zip(records, entries, numbers, strict=True):
            file_number = entry.explicit_file_sequence_number
            is_gone = entry.delete_name in removed
            inherited = manifest.snapshot_id if entry.snapshot_id is None else entry.snapshot_id
            record["status"] = DELETED if is_gone else EXISTING
            record["snapshot_id"] = snapshot_id if is_gone else inherited
            record["sequence_number"] = number
            record["file_sequence_number"] = manifest.sequence_number if file_number is None else file_number
        encoded = file.with_records(records)
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{manifest.path} cannot be written without its deletes: {error!r}") from None
    return _removal(manifest, encoded, entries, dropped, numbers)


def _removal(
    manifest: ManifestFile,
    data: bytes,
    entries: list[ManifestEntry],
    dropped: list[ManifestEntry],
    numbers: list[int],
) -> DeleteRemoval:
    dropped_rows, all_rows = _rows(dropped), _rows(entries)
    by_value = [entry for entry in dropped if entry.content == EQUALITY_DELETES_CONTENT]
    record: Record = {
        **manifest.record,
        "manifest_length": len(data),
        "min_sequence_number": min(numbers, default=manifest.sequence_number),
        "added_files_count": 0,
        "existing_files_count": len(entries) - len(dropped),
        "deleted_files_count": len(dropped),
        "added_rows_count": 0,
        "existing_rows_count": all_rows - dropped_rows,
        "deleted_rows_count": dropped_rows,
    }
    return DeleteRemoval(
        manifest.path,
        data,
        record,
        len(dropped) - len(by_value),
        len(by_value),
        dropped_rows - _rows(by_value),
        _rows(by_value),
        sum(entry.content_range[1] or entry.file_size_bytes for entry in dropped),
    )


def committed_manifest(removal: DeleteRemoval, path: str, snapshot_id: int, sequence_number: int) -> ManifestFile:
    """Returns the description of the manifest as the commit with these numbers adds it."""
    return manifest_file_of_record(
        {
            **removal.record,
            "manifest_path": path,
            "added_snapshot_id": snapshot_id,
            "sequence_number": sequence_number,
        }
    )


def _rows(entries: list[ManifestEntry]) -> int:
    return sum(entry.record_count for entry in entries)
