"""The ballast: a file of fixed size that reserves disk space for emergencies and is removed when the disk is full.

Without it a full disk has no way out (hazard 16). The log shrinks by rounds of the pipeline, and their Parquet files,
manifests, metadata and the checkpoint after them need space themselves.

    held      the file exists, with all of its space allocated
    released  the file is removed, and its space is for everything but the log: the log creates no new file and refuses
              appends that do not fit the present one

    held -> released   a log file cannot be created for lack of space, or hardly any space is free because another
                       program filled the disk
    released -> held   there is space for the ballast, the next log file, and a small margin

Blocking: runs off the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from icestream import limits
from icestream.observability.log import get_logger
from icestream.runtime.files import Directory
from icestream.wal.log_file import BALLAST_NAME
from icestream.wal.provision import Provisioner

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_log = get_logger("wal")


def ballast_bytes(configured_bytes: int | None, quota_bytes: int, free_bytes: int, used_bytes: int) -> int:
    """The size of the ballast: as configured, else a share of the quota.

    At most a quarter of the space that the log and the ballast could have at all.
    """
    default_bytes = min(limits.BALLAST_BYTES_MAX_DEFAULT, int(quota_bytes * limits.BALLAST_QUOTA_SHARE))
    return min(default_bytes if configured_bytes is None else configured_bytes, (free_bytes + used_bytes) // 4)


class Ballast:
    """The ballast of one log directory, and whether its space is released."""

    def __init__(self, directory: Directory, size: int, file_bytes: int) -> None:
        """`size` 0: no ballast is kept."""
        self._directory = directory
        self.size = size
        self._file_bytes = file_bytes
        self._low_bytes = min(limits.BALLAST_LOW_BYTES, size // 4)
        self.is_released = size > 0  # until `restore` has run

    @property
    def held_bytes(self) -> int:
        return 0 if self.is_released else self.size

    def restore(self, provisioner: Provisioner) -> None:
        """At a start: keeps the ballast file of the last run if it has the right size, else creates it."""
        size = existing_ballast_bytes(self._directory)
        if size is not None and size != self.size:
            self._remove()
        self.is_released = self.size > 0 and size != self.size
        if self.is_released:
            self._reserve(provisioner)

    def update(self, provisioner: Provisioner) -> None:
        """Releases the ballast if hardly any space is free, reserves it again if there is space."""
        if self.is_released:
            self._reserve(provisioner)
        elif self.size and self._directory.free_bytes() < self._low_bytes:
            self.release("hardly any disk space is free")

    def require_held(self, provisioner: Provisioner) -> None:
        """Raises OSError (ENOSPC) while the ballast is released: free space is then for draining, not for new files."""
        if self.is_released and not self._reserve(provisioner):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (only the emergency reserve is left)")

    def release(self, reason: str) -> None:
        """Removes the ballast file, so that its space is free for draining the log."""
        if self.is_released or not self.size:
            return
        self.is_released = True
        _log.warning(
            "disk full: released the emergency reserve (ballast) for draining the log", reason=reason, bytes=self.size
        )
        self._remove()

    def _reserve(self, provisioner: Provisioner) -> bool:
        """Creates the ballast file if there is space for it; spare log files give way to it, but for one."""
        needed = self.size + self._low_bytes
        # One spare is kept: with it the next log file needs no further space at all.
        while (free := self._directory.free_bytes()) < needed and len(provisioner.spares) > 1:
            provisioner.drop_spare()
        if free < needed + (0 if provisioner.spares else self._file_bytes):
            return False
        try:
            file = self._directory.create(BALLAST_NAME)
            try:
                file.allocate(self.size)
            finally:
                file.close()
        except OSError:
            # A part of a ballast would take the space that is missing.
            self._remove()
            return False
        self.is_released = False
        _log.info("reserved disk space for emergencies (ballast)", bytes=self.size)
        return True

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._directory.remove(BALLAST_NAME)
            self._directory.sync()


def existing_ballast_bytes(directory: Directory) -> int | None:
    """The size of the ballast file in the directory; None if there is none."""
    if BALLAST_NAME not in directory.names():
        return None
    file = directory.open(BALLAST_NAME)
    try:
        return file.size()
    finally:
        file.close()


def release_ballast(directory: Directory) -> bool:
    """Removes the ballast file for a start that has no space to write; returns whether there was one."""
    if BALLAST_NAME not in directory.names():
        return False
    directory.remove(BALLAST_NAME)
    directory.sync()
    return True
