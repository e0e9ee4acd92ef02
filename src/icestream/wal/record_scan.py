"""Scans bytes for records. format.py defines which record is good; recovery.py decides what a bad one means.

Two functions, each with a native twin of the same name, signature and result (property tests compare them):

    scan_records(data, position, generation, lsn) -> (records, end, next_lsn, reason)
        the good records from `position` on, which must carry `lsn`, `lsn` + 1, …; `end` is the position of the first
        one that is not good; reason is "footer", "end" (no room for a header) or "bad"
    find_headers(data, position, generation, lsn_min) -> [(position, lsn, synced_through)]
        every good header of this generation with at least that LSN, at any multiple of 8
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from icestream import errors
from icestream.runtime.native import native
from icestream.wal import format as wire


class ScannedRecord(NamedTuple):
    """One good record, as the scanner reports it."""

    position: int
    lsn: int
    kind: int
    synced_through: int
    append_time_us: int
    header_bytes: int
    record_bytes: int
    section_count: int

    @property
    def end(self) -> int:
        return self.position + self.record_bytes


# The fields of ScannedRecord as a plain tuple: the native scanner builds hundreds of thousands of them at a start.
RecordTuple = tuple[int, int, int, int, int, int, int, int]
Scan = tuple[list[RecordTuple], int, int, str]
Headers = list[tuple[int, int, int]]


def scan_records_python(data: bytes | memoryview, position: int, generation: int, lsn: int) -> Scan:
    """The twin of the native `scan_records` (see the module)."""
    records: list[RecordTuple] = []
    at = 0
    while len(data) - at >= wire.HEADER_BYTES:
        header = decode_good_header(data, at, position + at, generation)
        if header is None:
            return records, position + at, lsn, "bad"
        # Before the check of the LSN: a footer repeats the LSN of the last record.
        if header.kind == wire.RecordKind.FOOTER:
            return records, position + at, lsn, "footer"
        if not _continues(header, lsn) or not _sections_good(data, at, header):
            return records, position + at, lsn, "bad"
        records.append((
            header.position, header.lsn, header.kind, header.synced_through, header.append_time_us,
            header.header_bytes, header.record_bytes, header.section_count,
        ))  # fmt: skip
        at += header.record_bytes
        lsn = header.lsn + 1
    return records, position + at, lsn, "end"


def decode_good_header(data: bytes | memoryview, at: int, position: int, generation: int) -> wire.RecordHeader | None:
    """The record header at `data[at:]`; None if it is not good or of another generation."""
    try:
        header = wire.decode_header(data, at, position)
    except errors.DecodeError:
        return None
    return header if header.generation == generation else None


def _continues(header: wire.RecordHeader, lsn: int) -> bool:
    """Whether the record may follow the one before it. A repair may skip LSNs that were lost, and only forward."""
    if header.kind == wire.RecordKind.DATA:
        return header.lsn == lsn
    return header.kind == wire.RecordKind.REPAIR and header.lsn >= lsn


def _sections_good(data: bytes | memoryview, at: int, header: wire.RecordHeader) -> bool:
    """Whether the record is complete and every section has its CRC."""
    if len(data) - at < header.record_bytes:
        return False
    return all(wire.check_section(data, at, header, entry) for entry in wire.decode_entries(data, at, header))


def find_headers_python(data: bytes | memoryview, position: int, generation: int, lsn_min: int) -> Headers:
    """The twin of the native `find_headers` (see the module)."""
    headers: Headers = []
    content = bytes(data)
    # Looks at every position and not from record to record: behind a damaged record its length cannot be trusted.
    at = content.find(wire.MAGIC_BYTES)
    while at >= 0:
        if (position + at) % wire.ALIGN == 0:
            header = decode_good_header(content, at, position + at, generation)
            if (
                header is not None
                and header.kind in (wire.RecordKind.DATA, wire.RecordKind.REPAIR)
                and header.lsn >= lsn_min
            ):
                headers.append((header.position, header.lsn, header.synced_through))
        at = content.find(wire.MAGIC_BYTES, at + 1)
    return headers


def lowest_lsn(headers: Headers) -> int:
    """The lowest LSN of an unsealed file with these good headers; 0 if it holds no record.

    If the first good header is not at the start of the records, a damaged record comes before it.
    """
    if not headers:
        return 0
    position, lsn, _ = headers[0]
    return lsn if position == wire.RECORDS_START else max(lsn - 1, 1)


scan_records: Final[Callable[[bytes | memoryview, int, int, int], Scan]] = (
    native.scan_records if native else scan_records_python
)
find_headers: Final[Callable[[bytes, int, int, int], Headers]] = native.find_headers if native else find_headers_python
