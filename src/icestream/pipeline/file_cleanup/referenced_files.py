"""Reads which files manifest lists and manifests refer to, with normalized locations and sizes. Manifest lists are
needed at every check and never change: the most recent ones are cached.

A location that cannot be normalized might mean any file. In what a table needs it raises InvalidInput, which stops the
clean-up of that table (hazard 82); in what nothing refers to any more it is left out, and its file stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from icestream import errors, limits
from icestream.iceberg.location import normalize, normalize_or_none
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import ManifestEntry


class ReferencedFile(NamedTuple):
    """A file that a manifest list or manifest refers to."""

    location: str
    bytes: int


class ReferencedFiles:
    """Reads manifest lists and manifests."""

    def __init__(self, reader: ManifestReader) -> None:
        self._reader = reader
        self._lists: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._shared: dict[str, str] = {}  # interned, because the same manifest is in many lists

    async def manifests_in(self, manifest_list: str) -> tuple[str, ...]:
        """Raises if the list, or a location in it, cannot be read: then it is not known what the table needs."""
        cached = self._lists.get(manifest_list)
        if cached is not None:
            self._lists.move_to_end(manifest_list)
            return cached
        manifests = [
            ReferencedFile(normalize(manifest.path), manifest.length)
            for manifest in await self._reader.manifest_files(manifest_list)
        ]
        if len(self._shared) > limits.CLEAN_UP_MANIFESTS_REMEMBERED:
            self._shared.clear()
        locations = tuple(self._shared.setdefault(file.location, file.location) for file in manifests)
        self._lists[manifest_list] = locations
        while len(self._lists) > limits.CLEAN_UP_LISTS_REMEMBERED:
            self._lists.popitem(last=False)
        return locations

    async def manifests_in_unreferenced(self, manifest_list: str) -> tuple[str, ...]:
        """Like `manifests_in`, for a list that no snapshot refers to any more; empty if another engine has removed
        it."""
        try:
            return await self.manifests_in(manifest_list)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return ()

    async def live_files(self, manifest: str) -> list[ReferencedFile]:
        """Returns the live files of a manifest. Raises InvalidInput for a location that cannot be normalized."""
        return await self._reader.select_entries(
            manifest,
            lambda entries: [
                ReferencedFile(normalize(entry.file_path), entry.file_size_bytes) for entry in entries if entry.is_live
            ],
        )

    async def manifests(self, manifest_list: str) -> list[ReferencedFile]:
        """Empty if the list does not exist, or was cut off while it was written."""
        try:
            return await self._manifests(manifest_list)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []

    async def files(self, manifest: str) -> list[ReferencedFile]:
        """Returns all files of a manifest, those that it records as deleted too; empty if it cannot be read."""
        try:
            return await self._reader.select_entries(manifest, lambda entries: list(_files(entries)))
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []

    async def _manifests(self, manifest_list: str) -> list[ReferencedFile]:
        manifests = await self._reader.manifest_files(manifest_list)
        return [
            ReferencedFile(location, manifest.length)
            for manifest in manifests
            if (location := normalize_or_none(manifest.path)) is not None
        ]


def _files(entries: Iterator[ManifestEntry]) -> Iterator[ReferencedFile]:
    for entry in entries:
        if (location := normalize_or_none(entry.file_path)) is not None:
            yield ReferencedFile(location, entry.file_size_bytes)
