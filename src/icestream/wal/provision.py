"""Creates and recycles log files: prepared files, zeroed spares, freed files. Blocking: runs off the event loop.

A file is complete before it gets its name: all of its space is allocated (so that a full disk shows here and not in the
middle of a record), then header page, sync, rename, directory sync. A freed file loses its name, durably, before it is
used again. A recycled file is not zeroed; the generation in every record makes that safe (hazards 5, 36).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.wal import log_file
from icestream.wal.log_file import FileHeader


class Provisioner:
    """Prepared files and spares of one log directory."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        log_id: bytes,
        file_bytes: int,
        spares: dict[str, int],
        spare_files: int,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._log_id = log_id
        self._file_bytes = file_bytes
        self._spare_files = spare_files
        self.spares: list[str] = []
        kept_bytes = 0
        # Spares of another file size are useless: `max_file_size` was changed since they were made.
        for name, size in sorted(spares.items()):
            if size >= file_bytes and kept_bytes + size <= limits.SPARE_BYTES_MAX:
                self.spares.append(name)
                kept_bytes += size
            else:
                directory.remove(name)

    def prepare(self, number: int, synced_through: int, current: int = 0) -> tuple[File, int]:
        """Creates file `number` and returns it, ready for its first record, with its capacity. Raises OSError.

        `current`: the number stored in the header as the file that gets records now; `number` itself if there is none
        yet, 0 for "not stated" (log_file.py: the current file).
        """
        spare = self.spares.pop() if self.spares else ""
        name = spare or f"prepare-{number:016d}.tmp"
        file = self._directory.open(name) if spare else self._directory.create(name)
        try:
            # Before the header: a full disk must show now, while appends can still be refused, and not in the middle of
            # a record.
            file.allocate(self._file_bytes)
            now_us = self._clock.wall_us()
            header = FileHeader(self._log_id, number, 0, synced_through, now_us, self._file_bytes, current)
            file.write_at(0, log_file.encode_first_page(header))
            file.sync()
            # The name comes after the synced header: under a log name there is never a file that recovery cannot
            # identify.
            self._directory.rename(name, log_file.log_name(number))
            self._directory.sync()
        except OSError:
            file.close()
            self._remove_quietly(name)
            # The rename may have happened and only the directory sync failed.
            self._remove_quietly(log_file.log_name(number))
            raise
        return file, max(self._file_bytes, file.size())

    def keep_reserve(self) -> None:
        """Creates the reserve file if it is missing: space for the checkpoint that frees old files. Raises OSError."""
        if log_file.RESERVE_NAME in self._directory.names():
            return
        try:
            self._create_reserve()
        except OSError:
            # A spare is worth less than the room for the checkpoint that allows to free files.
            if not self.spares:
                raise
            self.drop_spare()
            self._create_reserve()

    def drop_spare(self) -> None:
        """Removes one spare file: its space is needed for something else."""
        self._directory.remove(self.spares.pop())
        self._directory.sync()

    def _create_reserve(self) -> None:
        file = self._directory.create(log_file.RESERVE_NAME)
        try:
            file.allocate(min(self._file_bytes, limits.CHECKPOINT_RESERVE_BYTES))
        except OSError:
            self._remove_quietly(log_file.RESERVE_NAME)
            raise
        finally:
            file.close()

    def use_reserve(self) -> bool:
        """Removes the reserve file, to make room for a checkpoint; returns whether there was one."""
        if log_file.RESERVE_NAME not in self._directory.names():
            return False
        self._directory.remove(log_file.RESERVE_NAME)
        self._directory.sync()
        return True

    def _remove_quietly(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._directory.remove(name)

    def drop_spares(self) -> None:
        """Deletes all spare files, with what their former lives left in them. Raises OSError."""
        for name in self.spares:
            self._directory.remove(name)
        self.spares.clear()
        self._directory.sync()

    def recycle(self, names: Iterable[str], retired_below: int = 0) -> None:
        """Frees log files: turns them into spares up to SPARE_BYTES_MAX and deletes the others, and those with a number
        below `retired_below`: their bytes must not stay on the disk."""
        spares: list[str] = []
        for name in names:
            number = log_file.log_number(name)
            assert number is not None
            if number >= retired_below and self._is_worth_keeping(name, len(spares)):
                spare = log_file.spare_name(number)
                self._directory.rename(name, spare)
                spares.append(spare)
            else:
                self._directory.remove(name)
        self._directory.sync()
        # Only after the directory sync: a crash could bring the old name back, so the file must not be written before.
        self.spares += spares

    def _is_worth_keeping(self, name: str, more: int) -> bool:
        if (len(self.spares) + more + 1) * self._file_bytes > limits.SPARE_BYTES_MAX:
            return False
        file = self._directory.open(name)
        try:
            return file.size() >= self._file_bytes
        finally:
            file.close()

    @property
    def needs_spare(self) -> bool:
        return len(self.spares) < self._spare_files

    def zero_spare(self, number: int) -> Iterator[None]:
        """Creates one zeroed spare; writes one slice per step, so that the caller can pause in between."""
        name = f"zero-{number:016d}.tmp"
        file = self._directory.create(name)
        try:
            zeros = bytes(limits.ZERO_SLICE_BYTES)
            for position in range(0, self._file_bytes, len(zeros)):
                # Real zeros and not `allocate`: writing into unwritten extents costs a journal entry with every sync
                # (hazard 36).
                file.write_at(position, zeros[: self._file_bytes - position])
                file.sync()
                yield
            spare = log_file.spare_name(number)
            self._directory.rename(name, spare)
            self._directory.sync()
            self.spares.append(spare)
        except (OSError, GeneratorExit):  # the disk failed, or the log closes before the spare is complete
            self._remove_quietly(name)
            raise
        finally:
            file.close()
