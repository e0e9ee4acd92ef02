"""A disk that forgets, tears, reorders and flips, from one seed: the twin of files.py.

Two layers: the *cache*, which every process sees, and the *platter*. A write changes the cache and becomes
pending; a sync moves pending writes to the platter. `kill` ends the process: the cache stays. `power_loss` ends the
machine: of the pending bytes each 512-byte sector lands or not, alone and in any order; of the pending directory
changes a prefix lands; then the cache is what the platter holds.

Faults: `fail(operation, errno, after=n)` makes the n-th next such operation fail: a write after a part of its bytes, a
sync the way Linux does it (the pages are marked clean and stay in the cache, but are not on the platter).
`crash_after(n)` raises `Crash` at the n-th operation from now, before it has any effect.
"""

from __future__ import annotations

import errno as error_numbers
import os
import random
from dataclasses import dataclass, field

from icestream import errors

SECTOR = 512


class Crash(BaseException):
    """The simulated process ends here. Not an Exception: no handler of the code under test may stop it."""


@dataclass(slots=True)
class Inode:
    """One file: its bytes in the cache and on the platter, and the writes in between."""

    cache: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut at that position

    def write(self, position: int, data: bytes) -> None:
        _put(self.cache, position, data)
        self.pending.append((position, data))

    def resize(self, size: int) -> None:
        if size < len(self.cache):
            del self.cache[size:]
            self.pending.append((size, None))
        else:
            self.write(len(self.cache), bytes(size - len(self.cache)))

    def sync(self) -> None:
        for position, data in self.pending:
            if data is None:
                del self.platter[position:]
            else:
                _put(self.platter, position, data)
        self.pending.clear()

    def lose_power(self, chance: random.Random) -> None:
        share = chance.choice((0.0, 0.3, 0.7, 1.0))
        for position, data in self.pending:
            if data is None:
                if chance.random() < share:
                    del self.platter[position:]
                continue
            for start, part in _sectors(position, data):
                if chance.random() < share:
                    _put(self.platter, start, part)
        self.pending.clear()
        self.cache = bytearray(self.platter)


def _put(target: bytearray, position: int, data: bytes) -> None:
    if not data:
        return
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def _sectors(position: int, data: bytes) -> list[tuple[int, bytes]]:
    parts = []
    at = 0
    while at < len(data):
        size = min(SECTOR - (position + at) % SECTOR, len(data) - at)
        parts.append((position + at, data[at : at + size]))
        at += size
    return parts


