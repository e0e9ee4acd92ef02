"""Manifests and manifest lists with other paths: copies of a snapshot whose files lie elsewhere. Pure.

Manifests are copied record by record, whichever engine and format version wrote them: only paths change, and entries
that are not live are left out. Sequence numbers, which decide what deletes apply to, stay with entry and manifest. The
bytes depend on the input alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from icestream.iceberg.manifests import ADDED, DELETED, EXISTING, POSITION_DELETES_CONTENT, read_manifest_file

_NAMESPACE: Final = uuid.UUID("5a3e9c1e-6b64-4d5c-9b6b-0d7c3f7c2f10")
# Field ids of the columns of position deletes; their bounds name data files by their old paths.
_DELETE_FILE_PATH: Final = 2147483546


class SourceManifest(NamedTuple):
    """A manifest of a snapshot, with its record in the manifest list."""

    path: str
    data: bytes
    record: Mapping[str, Any]


class RelocatedFile(NamedTuple):
    """A file that was written anew: its size and its rows."""

    size: int
    rows: int


class RewrittenManifest(NamedTuple):
    """The bytes of a manifest, and its record for the manifest list."""

    data: bytes
    record: dict[str, Any]


def rewrite_manifest(
    source: SourceManifest,
    path: str,
    new_path: Callable[[str], str],
    new_files: Mapping[str, RelocatedFile] = MappingProxyType({}),
    left_out: Container[str] = (),
) -> RewrittenManifest:
    """Returns a manifest with other paths, to be written at `path`. `new_path`: of a file, by its old path.
    `new_files`: by their old path. `left_out`: old paths of files that it shall not have. Raises MetadataFileDamaged.
    """
    file = read_manifest_file(source.path, source.data)
    every = [record for record in file.records if record["status"] != DELETED]
    live = [record for record in every if record["data_file"]["file_path"] not in left_out]
    has_fewer_rows = False
    for record in live:
        data_file = record["data_file"]
        if data_file.get("content") == POSITION_DELETES_CONTENT:
            # The bounds are old paths, perhaps cut off. Without them engines compare the deletes with more files.
            for bounds in ("lower_bounds", "upper_bounds"):
                if data_file.get(bounds):
                    data_file[bounds] = [pair for pair in data_file[bounds] if pair["key"] != _DELETE_FILE_PATH]
        if data_file.get("referenced_data_file"):
            data_file["referenced_data_file"] = new_path(data_file["referenced_data_file"])
        if (new_file := new_files.get(data_file["file_path"])) is not None:
            has_fewer_rows |= new_file.rows < data_file["record_count"]
            data_file["file_size_in_bytes"], data_file["record_count"] = new_file
        data_file["file_path"] = new_path(data_file["file_path"])
    data = file.with_records(live, _sync_marker(source.path))
    record = {**source.record, "manifest_path": path, "manifest_length": len(data)}
    # Only live entries were written.
    for name in ("deleted_files_count", "deleted_rows_count", "deleted_data_files_count"):
        if name in record:
            record[name] = 0
    if len(live) < len(every) or has_fewer_rows:
        record |= _counts(record, live)
    return RewrittenManifest(data, record)


def _counts(record: Mapping[str, Any], live: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the list says of a manifest that has fewer files or rows than its source. Without bounds of partition
    values: they may be those of a file that was left out."""
    counts: dict[str, Any] = {"partitions": None}
    for status, name in ((ADDED, "added"), (EXISTING, "existing")):
        rows = [int(entry["data_file"]["record_count"]) for entry in live if entry["status"] == status]
        for field in (f"{name}_files_count", f"{name}_data_files_count"):
            if field in record:
                counts[field] = len(rows)
        counts[f"{name}_rows_count"] = sum(rows)
    return counts


def rewrite_list(name: str, data: bytes, records: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns a manifest list with these records instead of its own. Raises MetadataFileDamaged."""
    return read_manifest_file(name, data).with_records(records, _sync_marker(name))


def _sync_marker(name: str) -> bytes:
    """Not random, as Avro has it: a run that is resumed must write the same bytes."""
    return uuid.uuid5(_NAMESPACE, name).bytes
