"""Where data files go: a folder, or an object store. Everything has a fresh name, and there is nothing of that name.

    put      takes a file; may write it later
    settle   all of them are durable, with their names, when this returns; what could not be written is told by location

Local syncs run in threads of their own beside the work on the next file, and folders are synced once, at the end. Of
many files those behind the first share one sync of their disk, which has all folders too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from icestream import errors, limits
from icestream.iceberg.file_io import TableFiles, sync_disk
from icestream.iceberg.location import normalize

Failures = dict[str, str]
# Folders whose own names are on disk, as this process knows: one that it finds may come from a task that was killed
# before it could see to that.
_lasting: set[Path] = set()


class FileStore(Protocol):
    def put(self, location: str, data: Any) -> None: ...

    def settle(self) -> Failures: ...


class FolderStore:
    """`file:/…`"""

    def __init__(self, threads: int = limits.DATA_FILE_SYNC_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._syncs: dict[str, Future[None]] = {}
        self._folders: dict[Path, list[str]] = {}
        self._above: set[Path] = set()  # folders with a folder in them that is new, or new to this process
        self._disks: dict[int, int] = {}  # descriptors: an error of the disk counts from when one was opened
        self._files = 0
        self._failures: Failures = {}

    def put(self, location: str, data: Any) -> None:
        path = Path(normalize(location).removeprefix("file:"))
        self._files += 1
        try:
            number = self._created(path)
            try:
                _write(number, data)
            except BaseException:
                os.close(number)
                raise
        except OSError as error:
            self._failures[location] = f"{path}: {error.strerror}"
            return
        self._folders.setdefault(path.parent, []).append(location)
        if self._is_many:
            os.close(number)
        else:
            self._syncs[location] = self._pool.submit(_sync, number)

    @property
    def _is_many(self) -> bool:
        return self._files > limits.FILES_SYNCED_APART_MAX

    def settle(self) -> Failures:
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

    def _sync_folders(self) -> None:
        below = {folder: [*self._folders.get(folder, ())] for folder in (*self._folders, *self._above)}
        for folder in self._above:  # what lies in a new folder is lost with its name
            below[folder] += [
                one for at, locations in self._folders.items() if folder in at.parents for one in locations
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
            except OSError as error:  # which of them is lost nobody knows
                told = (one for locations in self._folders.values() for one in locations)
                self._failures |= dict.fromkeys(told, f"the disk: {error.strerror}")

    def _created(self, path: Path) -> int:
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
        """With those above it that are new."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self._above.add(folder.parent)
        elif folder not in _lasting:
            self._above.add(folder.parent)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _remember(folders: Iterable[Path]) -> None:
    if len(_lasting) > limits.DATA_FOLDERS_REMEMBERED_MAX:
        _lasting.clear()
    _lasting.update(folders)


def _write(number: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


def _sync(number: int) -> None:
    try:
        os.fsync(number)
    finally:
        os.close(number)


class BucketStore:
    """`s3://…` and the like: all uploads run at the end, some at a time. A finished one is durable."""

    def __init__(self, open_files: Callable[[], TableFiles]) -> None:
        """`open_files`: called inside the loop that uses them."""
        self._open = open_files
        self._waiting: dict[str, Any] = {}

    def put(self, location: str, data: Any) -> None:
        self._waiting[location] = data

    def settle(self) -> Failures:
        return asyncio.run(self._upload())

    async def _upload(self) -> Failures:
        files = self._open()
        failures: Failures = {}
        turns = asyncio.Semaphore(limits.DATA_FILE_UPLOADS)

        async def upload(location: str, data: Any) -> None:
            async with turns:
                try:
                    await files.create(location, [memoryview(data).tobytes()])
                except errors.IcestreamError as error:
                    failures[location] = error.message

        uploads: list[Coroutine[Any, Any, None]] = [upload(*one) for one in self._waiting.items()]
        await asyncio.gather(*uploads)
        return failures
