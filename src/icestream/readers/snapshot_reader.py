"""Plans scans: returns the files of a snapshot by its manifests. Manifests never change, so each is read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
CheckPaths = Callable[[TableMetadata, Sequence[str]], Awaitable[None]]
NO_FILES: Final = SnapshotFiles((), ())


async def _check_nothing(_table: TableMetadata, _paths: Sequence[str]) -> None:
    """Every path is read."""


class SnapshotReader:
    """Reads the files of snapshots, and keeps what it decoded of each manifest."""

    def __init__(self, manifests: ManifestReader, check: CheckPaths | None = None) -> None:
        """`check` raises TableUnreadable for a path that a table must not name; None: every path is read."""
        self._manifests = manifests
        self._check = check or _check_nothing
        self._files_by_manifest: LRUCache[str, Files] = LRUCache(limits.SCAN_MANIFESTS_MAX)

    async def current_files(self, table: TableMetadata) -> SnapshotFiles:
        """Returns the live files of the current snapshot."""
        metrics.SCAN_PLANS.inc()
        snapshot_id = table.current_snapshot_id
        snapshot = table.snapshots.find(snapshot_id) if snapshot_id is not None else None
        return await self._snapshot_files(table, snapshot) if snapshot else NO_FILES

    async def _snapshot_files(self, table: TableMetadata, snapshot: Object) -> SnapshotFiles:
        """Returns the live files of a snapshot. Manifests that were read before are not read again."""
        files: Files = []
        ids: Mapping[str, int] = field_ids(table.current_schema)
        await self._check(table, [str(snapshot.get("manifest-list") or table.location)])
        manifests = await self._manifests_of(snapshot)
        await self._check(table, [path for path, _, _ in manifests])
        for path, sequence_number, spec_id in manifests:
            # By path: a manifest never changes, and most are shared by consecutive snapshots.
            manifest_files: Files | None = self._files_by_manifest.get(path)
            if manifest_files is None:
                select = partial(files_of, manifest_sequence_number=sequence_number, ids=ids, spec_id=spec_id)
                manifest_files = await self._manifests.select_entries(path, select)
                await self._check(table, [file.path for file in manifest_files])
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
