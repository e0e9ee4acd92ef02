"""The bytes of the metadata log. It is a log of its own, in a directory of its own, made of the records of the WAL.

Why those records: header with CRC over every length, generation, LSN, `synced_through`, and the rule that tells the end
of the log from damage are proven there (icestream.wal.format; hazards 5, 6), with a native encoder and scanner.

THE DIRECTORY
    LOCK                           flock by the one process that may write
    log-<number, 16 digits>.wal    a log file: header and seal sectors as in icestream.wal.log_file, records from 4096
    snapshot-<index>-<sha256>      the whole state (snapshot_file.py); the newest two are kept
    received-<index>-<sha256>      the same, from another node: in force, and renamed, when the log has its BASE record
    *.tmp                          unfinished files of a process that crashed: removed at start, never read
    sync-failed                    a sync failed in the last run; the next start reports it
Beside the directory lies its mark (watermark.py).

A RECORD is one write of the node: kind DATA, LSN one more than the record before it. Its sections, in this order:
    kind 66 IDENTITY   u64 node_id | 16 bytes cluster_id | u16 size | ConfState of the newest snapshot (or the first)
    kind 64 STATE      u64 term | u64 vote | u64 commit
    kind 67 BASE       u64 index | u64 term | 32 bytes SHA-256: the log continues behind this snapshot of another node
    kind 68 PROMISES   what other nodes have confirmed, as far as this node knows (ADR 45). OPTIONAL. For each
                       u64 node_id | u64 term | u64 index
    kind 65 ENTRIES    base_offset: index of the first; rows: how many; per entry u32 size | eraftpb Entry
    The first record of a file has IDENTITY, STATE and PROMISES, because older files may be removed. Later ones
    have STATE when term or vote changed, PROMISES when they did, and IDENTITY when the node found or founded its
    cluster (before that: zeros, no conf).
    The commit index is never a reason to write (node.py, rule 4).
    An unknown kind without the OPTIONAL flag stops the start. The WAL's numbers are others, so its files stop it, too.

WHAT COUNTS
    The last STATE, the last PROMISES. Of entries with one index the last one: a record whose first index is not the
    next one replaces everything from there on. A BASE ends all entries before it: its state, which was synced before
    the record, takes their place. Entries behind the newest good snapshot are given to the core.

FILES
    All of its space is written and synced before a file gets its name. When a record does not fit: sync, seal the file,
    sync, then the first record of the next one. A failed write or sync stops the node; nothing is rolled back.
    A file is removed when it is sealed and both kept snapshots cover all its entries, oldest first.

A START
    loads the newest good snapshot, walks all files, and judges the first record that is not good by the rule of
    hazard 5. It is damage when it is known to have been synced: a later record or the header of a file says so, a later
    file holds records, the file is sealed, a snapshot covers an index beyond it, or the mark says so. Else it is the
    tail. Damage stops the start and changes nothing. The records of the unsealed file are copied into a fresh one and
    synced before they count (hazard 6).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from icestream import errors
from icestream.metadata.core import HardState
from icestream.wal import format as wire

_STATE = struct.Struct("<QQQ")
_IDENTITY = struct.Struct("<Q16sH")
_BASE = struct.Struct("<QQ32s")
_PROMISE = struct.Struct("<QQQ")
_SIZE = struct.Struct("<I")

# Header, the section entries, identity, state, base and promises at their largest, padding.
RECORD_OVERHEAD_BYTES: Final = 1024
NO_CLUSTER: Final = bytes(16)
ENTRY_OVERHEAD_BYTES: Final = 40  # size, type, term, index and length of an entry around its data, at their longest


class MetadataSectionKind(IntEnum):
    """The kinds of sections in the metadata log; numbers are never reused."""

    STATE = 64
    ENTRIES = 65
    IDENTITY = 66
    BASE = 67
    PROMISES = 68


class Promise(NamedTuple):
    """What a node has confirmed: its term, and the last entry that it has written in that term. It never falls."""

    term: int
    last: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The node and the cluster that a log belongs to, and the members at its newest snapshot."""

    node_id: int
    cluster_id: bytes
    conf: bytes

    @property
    def is_member(self) -> bool:
        """True if the node is a member of a cluster, possibly its only one."""
        return self.cluster_id != NO_CLUSTER


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot received from another node; the log continues behind it."""

    index: int
    term: int
    digest: bytes


@dataclass(slots=True)
class LogRecord:
    """The decoded content of one record."""

    identity: Identity | None = None
    state: HardState | None = None
    first_index: int = 0
    entries: list[bytes] = field(default_factory=list)
    base: Base | None = None
    promises: dict[int, Promise] | None = None  # by the id of a node

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1


def sections(record: LogRecord) -> list[wire.RecordSection]:
    """The sections of a record, in the order of the format."""
    encoded = []
    if record.identity is not None:
        identity = record.identity
        encoded.append(
            _section(
                MetadataSectionKind.IDENTITY,
                _IDENTITY.pack(identity.node_id, identity.cluster_id, len(identity.conf)) + identity.conf,
            )
        )
    if record.state is not None:
        encoded.append(_section(MetadataSectionKind.STATE, _STATE.pack(*record.state)))
    if record.base is not None:
        encoded.append(
            _section(MetadataSectionKind.BASE, _BASE.pack(record.base.index, record.base.term, record.base.digest))
        )
    if record.promises:
        body = b"".join(_PROMISE.pack(node_id, *promise) for node_id, promise in record.promises.items())
        encoded.append(_section(MetadataSectionKind.PROMISES, body, flags=wire.OPTIONAL))
    if record.entries:
        parts = [part for entry in record.entries for part in (_SIZE.pack(len(entry)), entry)]
        encoded.append(_section(MetadataSectionKind.ENTRIES, b"".join(parts), record.first_index, len(record.entries)))
    return encoded


def _section(kind: int, body: bytes, first: int = 0, rows: int = 0, flags: int = 0) -> wire.RecordSection:
    return wire.RecordSection(0, 0, kind, flags, 0, first, 0, rows, 0, body)


def record_bytes(encoded: Sequence[wire.RecordSection]) -> int:
    """The size in bytes of a record with these sections."""
    return sum(
        [wire.padded(len(section.body)) for section in encoded], wire.HEADER_BYTES + wire.ENTRY_BYTES * len(encoded)
    )


def decode_record(data: bytes, at: int, position: int, section_count: int) -> LogRecord:
    """Decodes the record at `data[at:]`, which a scan has verified. Raises FormatUnknown, DecodeError."""
    record = LogRecord()
    for entry in wire.entries_at(data, at, position, section_count):
        start = at + entry.body_position - position
        _decode_section(record, entry, data[start : start + entry.body_bytes])
    return record


def _decode_section(record: LogRecord, entry: wire.SectionEntry, body: bytes) -> None:
    try:
        match entry.kind:
            case MetadataSectionKind.IDENTITY:
                record.identity = _decode_identity(body)
            case MetadataSectionKind.STATE:
                record.state = HardState(*_STATE.unpack(body))
            case MetadataSectionKind.BASE:
                record.base = Base(*_BASE.unpack(body))
            case MetadataSectionKind.PROMISES:
                record.promises = {node: Promise(term, index) for node, term, index in _PROMISE.iter_unpack(body)}
            case MetadataSectionKind.ENTRIES:
                record.first_index, record.entries = entry.base_offset, _decode_entries(body, entry.rows)
            case kind if not entry.flags & wire.OPTIONAL:
                raise errors.FormatUnknown(
                    f"the metadata log has a section of unknown kind {kind}",
                    hint="use the version of Icestream that wrote it",
                )
    except struct.error as error:
        raise errors.DecodeError(f"malformed section in the metadata log: {error}") from None


def _decode_identity(body: bytes) -> Identity:
    node_id, cluster_id, size = _IDENTITY.unpack_from(body)
    if _IDENTITY.size + size != len(body):
        raise errors.DecodeError("malformed identity in the metadata log: wrong length")
    return Identity(node_id, cluster_id, body[_IDENTITY.size :])


def _decode_entries(body: bytes, count: int) -> list[bytes]:
    entries: list[bytes] = []
    at = 0
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        entries.append(body[at : at + size])
        at += size
    if at != len(body) or len(entries) != count:
        raise errors.DecodeError(f"malformed entries in the metadata log: {len(entries)} of {count} decoded")
    return entries
