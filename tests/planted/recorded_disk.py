"""A simulated disk that also keeps the calls, as the recorder of real ones does: one checker for both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from icestream.runtime.files import Directory, File
from tests.support.syscall_recorder import Call, Event

Answer = TypeVar("Answer")


class RecordedDisk:
    """Stands between the log and a directory. Lives as long as the disk, over all its processes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._place = count()
        self._inodes: dict[str, int] = {name: number for number, name in enumerate(directory.names(), 1)}
        self.events: list[Event] = []

    def names(self) -> list[str]:
        return self._directory.names()

    def open(self, name: str) -> RecordedFile:
        return RecordedFile(self, self._inodes[name], self._directory.open(name))

    def create(self, name: str) -> RecordedFile:
        inode = len(self.events) + 1_000_000
        file = self.note(Call.CREATE, name, inode, lambda: self._directory.create(name))
        self._inodes[name] = inode
        return RecordedFile(self, inode, file)

    def rename(self, old: str, new: str) -> None:
        self.note(Call.RENAME, old, self._inodes[old], lambda: self._directory.rename(old, new), target=new)
        self._inodes[new] = self._inodes.pop(old)

    def remove(self, name: str) -> None:
        self.note(Call.UNLINK, name, self._inodes[name], lambda: self._directory.remove(name))
        del self._inodes[name]

    def sync(self) -> None:
        self.note(Call.SYNC_DIRECTORY, "", 0, self._directory.sync)

    def free_bytes(self) -> int:
        return self._directory.free_bytes()

    def lock(self, name: str) -> File:
        return self._directory.lock(name)

    def describe(self, name: str) -> str:
        return self._directory.describe(name)

    def close(self) -> None:
        self._directory.close()

    def say(self, line: str) -> None:
        self.note(Call.SAY, "said", 0, lambda: None, data=line.encode())

    def name_of(self, inode: int) -> str:
        return next((name for name, number in self._inodes.items() if number == inode), "")

    def note(
        self,
        call: Call,
        name: str,
        inode: int,
        carry_out: Callable[[], Answer],
        *,
        position: int = 0,
        target: str = "",
        data: bytes = b"",
    ) -> Answer:
        begin = next(self._place)
        result = 0
        try:
            return carry_out()
        except OSError as error:
            result = -(error.errno or 1)
            raise
        finally:
            self.events.append(Event(begin, next(self._place), call, name, inode, position, result, target, data))


class RecordedFile:
    def __init__(self, disk: RecordedDisk, inode: int, file: File) -> None:
        self._disk = disk
        self._inode = inode
        self._file = file

    def _note(self, call: Call, carry_out: Callable[[], None], position: int = 0, data: bytes = b"") -> None:
        self._disk.note(call, self._disk.name_of(self._inode), self._inode, carry_out, position=position, data=data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def write_at(self, position: int, data: bytes) -> None:
        self._note(Call.WRITE, lambda: self._file.write_at(position, data), position, data)

    def sync(self) -> None:
        self._note(Call.SYNC, self._file.sync)

    def allocate(self, size: int) -> None:
        self._note(Call.ALLOCATE, lambda: self._file.allocate(size), size)

    def truncate(self, size: int) -> None:
        self._note(Call.TRUNCATE, lambda: self._file.truncate(size), size)

    def size(self) -> int:
        return self._file.size()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