class SimulatedDisk:
    """One directory on one disk; also what a process sees of it until the next `kill` or `power_loss`."""

    def __init__(self, seed: int, capacity: int = 2**40) -> None:
        self.chance = random.Random(seed)
        self.capacity = capacity
        self.operations: list[tuple[str, str]] = []
        self._entries: dict[str, Inode] = {}
        self._platter_entries: dict[str, Inode] = {}
        self._changes: list[tuple[str, str, Inode | None]] = []
        self._locked: set[str] = set()
        self._life = 0
        self._faults: list[list[object]] = []
        self._crash_in = -1

    # --- faults ---

    def kill(self) -> None:
        """Ends the process: the cache stays."""
        self._end_process()

    def power_loss(self) -> None:
        """Ends the machine: pending writes and directory changes reach the platter in part or not at all."""
        self._end_process()
        landed = self.chance.randint(0, len(self._changes))
        for name, change, inode in self._changes[:landed]:
            _apply(self._platter_entries, name, change, inode)
        self._changes.clear()
        self._entries = dict(self._platter_entries)
        for inode in self._entries.values():
            inode.lose_power(self.chance)

    def _end_process(self) -> None:
        self._life += 1
        self._locked.clear()
        self._faults.clear()
        self._crash_in = -1

    def fail(self, operation: str, number: int, after: int = 0) -> None:
        """Makes the `after`-th next operation of this kind fail with errno `number`."""
        self._faults.append([operation, number, after])

    def heal(self) -> None:
        """Forgets faults that have not happened yet."""
        self._faults.clear()

    def crash_after(self, operations: int) -> None:
        """Raises Crash at the n-th operation from now, before it has any effect."""
        self._crash_in = operations

    def flip(self, name: str, bit: int) -> None:
        """Flips one bit of a file, in the cache and on the platter."""
        inode = self._entries[name]
        for content in (inode.cache, inode.platter):
            if bit >> 3 < len(content):
                content[bit >> 3] ^= 1 << (bit & 7)

    def content(self, name: str) -> bytes:
        return bytes(self._entries[name].cache)

    def replace(self, name: str, content: bytes) -> None:
        """Puts other bytes in a file, on the platter too."""
        inode = self._entries.setdefault(name, Inode())
        self._platter_entries[name] = inode
        inode.cache, inode.platter = bytearray(content), bytearray(content)
        inode.pending.clear()

    def used_bytes(self) -> int:
        return sum(len(inode.cache) for inode in self._entries.values())

    # --- the Directory protocol ---

    def names(self) -> list[str]:
        return sorted(self._entries)

    def open(self, name: str) -> SimulatedFile:
        if name not in self._entries:
            raise FileNotFoundError(error_numbers.ENOENT, "no such file", name)
        return SimulatedFile(self, name, self._entries[name], self._life)

    def create(self, name: str) -> SimulatedFile:
        self.step("create", name)
        if name in self._entries:
            raise FileExistsError(error_numbers.EEXIST, "exists", name)
        self._change(name, "set", Inode())
        return self.open(name)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", f"{old} {new}")
        self._check_there(old)
        inode = self._entries[old]
        # One change for the journal: a rename is atomic, both names change together.
        self._changes.append((new, f"move {old}", inode))
        _apply(self._entries, new, f"move {old}", inode)

    def remove(self, name: str) -> None:
        self.step("remove", name)
        self._check_there(name)
        self._change(name, "remove", None)

    def sync(self) -> None:
        self.step("sync_directory", "")
        for name, change, inode in self._changes:
            _apply(self._platter_entries, name, change, inode)
        self._changes.clear()

    def free_bytes(self) -> int:
        return max(0, self.capacity - self.used_bytes())

    def lock(self, name: str) -> SimulatedFile:
        if name in self._locked:
            raise errors.LogLocked("another process has the simulated disk open")
        self._locked.add(name)
        if name not in self._entries:
            self._change(name, "set", Inode())
        return self.open(name)

    def describe(self, name: str) -> str:
        return f"sim:{name}"

    def close(self) -> None:
        """A process that closes its directory leaves the disk as it is."""

    def _check_there(self, name: str) -> None:
        if name not in self._entries:
            raise FileNotFoundError(error_numbers.ENOENT, "no such file", name)

    def _change(self, name: str, change: str, inode: Inode | None) -> None:
        self._changes.append((name, change, inode))
        _apply(self._entries, name, change, inode)

    # --- for its files ---

    def step(self, operation: str, file_name: str) -> None:
        """Begins one operation: crashes or fails here if that was requested."""
        if self._crash_in == 0:
            raise Crash
        self._crash_in -= 1
        self.operations.append((operation, file_name))
        for fault in self._faults:
            if fault[0] == operation:
                fault[2] = int(str(fault[2])) - 1
                if fault[2] == -1:
                    self._faults.remove(fault)
                    number = int(str(fault[1]))
                    raise OSError(number, os.strerror(number), file_name)

    def check_life(self, life: int) -> None:
        if life != self._life:
            raise Crash

    def unlock(self, name: str) -> None:
        self._locked.discard(name)


def _apply(entries: dict[str, Inode], name: str, change: str, inode: Inode | None) -> None:
    if change == "remove":
        entries.pop(name, None)
    elif inode is not None:
        entries[name] = inode
        if change.startswith("move "):
            entries.pop(change.removeprefix("move "), None)


class SimulatedFile:
    __slots__ = ("_closed", "_disk", "_inode", "_life", "_name")

    def __init__(self, disk: SimulatedDisk, name: str, inode: Inode, life: int) -> None:
        self._closed = False
        self._disk = disk
        self._name = name
        self._inode = inode
        self._life = life

    def read_at(self, position: int, length: int) -> bytes:
        self._check_open()
        return bytes(self._inode.cache[position : position + length])

    def write_at(self, position: int, data: bytes) -> None:
        self._check_open()
        try:
            self._disk.step("write", self._name)
            self._check_room(position + len(data))
        except OSError:
            room = len(self._inode.cache) + self._disk.free_bytes() - position
            part = self._disk.chance.randint(0, max(0, min(len(data), room)))
            self._inode.write(position, data[:part])
            raise
        self._inode.write(position, data)

    def sync(self) -> None:
        self._check_open()
        try:
            self._disk.step("sync", self._name)
        except OSError:
            # As Linux: after a failed sync the pages are clean, and the next sync succeeds without having written them.
            self._inode.pending.clear()
            raise
        self._inode.sync()

    def allocate(self, size: int) -> None:
        self._check_open()
        self._disk.step("allocate", self._name)
        self._check_room(size)
        if size > len(self._inode.cache):
            self._inode.resize(size)

    def _check_room(self, size: int) -> None:
        if size - len(self._inode.cache) > self._disk.free_bytes():
            raise OSError(error_numbers.ENOSPC, os.strerror(error_numbers.ENOSPC), self._name)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.step("truncate", self._name)
        self._inode.resize(size)

    def _check_open(self) -> None:
        self._disk.check_life(self._life)
        if self._closed:
            raise OSError(error_numbers.EBADF, os.strerror(error_numbers.EBADF), self._name)

    def size(self) -> int:
        return len(self._inode.cache)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._life == self._disk._life:
            self._disk.unlock(self._name)
