"""The files of tables: the catalog writes and reads metadata files, and makes durable what others wrote.

    create         the file is on disk, with its name, when this returns (hazard 11); it must not exist. Unless
                   `is_synced` is false: then it is once somebody has called make_durable for it
    create_all     the same for many; they may share a sync. After an error some may be there. `in_new_folders`: no
                   other call uses the folders of these files, and the names of the folders share that sync, too
    make_durable   everything that anybody wrote to the disks of these locations is on disk when this returns
    make_folder    others can write files into it; stores without folders have nothing to do

Local files here; object stores, where a finished upload is durable: catalogs/object_files.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from errno import EDQUOT, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

from icestream import errors, limits
from icestream.iceberg.location import normalize
from icestream.iceberg.log_disk import LogDiskMonitor
from icestream.iceberg.shared_sync import SharedSync
from icestream.iceberg.symlink_guard import SymlinkEscape, SymlinkGuard
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.files import Directory, File, LocalDirectory, LocalFile, make_directory
from icestream.runtime.tasks import Offload

Content = TypeVar("Content")

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NO_FILE: Final = (ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG)
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)
_log = get_logger("catalog.files")


class TableFiles(Protocol):
    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None: ...

    async def create_all(
        self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False
    ) -> None: ...

    async def read(self, location: str) -> bytes:
        """Raises MetadataFileMissing, and MetadataFileDamaged for one that is too large to be one."""

    async def exists(self, location: str) -> bool: ...

    async def size(self, location: str) -> int:
        """In bytes; 0 where it is not there."""

    async def remove(self, location: str) -> None:
        """Whether or not it is there. Never fails."""

    async def names(self, location: str) -> list[tuple[str, int]]:
        """The files of a directory, with the time in ms when each was last written; none where it is not there."""

    async def remove_empty(self, location: str) -> None:
        """A directory and those in it, as far as there is no file in them. Never fails."""

    async def make_durable(self, locations: Sequence[str]) -> None: ...

    async def make_folder(self, location: str) -> None: ...


class Folder(Directory, Protocol):
    def exists(self, name: str) -> bool: ...

    def modified_ms(self, name: str) -> int: ...

    def remove_empty(self) -> None: ...

    def disk_number(self) -> int:
        """Of the file system that it lies on."""

    def sync_disk(self) -> None:
        """Everything that anybody wrote to the file system of this directory is on disk when it returns."""


class LocalFiles:
    """Below `file:/`."""

    def __init__(
        self,
        open_folder: Callable[..., Folder],
        offload: Offload,
        clock: Clock | None = None,
        log: LogDiskMonitor | None = None,
        near: Callable[[], Offload] | None = None,
    ) -> None:
        """`open_folder(path, is_new)`: `is_new` makes it where it is not there; else FileNotFoundError. With
        `is_lasting=False` the names of folders that it makes are not synced. `log`: that
        of the broker, whose disk gets some rest between two syncs of all of it. `near`: makes an offload for what is
        mostly short, each for calls that take about as long: a small file with its syncs takes a thousand times as long
        as a look at one, and an average of both says nothing about either."""
        self._open = open_folder
        self._offload = offload
        self._synced = near() if near is not None else offload
        self._unsynced = near() if near is not None else offload
        self._log = log
        self._shared = SharedSync(self._sync_disks, clock or SystemClock())

    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None:
        path, name = _split(location)
        near = self._synced if is_synced else self._unsynced
        is_small = sum(map(len, pieces)) <= limits.CATALOG_INLINE_BYTES_MAX
        try:
            await (near if is_small else self._offload).run(lambda: self._create(path, name, pieces, is_synced))
        except OSError as error:
            raise _not_written(location, error) from error

    async def create_all(self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False) -> None:
        """Each disk is synced once, behind the last of them."""
        if len(files) <= limits.FILES_SYNCED_APART_MAX:
            await created_apart(self, files)
            return
        made: list[str] = []
        try:
            await self._offload.run(lambda: self._create_unsynced(files, made, in_new_folders))
            await self.make_durable(made)
        except errors.IcestreamError:
            for location in made:
                await self.remove(location)
            raise

    def _create_unsynced(
        self, files: Sequence[tuple[str, Sequence[bytes]]], made: list[str], in_new_folders: bool
    ) -> None:
        for location, pieces in files:
            path, name = _split(location)
            try:
                folder = self._open(path, True, is_lasting=False) if in_new_folders else self._open(path, True)
                self._create_in(folder, path, name, pieces, is_synced=False)
            except OSError as error:
                raise _not_written(location, error) from error
            made.append(location)

    def _create(self, path: Path, name: str, pieces: Sequence[bytes], is_synced: bool) -> None:
        """First the bytes, then the name: a crash in between leaves a file that nothing points to."""
        self._create_in(self._open(path, True), path, name, pieces, is_synced)

    def _create_in(self, folder: Folder, path: Path, name: str, pieces: Sequence[bytes], is_synced: bool) -> None:
        try:
            file = folder.create(name)
            try:
                _write(file, pieces, is_synced)
                if is_synced:
                    folder.sync()
            except OSError:
                self._remove(path, name)
                raise
        finally:
            folder.close()

    async def read(self, location: str) -> bytes:
        return await self._offload.run(lambda: self._read(location, *_split(location)))

    def _read(self, location: str, path: Path, name: str) -> bytes:
        try:
            directory = self._open(path, False)
        except OSError as error:
            raise _unread(location, error) from error
        try:
            file = directory.open(name)
        except OSError as error:
            raise _unread(location, error) from error
        finally:
            directory.close()
        try:
            if file.size() > limits.CATALOG_DOCUMENT_BYTES_MAX:
                raise errors.MetadataFileDamaged(f"{location} has {file.size()} bytes: it is no metadata file")
            return file.read_at(0, file.size())
        except OSError as error:
            raise _unread(location, error) from error
        finally:
            file.close()

    async def exists(self, location: str) -> bool:
        return await self._unsynced.run(lambda: self._exists(*_split(location)))

    def _exists(self, path: Path, name: str) -> bool:
        try:
            directory = self._open(path, False)
            try:
                return directory.exists(name)
            finally:
                directory.close()
        except OSError as error:
            if error.errno in _NO_FILE:
                return False
            raise _unread(f"file:{path / name}", error) from error

    async def size(self, location: str) -> int:
        return await self._offload.run(lambda: self._size(*_split(location)))

    def _size(self, path: Path, name: str) -> int:
        try:
            directory = self._open(path, False)
            try:
                file = directory.open(name)
            finally:
                directory.close()
        except OSError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    async def remove(self, location: str) -> None:
        await self._offload.run(lambda: self._remove(*_split(location)))

    def _remove(self, path: Path, name: str) -> None:
        """What cannot be removed now is left to whoever looks for orphans."""
        try:
            directory = self._open(path, False)
            try:
                directory.remove(name)
            finally:
                directory.close()
        except SymlinkEscape as error:
            _log.warning("a file outside of the warehouse stays", file=str(path / name), reason=error.strerror)
        except OSError:
            return

    async def names(self, location: str) -> list[tuple[str, int]]:
        return await self._offload.run(lambda: self._names(_path(location)))

    def _names(self, path: Path) -> list[tuple[str, int]]:
        try:
            directory = self._open(path, False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unread(f"file:{path}", error) from error
        try:
            found = []
            for name in directory.names():
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    found.append((name, directory.modified_ms(name)))
            return found
        finally:
            directory.close()

    async def remove_empty(self, location: str) -> None:
        await self._offload.run(lambda: self._remove_empty(_path(location)))

    def _remove_empty(self, path: Path) -> None:
        try:
            directory = self._open(path, False)
        except OSError:
            return
        try:
            directory.remove_empty()
        finally:
            directory.close()

    async def make_folder(self, location: str) -> None:
        try:
            await self._offload.run(lambda: self._open(_path(location), True).close())
        except OSError as error:
            raise _not_written(location, error) from error

    async def make_durable(self, locations: Sequence[str]) -> None:
        await self._shared.of({_split(location)[0] for location in locations})

    async def _sync_disks(self, paths: Collection[Path]) -> bool:
        """Whether producers write to one of them."""

        def sync() -> bool:
            disks = self._synced_disks(paths)
            return self._log is not None and self._log.is_busy(disks)

        return await self._offload.run(sync)

    def _synced_disks(self, paths: Collection[Path]) -> set[int]:
        """Each disk once."""
        done = set[int]()
        for path in sorted(paths):
            try:
                done.add(self._sync_disk(path, done))
            except FileNotFoundError:
                continue  # nobody wrote anything there
            except OSError as error:
                raise _not_written(f"what others wrote in file:{path}", error) from error
        return done

    def _sync_disk(self, path: Path, done: Collection[int]) -> int:
        directory = self._open(path, False)
        try:
            number = directory.disk_number()
            if number not in done:
                directory.sync_disk()
            return number
        finally:
            directory.close()


def _write(file: File, pieces: Sequence[bytes], is_synced: bool) -> None:
    try:
        position = 0
        for piece in pieces:
            file.write_at(position, piece)
            position += len(piece)
        if is_synced:
            file.sync()
    finally:
        file.close()


async def created_apart(store: TableFiles, files: Sequence[tuple[str, Sequence[bytes]]]) -> None:
    """Each by itself, some at a time."""
    await asyncio.gather(*(store.create(*one) for one in files))


class LocalFolder(LocalDirectory):
    """Everything in it is reached by its descriptor: a link that takes its place, or that of one above, is not met."""

    def __init__(
        self, path: Path, *, read_only: bool = False, fence: SymlinkGuard | None = None, is_lasting: bool = True
    ) -> None:
        """`is_lasting`: the names of folders that are made are on disk when this returns."""
        self._fence = fence
        try:
            super().__init__(path, read_only=True)
        except FileNotFoundError:
            if read_only:
                raise
            if fence is not None:
                fence.check_new(path)
            if not is_lasting:  # that of the table and the one in it; what others use is on disk first
                make_directory(path.parent.parent)
                path.mkdir(parents=True, exist_ok=True)
            super().__init__(path)
        self._check(self._fd, path)

    def _check(self, fd: int, path: Path) -> None:
        try:
            if self._fence is not None:
                self._fence.check_open(fd, path)
        except SymlinkEscape:
            os.close(fd)
            raise

    def names(self) -> list[str]:
        return sorted(os.listdir(self._fd))  # noqa: PTH208  # by its descriptor

    def open(self, name: str) -> LocalFile:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        self._check(fd, self.path / name)
        return LocalFile(fd)

    def create(self, name: str) -> LocalFile:
        fd = os.open(name, _NEW, 0o666, dir_fd=self._fd)  # as far as the umask allows (runtime/file_access.py)
        return LocalFile(fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def modified_ms(self, name: str) -> int:
        return os.stat(name, dir_fd=self._fd).st_mtime_ns // 1_000_000

    def remove_empty(self) -> None:
        """From the leaves up; one with a file in it stays, and so do those above it."""
        for _, folders, _, fd in os.fwalk(".", topdown=False, dir_fd=self._fd):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=fd)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def disk_number(self) -> int:
        return os.fstat(self._fd).st_dev

    def sync_disk(self) -> None:
        """One call for all files that an engine wrote: which ones stands in manifests that nobody has read here."""
        sync_disk(self._fd)


def sync_disk(fd: int) -> None:
    """Everything on the file system of this descriptor is on disk when it returns. Raises OSError, also for what failed
    since it was opened."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_local(path: Path, is_new: bool, is_lasting: bool = True) -> LocalFolder:
    return LocalFolder(path, read_only=not is_new, is_lasting=is_lasting)


