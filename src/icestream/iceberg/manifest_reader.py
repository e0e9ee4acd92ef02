"""Reads manifest lists and manifests from a table's storage. Decoding is in manifests.py.

A file is read as a whole, within the size limit of metadata files, and decoded off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.iceberg.manifests import ManifestEntry, ManifestFile, decode_entries, decode_manifest_list
from icestream.runtime.tasks import Offload

Item = TypeVar("Item")


class ManifestReader:
    """Every method raises MetadataFileMissing, MetadataFileDamaged, and InvalidInput for an invalid location."""

    def __init__(self, files: TableFiles, offload: Offload) -> None:
        self._files = files
        self._offload = offload

    @property
    def table_files(self) -> TableFiles:
        return self._files

    async def manifest_files(self, manifest_list: str) -> list[ManifestFile]:
        data = await self._files.read(normalize(manifest_list))
        return await self._offload.run(lambda: decode_manifest_list(manifest_list, data))

    async def manifest_paths(self, manifest_list: str) -> list[str]:
        return [manifest.path for manifest in await self.manifest_files(manifest_list)]

    async def entries(self, manifest: str) -> list[ManifestEntry]:
        """Returns all entries, DELETED ones included."""
        return await self.select_entries(manifest, list)

    async def file_paths(self, manifest: str) -> list[str]:
        """Returns the paths of all entries, DELETED ones included: the manifest names them."""
        return await self.select_entries(manifest, lambda entries: [entry.file_path for entry in entries])

    async def select_entries(
        self, manifest: str, select: Callable[[Iterator[ManifestEntry]], list[Item]]
    ) -> list[Item]:
        """Returns what `select` makes of the entries. It runs off the event loop."""
        data = await self._files.read(normalize(manifest))
        return await self._offload.run(lambda: decode_entries(manifest, data, select))
