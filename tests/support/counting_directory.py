"""A directory that counts what is read through it, by file and kind of place."""

from __future__ import annotations

from collections import Counter

from icestream.runtime.files import Directory, File


class CountingDirectory:
    """`read_bytes` by file name; `reset` begins a new count."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.read_bytes: Counter[str] = Counter()

    def reset(self) -> None:
        self.read_bytes.clear()

    def total(self, prefix: str = "") -> int:
        return sum(size for name, size in self.read_bytes.items() if name.startswith(prefix))

    def open(self, name: str) -> File:
        return _CountingFile(self._directory.open(name), name, self.read_bytes)

    def create(self, name: str) -> File:
        return self._directory.create(name)

    def names(self) -> list[str]:
        return self._directory.names()

    def rename(self, old: str, new: str) -> None:
        self._directory.rename(old, new)

    def remove(self, name: str) -> None:
        self._directory.remove(name)

    def sync(self) -> None:
        self._directory.sync()

    def free_bytes(self) -> int:
        return self._directory.free_bytes()

    def lock(self, name: str) -> File:
        return self._directory.lock(name)

    def describe(self, name: str) -> str:
        return self._directory.describe(name)

    def close(self) -> None:
        self._directory.close()


class _CountingFile:
    def __init__(self, file: File, name: str, counts: Counter[str]) -> None:
        self._file = file
        self._name = name
        self._counts = counts

    def read_at(self, position: int, length: int) -> bytes:
        data = self._file.read_at(position, length)
        self._counts[self._name] += len(data)
        return data

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
