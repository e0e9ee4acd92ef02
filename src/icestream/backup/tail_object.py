"""Tails: the messages of a shard that are in no table, as records of the log (ADR 70). Pure.

A tail is a sequence of DATA records of wal/format.py: lsn from 1, generation 0, positions from 0, each with one
MESSAGES section as the log had it. The first section may begin before the start of the tail and the last one may pass
its end, because the log stores a section whole: what lies outside is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from icestream import errors
from icestream.model.shard import ShardKey
from icestream.wal import format as wire
from icestream.wal.record_scan import scan_records
from icestream.wal.tail import SectionRead


def encode_tail(
    key: ShardKey, sections: Iterable[SectionRead], first_lsn: int = 1, position: int = 0
) -> Iterator[bytes]:
    """Yields the records of a tail, one for each section; with `first_lsn` and `position` those that continue one."""
    for lsn, section in enumerate(sections, first_lsn):
        body = wire.RecordSection(
            key.topic_id, key.shard, wire.SectionKind.MESSAGES, 0, section.epoch, section.base_offset,
            section.append_time_us, section.rows, 0, section.body,
        )  # fmt: skip
        record = wire.encode_record(
            wire.RecordKind.DATA, lsn, 0, lsn, section.append_time_us, position, wire.ALIGN, [body]
        )
        position += len(record)
        yield record


def decode_tail(name: str, data: bytes, key: ShardKey) -> list[SectionRead]:
    """The sections of a tail. Raises BackupDamaged unless every byte belongs to a good record of this shard."""
    records, end, _, _ = scan_records(data, 0, 0, 1)
    if end != len(data):
        raise errors.BackupDamaged(f"{name}: the record at byte {end} of {len(data)} is damaged")
    sections = []
    for position, _, kind, _, _, _, _, count in records:
        for entry in wire.entries_at(data, position, position, count):
            if kind != wire.RecordKind.DATA or (entry.topic_id, entry.shard) != key:
                raise errors.BackupDamaged(f"{name}: a section of topic {entry.topic_id}, shard {entry.shard}")
            body = data[entry.body_position : entry.body_position + entry.body_bytes]
            sections.append(SectionRead(entry.base_offset, entry.rows, entry.append_time_us, entry.epoch, body))
    return sections


def missing_offsets(
    sections: Iterable[SectionRead], start: int, end: int, gaps: Iterable[tuple[int, int]]
) -> tuple[int, int] | None:
    """The first range of [start, end) that neither a section nor a gap covers; None if all is there."""
    spans = sorted([*gaps, *((section.base_offset, section.base_offset + section.rows) for section in sections)])
    at = start
    for first, stop in spans:
        if at >= end or first > at:
            break
        at = max(at, stop)
    if at >= end:
        return None
    following = [first for first, stop in spans if first > at]
    return at, min([end, *following])
