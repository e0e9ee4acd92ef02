"""What manifest lists and manifests name, in the one form of locations, with sizes. Lists are asked for at every look
and never change: the last ones are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from icestream import errors, limits
from icestream.iceberg.avro_manifests import AvroManifests, Record
from icestream.iceberg.location import normal_or_none
from icestream.iceberg.manifest_layout import DELETED


class ReferencedFile(NamedTuple):
    location: str
    bytes: int


class ReferencedFiles:
    def __init__(self, avro: AvroManifests) -> None:
        self._avro = avro
        self._lists: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._shared: dict[str, str] = {}  # the same manifest is in many lists

    async def manifests_in(self, manifest_list: str) -> tuple[str, ...]:
        """Raises when it cannot be read: then nobody knows what the table needs."""
        found = self._lists.get(manifest_list)
        if found is not None:
            self._lists.move_to_end(manifest_list)
            return found
        named = await self._avro.decoded(manifest_list, lambda records: list(_manifests(records)))
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
        return await self._avro.decoded(manifest, lambda records: list(_files(records)))

    async def manifests(self, manifest_list: str) -> list[ReferencedFile]:
        """None where it is gone, or was cut off while it was written."""
        try:
            return await self._avro.decoded(manifest_list, lambda records: list(_manifests(records)))
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []

    async def files(self, manifest: str) -> list[ReferencedFile]:
        """The same of a manifest, with those that it says are deleted."""
        try:
            return await self._avro.decoded(manifest, lambda records: list(_files(records, with_deleted=True)))
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return []


def _manifests(records: Iterator[Record]) -> Iterator[ReferencedFile]:
    for one in records:
        if (found := normal_or_none(one["manifest_path"])) is not None:
            yield ReferencedFile(found, int(one.get("manifest_length") or 0))


def _files(records: Iterator[Record], *, with_deleted: bool = False) -> Iterator[ReferencedFile]:
    for one in records:
        file = one["data_file"]
        if (with_deleted or one["status"] != DELETED) and (found := normal_or_none(file["file_path"])) is not None:
            yield ReferencedFile(found, int(file.get("file_size_in_bytes") or 0))
