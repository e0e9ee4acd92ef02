"""The byte format of the write-ahead log. This docstring is the specification; the code below implements it.

All integers are little-endian. CRC means CRC-32 (IEEE, as zlib). Positions are byte positions inside one log file.

THE DIRECTORY
    LOCK                           flock by the one process that may write
    log-<number, 16 digits>.wal    a log file; numbers rise and are never used twice
    spare-<number>.wal             a free file: zeros, or the old bytes of a recycled one
    spill-<number>.wal             a spill file: messages of a stuck topic, copied out of log files (spill_log.py)
    checkpoint-<lsn>-<serial>      one record of kind CHECKPOINT (checkpoint.py); the newest two are kept
    copy-<number>.tmp, *.tmp       unfinished files of a process that crashed: removed at start, never read
    reserve                        space for one checkpoint on a full disk: without it nothing could be freed
    ballast                        emergency space for draining the log when the disk is full (ballast.py)
    sync-failed                    a sync failed in the last run; the next start reports it
    mended-…, aside-…,             an unfinished repair (log_repair.py); without repair-decided it is not in force
      repair-decided
    damaged-…                      damaged originals that `icestream wal repair` set aside

A LOG FILE
    0      file header sector (512 bytes), then the seal sector (512), then zeros up to 4096 (log_file.py)
    4096   records, one after the other; each starts where the one before it ends

A RECORD                                             starts at a multiple of 8 (or of `align_bytes`)
    0   u32  magic 0x52575349 ("ISWR"): never zero, so that zeroed bytes are not a record (hazard 5)
    4   u8   version, 1
    5   u8   kind: 1 DATA, 2 CHECKPOINT, 3 FOOTER, 4 REPAIR
    6   u16  flags, 0
    8   u64  lsn: log sequence number, from 1, one more for each DATA record of this log
    16  u64  generation: the number of the file. A recycled file has a new number, so an old record in it can never be
             taken for a new one
    24  u64  synced_through: the highest LSN known to be synced when this record was built
    32  i64  append_time_us: wall clock, microseconds since 1970, taken once per tick
    40  u32  header_bytes: 64 + 64 * section_count
    44  u32  record_bytes: everything, padding included; the next record starts here + record_bytes
    48  u32  section_count
    52  u32  position: where in its file this record starts
    56  u32  zero
    60  u32  CRC of bytes [0, 60) and of the whole section directory. Every length is under it (hazard 5)
    64  section directory: section_count entries of 64 bytes
    ..  section bodies, each starting at a multiple of 8, in directory order
    ..  zero padding

A SECTION ENTRY: one topic shard (or one note about it) in this record
    0   u64  topic_id
    8   u32  shard
    12  u8   kind (SectionKind)
    13  u8   flags: bit 0 OPTIONAL, a reader that does not know the kind may skip it
    14  u16  zero
    16  u64  epoch: the shard epoch of its owner
    24  i64  base_offset: offset of the first message
    32  i64  append_time_us: as the shard saw it (hazard 32: a small backward step is clamped)
    40  u32  rows: messages
    44  u32  body_position
    48  u32  body_bytes
    52  u32  previous: position of the entry of this shard's section before this one in this file, 0 for none
    56  u32  zero
    60  u32  CRC of entry bytes [0, 60) and of the body: a section is read and verified alone (hazard 19)

Section bodies: MESSAGES is a sequence of blocks (block.py), TOPIC the name and incarnation behind a topic id (each file
names the ids it uses, before it uses them), RESERVE and GAP are notes on offsets (notes.py), PRODUCERS, QOS2_RELEASE
and REAPPEND are written by no version: their numbers stay taken. An unknown kind without OPTIONAL stops the start.

THE OFFSETS OF A SHARD (hazard 0)      committed <= synced <= written <= assigned <= reserved
    The ack leaves at synced (`always`) or written (`periodic`, `none`). In `always` reserved is assigned. In the other
    modes RESERVE notes state "nothing at or above this was assigned"; a record that assigns offsets beyond the synced
    reservation carries the next one, and its own ack waits for its sync.

THE END OF THE LOG (hazard 5)
    A reader expects LSN n at a position. A record is good when magic, version, generation, position, lsn = n, header
    CRC and every section CRC fit. The first one that is not is DAMAGE when n is known to have been synced:
        - a later good header of the same file says synced_through >= n, or the file's header sector or seal does;
        - a later file holds a good record (a file gets its first record after the one before it is synced and sealed);
        - a checkpoint, a stored cursor or the table contains an LSN or an offset beyond it. A checkpoint that cannot be
          read still has its LSN in its name.
    Otherwise it is the TAIL: never acked in `always`, and cut off. A flipped bit inside the very last synced batch
    leaves no evidence anywhere and is taken for a tail; no log can tell the difference.

RECOVERY (hazard 6)
    never appends to an existing file. The good records of the unsealed file are copied into a fresh file under a new
    number and synced, and only then does its header name the old file in `replaces`; so a crash during recovery changes
    nothing. The recovered records count as synced only after that.

ROTATION
    records, footer, sync; then the seal sector, sync; then the first record of the next file. (Where all records are
    synced already, footer and seal share one sync.) A valid seal therefore proves that every record before it is on
    disk; a footer that is not good is rebuilt from them. A failed write ends a file early in the same way: the seal
    names the last valid record, and bytes after it are ignored.

SECTORS (hazard 42)
    Appending rewrites the last sector, whose front may already be acked. We assume that a sector being rewritten keeps
    the bytes that are equal before and after. Where a disk does not promise that, `align_bytes: 512` (or 4096) starts
    every record on a sector of its own. 4096 does not cover the first page, where header and seal share 4 KiB: a disk
    that tears it while a file is sealed leaves a damaged header, which a start reports; `icestream wal repair` rebuilds
    it from the records and loses nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.runtime.checksum import crc32
from icestream.runtime.native import native

MAGIC: Final = 0x52575349
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
VERSION: Final = 1
HEADER_BYTES: Final = 64
ENTRY_BYTES: Final = 64
ALIGN: Final = 8
RECORDS_START: Final = 4096
GENERATION_AT: Final = 16
HEADER_CRC_AT: Final = 60
GENERATION: Final = struct.Struct("<Q")
HEADER_CRC: Final = struct.Struct("<I")

_HEADER = struct.Struct("<IBBHQQQqIIIII")  # up to, not including, the CRC
ENTRY: Final = struct.Struct("<QIBBHQqqIIIII")
_CRC = struct.Struct("<I")
assert _HEADER.size == HEADER_BYTES - 4
assert ENTRY.size == ENTRY_BYTES - 4


class RecordKind(IntEnum):
    """The kinds of records."""

    DATA = 1
    CHECKPOINT = 2
    FOOTER = 3
    REPAIR = 4  # its LSN may jump: the records in between were lost, and its GAP notes declare the messages


class SectionKind(IntEnum):
    """The kinds of sections; numbers are never reused."""

    MESSAGES = 1
    TOPIC = 2
    RESERVE = 3
    GAP = 4
    PRODUCERS = 5
    QOS2_RELEASE = 6
    REAPPEND = 7
    # only in checkpoints
    LOG = 32
    TOPICS = 33
    SHARDS = 34
    GAPS = 35
    WINDOWS = 36
    EPOCHS = 37
    CURRENT = 38
    # only in footers
    INDEX = 48
    MARKS = 49


# The kinds that this version writes and applies. The others are reserved: a log with one is of another version.
SECTION_KINDS_KNOWN: Final = frozenset(
    int(kind)
    for kind in SectionKind
    if kind not in (SectionKind.PRODUCERS, SectionKind.QOS2_RELEASE, SectionKind.REAPPEND)
)
OPTIONAL: Final = 1


class RecordSection(NamedTuple):
    """One section to be encoded."""

    topic_id: int
    shard: int
    kind: int
    flags: int
    epoch: int
    base_offset: int
    append_time_us: int
    rows: int
    previous: int
    body: bytes | Sequence[bytes]  # parts are stored one after the other


class SectionEntry(NamedTuple):
    """A decoded section entry. `position`: of the entry in its file."""

    topic_id: int
    shard: int
    kind: int
    flags: int
    epoch: int
    base_offset: int
    append_time_us: int
    rows: int
    body_position: int
    body_bytes: int
    previous: int
    crc: int
    position: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.rows


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A decoded record header."""

    kind: int
    lsn: int
    generation: int
    synced_through: int
    append_time_us: int
    header_bytes: int
    record_bytes: int
    section_count: int
    position: int

    @property
    def end(self) -> int:
        return self.position + self.record_bytes


