"""Checks that the files of a commit exist: after the commit, before the log lets go of its messages.

The files of a commit in flight belong to no table yet. An engine that removes orphan files with a retention of zero
removes them, and the commit lands all the same (docs/adr/0042).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from icestream import errors, limits
from icestream.catalog.topic_rules.snapshot_progress import lineage
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.table_metadata import TableMetadata


class CommittedFiles:
    """Looks for the files of commits."""

    def __init__(self, files: TableFiles, manifests: ManifestCache) -> None:
        self._files = files
        self._manifests = manifests
        self._gate = asyncio.Semaphore(limits.FILES_LOOKED_AT_ONCE)

    async def missing(self, locations: Iterable[str]) -> set[str]:
        """Returns those that do not exist. Raises StorageUnavailable and the like if the storage cannot be asked."""

        async def is_missing(location: str) -> bool:
            async with self._gate:
                return not await self._files.exists(location)

        distinct = list(dict.fromkeys(locations))
        flags = await asyncio.gather(*map(is_missing, distinct))
        return {location for location, flag in zip(distinct, flags, strict=True) if flag}

    async def missing_of_newest(self, table: TableMetadata) -> dict[int, list[str]]:
        """Returns the missing files that the newest snapshots of main added, by snapshot id, the newest first; for a
        table that another driver wrote. If the manifests of a snapshot cannot be read, that is its manifest list."""
        missing_by_snapshot: dict[int, list[str]] = {}
        for snapshot in islice(lineage(table, table.current_snapshot_id), limits.SNAPSHOTS_LOOKED_AT):
            snapshot_id, list_location = int(snapshot["snapshot-id"]), str(snapshot["manifest-list"])
            try:
                manifests = await self._manifests.list_manifests(list_location)
                own = [manifest for manifest in manifests if manifest.snapshot_id == snapshot_id]
                added = [location for manifest in own for location in await self._manifests.added_files(manifest)]
                missing = await self.missing(added)
            except errors.MetadataFileMissing:
                missing = {list_location}
            if missing:
                missing_by_snapshot[snapshot_id] = sorted(missing)
        return missing_by_snapshot
