"""A directory whose reads can be held: the reader's thread waits inside `read_at` until the test lets go."""

from __future__ import annotations

import asyncio
import threading

from icestream.runtime.files import Directory, File
from tests.support.counting_directory import CountingDirectory

WAIT_SECONDS = 10.0


class GatedDirectory(CountingDirectory):
    """`hold(n)` stops the n-th read of a log file from now on, before it reads. `threads` saw every read."""

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory)
        self.threads: set[int] = set()
        self._reached = threading.Event()
        self._open = threading.Event()
        self._reads_left = -1

    def hold(self, reads: int = 0) -> None:
        self._reached.clear()
        self._open.clear()
        self._reads_left = reads

    async def wait_reached(self) -> None:
        reached = await asyncio.get_running_loop().run_in_executor(None, self._reached.wait, WAIT_SECONDS)
        assert reached, "no read has reached the gate"

    def let_go(self) -> None:
        self._reads_left = -1
        self._reached.set()  # a test that waits for a read need not any more
        self._open.set()

    def open(self, name: str) -> File:
        return _GatedFile(super().open(name), self) if name.startswith("log-") else super().open(name)

    def passing(self) -> None:
        """One read is about to happen."""
        self.threads.add(threading.get_ident())
        if self._reads_left == 0:
            self._reads_left = -1
            self._reached.set()
            assert self._open.wait(WAIT_SECONDS), "the test never let go"
        elif self._reads_left > 0:
            self._reads_left -= 1


class _GatedFile:
    def __init__(self, file: File, directory: GatedDirectory) -> None:
        self._file = file
        self._directory = directory

    def read_at(self, position: int, length: int) -> bytes:
        self._directory.passing()
        return self._file.read_at(position, length)

    def write_at(self, position: int, data: bytes) -> None:
        self._file.write_at(position, data)

    def sync(self) -> None:
        self._file.sync()

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
