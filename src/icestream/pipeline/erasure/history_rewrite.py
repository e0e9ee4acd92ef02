"""Gives snapshots that are kept other manifests: without erased rows, and without entries that may tell of them (ADR
128).

    a live entry whose file has erased rows     names the file with the other rows; without other rows it is left out
    a DELETED entry     is left out: its file may be gone, and then nothing tells what its bounds hold

Every snapshot keeps its id, its parent, its sequence number and its time. Manifests that several snapshots share are
written once, and shared again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from icestream.iceberg import avro, values
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_rewrite import ChangedManifest, Replacements, rewrite_manifest
from icestream.iceberg.manifests import DATA_CONTENT, ManifestFile, encode_list_header
from icestream.iceberg.snapshots import sequence_number
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.pipeline_file_name import list_name, manifest_name
from icestream.pipeline.commit.snapshot_builder import NewFile, metadata_folder
from icestream.runtime.tasks import Offload


class HistoryChange(NamedTuple):
    """Snapshots with other manifest lists, and the manifests and lists that must be there first."""

    snapshots: list[Object]
    files: list[NewFile]
    replaced: frozenset[str]  # data files that the former lists have, and these have not


class _NewManifest(NamedTuple):
    """A manifest that takes the place of another one, in each list that has it. `file` is None if nothing does."""

    file: ManifestFile | None
    bytes_change: int
    replaced: frozenset[str]


class HistoryRewrite:
    """The rewrite of one erasure. What it has made of a manifest is remembered, from step to step."""

    def __init__(
        self,
        manifests: ManifestCache,
        files: TableFiles,
        offload: Offload,
        replacements: Replacements,
        epoch: int,
    ) -> None:
        """`replacements`: of data files with erased rows. `epoch`: of the pipeline, for the names of files."""
        self._manifests = manifests
        self._files = files
        self._offload = offload
        self._replacements = replacements
        self._epoch = epoch
        self._new: dict[tuple[str, bool], _NewManifest | None] = {}  # by path; None: it stays as it is

    async def change(
        self, table: TableMetadata, snapshots: Sequence[Object], token: bytes, *, keeps_rows: Callable[[int], bool]
    ) -> HistoryChange:
        """The snapshots of these that change. `token`: 16 random bytes, for names. `keeps_rows`: of the snapshots that
        only lose DELETED entries, by id."""
        name = str(uuid.UUID(bytes=token, version=4))
        changed: list[Object] = []
        files: list[NewFile] = []
        replaced: set[str] = set()
        for snapshot in snapshots:
            snapshot_id, location = snapshot["snapshot-id"], str(snapshot["manifest-list"])
            before, after = await self._manifests.list_manifests(location), list[ManifestFile]()
            bytes_change, is_changed = 0, False
            for manifest in before:
                new = await self._rewritten(table, manifest, name, files, keeps_rows=keeps_rows(snapshot_id))
                if new is None:
                    after.append(manifest)
                    continue
                is_changed = True
                bytes_change += new.bytes_change
                replaced |= new.replaced
                after += [new.file] if new.file is not None else []
            if not is_changed:
                continue
            new_list = f"{metadata_folder(table)}/{list_name(snapshot_id, self._epoch, name)}"
            header = encode_list_header(snapshot_id, snapshot.get("parent-snapshot-id"), sequence_number(snapshot))
            files.append(NewFile(new_list, avro.encode_file(header, [manifest.encode() for manifest in after], token)))
            changed.append(_with_list(snapshot, new_list, before, after, bytes_change))
        return HistoryChange(changed, files, frozenset(replaced))

    async def _rewritten(
        self, table: TableMetadata, manifest: ManifestFile, name: str, files: list[NewFile], *, keeps_rows: bool
    ) -> _NewManifest | None:
        """What takes the place of a manifest; None if it stays. A new one is added to `files`."""
        key = manifest.path, keeps_rows
        if key not in self._new:
            self._new[key] = await self._rewrite(table, manifest, name, files, {} if keeps_rows else self._replacements)
        return self._new[key]

    async def _rewrite(
        self, table: TableMetadata, manifest: ManifestFile, name: str, files: list[NewFile], replacements: Replacements
    ) -> _NewManifest | None:
        data = await self._files.read(normalize(manifest.path))
        dropped: set[str] = set()

        def rewrite() -> ChangedManifest | None:
            spec = values.find(table.fields["partition-specs"], "spec-id", manifest.spec_id)
            layout = None if spec is None else self._manifests.layout(table, table.current_schema, spec)
            partition = None if layout is None else layout.partition
            return rewrite_manifest(manifest, data, replacements, partition)

        changed = await self._offload.run(rewrite)
        if changed is None:
            return None
        if manifest.content == DATA_CONTENT and replacements:
            live = await self._manifests.live_entries(manifest)
            dropped |= {entry.file_path for entry in live} & replacements.keys()
        file: ManifestFile | None = None
        if changed.data is not None:
            location = f"{metadata_folder(table)}/{manifest_name(self._epoch, name, len(self._new))}"
            files.append(NewFile(location, [changed.data]))
            file = changed.at(location)
        return _NewManifest(file, changed.bytes_change, frozenset(dropped))


def _with_list(
    snapshot: Object, location: str, before: Sequence[ManifestFile], after: Sequence[ManifestFile], bytes_change: int
) -> Object:
    """The snapshot with another list, and with the totals of its files as they are now."""

    def live(manifests: Sequence[ManifestFile]) -> tuple[int, int]:
        of_data = [manifest for manifest in manifests if manifest.content == DATA_CONTENT]
        return sum(manifest.live_files for manifest in of_data), sum(manifest.live_rows for manifest in of_data)

    (files_before, rows_before), (files_after, rows_after) = live(before), live(after)
    changes: Mapping[str, int] = {
        "total-data-files": files_after - files_before,
        "total-records": rows_after - rows_before,
        "total-files-size": bytes_change,
    }
    summary = dict(snapshot.get("summary") or {})
    for total, change in changes.items():
        text = summary.get(total, "")
        if text.isascii() and text.isdigit():
            summary[total] = str(max(0, int(text) + change))
    return {**snapshot, "manifest-list": location, **({"summary": summary} if summary else {})}
