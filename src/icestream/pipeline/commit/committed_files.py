"""Whether the files of a commit are there: looked at behind the commit, before the log lets go of its messages.

Files of a commit that is on its way are in no table. An engine that removes orphan files with a retention of zero takes
them away, and the commit lands all the same (docs/adr/0042).
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
    def __init__(self, files: TableFiles, manifests: ManifestCache) -> None:
        self._files = files
        self._manifests = manifests
        self._gate = asyncio.Semaphore(limits.FILES_LOOKED_AT_ONCE)

    async def gone(self, locations: Iterable[str]) -> set[str]:
        """Those that are not there. Raises what the storage raises when it cannot be asked."""

        async def is_gone(location: str) -> bool:
            async with self._gate:
                return not await self._files.exists(location)

        wanted = list(dict.fromkeys(locations))
        answers = await asyncio.gather(*map(is_gone, wanted))
        return {location for location, is_missing in zip(wanted, answers, strict=True) if is_missing}

    async def gone_of_newest(self, table: TableMetadata) -> dict[int, list[str]]:
        """By snapshot what is gone of the files that the newest ones of main brought, the newest first: for a table
        that another driver wrote. Of a snapshot whose manifests cannot be read that is its manifest list."""
        found: dict[int, list[str]] = {}
        for snapshot in islice(lineage(table, table.current_snapshot_id), limits.SNAPSHOTS_LOOKED_AT):
            number, place = int(snapshot["snapshot-id"]), str(snapshot["manifest-list"])
            try:
                manifests = [one for one in await self._manifests.list_manifests(place) if one.snapshot_id == number]
                added = [location for one in manifests for location in await self._manifests.added_files(one)]
                missing = await self.gone(added)
            except errors.MetadataFileMissing:
                missing = {place}
            if missing:
                found[number] = sorted(missing)
        return found
