"""Reads which files a new snapshot names for the first time: its manifest list, new manifests, and what these name.

A commit of a client may name any file, and readers open what a table names with the rights of this process
(hazard 109). What is allowed is decided by the caller.
"""

from __future__ import annotations

from icestream.catalog.documents import Documents
from icestream.iceberg.manifests import ManifestEntry, ManifestFile, decode_entries, decode_manifest_list
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.runtime.tasks import Offload


class SnapshotPaths:
    def __init__(self, documents: Documents, offload: Offload) -> None:
        """`offload` decodes manifests beside the loop."""
        self._documents = documents
        self._offload = offload

    async def named_first(self, table: TableMetadata | None, snapshot: Object) -> list[str]:
        """Returns the paths that `snapshot` adds to those of the table's main and of its own parent; None: the table is
        created. Manifests that are known are not read again.

        Raises InvalidInput for a manifest outside of the warehouse, MetadataFileMissing, MetadataFileDamaged.
        """
        known_paths: set[str] = set()
        parents = () if table is None else (table.current_snapshot_id, snapshot.get("parent-snapshot-id"))
        for snapshot_id in {parent for parent in parents if isinstance(parent, int)}:
            parent = table.snapshots.find(snapshot_id) if table is not None else None
            if parent is not None:
                known_paths.update(await self._manifests(parent))
        manifests = [path for path in await self._manifests(snapshot) if path not in known_paths]
        manifest_list = snapshot.get("manifest-list")
        paths = [*([manifest_list] if isinstance(manifest_list, str) else ()), *manifests]
        for manifest in manifests:
            paths += await self._files(manifest)
        return paths

    async def _manifests(self, snapshot: Object) -> list[str]:
        location = snapshot.get("manifest-list")
        if not isinstance(location, str):  # old snapshots of v1 name their manifests themselves
            return [path for path in snapshot.get("manifests") or () if isinstance(path, str)]
        data = await self._documents.read_file(location)

        def decode() -> list[ManifestFile]:
            return decode_manifest_list(location, data)

        return [manifest.path for manifest in await self._offload.run(decode)]

    async def _files(self, manifest: str) -> list[str]:
        data = await self._documents.read_file(manifest)

        def decode() -> list[ManifestEntry]:
            return decode_entries(manifest, data, list)

        return [entry.file_path for entry in await self._offload.run(decode)]
