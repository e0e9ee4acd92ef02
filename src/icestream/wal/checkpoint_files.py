"""Writes checkpoints to the directory of the log, and removes all but the newest. Blocking: runs off the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.runtime.files import Directory
from icestream.wal import log_file
from icestream.wal.checkpoint import KeptCheckpoint
from icestream.wal.provision import Provisioner


class CheckpointFiles:
    def __init__(self, directory: Directory, provisioner: Provisioner, kept: Sequence[KeptCheckpoint]) -> None:
        self._directory = directory
        self._provisioner = provisioner
        self.kept = list(kept)  # those on disk, the newest first

    def write(self, lsn: int, floors: dict[ShardKey, int], data: bytes) -> None:
        """Writes the checkpoint `data`, which covers `lsn` and knows `floors`: beside its name, synced, renamed. On a
        full disk it gets the room of the reserve. Raises OSError, and the older checkpoints still count."""
        directory = self._directory
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
            self._give_up(temporary)
            raise
        directory.sync()
        kept = [KeptCheckpoint(name, lsn, floors), *self.kept]
        for old in kept[limits.CHECKPOINTS_KEPT :]:
            directory.remove(old.name)
        self.kept = kept[: limits.CHECKPOINTS_KEPT]

    def _write_temporary(self, name: str, data: bytes) -> None:
        if name in self._directory.names():
            self._directory.remove(name)
        file = self._directory.create(name)
        try:
            file.write_at(0, data)
            file.sync()
        except OSError:
            self._give_up(name)
            raise
        finally:
            file.close()

    def _give_up(self, name: str) -> None:
        with contextlib.suppress(OSError):  # what cannot go now goes at the next start
            self._directory.remove(name)
