"""What manifest lists and manifests name, in the one form of locations, with sizes. Lists are asked for at every look
and never change: the last ones are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from icestream import errors, limits
from icestream.iceberg.location import normalize_or_none
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import ManifestEntry


class ReferencedFile(NamedTuple):
    location: str
    bytes: int


class ReferencedFiles:
    def __init__(self, reader: ManifestReader) -> None:
        self._reader = reader
        self._lists: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._shared: dict[str, str] = {}  # the same manifest is in many lists

    async def manifests_in(self, manifest_list: str) -> tuple[str, ...]:
        """Raises when it cannot be read: then nobody knows what the table needs."""
        found = self._lists.get(manifest_list)
        if found is not None:
            self._lists.move_to_end(manifest_list)
            return found
        named = await self._manifests(manifest_list)
        if len(self._shared) > limits.CLEAN_UP_MANIFESTS_REMEMBERED:
            self._shared.clear()
        found = tuple(self._shared.setdefault(one.location, one.location) for one in named)
        self._lists[manifest_list] = found
        while len(self._lists) > limits.CLEAN_UP_LISTS_REMEMBERED:
            self._lists.popitem(last=False)
        return found

    async def manifests_left_in(self, manifest_list: str) -> tuple[str, ...]:
        """The same of a list that no snapshot names any more: others may have removed it."""
        try:
            return await self.manifests_in(manifest_list)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return ()

    async def live_files(self, manifest: str) -> list[ReferencedFile]:
        """Of a manifest that is in the table: what readers of it read."""
        return await self._reader.select_entries(manifest, lambda entries: list(_files(entries)))

    async def manifests(self, manifest_list: str) -> list[ReferencedFile]:
        """None where it is gone, or was cut off while it was written."""
        try:
            return await self._manifests(manifest_list)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []

    async def files(self, manifest: str) -> list[ReferencedFile]:
        """The same of a manifest, with those that it says are deleted."""
        try:
            return await self._reader.select_entries(manifest, lambda entries: list(_files(entries, with_deleted=True)))
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []

    async def _manifests(self, manifest_list: str) -> list[ReferencedFile]:
        manifests = await self._reader.manifest_files(manifest_list)
        return [
            ReferencedFile(location, manifest.length)
            for manifest in manifests
            if (location := normalize_or_none(manifest.path)) is not None
        ]


def _files(entries: Iterator[ManifestEntry], *, with_deleted: bool = False) -> Iterator[ReferencedFile]:
    for entry in entries:
        if (with_deleted or entry.is_live) and (location := normalize_or_none(entry.file_path)) is not None:
            yield ReferencedFile(location, entry.file_size_bytes)
