"""Snapshots on disk. The name is given last, so a file that has it is whole.

A SNAPSHOT FILE          snapshot-<index, 20 digits>-<SHA-256 of the state, 64 hex digits>
    0    8 bytes  magic "ICESSNAP"
    8    u32      version, 1
    12   u32      zero
    16   u64      index: of the last entry that is in the state
    24   u64      term: of that entry
    32   16 bytes log_id: as in the log files beside it
    48   u32      size of the ConfState
    52   ConfState at that index, then zeros
    508  u32      CRC of bytes [0, 508)
    512  the state (snapshot.py)

Written under a name that ends in .tmp, synced, renamed, and the directory synced. Its name proves that the log had
reached that index, even if its content is no longer readable. A snapshot from another node is called received-… until
the log has its BASE record (log_format.py): the log had not reached that index before.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.metadata.snapshot import load_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.runtime.checksum import crc32
from icestream.runtime.files import Directory, File

_MAGIC: Final = b"ICESSNAP"
_VERSION: Final = 1
_SECTOR: Final = 512
STATE_START: Final = _SECTOR
_HEADER = struct.Struct("<8sIIQQ16sI")
_CRC = struct.Struct("<I")
_NAME = re.compile(r"(snapshot|received)-([0-9]{20})-([0-9a-f]{64})")
_CONF_BYTES_MAX: Final = _SECTOR - _HEADER.size - _CRC.size
_READ_BYTES: Final = limits.MIB
_SIZE_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The header of a snapshot file."""

    index: int
    term: int
    log_id: bytes
    conf: bytes


class StoredSnapshot(NamedTuple):
    """A complete snapshot on disk."""

    name: str
    head: SnapshotHead
    state_bytes: int

    @property
    def descriptor(self) -> bytes:
        """The descriptor that a Raft snapshot carries instead of the state."""
        return f"{self.name} {self.state_bytes}".encode()


def snapshot_of(descriptor: bytes) -> tuple[str, int]:
    """The name and size of the state of a descriptor. Raises DecodeError."""
    name, _, size = descriptor.decode("ascii", "replace").partition(" ")
    if snapshot_index(name) is None or not size.isdigit() or len(size) > _SIZE_DIGITS_MAX:
        raise errors.DecodeError(f"malformed snapshot descriptor: {descriptor[:120]!r}")
    return name, int(size)


def snapshot_name(index: int, digest: str) -> str:
    return f"snapshot-{index:020d}-{digest}"


def snapshot_index(name: str) -> int | None:
    """The index in the name of an adopted snapshot; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match and match[1] == "snapshot" else None


def received_name(name: str) -> str:
    """The name of a received snapshot before it is adopted."""
    return name.replace("snapshot-", "received-", 1)


def is_received(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and match[1] == "received"


def snapshot_digest(name: str) -> bytes:
    """The SHA-256 in the name of a snapshot. Raises DecodeError for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise errors.DecodeError(f"{name[:100]!r} is not the name of a snapshot")
    return bytes.fromhex(match[3])


def encode_head(head: SnapshotHead) -> bytes:
    """The header sector. Raises InvalidInput for a membership that is too large."""
    if len(head.conf) > _CONF_BYTES_MAX:
        raise errors.InvalidInput(f"membership too large: {len(head.conf)} bytes, limit {_CONF_BYTES_MAX}")
    front = _HEADER.pack(_MAGIC, _VERSION, 0, head.index, head.term, head.log_id, len(head.conf)) + head.conf
    front = front.ljust(_SECTOR - _CRC.size, b"\0")
    return front + _CRC.pack(crc32(front))


def decode_head(data: bytes) -> SnapshotHead:
    """Decodes a header sector. Raises DecodeError, FormatUnknown for another version."""
    if len(data) < _SECTOR:
        raise errors.DecodeError("the head of a snapshot is cut off")
    if crc32(data[: _SECTOR - _CRC.size]) != _CRC.unpack_from(data, _SECTOR - _CRC.size)[0]:
        raise errors.DecodeError("the CRC of a snapshot's head does not match")
    magic, version, _, index, term, log_id, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or size > _CONF_BYTES_MAX:
        raise errors.DecodeError("not a snapshot file")
    if version != _VERSION:
        raise errors.FormatUnknown(
            f"snapshot file version {version} is not known", hint="use the version that wrote it"
        )
    return SnapshotHead(index, term, log_id, data[_HEADER.size : _HEADER.size + size])


