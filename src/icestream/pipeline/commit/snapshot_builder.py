"""Builds a snapshot: its manifests, its manifest list, and the table updates that add it. Pure.

The entries of manifests that are rewritten are an input, the files to write are an output. A table's manifests are kept
from commit to commit, so that nothing is read while no other engine commits.

    append    adds files. Small manifests are merged on the way (manifest_merge.py)
    replace   adds files and removes others that hold the same rows, such as a compaction: every row stays in the table.
              The manifests of the removed files are rewritten with their entries as DELETED, and so are those of delete
              files that no file needs any more
    delete    removes files with their rows, in the same way: a retention
    overwrite adds files and removes others of which they hold some rows: an erasure. The entries of the removed files
              are left out, not kept as DELETED: their bounds could hold an erased key (hazard 97). A manifest
              that would have no entry is not written, and a table without rows has an empty manifest list
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from icestream import errors
from icestream.iceberg import avro
from icestream.iceberg.delete_manifests import DeleteRemoval, committed_manifest
from icestream.iceberg.manifest_rewrite import FilesRemoval
from icestream.iceberg.manifests import (
    EncodedEntry,
    ManifestFile,
    ManifestLayout,
    encode_list_header,
    manifest_file_of_record,
    new_entry,
    new_manifest_file,
)
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.updates import expiry_of
from icestream.iceberg.values import Object
from icestream.model.pipeline_file_name import list_name, manifest_name
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit import snapshot_expiry
from icestream.pipeline.commit.manifest_merge import is_ours
from icestream.pipeline.commit.snapshot_expiry import TagRetention

# Totals of the summary, with the counts that are added to and subtracted from those of the parent.
_TOTALS: Final = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
# In the summary of a snapshot that a job made: which kind. Not below `icestream.`, which only the server writes.
JOB: Final = "icestream-job"


class Operation(StrEnum):
    """The operation of a snapshot, as Iceberg names it."""

    APPEND = "append"
    REPLACE = "replace"
    DELETE = "delete"
    OVERWRITE = "overwrite"


class ManifestChange(NamedTuple):
    """A new manifest of one partition spec: files to add, and older manifests whose entries it takes over."""

    layout: ManifestLayout
    added: Sequence[WrittenFile]
    merged: Sequence[ManifestFile] = ()
    removed: frozenset[str] = frozenset()  # locations; each is in one of the merged manifests


class NewFile(NamedTuple):
    """A manifest or manifest list to be written."""

    location: str
    chunks: list[bytes]


class NewSnapshot(NamedTuple):
    """A snapshot that is not committed yet."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    files: list[NewFile]  # to be written and synced before the commit is sent
    manifests: list[ManifestFile]  # of the table after the commit, the newest first
    entries: dict[str, list[EncodedEntry]]  # live entries of the new manifests, as the next commit needs them
    updates: list[Object]


