"""Files of one directory behind a protocol. The simulated twin is simulated_disk.py.

The guarantees that the log relies on, and that the twin breaks exactly as far as POSIX allows:
    write_at    all bytes are in the page cache when it returns; any part of them may reach the disk, in any order
    sync        the file's bytes and size are on disk when it returns; after an error their state is unknown
    rename, remove, create    on disk after the directory's sync, in the order they were made
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from icestream import errors

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class File(Protocol):
    """One open file."""

    def read_at(self, position: int, length: int) -> bytes:
        """A copy of at most `length` bytes; fewer only at the end of the file."""

    def write_at(self, position: int, data: bytes) -> None: ...

    def sync(self) -> None: ...

    def allocate(self, size: int) -> None:
        """Makes the file `size` bytes long, with disk space for all of them."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def fileno(self) -> int:
        """The descriptor, for the native thread; -1 where there is none."""

    def close(self) -> None: ...


class Directory(Protocol):
    """One directory; names are file names without a path."""

    def names(self) -> list[str]: ...

    def open(self, name: str) -> File: ...

    def create(self, name: str) -> File:
        """A new file; it must not exist."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync(self) -> None: ...

    def free_bytes(self) -> int: ...

    def lock(self, name: str) -> File:
        """Takes the lock file `name` for this process until the result is closed. Raises LogLocked."""

    def describe(self, name: str) -> str:
        """The path of the file for messages."""

    def close(self) -> None: ...


class LocalFile:
    """A file of this machine."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write_at(self, position: int, data: bytes) -> None:
        # pwrite may write less than requested, for example at the end of a quota: the rest is tried again, and then
        # fails.
        done = os.pwrite(self._fd, data, position)
        while done < len(data):
            done += os.pwrite(self._fd, memoryview(data)[done:], position + done)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalDirectory:
    """A directory of this machine. With `read_only` nothing is created and no write permission is needed."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._open_flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        try:
            self._fd = os.open(path, _FOLDER)
        except FileNotFoundError:
            if read_only:
                raise
            make_directory(path)
            self._fd = os.open(path, _FOLDER)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def open(self, name: str) -> LocalFile:
        return LocalFile(os.open(self.path / name, self._open_flags))

    def create(self, name: str) -> LocalFile:
        return LocalFile(os.open(f"{self.path}/{name}", _NEW, 0o640))

    def rename(self, old: str, new: str) -> None:
        (self.path / old).rename(self.path / new)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()

    def sync(self) -> None:
        os.fsync(self._fd)

    def free_bytes(self) -> int:
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, name: str) -> LocalFile:
        fd = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise errors.LogLocked(
                f"another process has {self.path} open", hint="stop it first, or give this one its own data_dir"
            ) from None
        return LocalFile(fd)

    def describe(self, name: str) -> str:
        return str(self.path / name)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_directory(path: Path, *, read_only: bool = False) -> LocalDirectory:
    """Opens a directory. Raises ConfigurationError with a hint if it cannot be used."""
    try:
        return LocalDirectory(path, read_only=read_only)
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be used as a directory: {error.strerror}",
            hint="check the path, its owner and the account of this process; or set data_dir to another directory",
        ) from error


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Creates the directory and its parents; each name is synced before anything is put into it.

    `mode`: of the directory itself, if it is made here; one that exists keeps its mode.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode, exist_ok=True)
        _sync_path(path.parent)


def _sync_path(path: Path) -> None:
    fd = os.open(path, _FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
