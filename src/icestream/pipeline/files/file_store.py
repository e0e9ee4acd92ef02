"""Stores of data files: a folder, or an object store. Every file has a fresh name that exists nowhere.

    put      takes a file, in one piece or in several that follow one another; may write it later
    settle   when it returns, all files and their directory entries are durable; returns the failures by location

Local syncs run in threads while the next file is encoded, and folders are synced once, at the end. If there are many
files, those after the first few share one sync of their disk, which covers all folders too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.iceberg.file_io import sync_disk
from icestream.iceberg.location import normalize

if TYPE_CHECKING:
    from icestream.catalogs.object_files import SchemeFiles

Failures = dict[str, str]
_PIECES_AT_ONCE: Final = 1_024  # Linux takes no more of them in a call
# Folders whose own directory entries are durable, as this process knows. A folder that exists may come from a task that
# was killed before it synced it.
_durable_folders: set[Path] = set()


class FileStore(Protocol):
    """Writes the data files of one task: see the head of the module."""

    def put(self, location: str, *pieces: Any) -> None: ...

    def settle(self) -> Failures: ...

    def read(self, location: str) -> bytes:
        """Returns a whole file. Raises OSError or what the object store raises."""

    def open(self, location: str) -> Any:
        """Returns a file of Arrow, which reads what it is asked for. Raises as `read`."""


class FolderStore:
    """`file:/…`"""

    def __init__(self, threads: int = limits.DATA_FILE_SYNC_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._syncs: dict[str, Future[None]] = {}
        self._folders: dict[Path, list[str]] = {}
        self._above: set[Path] = set()  # parents of folders that are new, or new to this process
        self._disks: dict[int, int] = {}  # descriptors by device: syncfs reports errors since the descriptor was opened
        self._files = 0
        self._failures: Failures = {}

    def put(self, location: str, *pieces: Any) -> None:
        """Writes a file; it is synced in a thread, or with its whole disk at the end. Failures are returned by
        `settle`."""
        path = Path(normalize(location).removeprefix("file:"))
        self._files += 1
        try:
            descriptor = self._create(path)
            try:
                _write(descriptor, pieces)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            self._failures[location] = f"{path}: {error.strerror}"
            return
        self._folders.setdefault(path.parent, []).append(location)
        # Closed without a sync: the whole disk is synced once, at the end.
        if self._is_many:
            os.close(descriptor)
        else:
            self._syncs[location] = self._pool.submit(_sync, descriptor)

    @property
    def _is_many(self) -> bool:
        return self._files > limits.FILES_SYNCED_APART_MAX

    def settle(self) -> Failures:
        """Waits until all files and folders are durable. A file whose sync failed is a failure, even if it can be
        read."""
        for location, sync in self._syncs.items():
            try:
                sync.result()
            except OSError as error:
                self._failures[location] = f"{location}: {error.strerror}"
        self._pool.shutdown()
        if self._is_many:
            self._sync_disks()
        else:
            self._sync_folders()
        for number in self._disks.values():
            os.close(number)
        if not self._failures:
            _remember(self._folders)
        return self._failures

    def read(self, location: str) -> bytes:
        return Path(normalize(location).removeprefix("file:")).read_bytes()

    def open(self, location: str) -> Any:
        return pa.OSFile(normalize(location).removeprefix("file:"))

    def _sync_folders(self) -> None:
        """Syncs the folders of new files, and the parents of new folders."""
        below = {folder: [*self._folders.get(folder, ())] for folder in (*self._folders, *self._above)}
        for folder in self._above:  # the files in a new folder are lost with its directory entry
            below[folder] += [
                location
                for below_folder, locations in self._folders.items()
                if folder in below_folder.parents
                for location in locations
            ]
        for folder, locations in below.items():
            try:
                _sync(_opened(folder))
            except OSError as error:
                self._failures |= dict.fromkeys(locations, f"{folder}: {error.strerror}")

    def _sync_disks(self) -> None:
        for number in self._disks.values():
            try:
                sync_disk(number)
            except OSError as error:  # it is not known which of the files are lost
                all_locations = (location for locations in self._folders.values() for location in locations)
                self._failures |= dict.fromkeys(all_locations, f"the disk: {error.strerror}")

    def _create(self, path: Path) -> int:
        # O_EXCL: names are fresh, and a file that exists is never overwritten (hazard 1).
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if path.parent not in self._folders:
            self._make_folder(path.parent)
            self._note_disk(path.parent)
        return os.open(path, flags, 0o666)  # as far as the umask of the process allows (runtime/file_access.py)

    def _note_disk(self, folder: Path) -> None:
        number = folder.stat().st_dev
        if number not in self._disks:
            self._disks[number] = _opened(folder)

    def _make_folder(self, folder: Path) -> None:
        """Creates the folder and its parents, those that do not exist."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self._above.add(folder.parent)
        elif folder not in _durable_folders:
            self._above.add(folder.parent)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _remember(folders: Iterable[Path]) -> None:
    if len(_durable_folders) > limits.DATA_FOLDERS_REMEMBERED_MAX:
        _durable_folders.clear()
    _durable_folders.update(folders)


def _write(number: int, pieces: Sequence[Any]) -> None:
    views = [memoryview(piece) for piece in pieces]
    start = 0
    while start < len(views):
        written = os.writev(number, views[start : start + _PIECES_AT_ONCE])
        while start < len(views) and written >= len(views[start]):
            written -= len(views[start])
            start += 1
        if written:
            views[start] = views[start][written:]


def _sync(number: int) -> None:
    try:
        os.fsync(number)
    finally:
        os.close(number)


class BucketStore:
    """`s3://…` and the like: all uploads run at the end, some at a time. A finished upload is durable."""

    def __init__(self, open_files: Callable[[], SchemeFiles]) -> None:
        """`open_files` is called inside the event loop that uses the files."""
        self._open = open_files
        self._waiting: dict[str, Sequence[Any]] = {}

    def put(self, location: str, *pieces: Any) -> None:
        self._waiting[location] = pieces

    def settle(self) -> Failures:
        return asyncio.run(self._upload())

    def read(self, location: str) -> bytes:
        return asyncio.run(self._download(location))

    def open(self, location: str) -> Any:
        return pa.BufferReader(self.read(location))

    async def _download(self, location: str) -> bytes:
        from icestream.catalogs.object_files import parse_object_location

        data = (
            await self._open()
            .objects_at(location)
            .get(parse_object_location(location).name, limits.COMPACTION_FILE_BYTES_MAX)
        )
        if data is None:
            raise errors.MetadataFileMissing(f"{location} does not exist", hint="another engine has removed it")
        return bytes(data)

    async def _upload(self) -> Failures:
        """Uploads all files, a few at a time."""
        files = self._open()
        failures: Failures = {}
        gate = asyncio.Semaphore(limits.DATA_FILE_UPLOADS)

        async def upload(location: str, pieces: Sequence[Any]) -> None:
            async with gate:
                try:
                    await files.create(location, [memoryview(piece).tobytes() for piece in pieces])
                except errors.IcestreamError as error:
                    failures[location] = error.message

        uploads: list[Coroutine[Any, Any, None]] = [
            upload(location, pieces) for location, pieces in self._waiting.items()
        ]
        await asyncio.gather(*uploads)
        return failures
