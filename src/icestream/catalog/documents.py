"""Metadata documents of tables and views: written once, each under a name of its own, and read through an LRU cache.

A metadata file never changes, so its location identifies a cached document.
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
def _check_directory(location: str, roots: tuple[str, ...]) -> str:
    """Cached: most commits write into a few directories."""
    return check_inside(location, roots)


class Documents:
    """Reads and writes metadata files below the roots of the catalog."""

    def __init__(self, files: TableFiles, randomness: Randomness, roots: Sequence[str], cache_bytes: int) -> None:
        """`roots`: the locations below which the catalog may read and write."""
        self._files = files
        self._randomness = randomness
        self._roots = tuple(roots)
        self._cache_bytes_max = cache_bytes
        self._cache: OrderedDict[str, tuple[Document, int]] = OrderedDict()  # the least recently used first
        self._cache_bytes = 0

    def new_uuid(self) -> str:
        """Returns a random UUID of version 4."""
        return str(uuid.UUID(bytes=self._randomness.token(16), version=4))

    # --- reading ---

    async def checked_table(self, location: str) -> TableMetadata:
        """Returns the table of a metadata file that exists.

        Raises MetadataFileMissing for a removed file even if its document is cached: clients get the location, and read
        the file themselves.
        """
        if location in self._cache and not await self._files.exists(check_inside(location, self._roots)):
            self._evict(location)
        return await self.table(location)

    async def table(self, location: str) -> TableMetadata:
        document = await self._read(location, table_metadata.decode)
        if not isinstance(document, TableMetadata):
            raise errors.MetadataFileDamaged(f"{location} is the metadata file of a view, not of a table")
        return document

    async def read_table(self, location: str) -> TableMetadata:
        """Reads the file and does not cache it: a scan of all tables must not evict those in use."""
        data = metadata_file.decompress(location, await self._files.read(check_inside(location, self._roots)))
        try:
            return table_metadata.decode(data)
        except errors.InvalidInput as error:
            raise _not_a_document(location, error) from None

    async def read_file(self, location: str) -> bytes:
        """Reads a manifest list or manifest that a client names. Raises InvalidInput outside the warehouse."""
        return await self._files.read(check_inside(location, self._roots))

    async def view(self, location: str) -> ViewMetadata:
        document = await self._read(location, view_metadata.decode)
        if not isinstance(document, ViewMetadata):
            raise errors.MetadataFileDamaged(f"{location} is the metadata file of a table, not of a view")
        return document

    async def _read(self, location: str, decode: Callable[[bytes], Document]) -> Document:
        """Returns a document from the cache, or reads and caches it. Raises MetadataFileMissing,
        MetadataFileDamaged."""
        cached = self._cache.get(location)
        if cached is not None:
            self._cache.move_to_end(location)
            return cached[0]
        data = metadata_file.decompress(location, await self._files.read(check_inside(location, self._roots)))
        try:
            document = decode(data)
        except errors.InvalidInput as error:
            raise _not_a_document(location, error) from None
        self._insert(location, document, len(data))
        return document

    def _insert(self, location: str, document: Document, size: int) -> None:
        self._evict(location)
        self._cache[location] = document, size
        self._cache_bytes += size
        # The newest document stays, even if it alone exceeds the bound: its table is in use.
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            self._cache_bytes -= self._cache.popitem(last=False)[1][1]

    def _evict(self, location: str) -> None:
        if location in self._cache:
            self._cache_bytes -= self._cache.pop(location)[1]

    # --- writing ---

    async def write(
        self, document: Document, properties: Mapping[str, str], version: int, *, is_synced: bool = True
    ) -> str:
        """Writes a new metadata file; returns its location. Without `is_synced` the caller makes it durable."""
        directory = _check_directory(metadata_file.directory(document.location, properties), self._roots)
        # A fresh name for each attempt: two attempts of one version never overwrite each other.
        file_uuid = metadata_file.own_uuid(self._randomness.token(16))
        location = f"{directory}/{metadata_file.new_name(version, file_uuid, properties)}"
        pieces = document.pieces()
        await self._files.create(location, metadata_file.compress(location, pieces), is_synced=is_synced)
        # Cached at once: the next commit, and the answer to this one, need it.
        self._insert(location, document, sum(map(len, pieces)))
        return location

    async def write_new(self, tables: Sequence[TableMetadata]) -> list[str]:
        """Writes the first metadata files of new tables, durably and with one sync; returns their locations. After an
        error none is left."""
        files: dict[str, tuple[TableMetadata, Sequence[bytes]]] = {}
        for table in tables:
            directory = _check_directory(metadata_file.directory(table.location, table.properties), self._roots)
            file_uuid = metadata_file.own_uuid(self._randomness.token(16))
            files[f"{directory}/{metadata_file.new_name(0, file_uuid, table.properties)}"] = table, table.pieces()
        has_own_directories = not any(metadata_file.PATH in table.properties for table in tables)
        compressed = [(location, metadata_file.compress(location, pieces)) for location, (_, pieces) in files.items()]
        await self._files.create_all(compressed, in_new_folders=has_own_directories)
        for location, (table, pieces) in files.items():
            self._insert(location, table, sum(map(len, pieces)))
        return [*files]

    async def create_directory(self, document: TableMetadata) -> None:
        """Creates the metadata directory of a staged table: DuckDB writes its manifests there and creates none."""
        directory = metadata_file.directory(document.location, document.properties)
        await self._files.make_folder(check_inside(directory, self._roots))

    async def remove(self, location: str) -> None:
        """Removes a file that no pointer leads to and none ever will. Raises InvalidInput outside the warehouse."""
        file = check_inside(location, self._roots)
        self._evict(location)
        await self._files.remove(file)

    async def make_durable(self, locations: Sequence[str]) -> None:
        """Syncs files and directories that other engines wrote."""
        if locations:
            await self._files.make_durable([check_inside(location, self._roots) for location in locations])


def _not_a_document(location: str, error: errors.IcestreamError) -> errors.MetadataFileDamaged:
    return errors.MetadataFileDamaged(f"{location} is not a metadata file: {error.message}")
