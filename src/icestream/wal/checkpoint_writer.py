"""Writes checkpoint files and removes all but the newest two. Blocking: runs off the event loop.

Separate from checkpoint.py, which is the pure codec, and from file_lifecycle.py, which runs on the loop: this is the
only code that touches checkpoint files of a running log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.runtime.files import Directory
from icestream.wal import log_file
from icestream.wal.checkpoint import KeptCheckpoint
from icestream.wal.provision import Provisioner


class CheckpointWriter:
    """The checkpoint files of one log directory."""

    def __init__(self, directory: Directory, provisioner: Provisioner, checkpoints: Sequence[KeptCheckpoint]) -> None:
        self._directory = directory
        self._provisioner = provisioner
        self.kept = list(checkpoints)  # the checkpoints on disk, newest first

    def write(self, lsn: int, floors: dict[ShardKey, int], current: int, data: bytes) -> None:
        """Writes the encoded checkpoint `data` as a new file; it covers `lsn`, contains `floors` and names `current`.

        It is written under a temporary name, synced and renamed. On a full disk it uses the space of the reserve file.
        Raises OSError; the older checkpoints remain valid then.
        """
        directory = self._directory
        # A checkpoint at the same LSN may exist already (floors moved without a new record). The serial makes its name
        # unique, so that the older one is not overwritten before the new one is durable.
        serials = [
            name.serial for name in map(log_file.checkpoint_parts, directory.names()) if name and name.lsn == lsn
        ]
        name = log_file.checkpoint_name(lsn, max(serials, default=0) + 1)
        temporary = f"{name}.tmp"
        try:
            self._write_temporary(temporary, data)
        except OSError:
            if not self._provisioner.use_reserve():
                raise
            self._write_temporary(temporary, data)
        try:
            directory.rename(temporary, name)
        except OSError:
            self._remove_quietly(temporary)
            raise
        # The new name is durable before an old checkpoint is removed: there are always two to start from.
        directory.sync()
        checkpoints = [KeptCheckpoint(name, lsn, floors, current), *self.kept]
        for old in checkpoints[limits.CHECKPOINTS_KEPT :]:
            directory.remove(old.name)
        self.kept = checkpoints[: limits.CHECKPOINTS_KEPT]

    def _write_temporary(self, name: str, data: bytes) -> None:
        if name in self._directory.names():
            self._directory.remove(name)
        file = self._directory.create(name)
        try:
            file.write_at(0, data)
            file.sync()
        except OSError:
            self._remove_quietly(name)
            raise
        finally:
            file.close()

    def _remove_quietly(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the next start removes temporary files that are left behind
            self._directory.remove(name)