class SnapshotWriter:
    """Writes a snapshot file. Blocking: runs off the loop."""

    def __init__(self, directory: Directory, head: SnapshotHead, *, stream: int = 0) -> None:
        """`stream`: distinguishes snapshots received at the same time, also of the same name."""
        self._directory = directory
        self._head = head
        self._temporary = f"received-{head.index:020d}-{stream}.tmp" if stream else f"snapshot-{head.index:020d}.tmp"
        self._digest = hashlib.sha256()
        self._size = self._unsynced = 0
        if self._temporary in directory.names():
            directory.remove(self._temporary)
        self._file = directory.create(self._temporary)
        try:
            self._file.write_at(0, encode_head(head))
        except OSError:
            self.abandon()
            raise

    def add(self, data: bytes) -> None:
        """Appends bytes of the state."""
        self._file.write_at(_SECTOR + self._size, data)
        self._digest.update(data)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= limits.WRITE_BACK_BYTES:
            # In parts: one sync of everything at the end would delay the log's own syncs.
            self._file.sync()
            self._unsynced = 0

    def finish(self) -> StoredSnapshot:
        """Makes the snapshot durable under its name."""
        name = snapshot_name(self._head.index, self._digest.hexdigest())
        self._name_it(name)
        return StoredSnapshot(name, self._head, self._size)

    def finish_as(self, name: str) -> None:
        """Finishes a received snapshot. Raises DecodeError if the digest differs from the name."""
        actual = received_name(snapshot_name(self._head.index, self._digest.hexdigest()))
        if actual != name:
            raise errors.DecodeError(f"snapshot digest mismatch: received {actual[-64:]}, announced was {name[-64:]}")
        self._name_it(name)

    def _name_it(self, name: str) -> None:
        self._file.sync()
        self._file.close()
        self._directory.rename(self._temporary, name)
        self._directory.sync()

    def abandon(self) -> None:
        """Removes the unfinished file."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._directory.remove(self._temporary)


def verify_snapshot(directory: Directory, name: str) -> StoredSnapshot:
    """Verifies a snapshot file and returns its head. Raises DecodeError."""
    match = _NAME.fullmatch(name)
    assert match is not None
    file = directory.open(name)
    try:
        head = decode_head(file.read_at(0, _SECTOR))
        digest, read = hashlib.sha256(), _reader(file)
        size = 0
        while data := read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    finally:
        file.close()
    if head.index != int(match[2]) or digest.hexdigest() != match[3]:
        raise errors.DecodeError(f"{directory.describe(name)}: name and content differ")
    return StoredSnapshot(name, head, size)


def open_snapshot(directory: Directory, stored: StoredSnapshot) -> StateMachine:
    """Loads the state of a verified file."""
    file = directory.open(stored.name)
    try:
        return load_snapshot(_reader(file))
    finally:
        file.close()


def _reader(file: File) -> Callable[[int], bytes]:
    at = _SECTOR

    def read(size: int) -> bytes:
        nonlocal at
        data = file.read_at(at, size)
        at += len(data)
        return data

    return read


@dataclass(slots=True)
class FoundSnapshots:
    """The snapshots of a directory."""

    good: list[StoredSnapshot]  # newest first
    bad: list[str]
    index_max: int  # of all names: the log had reached it
    received: dict[tuple[int, bytes], StoredSnapshot] = field(default_factory=dict)  # by index and digest
    received_names: list[str] = field(default_factory=list)


def find_snapshots(directory: Directory) -> FoundSnapshots:
    """Finds and verifies all snapshots of a directory."""
    snapshots = FoundSnapshots([], [], 0)
    for name in sorted(directory.names(), reverse=True):
        index = snapshot_index(name)
        if is_received(name):
            snapshots.received_names.append(name)
            with contextlib.suppress(errors.DecodeError):
                stored = verify_snapshot(directory, name)
                snapshots.received[stored.head.index, snapshot_digest(name)] = stored
        if index is None:
            continue
        # Also of a snapshot that is damaged: its name proves that the log had reached this entry.
        snapshots.index_max = max(snapshots.index_max, index)
        try:
            snapshots.good.append(verify_snapshot(directory, name))
        except errors.DecodeError:
            snapshots.bad.append(name)
    return snapshots


def adopt_snapshot(directory: Directory, received: StoredSnapshot) -> StoredSnapshot:
    """Adopts a received snapshot: renames it."""
    name = received.name.replace("received-", "snapshot-", 1)
    directory.rename(received.name, name)
    directory.sync()
    return received._replace(name=name)


def remove_others(directory: Directory, names: Collection[str]) -> None:
    """Removes every snapshot but these, valid or not."""
    for name in directory.names():
        if snapshot_index(name) is not None and name not in names:
            directory.remove(name)
    directory.sync()
