"""Writes manifests again without entries that must not stay, and with other data files in the place of some. Pure.

For an erasure (docs/adr/0128): bounds, partition values and names in an entry may hold a value of an erased row. The
manifest may be of any writer: its records are decoded, changed, and encoded by the schema of the same file, so that
fields which this code does not know stay as they are.

    replaced    the entry names the new data file, with its counts and bounds; its status, its snapshot and its sequence
                numbers stay: for engines it is the same file, added by the same commit
    dropped     left out: a file none of whose rows stays, and every DELETED entry

A manifest of history keeps its sequence number and the snapshot that added it, by which its entries inherit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from icestream import errors
from icestream.iceberg import avro, conversions
from icestream.iceberg.avro import Record
from icestream.iceberg.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    ManifestEntry,
    ManifestFile,
    PartitionField,
    manifest_file_of_record,
    plain_partition_value,
)
from icestream.model.task_messages import WrittenFile

Replacements = Mapping[str, WrittenFile | None]  # by location; None: no row of the file stays


class ChangedManifest(NamedTuple):
    """A manifest after a change. `data` is None if no entry is left: then it is in no list any more."""

    data: bytes | None
    record: Record  # for manifest lists, with the path of before
    bytes_change: int = 0  # of live data files: what they have more, or less

    def at(self, path: str) -> ManifestFile:
        """The description of the manifest at its new place."""
        return manifest_file_of_record({**self.record, "manifest_path": path})


def rewrite_manifest(
    manifest: ManifestFile,
    data: bytes,
    replacements: Replacements,
    partition: Sequence[PartitionField] | None,
) -> ChangedManifest | None:
    """Returns the manifest with the replacements and without DELETED entries; None if it is to stay as it is.

    `partition`: the fields of its spec; None if they are not known, and then the list states no ranges of partition
    values.

    Raises MetadataFileDamaged for bytes that are not a manifest.
    """
    try:
        file = avro.read_file(data)
        records: list[Record] = []
        is_changed, bytes_change = False, 0
        for record in file.records:
            entry = ManifestEntry(record)
            replacement = replacements.get(entry.file_path, _SAME)
            if not entry.is_live or replacement is None:
                is_changed = True
                bytes_change -= entry.file_size_bytes if entry.is_live else 0
                continue
            if isinstance(replacement, WrittenFile):
                bytes_change += replacement.size_bytes - entry.file_size_bytes
                record["data_file"] |= _data_file(replacement)
                is_changed = True
            records.append(record)
        if not is_changed:
            return None
        encoded = file.with_records(records) if records else None
        listed = _list_record(manifest, records, len(encoded or b""), partition)
        return ChangedManifest(encoded, listed, bytes_change)
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{manifest.path} cannot be written again: {error!r}") from None


class FilesRemoval(NamedTuple):
    """A manifest of any writer without some of its data files, and what the summary of its snapshot counts."""

    replaced_path: str
    data: bytes | None  # None: no file is left
    record: Record  # for the manifest list, without what belongs to the commit
    files: int
    rows: int
    bytes: int


def without_files(
    manifest: ManifestFile, data: bytes, removed: Collection[str], partition: Sequence[PartitionField] | None
) -> FilesRemoval:
    """Returns a manifest of data files without some of them, for a new snapshot: no entry records the removal. The
    others are EXISTING, with the snapshot and the sequence numbers that they inherited until now.

    Raises MetadataFileDamaged for bytes that are not a manifest.
    """
    try:
        file = avro.read_file(data)
        live_records: list[Record] = []
        gone: list[ManifestEntry] = []
        for record in file.records:
            entry = ManifestEntry(record)
            if not entry.is_live:
                continue
            if entry.file_path in removed:
                gone.append(entry)
                continue
            file_number = entry.explicit_file_sequence_number
            inherited = {
                "status": EXISTING,
                "snapshot_id": manifest.snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
                "sequence_number": entry.sequence_number(manifest.sequence_number),
                "file_sequence_number": manifest.sequence_number if file_number is None else file_number,
            }
            record.update(inherited)
            live_records.append(record)
        encoded = file.with_records(live_records) if live_records else None
        listed = _list_record(manifest, live_records, len(encoded or b""), partition)
        total_bytes = sum(entry.file_size_bytes for entry in gone)
        return FilesRemoval(manifest.path, encoded, listed, len(gone), _rows(gone), total_bytes)
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{manifest.path} cannot be written without files: {error!r}") from None


_SAME = object()


def _data_file(file: WrittenFile) -> Record:
    """What the entry states about the new data file. The partition is that of before."""
    return {
        "file_path": file.location,
        "record_count": file.rows,
        "file_size_in_bytes": file.size_bytes,
        "column_sizes": _pairs(file.column_sizes),
        "value_counts": _pairs(file.value_counts),
        "null_value_counts": _pairs(file.null_counts),
        "nan_value_counts": None,
        "lower_bounds": _pairs(file.lower_bounds),
        "upper_bounds": _pairs(file.upper_bounds),
        "split_offsets": list(file.split_offsets) or None,
    }


def _pairs(values: Mapping[int, Any]) -> list[Record] | None:
    return [{"key": key, "value": value} for key, value in values.items()] or None


def _list_record(
    manifest: ManifestFile, records: Sequence[Record], length: int, partition: Sequence[PartitionField] | None
) -> Record:
    entries = [ManifestEntry(record) for record in records]
    added = [entry for entry in entries if entry.status == ADDED]
    deleted = [entry for entry in entries if entry.status == DELETED]
    existing = [entry for entry in entries if entry.status not in (ADDED, DELETED)]
    numbers = [entry.sequence_number(manifest.sequence_number) for entry in entries]
    return {
        **manifest.record,
        "manifest_length": length,
        "min_sequence_number": min(numbers, default=manifest.sequence_number),
        "added_files_count": len(added),
        "existing_files_count": len(existing),
        "deleted_files_count": len(deleted),
        "added_rows_count": _rows(added),
        "existing_rows_count": _rows(existing),
        "deleted_rows_count": _rows(deleted),
        "partitions": _partition_ranges(entries, partition),
    }


def _rows(entries: Sequence[ManifestEntry]) -> int:
    return sum(entry.record_count for entry in entries)


def _partition_ranges(
    entries: Sequence[ManifestEntry], partition: Sequence[PartitionField] | None
) -> list[Record] | None:
    """The ranges of partition values; None, which every reader accepts, for values that this code does not write."""
    if partition is None:
        return None
    ranges: list[Record] = []
    for field in partition:
        partition_values = [plain_partition_value(entry.partition.get(field.name)) for entry in entries]
        present = [value for value in partition_values if value is not None]
        try:
            bounds = [conversions.to_bytes(field.value_type, pick(present)) if present else None for pick in (min, max)]
        except (KeyError, TypeError, ValueError):
            return None
        ranges.append(
            {
                "contains_null": len(present) < len(partition_values),
                "contains_nan": False,
                "lower_bound": bounds[0],
                "upper_bound": bounds[1],
            }
        )
    return ranges
