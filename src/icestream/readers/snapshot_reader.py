"""The files that a snapshot names, by its manifests. These never change, so each is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cachebox import LRUCache

from icestream import limits
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import ManifestEntry
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.observability import metrics
from icestream.readers.data_files import DataFile, DeleteFile, SnapshotFiles, field_ids, files_of

Files = list[DataFile | DeleteFile]
NO_FILES: Final = SnapshotFiles((), ())


class SnapshotReader:
    def __init__(self, manifests: ManifestReader) -> None:
        self._manifests = manifests
        self._read: LRUCache[str, Files] = LRUCache(limits.SCAN_MANIFESTS_MAX)

    async def files_of_main(self, table: TableMetadata) -> SnapshotFiles:
        metrics.SCAN_PLANS.inc()
        at = table.current_snapshot_id
        snapshot = table.snapshots.find(at) if at is not None else None
        return await self._files(snapshot, field_ids(table.current_schema)) if snapshot else NO_FILES

    async def _files(self, snapshot: Object, ids: Mapping[str, int]) -> SnapshotFiles:
        found: Files = []
        for path, sequence, spec_id in await self._named(snapshot):
            read: Files | None = self._read.get(path)
            if read is None:
                read = await self._manifests.select_entries(path, _taker(sequence, ids, spec_id))
                self._read.insert(path, read)
            found += read
        return SnapshotFiles(
            tuple(one for one in found if isinstance(one, DataFile)),
            tuple(one for one in found if isinstance(one, DeleteFile)),
        )

    async def _named(self, snapshot: Object) -> list[tuple[str, int, int]]:
        """The manifests, each with the sequence number that its new files have, and with its partition spec."""
        where = snapshot.get("manifest-list")
        if where is None:
            return [(str(path), 0, 0) for path in snapshot.get("manifests") or ()]
        manifests = await self._manifests.manifest_files(str(where))
        return [(manifest.path, manifest.sequence_number, manifest.spec_id) for manifest in manifests]


def _taker(sequence: int, ids: Mapping[str, int], spec_id: int) -> Callable[[Iterator[ManifestEntry]], Files]:
    return lambda entries: files_of(entries, sequence, ids, spec_id)
