"""A directory whose unsynced bytes die with their process: what a kill -9 leaves is what a power loss would.

Writes wait in the memory of the process until their file is synced; then they go to the real file. Now and then some
sectors of a write go there at once, as write-back does: what a crash leaves may be torn. Names are real: losing those
is the simulated disk's business. Faults, all settable while the process runs:

    slow_seconds    every sync takes this much longer
    failing         the next sync fails with EIO; what it covered is gone
    full            nothing grows: ENOSPC
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from icestream.runtime.files import File, LocalDirectory, LocalFile
from icestream.wal.appender import PlannedWrite
from icestream.wal.sink import InlineSink, SinkProgress

SECTOR = 512
WRITTEN_BACK = 0.2


class DiskFaults:
    def __init__(self) -> None:
        self.slow_seconds = 0.0
        self.failing = False
        self.full = False
        self.forgets_syncs = False  # a planted bug: a sync that does nothing


class UnsyncedWrites:
    """The writes of one inode that no sync has covered."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, bytes]] = []
        self.size = 0


class UnsyncedLossFile:
    def __init__(self, real: LocalFile, unsynced: UnsyncedWrites, faults: DiskFaults, chance: random.Random) -> None:
        self._real = real
        self._unsynced = unsynced
        self._faults = faults
        self._chance = chance

    def read_at(self, position: int, length: int) -> bytes:
        length = max(min(length, self.size() - position), 0)
        content = bytearray(self._real.read_at(position, length).ljust(length, b"\0"))
        for start, data in self._unsynced.writes:
            first, last = max(start, position), min(start + len(data), position + length)
            if first < last:
                content[first - position : last - position] = data[first - start : last - start]
        return bytes(content)

    def write_at(self, position: int, data: bytes) -> None:
        if self._faults.full and position + len(data) > self.size():
            raise OSError(errno.ENOSPC, "the test has filled the disk")
        self._unsynced.writes.append((position, bytes(data)))
        self._unsynced.size = max(self._unsynced.size, position + len(data))
        if self._chance.random() < WRITTEN_BACK:
            for at in range(0, len(data), SECTOR):
                if self._chance.random() < 0.5:
                    self._real.write_at(position + at, data[at : at + SECTOR])

    def sync(self) -> None:
        if self._faults.slow_seconds:
            time.sleep(self._faults.slow_seconds)
        if self._faults.forgets_syncs:
            return
        if self._faults.failing:
            self._faults.failing = False
            self._unsynced.writes.clear()
            raise OSError(errno.EIO, "the test has broken the disk")
        for position, data in self._unsynced.writes:
            self._real.write_at(position, data)
        self._unsynced.writes.clear()

    def allocate(self, size: int) -> None:
        self._real.allocate(size)

    def truncate(self, size: int) -> None:
        self.sync()
        self._real.truncate(size)
        self._unsynced.size = 0

    def size(self) -> int:
        return max(self._real.size(), self._unsynced.size)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._real.close()


class UnsyncedLossDirectory(LocalDirectory):
    """A real directory whose unsynced writes can be lost."""

    def __init__(self, path: Path, faults: DiskFaults, seed: int) -> None:
        super().__init__(path)
        self._faults = faults
        self._chance = random.Random(seed)
        self._inodes: dict[int, UnsyncedWrites] = {}

    def open(self, name: str) -> File:
        return self._losing(super().open(name))

    def create(self, name: str) -> File:
        if self._faults.full:
            raise OSError(errno.ENOSPC, "the test has filled the disk")
        return self._losing(super().create(name))

    def _losing(self, real: LocalFile) -> UnsyncedLossFile:
        inode = os.fstat(real.fileno()).st_ino
        return UnsyncedLossFile(real, self._inodes.setdefault(inode, UnsyncedWrites()), self._faults, self._chance)

    def rename(self, old: str, new: str) -> None:
        if (self.path / new).exists():
            self._forget(new)
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._forget(name)
        super().remove(name)

    def _forget(self, name: str) -> None:
        """The number of the inode may be used again."""
        self._inodes.pop((self.path / name).stat().st_ino, None)


class ThreadSink:
    """An inline sink in a thread of its own, so that a slow disk delays only its own writes."""

    def __init__(self) -> None:
        self._inner = InlineSink()
        self._queue: deque[tuple[Sequence[PlannedWrite], Mapping[int, File]]] = deque()
        self._wake = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._progress = SinkProgress(0, 0, None)
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="losing-disk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            if self._closed and not self._queue:
                return
            writes: list[PlannedWrite] = []
            files: dict[int, File] = {}
            while self._queue:
                more, handles = self._queue.popleft()
                writes += more
                files.update(handles)
            if writes:
                self._inner.submit(writes, files)
                with self._lock:
                    self._progress = self._inner.progress()
                os.eventfd_write(self._news, 1)

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        self._queue.append((writes, dict(files)))
        self._wake.release()
        return False

    def request_sync(self, file: File) -> None:
        """Not used here."""

    def progress(self) -> SinkProgress:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)
        with self._lock:
            return self._progress

    def fileno(self) -> int:
        return self._news

    def halt(self) -> SinkProgress:
        return self.progress()

    def restart(self) -> None:
        self._inner.restart()

    def close(self) -> None:
        self._closed = True
        self._wake.release()
        self._thread.join()
        os.close(self._news)
