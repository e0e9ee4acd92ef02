"""Reads the footer of a sealed file, or rebuilds its index if the footer is missing or bad (hazard 20)."""

from __future__ import annotations

from icestream import errors
from icestream.model.shard import ShardKey
from icestream.runtime.files import File
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.index import FileIndex, decode_index, decode_marks, index_entries
from icestream.wal.log_file import Seal
from icestream.wal.record_scan import scan_records


def read_footer(file: File, seal: Seal) -> FileIndex | None:
    """The index in the footer; None if the footer is missing or not good."""
    if not seal.footer_position:
        return None
    data = file.read_at(seal.footer_position, seal.footer_bytes)
    try:
        header = wire.decode_header(data, 0, seal.footer_position)
        # A footer of another generation is what a recycled file had before.
        if header.kind != wire.RecordKind.FOOTER or header.generation != seal.number:
            return None
        return _decode(data, header)
    except errors.DecodeError:
        return None


def _decode(data: bytes, header: wire.RecordHeader) -> FileIndex:
    """Decodes the sections of a footer. Raises DecodeError for a bad one."""
    index = FileIndex()
    for entry in wire.decode_entries(data, 0, header):
        if not wire.check_section(data, 0, header, entry):
            raise errors.DecodeError("footer section is damaged")
        start = entry.body_position - header.position
        body = data[start : start + entry.body_bytes]
        if entry.kind == wire.SectionKind.TOPIC:
            index.add_topic(notes.decode_topic(entry, body))
        elif entry.kind == wire.SectionKind.INDEX:
            index.shards[ShardKey(entry.topic_id, entry.shard)] = decode_index(entry, body)
        elif entry.kind == wire.SectionKind.MARKS:
            index.marks = decode_marks(body)
    return index


def rebuild_footer(file: File, seal: Seal) -> FileIndex:
    """Rebuilds the index from the records. Raises LogDamaged if they are not all good."""
    data = file.read_at(wire.RECORDS_START, seal.end_position - wire.RECORDS_START)
    records, end, _, _ = scan_records(data, wire.RECORDS_START, seal.number, seal.first_lsn)
    if end != seal.end_position:
        raise errors.LogDamaged(
            f"log file {seal.number} is damaged at position {end}",
            hint="icestream wal inspect shows it; icestream wal repair declares what is lost",
        )
    index = FileIndex()
    index.mark_records(records)
    for record in records:
        position, section_count = record[0], record[7]
        add_record(index, data, position - wire.RECORDS_START, position, section_count)
    return index


def add_record(index: FileIndex, data: bytes, at: int, position: int, section_count: int) -> list[wire.SectionEntry]:
    """Adds the good record at `data[at:]` to an index and returns its section entries."""
    entries = wire.entries_at(data, at, position, section_count)
    for entry in entries:
        if entry.kind == wire.SectionKind.TOPIC:
            start = at + entry.body_position - position
            index.add_topic(notes.decode_topic(entry, data[start : start + entry.body_bytes]))
    index_entries(index, entries)
    return entries


def load_index(file: File, seal: Seal) -> FileIndex:
    """The index of a sealed file, from its footer or its records. Raises LogDamaged if neither is good."""
    return read_footer(file, seal) or rebuild_footer(file, seal)
