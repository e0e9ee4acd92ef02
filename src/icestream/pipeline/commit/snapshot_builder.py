"""A snapshot that appends files to a table: its manifests, its manifest list, and the updates that bring it. Pure.

What is to be read for it (entries of manifests that are merged) comes in, what is to be written goes out. The manifests
of a table are kept from commit to commit: nothing is read while nobody else commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from icestream.iceberg import avro
from icestream.iceberg.manifests import (
    EncodedEntry,
    ManifestFile,
    ManifestLayout,
    encode_list_header,
    new_entry,
    new_manifest_file,
)
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.pipeline_file_name import list_name, manifest_name
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit import snapshot_expiry
from icestream.pipeline.commit.snapshot_expiry import TagRetention

_TOTALS: Final = {
    "total-data-files": "added-data-files",
    "total-records": "added-records",
    "total-files-size": "added-files-size",
}
_OTHER_TOTALS: Final = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


class Appended(NamedTuple):
    """Files of one spec that are new, with those of manifests that go into the same one."""

    layout: ManifestLayout
    written: Sequence[WrittenFile]
    merged: Sequence[ManifestFile] = ()


class NewFile(NamedTuple):
    location: str
    pieces: list[bytes]


class NewSnapshot(NamedTuple):
    snapshot_id: int
    parent_id: int | None
    sequence: int
    files: list[NewFile]  # to be written and synced before the commit is sent
    manifests: list[ManifestFile]  # of the table when it is in force, the newest first
    entries: dict[str, list[EncodedEntry]]  # of the new manifests, as the next commit finds them
    updates: list[Object]


def new_snapshot(
    table: TableMetadata,
    manifests: Sequence[ManifestFile],
    appended: Sequence[Appended],
    entries: Mapping[str, Sequence[EncodedEntry]],
    snapshot_id: int,
    epoch: int,
    token: bytes,
    now_ms: int,
    history: TagRetention,
    summary: Mapping[str, str],
) -> NewSnapshot:
    """`manifests`: of the table's current snapshot, the newest first. `entries`: of those that are merged. `epoch`: of
    the pipeline. `token`: 16 bytes of chance; both are for the names of files. `summary`: what the snapshot says
    beyond the counts."""
    name, folder = str(uuid.UUID(bytes=token, version=4)), metadata_folder(table)
    parent = table.current_snapshot_id
    sequence = table.fields["last-sequence-number"] + 1
    files: list[NewFile] = []
    new: list[ManifestFile] = []
    kept_entries: dict[str, list[EncodedEntry]] = {}
    for number, one in enumerate(appended):
        added = [new_entry(one.layout, file, snapshot_id) for file in one.written]
        together = [*added, *(entry for manifest in one.merged for entry in entries[manifest.path])]
        location = f"{folder}/{manifest_name(epoch, name, number)}"
        pieces = avro.encode_file(one.layout.header, [entry.encode() for entry in together], token)
        files.append(NewFile(location, pieces))
        length = sum(map(len, pieces))
        new.append(new_manifest_file(one.layout, location, length, together, snapshot_id, sequence))
        kept_entries[location] = [entry.with_sequence_number(sequence) for entry in together]
    gone = {manifest.path for one in appended for manifest in one.merged}
    left = [*new, *(one for one in manifests if one.path not in gone)]
    list_file = f"{folder}/{list_name(snapshot_id, epoch, name)}"
    files.append(
        NewFile(
            list_file,
            avro.encode_file(encode_list_header(snapshot_id, parent, sequence), [one.encode() for one in left], token),
        )
    )
    made: Object = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": max(now_ms, _time_ms(table)),
        "manifest-list": list_file,
        "summary": {**_counts(table, appended), **summary},
        "schema-id": table.fields["current-schema-id"],
    }
    if parent is not None:
        made["parent-snapshot-id"] = parent
    updates = [{"action": "add-snapshot", "snapshot": made}, _main(table, snapshot_id)]
    updates += snapshot_expiry.tag_updates(table, history, now_ms)
    tagged = {one["snapshot-id"] for one in updates if one["action"] == "set-snapshot-ref"}
    untagged = {one["ref-name"] for one in updates if one["action"] == "remove-snapshot-ref"}
    if expired := [one for one in snapshot_expiry.expired(table, now_ms, untagged) if one not in tagged]:
        updates.append({"action": "remove-snapshots", "snapshot-ids": expired})
    return NewSnapshot(snapshot_id, parent, sequence, files, left, kept_entries, updates)


def metadata_folder(table: TableMetadata) -> str:
    return (table.properties.get("write.metadata.path") or f"{table.location}/metadata").rstrip("/")


def _time_ms(table: TableMetadata) -> int:
    """Of the current snapshot: no history goes back in time, whatever the clock does."""
    found = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
    return int(found["timestamp-ms"]) if found is not None else 0


def _main(table: TableMetadata, snapshot_id: int) -> Object:
    """Main keeps what it says about its history."""
    kept = {name: value for name, value in (table.references.get(MAIN) or {}).items() if name != "snapshot-id"}
    return {"type": "branch", **kept, "action": "set-snapshot-ref", "ref-name": MAIN, "snapshot-id": snapshot_id}


def _counts(table: TableMetadata, appended: Sequence[Appended]) -> dict[str, str]:
    written = [file for one in appended for file in one.written]
    added = {
        "added-data-files": len(written),
        "added-records": sum(file.rows for file in written),
        "added-files-size": sum(file.size_bytes for file in written),
        "changed-partition-count": len({repr(file.partition) for file in written}),
    }
    return {"operation": "append", **{name: str(value) for name, value in added.items()}, **_totals(table, added)}


def _totals(table: TableMetadata, added: Mapping[str, int]) -> dict[str, str]:
    """Of the parent, and what is added; none where the parent does not say."""
    parent = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
    before = {} if parent is None else parent.get("summary") or {}
    found = {}
    for total, more in _TOTALS.items():
        known = "0" if parent is None else before.get(total, "")
        if known.isascii() and known.isdigit():
            found[total] = str(int(known) + added[more])
    for total in _OTHER_TOTALS:
        if (known := "0" if parent is None else before.get(total)) is not None:
            found[total] = known
    return found
