"""A warehouse on a simulated disk, and a catalog over it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icestream.catalog.catalog import Catalog
from icestream.catalog.cleanup.catalog_cleanup import CatalogCleanup
from icestream.catalogs.bucket import Objects, open_bucket
from icestream.catalogs.object_files import ObjectFiles, SchemeFiles
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.store_options import StoreKind, StoreOptions
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.runtime.clock import SimulatedClock, SystemClock
from icestream.runtime.randomness import SeededRandomness, SystemRandomness
from icestream.runtime.simulated_disk import SimulatedDisk, SimulatedFile
from icestream.runtime.tasks import InlineOffload
from tests.support.tables import SCHEMA

WAREHOUSE = "file:/warehouse"
NS = ("ns",)
TABLE = Identifier(NS, "table")


class SimulatedFolder:
    """One folder of a disk whose names are whole paths."""

    def __init__(self, disk: SimulatedDisk, path: Path, is_new: bool) -> None:
        self.disk, self.path = disk, path
        if not is_new and not any(name.startswith(f"{path}/") for name in disk.names()):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

    def _named(self, name: str) -> str:
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        below = [name.removeprefix(f"{self.path}/") for name in self.disk.names() if name.startswith(f"{self.path}/")]
        return [name for name in below if "/" not in name]

    def exists(self, name: str) -> bool:
        return name in self.names()

    def open(self, name: str) -> SimulatedFile:
        return self.disk.open(self._named(name))

    def create(self, name: str) -> SimulatedFile:
        return self.disk.create(self._named(name))

    def rename(self, old: str, new: str) -> None:
        self.disk.rename(self._named(old), self._named(new))

    def remove(self, name: str) -> None:
        self.disk.remove(self._named(name))

    def sync(self) -> None:
        self.disk.sync()

    def modified_ms(self, name: str) -> int:
        return 0 if f"file:{self._named(name)}" in old_files(self.disk) else 2**60

    def remove_empty(self) -> None:
        """Does nothing: the simulated disk has no directories."""

    def disk_number(self) -> int:
        return next((number for number, path in mounts(self.disk) if str(self.path).startswith(path)), 0)

    def sync_disk(self) -> None:
        self.disk.step("sync_disk", str(self.path))
        for name in self.disk.names():
            self.disk._entries[name].sync()
        self.disk.sync()

    def free_bytes(self) -> int:
        return self.disk.free_bytes()

    def lock(self, name: str) -> SimulatedFile:
        return self.disk.lock(self._named(name))

    def describe(self, name: str) -> str:
        return self._named(name)

    def close(self) -> None:
        """Does nothing: no resource is held."""


def old_files(disk: SimulatedDisk) -> set[str]:
    """Files that were written long ago; the others are new for ever."""
    names: set[str] = disk.__dict__.setdefault("old_files", set())
    return names


def mounts(disk: SimulatedDisk) -> list[tuple[int, str]]:
    """Paths that count as disks of their own, numbered from 1."""
    entries: list[tuple[int, str]] = disk.__dict__.setdefault("mounts", [])
    return entries


def files_on(disk: SimulatedDisk) -> LocalFiles:
    def open_folder(path: Path, is_new: bool, is_lasting: bool = True) -> SimulatedFolder:
        return SimulatedFolder(disk, path, is_new)

    return LocalFiles(open_folder, InlineOffload())


def files_in_memory() -> SchemeFiles:
    """Files of object stores of every kind, in memory."""

    def objects(_kind: StoreKind, bucket: str) -> Objects:
        caller = StorageCaller(f"object store {bucket}", SystemClock(), SystemRandomness())
        return open_bucket(StoreOptions(), "memory", bucket, caller)

    return SchemeFiles(LocalFiles(open_local, InlineOffload()), ObjectFiles(objects))


class CatalogWorld:
    """A store, a disk, a clock, and the catalog that lives with them."""

    def __init__(
        self,
        store: MetadataStore | None = None,
        disk: SimulatedDisk | None = None,
        seed: int = 1,
        mounts_at: Sequence[str] = (),
        warehouse: str = WAREHOUSE,
    ) -> None:
        """`warehouse`: on the disk, or in S3, whose objects are kept in memory."""
        self.clock = SimulatedClock()
        self.store = store or MemoryStore(self.clock)
        self.disk = disk or SimulatedDisk(1)
        mounts(self.disk).extend(enumerate(mounts_at, 1))
        self.warehouse = warehouse
        self.files: TableFiles = files_on(self.disk) if warehouse.startswith("file:") else files_in_memory()
        self.catalog = self.another(seed)
        self.keeping = self.cleanup_of(self.catalog)

    def another(self, seed: int, **more: Any) -> Catalog:
        """Another node, or another life of this one: it knows nothing but what is stored."""
        return Catalog(self.store, self.files, self.clock, SeededRandomness(seed), self.warehouse, **more)

    def cleanup_of(self, catalog: Catalog) -> CatalogCleanup:
        return catalog.cleanup(ManifestReader(self.files, InlineOffload()))

    async def clean_up(self) -> int:
        """Performs the clean-up that is due; returns the number of steps."""
        return len([None async for _ in self.keeping.work()])

    async def with_table(self, name: str = "table", **request: Any) -> Identifier:
        if await self.store.get("/catalog/namespaces/:ns") is None:
            await self.catalog.namespaces.create(NS, {})
        identifier = Identifier(NS, name)
        await self.catalog.tables.create(identifier, {"schema": SCHEMA, **request})
        return identifier

    def metadata_files(self) -> list[str]:
        return [f"file:{name}" for name in self.disk.names() if name.endswith(".metadata.json")]

    def write(self, location: str, data: bytes = b"x") -> None:
        """Writes a file as another engine does: without a sync."""
        file = self.disk.create(location.removeprefix("file:"))
        file.write_at(0, data)
        file.close()
