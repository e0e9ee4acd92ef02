"""Where data files go: a folder, or an object store. Everything has a fresh name, and there is nothing of that name.

    put      takes a file; may write it later
    settle   all of them are durable, with their names, when this returns; what could not be written is told by location

Local syncs run in threads of their own beside the work on the next file, and folders are synced once, at the end:
200 small files take 40 ms so, 320 ms one by one (measured).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from icestream import errors, limits
from icestream.catalog.files import TableFiles
from icestream.catalog.location import normal

Failures = dict[str, str]


class FileStore(Protocol):
    def put(self, location: str, data: Any) -> None: ...

    def settle(self) -> Failures: ...


class FolderStore:
    """`file:/…`"""

    def __init__(self, threads: int = limits.DATA_FILE_SYNC_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._syncs: dict[str, Future[None]] = {}
        self._folders: dict[Path, list[str]] = {}
        self._failures: Failures = {}

    def put(self, location: str, data: Any) -> None:
        path = Path(normal(location).removeprefix("file:"))
        try:
            number = _created(path)
            try:
                _write(number, data)
            except BaseException:
                os.close(number)
                raise
        except OSError as error:
            self._failures[location] = f"{path}: {error.strerror}"
            return
        self._folders.setdefault(path.parent, []).append(location)
        self._syncs[location] = self._pool.submit(_sync, number)

    def settle(self) -> Failures:
        for location, sync in self._syncs.items():
            try:
                sync.result()
            except OSError as error:
                self._failures[location] = f"{location}: {error.strerror}"
        for folder, locations in self._folders.items():
            try:
                _sync(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            except OSError as error:
                self._failures |= dict.fromkeys(locations, f"{folder}: {error.strerror}")
        self._pool.shutdown()
        return self._failures


def _created(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        _make_folder(path.parent)
        return os.open(path, flags, 0o644)


def _make_folder(folder: Path) -> None:
    """With its name on disk, and those above it that are new."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


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
