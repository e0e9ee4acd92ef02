"""Documents of tables and views: written once under a name of their own, read through a memory of the newest.

A metadata file never changes, so a document that was read or written is known by the name of its file.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from icestream import errors
from icestream.iceberg import metadata_file, table_metadata, view_metadata
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import check_inside
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.view_metadata import ViewMetadata
from icestream.runtime.randomness import Randomness

Document = TableMetadata | ViewMetadata


@lru_cache(1024)
def _allowed_folder(location: str, roots: tuple[str, ...]) -> str:
    """Most commits write into a few."""
    return check_inside(location, roots)


class Documents:
    def __init__(self, files: TableFiles, randomness: Randomness, roots: Sequence[str], cache_bytes: int) -> None:
        """`roots`: where the catalog may read and write at all."""
        self._files = files
        self._randomness = randomness
        self._roots = tuple(roots)
        self._room = cache_bytes
        self._kept: OrderedDict[str, tuple[Document, int]] = OrderedDict()  # the least recently used first
        self._kept_bytes = 0

    def new_uuid(self) -> str:
        """By chance, of version 4."""
        return str(uuid.UUID(bytes=self._randomness.token(16), version=4))

    # --- reading ---

    async def checked_table(self, location: str) -> TableMetadata:
        """For whoever is told where it is: a file that somebody removed is missed, although its document is known."""
        if location in self._kept and not await self._files.exists(check_inside(location, self._roots)):
            self._drop(location)
        return await self.table(location)

    async def table(self, location: str) -> TableMetadata:
        found = await self._document(location, table_metadata.decode)
        if not isinstance(found, TableMetadata):
            raise errors.MetadataFileDamaged(f"{location} is no metadata file of a table: it is a view's")
        return found

    async def read_table(self, location: str) -> TableMetadata:
        """From its file, and not kept: whoever goes through all tables must not push out those in use."""
        data = metadata_file.decompress(location, await self._files.read(check_inside(location, self._roots)))
        try:
            return table_metadata.decode(data)
        except errors.InvalidInput as error:
            raise errors.MetadataFileDamaged(f"{location} is no metadata file: {error.message}") from None

    async def view(self, location: str) -> ViewMetadata:
        found = await self._document(location, view_metadata.decode)
        if not isinstance(found, ViewMetadata):
            raise errors.MetadataFileDamaged(f"{location} is no metadata file of a view: it is a table's")
        return found

    async def _document(self, location: str, decode: Callable[[bytes], Document]) -> Document:
        kept = self._kept.get(location)
        if kept is not None:
            self._kept.move_to_end(location)
            return kept[0]
        data = metadata_file.decompress(location, await self._files.read(check_inside(location, self._roots)))
        try:
            found = decode(data)
        except errors.InvalidInput as error:
            raise errors.MetadataFileDamaged(f"{location} is no metadata file: {error.message}") from None
        self._keep(location, found, len(data))
        return found

    def _keep(self, location: str, document: Document, size: int) -> None:
        self._drop(location)
        self._kept[location] = document, size
        self._kept_bytes += size
        while self._kept_bytes > self._room and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]

    def _drop(self, location: str) -> None:
        if location in self._kept:
            self._kept_bytes -= self._kept.pop(location)[1]

    # --- writing ---

    async def write(
        self, document: Document, properties: Mapping[str, str], version: int, *, is_synced: bool = True
    ) -> str:
        """The location of the new file, which is on disk; else whoever wants it there makes it durable."""
        directory = _allowed_folder(metadata_file.directory(document.location, properties), self._roots)
        mark = metadata_file.own_uuid(self._randomness.token(16))
        location = f"{directory}/{metadata_file.new_name(version, mark, properties)}"
        pieces = document.pieces()
        await self._files.create(location, metadata_file.compress(location, pieces), is_synced=is_synced)
        self._keep(location, document, sum(map(len, pieces)))
        return location

    async def write_new(self, tables: Sequence[TableMetadata]) -> list[str]:
        """The first metadata files of new tables, each in a folder of its own: their locations. They share one sync and
        are on disk when this returns; after an error none is left."""
        files: dict[str, tuple[TableMetadata, Sequence[bytes]]] = {}
        for one in tables:
            directory = _allowed_folder(metadata_file.directory(one.location, one.properties), self._roots)
            mark = metadata_file.own_uuid(self._randomness.token(16))
            files[f"{directory}/{metadata_file.new_name(0, mark, one.properties)}"] = one, one.pieces()
        has_own_folders = not any(metadata_file.PATH in one.properties for one in tables)
        packed = [(location, metadata_file.compress(location, pieces)) for location, (_, pieces) in files.items()]
        await self._files.create_all(packed, in_new_folders=has_own_folders)
        for location, (one, pieces) in files.items():
            self._keep(location, one, sum(map(len, pieces)))
        return [*files]

    async def make_room(self, document: TableMetadata) -> None:
        """For engines that write a manifest where they were told to, and make no folder for it (DuckDB)."""
        directory = metadata_file.directory(document.location, document.properties)
        await self._files.make_folder(check_inside(directory, self._roots))

    async def forget(self, location: str) -> None:
        """A file that nothing points to, and that nothing ever will. Raises InvalidInput outside of the warehouse."""
        found = check_inside(location, self._roots)
        self._drop(location)
        await self._files.remove(found)

    async def make_durable(self, locations: Sequence[str]) -> None:
        """What others wrote."""
        if locations:
            await self._files.make_durable([check_inside(one, self._roots) for one in locations])
