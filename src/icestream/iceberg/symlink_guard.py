"""Refuses symbolic links out of the warehouse: a purge would remove what lies there, such as the broker's log.

A path inside a root by its name must be inside a root by its real location. The check asks an open descriptor for its
location, so the path cannot be exchanged afterwards: all access goes through the descriptor. A root may itself be a
link and be moved while the process runs; then the real locations of all roots are determined again. Paths outside of
all roots are not checked here: location.py refuses them. Apart from file_io.py because it is a security rule with tests
of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from errno import EINVAL, EISDIR, EXDEV
from pathlib import Path

from icestream.iceberg.location import is_inside, normalize_or_none


class SymlinkEscape(OSError):
    """A path leaves the warehouse through a symbolic link. Nothing was read, written or removed."""

    def __init__(self, path: Path, real_path: str) -> None:
        super().__init__(EXDEV, f"a symbolic link leads out of the warehouse, to {real_path}", str(path))


class SymlinkGuard:
    def __init__(self, roots: Sequence[str]) -> None:
        """`roots`: warehouse locations. Only `file:` roots can contain symbolic links."""
        locations = [normalize_or_none(root) for root in roots]
        self._roots = [root.removeprefix("file:") for root in locations if root and root.startswith("file:/")]
        self._real_roots: list[str] = []

    def check_open(self, fd: int, path: Path) -> None:
        """Raises SymlinkEscape if the open file or directory is outside of the roots. `path` is how it was opened."""
        self._check(path, real_path_of(fd, path))

    def check_new(self, path: Path) -> None:
        """Raises SymlinkEscape if a directory that does not exist yet would be created outside of the roots."""
        self._check(path, os.path.realpath(path))

    def _check(self, path: Path, real_path: str) -> None:
        if any(is_inside(real_path, root) for root in self._real_roots):
            return
        if not any(is_inside(str(path), root) for root in self._roots):
            return
        self._real_roots = [os.path.realpath(root) for root in self._roots]
        if not any(is_inside(real_path, root) for root in self._real_roots):
            raise SymlinkEscape(path, real_path)


def open_regular(path: Path | str, guard: SymlinkGuard | None = None, dir_fd: int | None = None) -> int:
    """Opens a file for reading; returns its descriptor. A table may name any path: reading a pipe would wait for ever,
    reading a device might never end. Raises OSError, also for what is no regular file, and SymlinkEscape."""
    # Without O_NONBLOCK the opening of a pipe waits for a writer. On regular files it has no effect.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, "it is a directory", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "it is not a regular file", str(path))
        if guard is not None and dir_fd is None:
            guard.check_open(fd, Path(path))
    except OSError:
        os.close(fd)
        raise
    return fd


def real_path_of(fd: int, path: Path) -> str:
    """Returns the real path of an open file or directory; by its name on systems without /proc."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  # on the way of every commit
    except OSError:
        return os.path.realpath(path)
