"""Archive objects: what the log and the metadata store of a node gained, sealed (ADR 85). Pure.

    archive/<node>/<log id>/<seq / 10,000, 8 digits>/<seq, 12 digits>.archive      an object; seq from 1, without holes
    archive/<node>/<log id>/head.json                                              ArchiveHead: replaced, a hint only

AN OBJECT, before its encryption (encryption.py, role `archive`)
    0   8 bytes  magic "ICEARCH1"
    8   u32      size of the header, little-endian
    12  header   ArchiveHeader as JSON
    ..  changes  msgpack array of changes: [revision, time_us, [[key, value or nil, deadline_ms], …]]
    ..  state    the whole metadata store (metadata/snapshot.py), where changes were missed before
    ..  log      the runs of the header one after the other: records of wal/format.py, byte for byte as in the log
    ..  32 bytes SHA-256 of everything before

    An object is valid if its digest fits, every run is `records` good records from `first_lsn` on, and `previous` is
    the SHA-256 of the stored bytes of the object before it. Only synced records are in it.

    end_lsn    every record below it is archived, from the `end_lsn` of the object before on, but for `gap`
    revision   every change of the metadata store up to it is archived, likewise
    until_us   everything that was appended before this time, by the clock of the broker, is archived
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from icestream import errors
from icestream.wal.record_scan import RecordTuple, scan_records

ROOT: Final = "archive/"
ROLE: Final = "archive"
FORMAT_VERSION: Final = 1
_MAGIC: Final = b"ICEARCH1"
_FRONT: Final = struct.Struct("<8sI")
_DIGEST_BYTES: Final = 32
_OBJECTS_IN_FOLDER: Final = 10_000


class LogRun(msgspec.Struct, frozen=True):
    """Records that lie one after the other in a log file, from byte `start` on."""

    file: int
    start: int
    size: int
    first_lsn: int
    records: int


class ArchiveGap(msgspec.Struct, frozen=True):
    """Records [from_lsn, to_lsn) that are not archived, before object `seq`: no time between `after_us` and the next
    backup behind `until_us` can be restored. If the log went back, both are the record that it continues with."""

    seq: int
    from_lsn: int
    to_lsn: int
    after_us: int
    until_us: int
    reason: str


class ArchiveHeader(msgspec.Struct, frozen=True):
    """What an object says of itself."""

    format_version: int
    node: str
    log_id: str
    seq: int
    previous: str
    first_lsn: int
    end_lsn: int
    after_revision: int
    revision: int
    until_us: int
    changes_bytes: int
    state_bytes: int
    runs: list[LogRun]
    gap: ArchiveGap | None = None


class ArchiveHead(msgspec.Struct, frozen=True):
    """The end of an archive, as a hint that saves a listing: the objects are what counts."""

    format_version: int
    node: str
    log_id: str
    first_seq: int
    seq: int
    sha256: str  # of the stored bytes of the last object
    end_lsn: int
    revision: int
    until_us: int
    gaps: list[ArchiveGap] = []  # the newest ones


class MetadataChange(msgspec.Struct, frozen=True, array_like=True):
    """The changes of one revision. `time_us`: when the broker applied it."""

    revision: int
    time_us: int
    entries: list[tuple[str, bytes | None, int]]  # key, value (None: deleted), deadline in ms (0: none)


class ArchivedRecords(NamedTuple):
    """Good records with their bytes: `data[position - start:]` is the record at `position`."""

    start: int
    data: bytes
    records: list[RecordTuple]


class ArchiveObject(NamedTuple):
    """A decoded object."""

    header: ArchiveHeader
    changes: list[MetadataChange]
    state: bytes
    runs: list[ArchivedRecords]


_changes_decoder = msgspec.msgpack.Decoder(list[MetadataChange])


def log_folder(node: str, log_id: str) -> str:
    return f"{ROOT}{node}/{log_id}/"


def archive_name(node: str, log_id: str, seq: int) -> str:
    return f"{log_folder(node, log_id)}{seq // _OBJECTS_IN_FOLDER:08d}/{seq:012d}.archive"


def head_name(node: str, log_id: str) -> str:
    return f"{log_folder(node, log_id)}head.json"


def seq_of(name: str) -> int | None:
    """The number in the name of an object; None for other names."""
    number, _, suffix = name.rpartition("/")[2].partition(".")
    return int(number) if suffix == "archive" and number.isdigit() else None


def encode_changes(changes: Sequence[MetadataChange]) -> bytes:
    return msgspec.msgpack.encode(changes) if changes else b""


def encode_archive(header: ArchiveHeader, changes: bytes, state: bytes, log: Sequence[bytes]) -> list[bytes]:
    """The plain bytes of an object, in pieces."""
    text = msgspec.json.encode(header)
    pieces = [_FRONT.pack(_MAGIC, len(text)), text, changes, state, *log]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def decode_header(name: str, data: bytes) -> ArchiveHeader:
    """The header at the front of an object, whose digest is not compared. Raises BackupDamaged, FormatUnknown."""
    try:
        magic, size = _FRONT.unpack_from(data)
        if magic != _MAGIC:
            raise errors.BackupDamaged(f"{name} is not an archive object")
        header = msgspec.json.decode(data[_FRONT.size : _FRONT.size + size], type=ArchiveHeader)
    except (struct.error, msgspec.MsgspecError) as error:
        raise errors.BackupDamaged(f"{name}: the header of the archive object is damaged: {error}") from None
    if header.format_version > FORMAT_VERSION:
        raise errors.FormatUnknown(
            f"{name} has format version {header.format_version}, this version of Icestream reads up to "
            f"{FORMAT_VERSION}",
            hint="use the version that wrote it, or a later one",
        )
    return header


def decode_archive(name: str, data: bytes) -> ArchiveObject:
    """A whole object. Raises BackupDamaged unless every byte is what was written."""
    content = memoryview(data)[: max(0, len(data) - _DIGEST_BYTES)]
    if hashlib.sha256(content).digest() != data[len(content) :]:
        raise errors.BackupDamaged(f"{name}: the bytes of the archive object were changed: its SHA-256 differs")
    header = decode_header(name, data)
    at = _FRONT.size + _FRONT.unpack_from(data)[1]
    try:
        changes = _changes_decoder.decode(content[at : at + header.changes_bytes]) if header.changes_bytes else []
    except msgspec.MsgspecError as error:
        raise errors.BackupDamaged(f"{name}: its changes of the metadata store are damaged: {error}") from None
    at += header.changes_bytes
    state = bytes(content[at : at + header.state_bytes])
    at += header.state_bytes
    runs = []
    for run in header.runs:
        records = bytes(content[at : at + run.size])
        at += run.size
        runs.append(_decode_run(name, run, records))
    if at != len(content):
        raise errors.BackupDamaged(f"{name} has {len(content)} bytes, its header names {at}")
    return ArchiveObject(header, changes, state, runs)


def _decode_run(name: str, run: LogRun, data: bytes) -> ArchivedRecords:
    records, end, _, _ = scan_records(data, run.start, run.file, run.first_lsn)
    if end != run.start + run.size or len(records) != run.records:
        raise errors.BackupDamaged(f"{name}: the record at byte {end - run.start} of log file {run.file} is damaged")
    return ArchivedRecords(run.start, data, records)
