"""File I/O of tables: the catalog writes and reads metadata files, and makes durable what other processes wrote.

    create         the file and its name are on disk when this returns (hazard 11); the file must not exist. With
                   `is_synced` false it is durable only after a call of make_durable
    create_large   a file that need not fit into memory, of pieces that are made in a thread. It replaces what has the
                   name: for names that say what the bytes are
    create_all     create for many files, which may share a sync. After an error some may exist. `in_new_folders`: no
                   other call uses the directories of these files; then their names share that sync, too
    make_durable   everything that any process wrote to the disks of these locations is on disk when this returns
    make_folder    other processes can write files into it; object stores have nothing to do

Local files are here; object stores, where a finished upload is durable, in catalogs/object_files.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from errno import EDQUOT, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, TypeVar
from uuid import uuid4

from icestream import errors, limits
from icestream.iceberg.location import normalize
from icestream.iceberg.shared_sync import LogDiskMonitor, SharedSync
from icestream.iceberg.symlink_guard import SymlinkEscape, SymlinkGuard, open_regular
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.files import Directory, File, LocalDirectory, LocalFile, make_directory
from icestream.runtime.tasks import Offload

Content = TypeVar("Content")

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NO_FILE: Final = (ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG)
# Exclusive: two commits that choose the same name must not both take it for theirs.
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)
_log = get_logger("catalog.files")


class TableFiles(Protocol):
    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None: ...

    async def create_large(self, location: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Raises what `pieces` raises; then nothing has the name."""

    async def create_all(
        self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False
    ) -> None: ...

    async def read(self, location: str) -> bytes:
        """Returns the whole file. Raises MetadataFileMissing, and MetadataFileDamaged if it exceeds the size limit of
        metadata files."""

    async def exists(self, location: str) -> bool: ...

    async def size(self, location: str) -> int:
        """Returns the size in bytes; 0 if the file does not exist."""

    async def remove(self, location: str) -> None:
        """Removes the file if it exists. Never raises."""

    async def names(self, location: str) -> list[tuple[str, int]]:
        """Returns the names of a directory's files and their modification times in ms; empty if it does not exist."""

    async def files_below(self, location: str) -> list[str]:
        """Returns the paths of all files below a directory, relative to it, in any order; empty if it does not exist.
        Symbolic links are not followed."""

    async def remove_empty(self, location: str) -> None:
        """Removes a directory and its subdirectories as far as they contain no file. Never raises."""

    async def make_durable(self, locations: Sequence[str]) -> None: ...

    async def make_folder(self, location: str) -> None: ...


class Folder(Directory, Protocol):
    def exists(self, name: str) -> bool: ...

    def modified_ms(self, name: str) -> int: ...

    def files_below(self) -> list[str]: ...

    def remove_empty(self) -> None: ...

    def disk_number(self) -> int:
        """Returns the device number of its file system."""

    def sync_disk(self) -> None:
        """Everything that any process wrote to the file system of this directory is on disk when it returns."""