def open_inside(roots: Sequence[str]) -> Callable[..., LocalFolder]:
    """The same as `open_local`, for callers that may touch nothing outside of the roots."""
    fence = SymlinkGuard(roots)

    def open_folder(path: Path, is_new: bool, is_lasting: bool = True) -> LocalFolder:
        return LocalFolder(path, read_only=not is_new, fence=fence, is_lasting=is_lasting)

    return open_folder


def _path(location: str) -> Path:
    found = normalize(location)
    if not found.startswith("file:/"):
        raise errors.InvalidInput(f"Cannot reach {location}", hint="this warehouse has local files only")
    return Path(found.removeprefix("file:"))


def _split(location: str) -> tuple[Path, str]:
    folder, _, name = location.rpartition("/")
    if folder.startswith("file:/") and _PLAIN_NAME.fullmatch(name):
        return _folder(folder), name
    path = _path(location)
    return path.parent, path.name


@lru_cache(1024)
def _folder(location: str) -> Path:
    """Of one table the files lie in a few."""
    return _path(location)


_ROOTS_HINT: Final = "name the place itself, after adding it to `lake.table_roots`; or take the link away"


def _not_written(location: str, error: OSError) -> errors.IcestreamError:
    if isinstance(error, SymlinkEscape):
        return errors.InvalidInput(f"Invalid location: {location}: {error.strerror}", hint=_ROOTS_HINT)
    if error.errno in (ENOSPC, EDQUOT):
        return errors.DiskFull(f"there is no room for {location}", hint="free some space on the disk of the warehouse")
    return errors.PersistentStorageError(
        f"{location} cannot be written: {error.strerror}", hint="check the disk of the warehouse, and who owns it"
    )


def _unread(location: str, error: OSError) -> errors.IcestreamError:
    """What names no file is missing, whatever stands there instead; a disk that fails is another matter."""
    if error.errno in _NO_FILE:
        return _missing(location)
    hint = _ROOTS_HINT if isinstance(error, SymlinkEscape) else "check the disk of the warehouse, and who owns it"
    return errors.PersistentStorageError(f"{location} cannot be read: {error.strerror}", hint=hint)


async def refusing_links(location: str, reading: Awaitable[Content]) -> Content:
    """What is read of a location that a client names. Raises InvalidInput where a symbolic link leads out of the
    warehouse: that is a mistake of the client; of a table that is there it is a fault of the storage."""
    try:
        return await reading
    except errors.PersistentStorageError as error:
        if not isinstance(error.__cause__, SymlinkEscape):
            raise
        raise errors.InvalidInput(
            f"Invalid location: {location}: {error.__cause__.strerror}", hint=error.hint
        ) from None


def _missing(location: str) -> errors.MetadataFileMissing:
    return errors.MetadataFileMissing(
        f"Failed to open input stream for file: {location}", hint="restore the file, or register another one"
    )
