"""Plans scans: returns the files of a snapshot by its manifests. Manifests never change, so each is read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from cachebox import LRUCache

from icestream import limits
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.observability import metrics
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, SnapshotFiles, field_ids, files_of

Files = list[ScanDataFile | ScanDeleteFile]
NO_FILES: Final = SnapshotFiles((), ())


class SnapshotReader:
    """Reads the files of snapshots, and keeps what it decoded of each manifest."""

    def __init__(self, manifests: ManifestReader) -> None:
        self._manifests = manifests
        self._files_by_manifest: LRUCache[str, Files] = LRUCache(limits.SCAN_MANIFESTS_MAX)

    async def current_files(self, table: TableMetadata) -> SnapshotFiles:
        """Returns the live files of the current snapshot."""
        metrics.SCAN_PLANS.inc()
        snapshot_id = table.current_snapshot_id
        snapshot = table.snapshots.find(snapshot_id) if snapshot_id is not None else None
        return await self._snapshot_files(snapshot, field_ids(table.current_schema)) if snapshot else NO_FILES

    async def _snapshot_files(self, snapshot: Object, ids: Mapping[str, int]) -> SnapshotFiles:
        """Returns the live files of a snapshot. Manifests that were read before are not read again."""
        files: Files = []
        for path, sequence_number, spec_id in await self._manifests_of(snapshot):
            # By path: a manifest never changes, and most are shared by consecutive snapshots.
            manifest_files: Files | None = self._files_by_manifest.get(path)
            if manifest_files is None:
                select = partial(files_of, manifest_sequence_number=sequence_number, ids=ids, spec_id=spec_id)
                manifest_files = await self._manifests.select_entries(path, select)
                self._files_by_manifest.insert(path, manifest_files)
            files += manifest_files
        return SnapshotFiles(
            tuple(file for file in files if isinstance(file, ScanDataFile)),
            tuple(file for file in files if isinstance(file, ScanDeleteFile)),
        )

    async def _manifests_of(self, snapshot: Object) -> list[tuple[str, int, int]]:
        """Returns path, sequence number and partition spec of each manifest. Old v1 snapshots name them without a
        list."""
        manifest_list = snapshot.get("manifest-list")
        if manifest_list is None:
            return [(str(path), 0, 0) for path in snapshot.get("manifests") or ()]
        manifests = await self._manifests.manifest_files(str(manifest_list))
        return [(manifest.path, manifest.sequence_number, manifest.spec_id) for manifest in manifests]