def build_snapshot(
    table: TableMetadata,
    manifests: Sequence[ManifestFile],
    changes: Sequence[ManifestChange],
    entries: Mapping[str, Sequence[EncodedEntry]],
    snapshot_id: int,
    epoch: int,
    token: bytes,
    now_ms: int,
    tag_retention: TagRetention,
    summary: Mapping[str, str],
    operation: Operation = Operation.APPEND,
    added_number: int | None = None,
    delete_removals: Sequence[DeleteRemoval] = (),
    file_removals: Sequence[FilesRemoval] = (),
) -> NewSnapshot:
    """Builds the next snapshot of main.

    `manifests`: of the current snapshot, the newest first. `entries`: of the merged manifests, by path. `epoch`: of the
    pipeline, and `token`: 16 random bytes, both for the names of files. `summary`: entries beyond the counts.
    `added_number`: the data sequence number of the added files, None for that of the snapshot. `delete_removals`: of a
    replace, the manifests of delete files that it changes; `file_removals`: of an erasure, those of data files that
    other writers made. Raises Contradiction for an append that removes files, and
    for a replace of a file that is not in its manifests. Whether a replace keeps the rows is checked before
    (rewrite_draft.py).
    """
    name, folder = str(uuid.UUID(bytes=token, version=4)), metadata_folder(table)
    parent_id = table.current_snapshot_id
    sequence_number = table.fields["last-sequence-number"] + 1
    files: list[NewFile] = []
    new_manifests: list[ManifestFile] = []
    live_entries: dict[str, list[EncodedEntry]] = {}
    deleted_entries: list[EncodedEntry] = []
    for number, change in enumerate(changes):
        live = [new_entry(change.layout, file, snapshot_id, added_number) for file in change.added]
        deleted: list[EncodedEntry] = []
        for entry in (entry for manifest in change.merged for entry in entries[manifest.path]):
            if change.removed and entry.file_path in change.removed:
                deleted.append(entry.as_deleted(snapshot_id))
            else:
                live.append(entry)
        location = f"{folder}/{manifest_name(epoch, name, number)}"
        written = live if operation is Operation.OVERWRITE else [*live, *deleted]
        deleted_entries += deleted
        if not written:
            continue  # an erasure of every row of these manifests: they go, and nothing takes their place
        chunks = avro.encode_file(change.layout.header, [entry.encode() for entry in written], token)
        files.append(NewFile(location, chunks))
        length = sum(map(len, chunks))
        new_manifests.append(new_manifest_file(change.layout, location, length, written, snapshot_id, sequence_number))
        live_entries[location] = [entry.with_sequence_number(sequence_number) for entry in live]
    _check_operation(operation, changes, deleted_entries)
    for number, removal in enumerate(delete_removals, len(changes)):
        location = f"{folder}/{manifest_name(epoch, name, number)}"
        files.append(NewFile(location, [removal.data]))
        new_manifests.append(committed_manifest(removal, location, snapshot_id, sequence_number))
    for number, file_removal in enumerate(file_removals, len(changes) + len(delete_removals)):
        if file_removal.data is None:
            continue
        location = f"{folder}/{manifest_name(epoch, name, number)}"
        files.append(NewFile(location, [file_removal.data]))
        committed = {"added_snapshot_id": snapshot_id, "sequence_number": sequence_number}
        new_manifests.append(manifest_file_of_record({**file_removal.record, "manifest_path": location, **committed}))
    merged_paths = {manifest.path for change in changes for manifest in change.merged}
    merged_paths |= {removal.replaced_path for removal in delete_removals}
    merged_paths |= {removal.replaced_path for removal in file_removals}
    # A manifest whose entries are all DELETED belongs to the snapshot that deleted them, and to no later one. Only
    # ours: manifest lists of format v1 need not state the counts.
    carried = [
        manifest
        for manifest in manifests
        if manifest.path not in merged_paths and (manifest.live_files or not is_ours(manifest))
    ]
    all_manifests = [*new_manifests, *carried]
    list_location = f"{folder}/{list_name(snapshot_id, epoch, name)}"
    list_header = encode_list_header(snapshot_id, parent_id, sequence_number)
    list_records = [manifest.encode() for manifest in all_manifests]
    files.append(NewFile(list_location, avro.encode_file(list_header, list_records, token)))
    snapshot: Object = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        # Never before the parent: history does not go back in time, whatever the clock does.
        "timestamp-ms": max(now_ms, _current_snapshot_ms(table)),
        "manifest-list": list_location,
        "summary": {
            **_counts(table, operation, changes, deleted_entries, delete_removals, file_removals),
            **summary,
        },
        "schema-id": table.fields["current-schema-id"],
    }
    if parent_id is not None:
        snapshot["parent-snapshot-id"] = parent_id
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, _set_main(table, snapshot_id)]
    updates += snapshot_expiry.tag_updates(table, tag_retention, now_ms)
    # Tags first, then expiry: a snapshot that gets its tag in this commit must not expire in it.
    tagged_ids = {update["snapshot-id"] for update in updates if update["action"] == "set-snapshot-ref"}
    removed_tags = {update["ref-name"] for update in updates if update["action"] == "remove-snapshot-ref"}
    expired_ids = [
        expired_id
        for expired_id in snapshot_expiry.expired(table, now_ms, removed_tags)
        if expired_id not in tagged_ids
    ]
    if expired_ids:
        updates.append(expiry_of(expired_ids))
    return NewSnapshot(snapshot_id, parent_id, sequence_number, files, all_manifests, live_entries, updates)


