"""Table files in object stores; LocalFiles is the counterpart on disk.

A finished upload is durable, so there is nothing to sync. Each file is written once, with a conditional write that
fails if its name exists. A node that was fenced off cannot write or remove files (warehouse_fence.py).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalogs.bucket import Objects, open_bucket
from icestream.catalogs.object_reader import ObjectReader
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_options import SCHEMES, StoreKind, StoreOptions
from icestream.iceberg.file_io import LocalFiles, TableFiles, create_each, open_local
from icestream.iceberg.location import normalize
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import Offload, ThreadOffload


class ObjectLocation(NamedTuple):
    """A location, split into the kind of store, the bucket and the name of the object."""

    kind: StoreKind
    bucket: str
    name: str


def parse_object_location(location: str) -> ObjectLocation:
    scheme, _, rest = normalize(location).partition("://")
    kind = SCHEMES.get(scheme)
    if kind is None or kind == "local":
        schemes = ", ".join(f"{name}://" for name in SCHEMES if name != "file")
        raise errors.InvalidInput(f"unsupported location {location}", hint=f"locations begin with file:/, {schemes}")
    host, _, name = rest.partition("/")
    return ObjectLocation(kind, host.partition("@")[0], name)


async def _allow_writes() -> None:
    """The default: writes are not fenced."""


class ObjectFiles:
    """Table files as objects; buckets are opened with their first file."""

    def __init__(self, open_objects: Callable[[StoreKind, str], Objects]) -> None:
        """`open_objects(kind, bucket)` is called once for each bucket."""
        self._open = open_objects
        self._buckets: dict[tuple[StoreKind, str], Objects] = {}
        self.admit: Callable[[], Awaitable[None]] = _allow_writes  # raises if this node may not write

    def _bucket(self, place: ObjectLocation) -> Objects:
        key = place.kind, place.bucket
        if key not in self._buckets:
            self._buckets[key] = self._open(*key)
        return self._buckets[key]

    def objects_at(self, location: str) -> Objects:
        """Returns the bucket of a location."""
        return self._bucket(parse_object_location(location))

    def reader(self, location: str) -> ObjectReader:
        """Returns a file object for libraries that read ranges; every read blocks. Raises FileNotFoundError."""
        place = parse_object_location(location)
        return self._bucket(place).reader(place.name)

    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None:
        place = parse_object_location(location)
        # Before every write, because a cluster may be fenced at any time.
        await self.admit()
        await self._bucket(place).put_new(place.name, b"".join(pieces))

    async def create_large(self, location: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """The bytes go into a temporary file first: an upload in parts, and its repeat, reads them from there."""
        place = parse_object_location(location)
        with tempfile.NamedTemporaryFile(prefix="icestream-") as file:

            def spool() -> None:
                for piece in pieces():
                    file.write(piece)
                file.flush()

            await asyncio.to_thread(spool)
            await self.admit()
            await self._bucket(place).upload(place.name, Path(file.name))

    async def create_all(self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False) -> None:
        await create_each(self, files)

    async def read(self, location: str) -> bytes:
        """Returns a whole metadata file. Raises MetadataFileMissing, and MetadataFileDamaged for one that is too
        large."""
        place = parse_object_location(location)
        try:
            data = await self._bucket(place).get(place.name, limits.CATALOG_DOCUMENT_BYTES_MAX)
        except errors.UnexpectedAnswer as error:
            raise errors.MetadataFileDamaged(f"{error.message}: it is not a metadata file") from None
        if data is None:
            raise errors.MetadataFileMissing(
                f"Failed to open input stream for file: {location}", hint="restore the file, or register another one"
            )
        return data

    async def exists(self, location: str) -> bool:
        place = parse_object_location(location)
        return await self._bucket(place).exists(place.name)

    async def size(self, location: str) -> int:
        place = parse_object_location(location)
        return await self._bucket(place).size(place.name) or 0

    async def remove(self, location: str) -> None:
        """Removes a file. Failures are ignored: a scan for orphans finds the file later."""
        try:
            place = parse_object_location(location)
            await self.admit()
            await self._bucket(place).remove(place.name)
        except errors.IcestreamError:
            return

    async def names(self, location: str) -> list[tuple[str, int]]:
        place = parse_object_location(location)
        return await self._bucket(place).directly_in(place.name)

    async def files_below(self, location: str) -> list[str]:
        place = parse_object_location(location)
        prefix = place.name.rstrip("/") + "/"
        names = await self._bucket(place).names_below(prefix)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    async def remove_empty(self, location: str) -> None:
        """Object stores have no directories."""

    async def make_durable(self, locations: Sequence[str]) -> None:
        """Uploads are durable already."""

    async def make_folder(self, location: str) -> None:
        """Object stores have no directories."""


class SchemeFiles:
    """Files on disk and in object stores, chosen by the scheme of a location."""

    def __init__(self, local: TableFiles, objects: ObjectFiles) -> None:
        self._local = local
        self._objects = objects

    def reader(self, location: str) -> ObjectReader:
        return self._objects.reader(location)

    def objects_at(self, location: str) -> Objects:
        return self._objects.objects_at(location)

    def admit_by(self, admit: Callable[[], Awaitable[None]]) -> None:
        """Sets the check that is awaited before an object is written or removed; it raises if that is not allowed."""
        self._objects.admit = admit

    def _files_for(self, location: str) -> TableFiles:
        return self._local if normalize(location).startswith("file:") else self._objects

    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None:
        await self._files_for(location).create(location, pieces, is_synced=is_synced)

    async def create_large(self, location: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        await self._files_for(location).create_large(location, pieces)

    async def create_all(self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False) -> None:
        if all(normalize(location).startswith("file:") for location, _ in files):
            await self._local.create_all(files)
        else:
            await create_each(self, files)

    async def read(self, location: str) -> bytes:
        return await self._files_for(location).read(location)

    async def exists(self, location: str) -> bool:
        return await self._files_for(location).exists(location)

    async def size(self, location: str) -> int:
        return await self._files_for(location).size(location)

    async def remove(self, location: str) -> None:
        await self._files_for(location).remove(location)

    async def names(self, location: str) -> list[tuple[str, int]]:
        return await self._files_for(location).names(location)

    async def files_below(self, location: str) -> list[str]:
        return await self._files_for(location).files_below(location)

    async def remove_empty(self, location: str) -> None:
        await self._files_for(location).remove_empty(location)

    async def make_folder(self, location: str) -> None:
        await self._files_for(location).make_folder(location)

    async def make_durable(self, locations: Sequence[str]) -> None:
        local = [location for location in locations if normalize(location).startswith("file:")]
        if local:
            await self._local.make_durable(local)


def open_files(
    options: StoreOptions,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    disk: Offload | None = None,
    local: LocalFiles | None = None,
) -> SchemeFiles:
    """Returns the files of tables, in local directories and in buckets. Each bucket has its own circuit breaker: they
    fail independently. Nothing is connected before the first use."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    timeouts = CallTimeouts(request_seconds=options.request_seconds)

    def objects(kind: StoreKind, bucket: str) -> Objects:
        return open_bucket(options, kind, bucket, StorageCaller(f"object store {bucket}", clock, randomness, timeouts))

    local = local or LocalFiles(open_local, disk or ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE))
    return SchemeFiles(local, ObjectFiles(objects))