class LocalFiles:
    """Files below `file:/`."""

    def __init__(
        self,
        open_folder: Callable[..., Folder],
        offload: Offload,
        clock: Clock | None = None,
        log: LogDiskMonitor | None = None,
        near: Callable[[], Offload] | None = None,
    ) -> None:
        """`open_folder(path, is_new)` creates a missing directory if `is_new`, else raises FileNotFoundError; with
        `is_lasting=False` it does not sync the names of directories that it creates. `log` watches the disk of the
        broker's log, which gets some rest between two full syncs. `near` creates an offload for calls that are mostly
        short, one for each kind of call: writing a small file with its syncs takes a thousand times as long as a
        lookup, and the average of both would predict neither."""
        self._open = open_folder
        self._offload = offload
        self._synced = near() if near is not None else offload
        self._unsynced = near() if near is not None else offload
        self._log = log
        self._shared_sync = SharedSync(self._sync_disks, clock or SystemClock())

    async def create(self, location: str, pieces: Sequence[bytes], *, is_synced: bool = True) -> None:
        path, name = _split(location)
        near = self._synced if is_synced else self._unsynced
        # A large file goes to a thread whatever the average says: its time depends on its size.
        is_small = sum(map(len, pieces)) <= limits.CATALOG_INLINE_BYTES_MAX
        try:
            await (near if is_small else self._offload).run(lambda: self._create(path, name, pieces, is_synced))
        except OSError as error:
            raise _not_written(location, error) from error

    async def create_large(self, location: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        path, name = _split(location)
        # Two writers of one file do not meet before it is whole, and what has the name stays until then.
        temporary = f"{name}.{uuid4().hex}.part"

        def create() -> None:
            self._create(path, temporary, pieces(), is_synced=True)
            folder = self._open(path, False)
            try:
                folder.rename(temporary, name)
                folder.sync()
            finally:
                folder.close()

        try:
            await self._offload.run(create)
        except OSError as error:
            raise _not_written(location, error) from error

    async def create_all(self, files: Sequence[tuple[str, Sequence[bytes]]], *, in_new_folders: bool = False) -> None:
        """Many files: each disk is synced once, after the last file."""
        if len(files) <= limits.FILES_SYNCED_APART_MAX:
            await create_each(self, files)
            return
        created: list[str] = []
        try:
            await self._offload.run(lambda: self._create_unsynced(files, created, in_new_folders))
            await self.make_durable(created)
        except errors.IcestreamError:
            # No metadata names them yet, and the caller knows of an error only.
            for location in created:
                await self.remove(location)
            raise

    def _create_unsynced(
        self, files: Sequence[tuple[str, Sequence[bytes]]], created: list[str], in_new_folders: bool
    ) -> None:
        for location, pieces in files:
            path, name = _split(location)
            try:
                folder = self._open(path, True, is_lasting=False) if in_new_folders else self._open(path, True)
                self._create_in(folder, path, name, pieces, is_synced=False)
            except OSError as error:
                raise _not_written(location, error) from error
            created.append(location)

    def _create(self, path: Path, name: str, pieces: Iterable[bytes], is_synced: bool) -> None:
        """Syncs the bytes first, then the name: a crash in between leaves a file that nothing references."""
        self._create_in(self._open(path, True), path, name, pieces, is_synced)

    def _create_in(self, folder: Folder, path: Path, name: str, pieces: Iterable[bytes], is_synced: bool) -> None:
        try:
            file = folder.create(name)
            try:
                _write(file, pieces, is_synced)
                if is_synced:
                    folder.sync()
            except (OSError, errors.IcestreamError):
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
                raise errors.MetadataFileDamaged(
                    f"{location} has {file.size()} bytes, more than a metadata file may have"
                )
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
        """A file that cannot be removed now is left to orphan clean-up."""
        try:
            directory = self._open(path, False)
            try:
                directory.remove(name)
            finally:
                directory.close()
        except SymlinkEscape as error:
            _log.warning("file outside of the warehouse not removed", file=str(path / name), reason=error.strerror)
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
            names_and_times = []
            for name in directory.names():
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    names_and_times.append((name, directory.modified_ms(name)))
            return names_and_times
        finally:
            directory.close()

    async def files_below(self, location: str) -> list[str]:
        return await self._offload.run(lambda: self._files_below(_path(location)))

    def _files_below(self, path: Path) -> list[str]:
        try:
            directory = self._open(path, False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unread(f"file:{path}", error) from error
        try:
            return directory.files_below()
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
        await self._shared_sync.sync({_split(location)[0] for location in locations})

    async def _sync_disks(self, paths: Collection[Path]) -> bool:
        """Returns whether producers write to one of these disks."""

        def sync() -> bool:
            disks = self._sync_each_disk(paths)
            return self._log is not None and self._log.is_busy(disks)

        return await self._offload.run(sync)

    def _sync_each_disk(self, paths: Collection[Path]) -> set[int]:
        """Syncs each disk once and returns their device numbers."""
        synced = set[int]()
        for path in sorted(paths):
            try:
                synced.add(self._sync_disk(path, synced))
            except FileNotFoundError:
                continue  # nothing was written there
            except OSError as error:
                raise _not_written(f"files of other processes in file:{path}", error) from error
        return synced

    def _sync_disk(self, path: Path, synced: Collection[int]) -> int:
        directory = self._open(path, False)
        try:
            number = directory.disk_number()
            # A sync of the file system covers every directory on it.
            if number not in synced:
                directory.sync_disk()
            return number
        finally:
            directory.close()


def _write(file: File, pieces: Iterable[bytes], is_synced: bool) -> None:
    try:
        position = 0
        for piece in pieces:
            file.write_at(position, piece)
            position += len(piece)
        if is_synced:
            file.sync()
    finally:
        file.close()


async def create_each(store: TableFiles, files: Sequence[tuple[str, Sequence[bytes]]]) -> None:
    """Creates each file with syncs of its own, concurrently."""
    await asyncio.gather(*(store.create(location, pieces) for location, pieces in files))


class LocalFolder(LocalDirectory):
    """A directory whose files are reached through its descriptor, so that a symbolic link that replaces it, or one of
    its parents, has no effect."""

    def __init__(
        self, path: Path, *, read_only: bool = False, guard: SymlinkGuard | None = None, is_lasting: bool = True
    ) -> None:
        """`is_lasting`: the names of directories that are created are on disk when this returns."""
        self._guard = guard
        try:
            super().__init__(path, read_only=True)
        except FileNotFoundError:
            if read_only:
                raise
            if guard is not None:
                guard.check_new(path)
            if not is_lasting:  # the table's directory and the one in it; directories of other tables are synced first
                make_directory(path.parent.parent)
                path.mkdir(parents=True, exist_ok=True)
            super().__init__(path)
        self._check(self._fd, path)

    def _check(self, fd: int, path: Path) -> None:
        try:
            if self._guard is not None:
                self._guard.check_open(fd, path)
        except SymlinkEscape:
            os.close(fd)
            raise

    def names(self) -> list[str]:
        return sorted(os.listdir(self._fd))  # noqa: PTH208  # by its descriptor

    def open(self, name: str) -> LocalFile:
        fd = open_regular(name, dir_fd=self._fd)
        self._check(fd, self.path / name)
        return LocalFile(fd)

    def create(self, name: str) -> LocalFile:
        fd = os.open(name, _NEW, 0o666, dir_fd=self._fd)  # as far as the umask allows (runtime/file_access.py)
        return LocalFile(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)  # by its descriptor

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

    def files_below(self) -> list[str]:
        paths: list[str] = []
        for folder, _, names, _ in os.fwalk(".", dir_fd=self._fd):
            prefix = "" if folder == "." else folder.removeprefix("./") + "/"
            paths += [prefix + name for name in names]
        return paths

    def remove_empty(self) -> None:
        """From the leaves up; a directory with a file stays, and so do its parents."""
        for _, folders, _, fd in os.fwalk(".", topdown=False, dir_fd=self._fd):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=fd)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def disk_number(self) -> int:
        return os.fstat(self._fd).st_dev

    def sync_disk(self) -> None:
        """One call for all files that an engine wrote: their names are in manifests, which the catalog has not read."""
        sync_disk(self._fd)


def sync_disk(fd: int) -> None:
    """Everything on the file system of this descriptor is on disk when it returns. Raises OSError, also for writes that
    failed since the descriptor was opened."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_local(path: Path, is_new: bool, is_lasting: bool = True) -> LocalFolder:
    return LocalFolder(path, read_only=not is_new, is_lasting=is_lasting)


def open_inside(roots: Sequence[str]) -> Callable[..., LocalFolder]:
    """Returns a function like `open_local` that refuses symbolic links out of the roots."""
    guard = SymlinkGuard(roots)

    def open_folder(path: Path, is_new: bool, is_lasting: bool = True) -> LocalFolder:
        return LocalFolder(path, read_only=not is_new, guard=guard, is_lasting=is_lasting)

    return open_folder


def _path(location: str) -> Path:
    canonical = normalize(location)
    if not canonical.startswith("file:/"):
        raise errors.InvalidInput(f"Cannot reach {location}", hint="this warehouse has local files only")
    return Path(canonical.removeprefix("file:"))


def _split(location: str) -> tuple[Path, str]:
    folder, _, name = location.rpartition("/")
    if folder.startswith("file:/") and _PLAIN_NAME.fullmatch(name):
        return _folder(folder), name
    path = _path(location)
    return path.parent, path.name


@lru_cache(1024)
def _folder(location: str) -> Path:
    """Cached: the files of a table are in a few directories."""
    return _path(location)


_ROOTS_HINT: Final = "name the place itself, after adding it to `lake.table_roots`; or take the link away"


def _not_written(location: str, error: OSError) -> errors.IcestreamError:
    if isinstance(error, SymlinkEscape):
        return errors.InvalidInput(f"Invalid location: {location}: {error.strerror}", hint=_ROOTS_HINT)
    if error.errno in (ENOSPC, EDQUOT):
        return errors.DiskFull(f"there is no room for {location}", hint="free some space on the disk of the warehouse")
    return errors.PersistentStorageError(
        f"{location} cannot be written: {error.strerror}", hint="check the disk of the warehouse and its owner"
    )


def _unread(location: str, error: OSError) -> errors.IcestreamError:
    """A location that is not a file counts as missing; other errors are faults of the storage."""
    if error.errno in _NO_FILE:
        return _missing(location)
    hint = _ROOTS_HINT if isinstance(error, SymlinkEscape) else "check the disk of the warehouse and its owner"
    return errors.PersistentStorageError(f"{location} cannot be read: {error.strerror}", hint=hint)


async def refusing_links(location: str, reading: Awaitable[Content]) -> Content:
    """Returns what `reading` returns, for a location that a client sent. Raises InvalidInput where a symbolic link
    leads out of the warehouse: in a client's location that is invalid input, in an existing table a storage fault."""
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
