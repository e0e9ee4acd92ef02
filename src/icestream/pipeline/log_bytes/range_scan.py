"""Scans a range of the log: its good sections, and what is wrong with the rest.

A bad section of a record with a good header affects the topic of that section and no other (hazard 19). A bad header
ends the range, because the next record cannot be located. The caller finds out whether that is damage or a file that
was recycled meanwhile (hazard 29).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icestream.pipeline.rows.log_sections import Sections, sections_of
from icestream.wal import format as wire
from icestream.wal.record_scan import decode_good_header, scan_records

_DATA: Final = (wire.RecordKind.DATA, wire.RecordKind.REPAIR)


@dataclass(frozen=True)
class RangeScan:
    """The good sections of a range, and where the others are."""

    sections: list[Sections]
    bad_topics: dict[int, int] = field(default_factory=dict)  # by topic id: the position of its first bad section
    bad_from: int | None = None  # the position from which on nothing can be read

    @property
    def is_good(self) -> bool:
        return not self.bad_topics and self.bad_from is None


def scan_range(data: bytes, start: int, number: int, lsn: int) -> RangeScan:
    """`data`: the bytes of file `number` from `start` on, where the record `lsn` begins."""
    sections: list[Sections] = []
    bad_topics: dict[int, int] = {}
    view = memoryview(data)
    position, end = start, start + len(data)
    while position < end:
        records, stop, lsn, _ = scan_records(view[position - start :], position, number, lsn)
        if records:
            sections.append(sections_of(data, start, records))
        if stop == end:
            break
        # The fast scanner stops at the first record that is not good. If only a section is bad, its header still tells
        # where the next record begins.
        header = decode_good_header(data, stop - start, stop, number)
        if header is None or header.kind not in _DATA or header.lsn < lsn or header.end > end:
            return RangeScan(sections, bad_topics, stop)
        _note_bad_sections(data, start, header, bad_topics)
        sections.append(_good_part(data, start, header, bad_topics))
        position, lsn = header.end, header.lsn + 1
    return RangeScan(sections, bad_topics)


def _note_bad_sections(data: bytes, start: int, header: wire.RecordHeader, bad_topics: dict[int, int]) -> None:
    at = header.position - start
    for entry in wire.decode_entries(data, at, header):
        if not wire.check_section(data, at, header, entry):
            bad_topics.setdefault(entry.topic_id, entry.position)


def _good_part(data: bytes, start: int, header: wire.RecordHeader, bad_topics: dict[int, int]) -> Sections:
    record = (header.position, header.lsn, header.kind, 0, 0, header.header_bytes, header.record_bytes)
    whole = sections_of(data, start, [(*record, header.section_count)])
    return whole.select(~np.isin(whole.topic_id, list(bad_topics)))