def padded(size: int, align: int = ALIGN) -> int:
    """`size`, rounded up to a multiple of `align`."""
    return -(-size // align) * align


def encode_record_python(
    kind: int,
    lsn: int,
    generation: int,
    synced_through: int,
    append_time_us: int,
    position: int,
    align: int,
    sections: Sequence[RecordSection],
) -> bytes:
    """The bytes of one record that will be written at `position`."""
    header_bytes = HEADER_BYTES + ENTRY_BYTES * len(sections)
    directory: list[bytes] = []
    bodies: list[bytes] = []
    at = header_bytes
    for topic, shard, section_kind, flags, epoch, base, time_us, count, previous, content in sections:
        body = content if isinstance(content, bytes) else b"".join(content)
        front = ENTRY.pack(
            topic, shard, section_kind, flags, 0, epoch, base, time_us, count, position + at, len(body), previous, 0
        )
        directory.append(front + _CRC.pack(crc32(body, crc32(front))))
        bodies.append(body)
        space = padded(len(body))
        if space != len(body):
            bodies.append(bytes(space - len(body)))
        at += space
    total = padded(at, align)
    front = _HEADER.pack(
        MAGIC, VERSION, kind, 0, lsn, generation, synced_through, append_time_us,
        header_bytes, total, len(sections), position, 0,
    )  # fmt: skip
    entries = b"".join(directory)
    return b"".join((front, _CRC.pack(crc32(entries, crc32(front))), entries, *bodies, bytes(total - at)))


# The native twin has the same signature and result; both are compared by a property test.
encode_record: Final[Callable[..., bytes]] = native.encode_record if native else encode_record_python


def decode_header(data: bytes | memoryview, at: int, position: int) -> RecordHeader:
    """The record header at `data[at:]`, which is at `position` of its file. Raises DecodeError.

    `data` must contain the header and its directory; a directory that is cut off is an error, too.
    """
    if len(data) - at < HEADER_BYTES:
        raise errors.DecodeError("record header cut off")
    fields = _HEADER.unpack_from(data, at)
    magic, version, kind, _, lsn, generation, synced, time_us, header_bytes, total, count, stored_position, _ = fields
    if magic != MAGIC:
        raise errors.DecodeError("no record magic")
    if version != VERSION:
        raise errors.DecodeError(f"record version {version} is not known")
    if (
        stored_position != position
        or count > limits.RECORD_SECTIONS_MAX
        or header_bytes != HEADER_BYTES + ENTRY_BYTES * count
        or total < header_bytes
        or total % ALIGN
    ):
        raise errors.DecodeError("record header is inconsistent")
    # The lengths are plausible but not proven yet: nothing outside of `data` is touched before the CRC fits.
    if len(data) - at < header_bytes:
        raise errors.DecodeError("section directory cut off")
    view = memoryview(data)
    (stored,) = _CRC.unpack_from(data, at + HEADER_BYTES - 4)
    # One CRC over header and directory: a directory entry with a wrong length would lead into other bytes (hazard 5).
    front = crc32(view[at : at + HEADER_BYTES - 4])
    if crc32(view[at + HEADER_BYTES : at + header_bytes], front) != stored:
        raise errors.DecodeError("record header CRC does not match")
    return RecordHeader(kind, lsn, generation, synced, time_us, header_bytes, total, count, position)


def decode_entry(data: bytes | memoryview, at: int, position: int) -> SectionEntry:
    """The section entry at `data[at:]`, at `position` of its file. Its CRC is checked with its body, not here."""
    if len(data) - at < ENTRY_BYTES:
        raise errors.DecodeError("section entry cut off")
    topic, shard, kind, flags, _, epoch, base, time_us, count, body, size, previous, _ = ENTRY.unpack_from(data, at)
    (crc,) = _CRC.unpack_from(data, at + ENTRY_BYTES - 4)
    return SectionEntry(topic, shard, kind, flags, epoch, base, time_us, count, body, size, previous, crc, position)


def decode_entries(data: bytes | memoryview, at: int, header: RecordHeader) -> list[SectionEntry]:
    """All entries of a record whose header was decoded at `data[at:]`."""
    return entries_at(data, at, header.position, header.section_count)


def entries_at(data: bytes | memoryview, at: int, position: int, section_count: int) -> list[SectionEntry]:
    """All entries of a record at `position` that a scan has found good."""
    first = at + HEADER_BYTES
    start = position + HEADER_BYTES
    return [
        decode_entry(data, first + ENTRY_BYTES * number, start + ENTRY_BYTES * number)
        for number in range(section_count)
    ]


def section_is_good(entry_bytes: bytes | memoryview, body: bytes | memoryview, crc: int) -> bool:
    """Whether a section's CRC fits the 64 bytes of its entry and its body."""
    return bool(crc32(body, crc32(memoryview(entry_bytes)[: ENTRY_BYTES - 4])) == crc)


def check_section(data: bytes | memoryview, at: int, header: RecordHeader, entry: SectionEntry) -> bool:
    """Whether `entry` of the record at `data[at:]` lies inside the record and has a good body."""
    start = entry.body_position - header.position
    if start < header.header_bytes or start + entry.body_bytes > header.record_bytes:
        return False
    view = memoryview(data)
    if len(view) - at < header.record_bytes:
        return False
    front = view[at + entry.position - header.position :][:ENTRY_BYTES]
    return section_is_good(front, view[at + start : at + start + entry.body_bytes], entry.crc)
