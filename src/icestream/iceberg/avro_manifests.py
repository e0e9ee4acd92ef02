"""Manifest lists and manifests: Avro files that name the data of a table. Read here, in the lake process alone.

A file is read as a whole, within the bound of metadata files, and decoded beside the loop. Avro's own library is loaded
when the first one is read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from icestream import errors
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normal
from icestream.runtime.tasks import Offload

Record = dict[str, Any]
Item = TypeVar("Item")
Taken = Callable[[Iterator[Record]], list[Item]]


class AvroManifests:
    def __init__(self, files: TableFiles, offload: Offload) -> None:
        self._files = files
        self._offload = offload

    @property
    def table_files(self) -> TableFiles:
        return self._files

    async def manifests(self, manifest_list: str) -> list[str]:
        return await self.decoded(manifest_list, lambda records: [str(one["manifest_path"]) for one in records])

    async def files(self, manifest: str) -> list[str]:
        """Also those that the manifest says are deleted: it names them."""
        return await self.decoded(manifest, lambda records: [str(one["data_file"]["file_path"]) for one in records])

    async def records(self, location: str) -> list[Record]:
        """Everything that it says."""
        return await self.decoded(location, list)

    async def decoded(self, location: str, taken: Taken[Any]) -> list[Any]:
        data = await self._files.read(normal(location))
        return await self._offload.run(lambda: decode(location, data, taken))


def decode(location: str, data: bytes, taken: Taken[Item]) -> list[Item]:
    """Blocks. Raises MetadataFileDamaged."""
    import fastavro

    try:
        return taken(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001  # Avro's library raises what it likes about bytes that are none
        raise errors.MetadataFileDamaged(f"{location} is no manifest: {error!r}") from None
