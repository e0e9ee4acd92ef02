"""The manifests of a table as a writer needs them: read at start and after commits of other engines, else remembered.

Entries of recently written manifests are cached because they are merged soon. The number of cached entries is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from icestream import limits
from icestream.iceberg import values
from icestream.iceberg.delete_manifests import DeleteRemoval, without_deletes
from icestream.iceberg.location import normalize
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifest_rewrite import FilesRemoval, without_files
from icestream.iceberg.manifests import (
    ADDED,
    EncodedEntry,
    ManifestEntry,
    ManifestFile,
    ManifestLayout,
    manifest_layout,
    reencode_entries,
)
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class ManifestCache:
    def __init__(self, reader: ManifestReader) -> None:
        self._reader = reader
        self._entries: OrderedDict[str, Sequence[EncodedEntry]] = OrderedDict()  # by manifest path
        self._entries_count = 0
        self._layouts: OrderedDict[tuple[str | None, int, int], ManifestLayout] = OrderedDict()

    def layout(self, table: TableMetadata, schema: Object, spec: Object) -> ManifestLayout:
        key = (table.uuid, schema["schema-id"], spec["spec-id"])
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = manifest_layout(schema, spec)
            while len(self._layouts) > limits.MANIFEST_LAYOUTS_KEPT:
                self._layouts.popitem(last=False)
        return layout

    async def current_manifests(self, table: TableMetadata) -> list[ManifestFile]:
        """Reads the manifests of the current snapshot, the newest first."""
        snapshot_id = table.current_snapshot_id
        snapshot = None if snapshot_id is None else table.snapshots.find(snapshot_id)
        if snapshot is None:
            return []
        manifests = await self.list_manifests(snapshot["manifest-list"])
        return sorted(manifests, key=lambda manifest: -manifest.sequence_number)

    async def list_manifests(self, manifest_list: str) -> list[ManifestFile]:
        return await self._reader.manifest_files(manifest_list)

    async def live_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Reads the live entries of a manifest of any writer, with everything that it records about their files."""
        return await self._reader.select_entries(
            manifest.path, lambda entries: [entry for entry in entries if entry.is_live]
        )

    async def removed_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Reads the entries of a manifest of any writer that record the removal of a file."""
        return await self._reader.select_entries(
            manifest.path, lambda entries: [entry for entry in entries if not entry.is_live]
        )

    async def without_deletes(
        self, manifest: ManifestFile, removed: Collection[str], snapshot_id: int
    ) -> DeleteRemoval:
        """Reads a manifest of delete files of any writer; returns it without those of these names."""
        data = await self._reader.table_files.read(normalize(manifest.path))
        return without_deletes(manifest, data, removed, snapshot_id)

    async def without_files(
        self, table: TableMetadata, manifest: ManifestFile, removed: Collection[str]
    ) -> FilesRemoval:
        """Reads a manifest of data files of any writer; returns it without some of them."""
        data = await self._reader.table_files.read(normalize(manifest.path))
        spec = values.find(table.fields["partition-specs"], "spec-id", manifest.spec_id)
        partition = None if spec is None else self.layout(table, table.current_schema, spec).partition
        return without_files(manifest, data, removed, partition)

    async def added_files(self, manifest: ManifestFile) -> list[str]:
        """Reads the locations of the files that the manifest's own snapshot added to the table."""
        return await self._reader.select_entries(
            manifest.path, lambda entries: [entry.file_path for entry in entries if entry.status == ADDED]
        )

    async def entries(
        self, layout: ManifestLayout, manifests: Sequence[ManifestFile]
    ) -> dict[str, Sequence[EncodedEntry]]:
        """Returns the entries of manifests that this code wrote, by manifest path; those not cached are read."""
        entries_by_path: dict[str, Sequence[EncodedEntry]] = {}
        for manifest in manifests:
            entries = self._entries.get(manifest.path)
            if entries is None:
                decoded = await self._reader.entries(manifest.path)
                entries = reencode_entries(layout, decoded, manifest.snapshot_id, manifest.sequence_number)
            entries_by_path[manifest.path] = entries
        return entries_by_path

    def remember(self, entries_by_path: Mapping[str, Sequence[EncodedEntry]], merged_paths: Sequence[str]) -> None:
        """Caches the entries of committed manifests and drops those of manifests that were merged into them."""
        for path in merged_paths:
            self._entries_count -= len(self._entries.pop(path, ()))
        for path, entries in entries_by_path.items():
            self._entries[path] = entries
            self._entries_count += len(entries)
        while self._entries_count > limits.MANIFEST_ENTRIES_KEPT and self._entries:
            self._entries_count -= len(self._entries.popitem(last=False)[1])
