"""The metadata of a restored table: its base snapshot, which is the only one (ADR 75). Pure.

What it is made of: the document, manifest list and manifests of the backup, by their old paths, and the files that were
written for the tails. Nothing of it names a place of the source (hazard 88).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from icestream import errors
from icestream.catalog.topic_rules import removal
from icestream.catalog.topic_rules.removal import Removals
from icestream.catalog.topic_rules.snapshot_progress import removals_after_snapshots, snapshot_progress
from icestream.catalog.topic_rules.topic_properties import PREFIX
from icestream.iceberg import avro, manifests, table_metadata
from icestream.iceberg.manifests import ManifestFile, live_entries
from icestream.iceberg.relocation import RelocatedFile, SourceManifest, rewrite_manifest
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.task_messages import WrittenFile

_DROPPED: Final = ("metadata-log", "snapshot-log", "statistics", "partition-statistics", "refs", "snapshots")
_PLACES: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
_PUFFIN: Final = "puffin"


class RestoredFile(NamedTuple):
    """A file of the metadata, to be written."""

    location: str
    pieces: list[bytes]


class BaseSnapshot(NamedTuple):
    """What the base snapshot is made of. `marker`: 16 bytes for the Avro files."""

    snapshot_id: int
    topic_id: int
    committed: Mapping[int, int]  # by shard: the first offset that is not in the table
    time_ms: int
    marker: bytes
    removals: Removals = ()  # rows that the table of the backup lacked, as its snapshots said it


def empty_table(document: Mapping[str, Any], location: str, uuid: str) -> TableMetadata:
    """The table of a backup as a new one without rows: its schemas, specs and properties under another identity."""
    fields = {name: value for name, value in document.items() if name not in _DROPPED}
    fields.pop("current-snapshot-id", None)
    properties = {
        name: value
        for name, value in (document.get("properties") or {}).items()
        if name not in _PLACES and not name.startswith(PREFIX)
    }
    return table_metadata.load({**fields, "table-uuid": uuid, "location": location, "properties": properties})


def removals_of(document: Mapping[str, Any], snapshot_id: int, topic_id: int) -> Removals:
    """The committed rows that a snapshot of a backup lacks, such as those that an engine deleted. `verify` and readers
    of the restored table know by them why."""
    table = table_metadata.load(dict(document))
    progress = snapshot_progress(table, snapshot_id, topic_id, None)
    committed, time_ms = progress.last_round.committed, int(document.get("last-updated-ms") or 0)
    return removals_after_snapshots(progress.last_round.removals, table, progress.since, topic_id, committed, time_ms)


def check_restorable(manifest: str, data: bytes) -> None:
    """Raises TableUnreadable for a manifest with deletion vectors, whose files name data files inside."""
    for entry in live_entries(manifest, data):
        if entry.file_format == _PUFFIN:
            raise errors.TableUnreadable(
                f"{manifest} has deletion vectors, which are not restored",
                hint="rewrite the table without them before the backup (rewrite_data_files)",
            )


def restored_manifests(
    table: TableMetadata,
    sources: Sequence[tuple[ManifestFile, bytes]],
    new_path: Callable[[str], str],
    new_files: Mapping[str, RelocatedFile],
    left_out: Container[str] = (),
) -> tuple[list[ManifestFile], list[RestoredFile]]:
    """The manifests of the backup with the paths of the new table; `new_files`: those that were written anew, by
    their old path. `left_out`: files that are not in the new table."""
    files: list[RestoredFile] = []
    entries: list[ManifestFile] = []
    for number, (manifest, data) in enumerate(sources):
        location = f"{table.location}/metadata/restored-{number}.avro"
        restored_entries = [entry for entry in live_entries(manifest.path, data) if entry.file_path not in left_out]
        if not restored_entries:
            continue
        source = SourceManifest(manifest.path, data, manifest.record)
        rewritten = rewrite_manifest(source, location, new_path, new_files, left_out)
        files.append(RestoredFile(location, [rewritten.data]))
        length = len(rewritten.data)
        record = {"added_snapshot_id": manifest.snapshot_id, **rewritten.record}
        entries.append(
            dataclasses.replace(
                manifest,
                path=location,
                length=length,
                live_files=len(restored_entries),
                live_rows=sum(entry.record_count for entry in restored_entries),
                record=record,
                _encoded=None,
            )
        )
    return entries, files


def base_table(
    table: TableMetadata, base: BaseSnapshot, backed_up: Sequence[ManifestFile], written: Sequence[WrittenFile]
) -> tuple[TableMetadata, list[RestoredFile]]:
    """The restored table, and the manifest of its new files and the manifest list, to be written before it.

    `table`: without snapshots. `backed_up`: the manifests of the backup, as they are in the new table.
    """
    sequence_number = int(table.fields.get("last-sequence-number") or 0) + 1
    files: list[RestoredFile] = []
    all_manifests = [*backed_up]
    if written:
        spec_id = table.fields["default-spec-id"]
        spec = next(spec for spec in table.fields["partition-specs"] if spec["spec-id"] == spec_id)
        layout = manifests.manifest_layout(table.current_schema, spec)
        entries = [manifests.new_entry(layout, file, base.snapshot_id) for file in written]
        location = f"{table.location}/metadata/restored-tails.avro"
        pieces = avro.encode_file(layout.header, [entry.encode() for entry in entries], base.marker)
        files.append(RestoredFile(location, pieces))
        length = sum(map(len, pieces))
        all_manifests.insert(
            0,
            manifests.new_manifest_file(layout, location, length, entries, base.snapshot_id, sequence_number),
        )
    list_location = f"{table.location}/metadata/restored-list.avro"
    header = manifests.encode_list_header(base.snapshot_id, None, sequence_number)
    records = [manifest.encode() for manifest in all_manifests]
    files.append(RestoredFile(list_location, avro.encode_file(header, records, base.marker)))
    snapshot: Object = {
        "snapshot-id": base.snapshot_id,
        "sequence-number": sequence_number,
        "timestamp-ms": base.time_ms,
        "manifest-list": list_location,
        "summary": {
            "operation": "append",
            "total-data-files": str(sum(manifest.live_files for manifest in all_manifests if not manifest.content)),
            "total-delete-files": str(sum(manifest.live_files for manifest in all_manifests if manifest.content)),
            "total-records": str(sum(manifest.live_rows for manifest in all_manifests if not manifest.content)),
            **removal.as_summary(base.topic_id, base.committed, base.removals),
        },
        "schema-id": table.fields["current-schema-id"],
    }
    document = {
        **table.as_json(),
        "last-sequence-number": sequence_number,
        "last-updated-ms": base.time_ms,
        "current-snapshot-id": base.snapshot_id,
        "snapshots": [snapshot],
        "refs": {MAIN: {"snapshot-id": base.snapshot_id, "type": "branch"}},
        "snapshot-log": [{"snapshot-id": base.snapshot_id, "timestamp-ms": base.time_ms}],
        "metadata-log": [],
    }
    return table_metadata.load(document), files
