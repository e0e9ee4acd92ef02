"""Bytes of files that a backup and a restore have in memory: those that were read and are not written yet, counted at
the stores at every read. They do not depend on the size or the number of the files.
"""

from __future__ import annotations

import random
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icestream import limits
from icestream.backup.backup_target import PARTIAL, DirectoryTarget
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.processes.restore_run import RestorePlan
from icestream.processes.restored_tables import RestoredTables
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.tasks import ThreadOffload
from icestream.settings import Settings
from tests.support.backup_world import ORDERS, BackupWorld, backup_world
from tests.support.node_settings import node_settings
from tests.support.restore_world import BESIDE, RestoreWorld
from tests.support.topic_lake import row

pytestmark = pytest.mark.asyncio
FILES, SMALL_FILES, FILE_BYTES = 10, 30, 6 * limits.MIB
# A chunk of each file that is copied at once: read, and perhaps kept back to be encrypted as a whole frame.
BOUND = 3 * max(limits.BACKUP_UPLOADS_AT_ONCE, limits.RESTORE_FILES_AT_ONCE) * limits.BACKUP_CHUNK_BYTES


class BytesUnderWay:
    """Counts bytes that were read from a source and have not reached the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = self._written()
        self._read = 0
        self._lock = threading.Lock()
        self.peak = 0

    def _written(self) -> int:
        sizes: dict[int, int] = {}  # by inode: a file moves out of the folder for temporary files while this looks
        for folder in (self._folder / PARTIAL, self._folder):
            for path in folder.rglob("*"):
                try:
                    entry = path.stat()
                except FileNotFoundError:  # a temporary file
                    continue
                if stat.S_ISREG(entry.st_mode):
                    sizes[entry.st_ino] = entry.st_size
        return sum(sizes.values())

    def counted(self, read: Callable[[str], Iterator[bytes]]) -> Callable[[str], Iterator[bytes]]:
        def chunks(location: str) -> Iterator[bytes]:
            for chunk in read(location):
                with self._lock:
                    self._read += len(chunk)
                    self.peak = max(self.peak, self._read - (self._written() - self._before))
                yield chunk

        return chunks


class CountedSource:
    """Files of the warehouse whose reads are counted."""

    def __init__(self, chunks: Callable[[str], Iterator[bytes]]) -> None:
        self.chunks = chunks


class CountedTarget(DirectoryTarget):
    """A target whose reads are counted."""

    count: Callable[[Callable[[str], Iterator[bytes]]], Callable[[str], Iterator[bytes]]]

    def chunks(self, name: str) -> Iterator[bytes]:
        return self.count(super().chunks)(name)


async def with_large_files(world: BackupWorld) -> int:
    """A table with a few large files and many small ones; returns the bytes of all."""
    await world.create_topic()
    await world.bind()
    chance, size = random.Random(1), 0
    assert world.lake is not None
    for number in range(FILES + SMALL_FILES):
        payload = chance.randbytes(FILE_BYTES if number < FILES else 100)
        await world.publish(1)
        entry = await world.lake.write([row(number, payload=payload)])
        await world.lake.round((0, number, number + 1), entries=[entry])
        size += len(payload)
    world.committed = FILES + SMALL_FILES
    return size


def settings_of(world: BackupWorld) -> Settings:
    warehouse = f"file:{world.folder / 'warehouse'}"
    return node_settings(world.folder / "data", "iceberg", iceberg={"warehouse": warehouse})


@pytest.mark.parametrize("key", [None, BackupKey(bytes(range(32)))], ids=["plain", "encrypted"])
async def test_memory_of_a_backup_and_a_restore_does_not_grow_with_its_files(
    tmp_path: Path, key: BackupKey | None
) -> None:
    threads = ThreadOffload("copy", limits.BACKUP_UPLOADS_AT_ONCE)
    async with backup_world(tmp_path) as world:
        size = await with_large_files(world)
        files = open_files(StoreOptions())
        target = CountedTarget(tmp_path / "backups", threads)
        world.target = target
        run = world.run(key=key)
        run._upload._offload = threads
        under_way = BytesUnderWay(tmp_path / "backups")
        source = WarehouseFiles(file_opener(files, [str(tmp_path)]))
        run._source = CountedSource(under_way.counted(source.chunks))
        root = await run.run()
        assert 0 < under_way.peak <= BOUND < size / 2
        of_restore = BytesUnderWay(tmp_path / "warehouse")
        target.count = of_restore.counted
        (cut,) = [topic for topic in root.topics if topic.name == str(ORDERS)]
        restore = RestoreWorld(world).run_of(RestorePlan([(cut, BESIDE)]), key, StoredBackups(target, key))
        restore._offload, restore._writer = threads, RestoredTables(settings_of(world), files)
        (topic,) = await restore.run(root)
        assert topic.files == FILES + SMALL_FILES
        assert 0 < of_restore.peak <= BOUND
        assert len(await RestoreWorld(world).rows()) == FILES + SMALL_FILES
    threads.close()
