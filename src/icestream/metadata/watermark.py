"""How far the metadata log was synced, kept outside of its directory: `raft.mark` beside `raft` (ADR 45).

A log whose newest file was removed, whose last records are lost, or that was restored from a backup, looks like a log
that simply ends earlier. The mark says that it was longer.

THE FILE      two slots of 128 bytes; the valid one with the higher number counts
    0   8 bytes "ICESMARK"          8   u64  number of this write: even in the first slot, odd in the second
    16  16 bytes  id of the log     32  u64  number (LSN) of a record that was synced
    40  u64  id of the node         48  16 bytes  id of its cluster
    64  u8   1 when the log has known other nodes      65  zeros      124  u32  CRC of all before it

A write goes into the slot that does not count, in a mapped page: it causes no sync, so after a power loss the mark may
be behind the log, and it is never ahead of it. A log without a mark was written by a version without marks.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from icestream.runtime.checksum import crc32

_MAGIC: Final = b"ICESMARK"
_SLOT: Final = struct.Struct("<8sQ16sQQ16sB")
_CRC: Final = struct.Struct("<I")
SLOT_BYTES: Final = 128
FILE_BYTES: Final = 2 * SLOT_BYTES
_CRC_AT: Final = SLOT_BYTES - _CRC.size


class Mark(NamedTuple):
    """The contents of a slot."""

    log_id: bytes
    lsn: int
    node_id: int
    cluster_id: bytes
    has_others: bool


class Watermark(Protocol):
    """Where the mark is kept."""

    def read(self) -> Mark | None:
        """The last mark; None if there is none."""

    def note(self, mark: Mark) -> None:
        """Notes that everything up to `mark.lsn` is synced."""

    def sync(self) -> None:
        """Syncs the mark. Blocking; only at start and stop."""

    def close(self) -> None: ...


def mark_path(directory: Path) -> Path:
    """The path of the mark of the metadata log in `directory`."""
    return directory.with_name(directory.name + ".mark")


def encode_slot(number: int, mark: Mark) -> bytes:
    """The bytes of one slot."""
    fields = (_MAGIC, number, mark.log_id, mark.lsn, mark.node_id, mark.cluster_id, mark.has_others)
    slot = _SLOT.pack(*fields).ljust(_CRC_AT, b"\0")
    return slot + _CRC.pack(crc32(slot))


def decode_slots(data: bytes) -> tuple[int, Mark | None]:
    """The newest valid slot and its mark; (0, None) if there is none."""
    newest: tuple[int, Mark | None] = (0, None)
    for start in range(0, min(len(data), FILE_BYTES) - SLOT_BYTES + 1, SLOT_BYTES):
        slot = data[start : start + SLOT_BYTES]
        (stored,) = _CRC.unpack_from(slot, _CRC_AT)
        magic, number, log_id, lsn, node_id, cluster_id, has_others = _SLOT.unpack_from(slot)
        if magic == _MAGIC and crc32(slot[:_CRC_AT]) == stored and number > newest[0]:
            newest = (number, Mark(log_id, lsn, node_id, cluster_id, bool(has_others)))
    return newest


def read_mark(directory: Path) -> Mark | None:
    """Reads the mark of the log in `directory`; changes nothing."""
    try:
        return decode_slots(mark_path(directory).read_bytes())[1]
    except FileNotFoundError:
        return None


class MemoryWatermark:
    """The watermark of a simulated disk: it outlives the store, as the file does."""

    def __init__(self) -> None:
        self.mark: Mark | None = None

    def read(self) -> Mark | None:
        return self.mark

    def note(self, mark: Mark) -> None:
        self.mark = mark

    def sync(self) -> None: ...

    def close(self) -> None: ...


class FileWatermark:
    """The mark in a file, written through a memory map."""

    def __init__(self, path: Path) -> None:
        """Creates the file if it does not exist. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if os.fstat(self._fd).st_size < FILE_BYTES:
                # A store into a mapped hole raises SIGBUS on a full disk, which would end the process.
                os.posix_fallocate(self._fd, 0, FILE_BYTES)
            self._page = mmap.mmap(self._fd, FILE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._number, self._mark = decode_slots(self._page[:])

    def read(self) -> Mark | None:
        return self._mark

    def note(self, mark: Mark) -> None:
        self._number += 1
        self._mark = mark
        # Into the slot that does not count: a torn write leaves the other one valid.
        start = self._number % 2 * SLOT_BYTES
        self._page[start : start + SLOT_BYTES] = encode_slot(self._number, mark)

    def sync(self) -> None:
        self._page.flush()
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._page.close()
            os.close(self._fd)
            self._fd = -1
