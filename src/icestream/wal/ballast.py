"""Room that is kept for draining: a file of a fixed size, given up when the disk is full (hazard 16).

Without it a full disk has no exit. The log becomes smaller by rounds of the pipeline, and their Parquet files,
manifests, metadata, and the checkpoint behind them, need room themselves.

    held     the file is there, with space for all of it
    given    the file is gone, and its room is for everybody but the log. That makes no new file meanwhile, and refuses
             what has no room in the present one

    held -> given    no log file can be made for want of room; or hardly anything is free: somebody else filled the disk
    given -> held    there is room for it, for the next log file, and for a little more

Blocking: runs off the loop.
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


def ballast_bytes(wanted: int | None, quota_bytes: int, free_bytes: int, used_bytes: int) -> int:
    """As it is set, else by the quota; never more than a quarter of what the log and it could have at all."""
    found = min(limits.BALLAST_BYTES_MAX_DEFAULT, int(quota_bytes * limits.BALLAST_QUOTA_SHARE))
    return min(found if wanted is None else wanted, (free_bytes + used_bytes) // 4)


class Ballast:
    def __init__(self, directory: Directory, size: int, file_bytes: int) -> None:
        """`size` 0: there is none."""
        self._directory = directory
        self.size = size
        self._file_bytes = file_bytes
        self._low_bytes = min(limits.BALLAST_LOW_BYTES, size // 4)
        self.is_given = size > 0  # until `found` has looked

    @property
    def held_bytes(self) -> int:
        return 0 if self.is_given else self.size

    def found(self, provisioner: Provisioner) -> None:
        """At a start: the one of before counts when it is as large as it should be."""
        size = found_bytes(self._directory)
        if size is not None and size != self.size:
            self._remove()
        self.is_given = self.size > 0 and size != self.size
        if self.is_given:
            self._take(provisioner)

    def look(self, provisioner: Provisioner) -> None:
        """Gives it when hardly anything is free, takes it back when there is room."""
        if self.is_given:
            self._take(provisioner)
        elif self.size and self._directory.free_bytes() < self._low_bytes:
            self.give("hardly anything is free")

    def keep(self, provisioner: Provisioner) -> None:
        """Before a log file is made. Raises OSError while the ballast is given: what is free is not for the log."""
        if self.is_given and not self._take(provisioner):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} but for what drains the log")

    def give(self, reason: str) -> None:
        if self.is_given or not self.size:
            return
        self.is_given = True
        _log.warning("the disk is full: the room that is kept for draining is in use", reason=reason, bytes=self.size)
        self._remove()

    def _take(self, provisioner: Provisioner) -> bool:
        needed = self.size + self._low_bytes
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
            self._remove()
            return False
        self.is_given = False
        _log.info("there is room for draining the log", bytes=self.size)
        return True

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._directory.remove(BALLAST_NAME)
            self._directory.sync()


def found_bytes(directory: Directory) -> int | None:
    """The size of the one that is there."""
    if BALLAST_NAME not in directory.names():
        return None
    file = directory.open(BALLAST_NAME)
    try:
        return file.size()
    finally:
        file.close()


def give_up_ballast(directory: Directory) -> bool:
    """A start that has no room for what it must write: whether there was a ballast that gives it some."""
    if BALLAST_NAME not in directory.names():
        return False
    directory.remove(BALLAST_NAME)
    directory.sync()
    return True