def _check_operation(
    operation: Operation, changes: Sequence[ManifestChange], deleted_entries: Sequence[EncodedEntry]
) -> None:
    """Raises Contradiction if the changes are not those of the operation."""
    removed = [location for change in changes for location in change.removed]
    if operation is Operation.APPEND:
        if removed:
            raise errors.Contradiction(f"an append removes {len(removed)} files, such as {removed[0]}")
        return
    missing = set(removed) - {entry.file_path for entry in deleted_entries}
    if missing:
        raise errors.Contradiction(
            f"a {operation} removes {min(missing)}, which is not in the manifests that it rewrites"
        )
    if operation is Operation.DELETE and (added := [file for change in changes for file in change.added]):
        raise errors.Contradiction(f"a delete adds {len(added)} files, such as {added[0].location}")


def metadata_folder(table: TableMetadata) -> str:
    return (table.properties.get("write.metadata.path") or f"{table.location}/metadata").rstrip("/")


def _current_snapshot_ms(table: TableMetadata) -> int:
    snapshot = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
    return int(snapshot["timestamp-ms"]) if snapshot is not None else 0


def _set_main(table: TableMetadata, snapshot_id: int) -> Object:
    """The update that moves main. The retention options of the branch are kept."""
    options = {name: value for name, value in (table.references.get(MAIN) or {}).items() if name != "snapshot-id"}
    return {"type": "branch", **options, "action": "set-snapshot-ref", "ref-name": MAIN, "snapshot-id": snapshot_id}


def _counts(
    table: TableMetadata,
    operation: Operation,
    changes: Sequence[ManifestChange],
    deleted_entries: Sequence[EncodedEntry],
    delete_removals: Sequence[DeleteRemoval],
    file_removals: Sequence[FilesRemoval],
) -> dict[str, str]:
    """Returns the part of the summary that counts files, rows and bytes."""
    added = [file for change in changes for file in change.added]
    partitions = {repr(list(file.partition)) for file in added}
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.rows for file in added),
        "added-files-size": sum(file.size_bytes for file in added),
    }
    if deleted_entries:
        partitions |= {repr(list(entry.partition)) for entry in deleted_entries}
        counts |= {
            "deleted-data-files": len(deleted_entries),
            "deleted-records": sum(entry.rows for entry in deleted_entries),
            "removed-files-size": sum(entry.size_bytes for entry in deleted_entries),
        }
    if file_removals:
        for total, removed in (
            ("deleted-data-files", sum(removal.files for removal in file_removals)),
            ("deleted-records", sum(removal.rows for removal in file_removals)),
            ("removed-files-size", sum(removal.bytes for removal in file_removals)),
        ):
            counts[total] = counts.get(total, 0) + removed
    counts["changed-partition-count"] = len(partitions)
    if delete_removals:
        by_position = sum(removal.removed_position_files for removal in delete_removals)
        by_value = sum(removal.removed_equality_files for removal in delete_removals)
        counts |= {
            "removed-delete-files": by_position + by_value,
            "removed-position-delete-files": by_position,
            "removed-equality-delete-files": by_value,
            "removed-position-deletes": sum(removal.removed_position_deletes for removal in delete_removals),
            "removed-equality-deletes": sum(removal.removed_equality_deletes for removal in delete_removals),
        }
        counts["removed-files-size"] = counts.get("removed-files-size", 0) + sum(
            removal.removed_bytes for removal in delete_removals
        )
    return {
        "operation": str(operation),
        **{name: str(value) for name, value in counts.items()},
        **_totals(table, counts),
    }


def _totals(table: TableMetadata, counts: Mapping[str, int]) -> dict[str, str]:
    """The totals of the parent with the counts applied; those that the parent does not state are left out."""
    parent = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
    parent_summary = {} if parent is None else parent.get("summary") or {}
    totals = {}
    for name, (added, removed) in _TOTALS.items():
        before = "0" if parent is None else parent_summary.get(name, "")
        # A total on top of an unknown one would be wrong for ever; a missing one is counted by engines that need it.
        if before.isascii() and before.isdigit():
            totals[name] = str(max(0, int(before) + counts.get(added, 0) - counts.get(removed, 0)))
    return totals
