"""The first page of a log file, and the names in the log's directory.

HEADER SECTOR (512 bytes), written and synced before the file gets its name
    0    8 bytes  magic "ICESTLOG"
    8    u32      version, 1
    12   u32      zero
    16   16 bytes log_id: files of two logs are never mixed
    32   u64      number: of this file, and the generation of its records
    40   u64      replaces: number of the file whose records this one holds since a recovery, 0 for none
    48   u64      synced_through: every LSN up to this one was synced when the header was written
    56   i64      created_us
    64   u64      file_bytes: the size it was created with
    72   u64      current: number of the log file that got records when this one was prepared; its own if none did;
                  0 in a copy, and in a file of an older version: not stated
    508  u32      CRC of bytes [0, 508)

SEAL SECTOR (512 bytes at 512), zero until the file is sealed
    0    8 bytes  magic "ICESSEAL"
    8    u64      number: as in the header
    16   u64      first_lsn: of the first record, or last_lsn + 1 if there is none
    24   u64      last_lsn: the last valid record
    32   u64      end_position: where that record ends
    40   u64      footer_position, 0 if there is no footer (the index is then rebuilt by a scan)
    48   u64      footer_bytes
    56   u64      next_number: of the log file that gets the next record; 0 if none was ready, if the log was closed,
                  and in a file of an older version: not stated
    508  u32      CRC of bytes [0, 508)

THE CURRENT FILE. `current` of every header, `next_number` of every seal and the CURRENT section of the newest
checkpoint (checkpoint.py) each name a log file that existed, durably, and was to get records. The highest of these
numbers is the *required* file. It keeps its name until a file with a higher number is required, or none at all, so a
start must see it, or a copy that `replaces` it, or a later file that holds a record. Otherwise it was deleted, with all
its records: damage (docs/adr/0041). The copy is kept like the file.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from icestream import errors
from icestream.runtime.checksum import crc32
from icestream.wal.format import RECORDS_START, VERSION

SECTOR: Final = 512
SEAL_POSITION: Final = 512
LOCK_NAME: Final = "LOCK"
SYNC_FAILED_NAME: Final = "sync-failed"
RESERVE_NAME: Final = "reserve"
BALLAST_NAME: Final = "ballast"
# Files of an unfinished repair (log_repair.py).
REPAIR_NAME: Final = "repair-decided"
MENDED: Final = "mended-"
ASIDE: Final = "aside-"

_HEADER_MAGIC: Final = b"ICESTLOG"
_SEAL_MAGIC: Final = b"ICESSEAL"
_HEADER = struct.Struct("<8sII16sQQQqQQ")
_SEAL = struct.Struct("<8sQQQQQQQ")
_CRC = struct.Struct("<I")
_NAME = re.compile(r"(log|spare|spill)-([0-9]{16})\.wal")
_CHECKPOINT_NAME = re.compile(r"checkpoint-([0-9]{20})-([0-9]{8})")


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header sector; the module says what each field means."""

    log_id: bytes
    number: int
    replaces: int
    synced_through: int
    created_us: int
    file_bytes: int
    current: int = 0


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal sector; the module says what each field means."""

    number: int
    first_lsn: int
    last_lsn: int
    end_position: int
    footer_position: int
    footer_bytes: int
    next_number: int = 0

    @classmethod
    def empty(cls, number: int, last_lsn: int) -> Seal:
        """The seal of a file without valid records; `last_lsn` is the last record of the log."""
        return cls(number, last_lsn + 1, last_lsn, RECORDS_START, 0, 0)


def _sector(content: bytes) -> bytes:
    """`content`, padded to a sector, with its CRC at the end."""
    front = content.ljust(SECTOR - 4, b"\0")
    return front + _CRC.pack(crc32(front))


def _check_sector(data: bytes, name: str) -> bytes:
    """The contents of a sector without its CRC. Raises DecodeError, with `name`, if the CRC does not match."""
    if len(data) < SECTOR:
        raise errors.DecodeError(f"{name} cut off")
    front = data[: SECTOR - 4]
    if _CRC.unpack_from(data, SECTOR - 4)[0] != crc32(front):
        raise errors.DecodeError(f"{name} CRC does not match")
    return front


def encode_first_page(header: FileHeader) -> bytes:
    """The whole first page, with an empty seal sector: a recycled file must not keep its old seal."""
    return encode_header(header).ljust(RECORDS_START, b"\0")


def encode_header(header: FileHeader) -> bytes:
    """The header sector."""
    fields = (header.log_id, header.number, header.replaces, header.synced_through, header.created_us)
    return _sector(_HEADER.pack(_HEADER_MAGIC, VERSION, 0, *fields, header.file_bytes, header.current))


def decode_header(data: bytes) -> FileHeader:
    """Decodes a header sector. Raises DecodeError, FormatUnknown for another version."""
    front = _check_sector(data, "file header")
    magic, version, _, log_id, number, replaces, synced, created, size, current = _HEADER.unpack_from(front)
    if magic != _HEADER_MAGIC:
        raise errors.DecodeError("not a log file of Icestream")
    if version != VERSION:
        raise errors.FormatUnknown(f"log file version {version} is not known", hint="use the version that wrote it")
    return FileHeader(log_id, number, replaces, synced, created, size, current)


def encode_seal(seal: Seal) -> bytes:
    """The seal sector."""
    fields = (seal.number, seal.first_lsn, seal.last_lsn, seal.end_position, seal.footer_position, seal.footer_bytes)
    return _sector(_SEAL.pack(_SEAL_MAGIC, *fields, seal.next_number))


def decode_seal(data: bytes, number: int) -> Seal | None:
    """The seal of file `number`; None if the sector holds no valid seal of it."""
    try:
        magic, *fields = _SEAL.unpack_from(_check_sector(data, "seal"))
    except errors.DecodeError:
        return None
    seal = Seal(*fields)
    return seal if magic == _SEAL_MAGIC and seal.number == number else None


def log_name(number: int) -> str:
    return f"log-{number:016d}.wal"


def spare_name(number: int) -> str:
    return f"spare-{number:016d}.wal"


def spill_name(number: int) -> str:
    return f"spill-{number:016d}.wal"


def checkpoint_name(lsn: int, serial: int) -> str:
    return f"checkpoint-{lsn:020d}-{serial:08d}"


def is_of_a_log(name: str) -> bool:
    """Whether a file of this name shows that a directory holds a log."""
    return name == LOCK_NAME or bool(_NAME.fullmatch(name)) or checkpoint_parts(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether it is a temporary file of a process that crashed, to be ignored (unless a repair was decided)."""
    return name.endswith(".tmp") or name.startswith((MENDED, ASIDE))


def log_number(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match and match[1] == "log" else None


def spare_number(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match and match[1] == "spare" else None


def spill_number(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match and match[1] == "spill" else None


class CheckpointName(NamedTuple):
    lsn: int
    serial: int  # tells apart several checkpoints at the same LSN


def checkpoint_parts(name: str) -> CheckpointName | None:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return CheckpointName(int(match[1]), int(match[2])) if match else None


def checkpoint_lsn(name: str) -> int | None:
    parts = checkpoint_parts(name)
    return parts.lsn if parts else None
