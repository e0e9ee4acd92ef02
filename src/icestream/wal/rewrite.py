"""Copies records into a fresh file of their own: how recovery and repair make bytes count again (hazard 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icestream.model.shard import ShardKey
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.footer import add_record
from icestream.wal.index import FileIndex
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.summary import FileSummary


class Copy:
    """The bytes of a file that is being made, record by record."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = FileIndex()
        self.parts: list[bytes] = []
        self.position = wire.RECORDS_START
        self.first_lsn = 0
        self.last_lsn = 0
        self._last_entry: dict[ShardKey, int] = {}

    def add(self, kind: int, lsn: int, synced_through: int, time_us: int, sections: Sequence[wire.Section]) -> None:
        """The record at its new place: positions, chain and generation are made anew."""
        at = self.position + wire.HEADER_BYTES
        placed = []
        for section in sections:
            key = ShardKey(section.topic_id, section.shard)
            if section.kind == wire.SectionKind.MESSAGES:
                placed.append(section._replace(previous=self._last_entry.get(key, 0)))
                self._last_entry[key] = at
            else:
                placed.append(section)
            at += wire.ENTRY_BYTES
        data = wire.encode_record(kind, lsn, self.number, synced_through, time_us, self.position, wire.ALIGN, placed)
        add_record(self.index, data, 0, self.position, len(placed))
        self.parts.append(data)
        self.position += len(data)
        self.first_lsn = self.first_lsn or lsn
        self.last_lsn = lsn

    def finish(self) -> tuple[bytes, Seal]:
        footer = wire.encode_record(
            wire.RecordKind.FOOTER, self.last_lsn, self.number, self.last_lsn, 0, self.position, wire.ALIGN,
            self.index.sections(),
        )  # fmt: skip
        seal = Seal(self.number, self.first_lsn, self.last_lsn, self.position, self.position, len(footer))
        return b"".join((*self.parts, footer)), seal


def sections_of(data: bytes, at: int, header: wire.Header) -> list[wire.Section]:
    """The sections of the record at `data[at:]`, ready to be encoded again."""
    sections = []
    for entry in wire.decode_entries(data, at, header):
        start = at + entry.body_position - header.position
        body = data[start : start + entry.body_bytes]
        fields = (entry.epoch, entry.base_offset, entry.append_time_us, entry.rows)
        sections.append(wire.Section(entry.topic_id, entry.shard, entry.kind, entry.flags, *fields, 0, body))
    return sections


def write_copy(
    directory: Directory, header: FileHeader, data: bytes, records: Sequence[tuple[int, ...]]
) -> FileSummary:
    """Copies the good records of `data` (which starts at the first record's place) into the file `header.number`."""
    copy = Copy(header.number)
    for found in records:
        at = found[0] - wire.RECORDS_START
        record = wire.decode_header(data, at, found[0])
        sections = sections_of(data, at, record)
        copy.add(record.kind, record.lsn, record.synced_through, record.append_time_us, sections)
    return publish_copy(directory, header, copy)


def publish_copy(directory: Directory, header: FileHeader, copy: Copy) -> FileSummary:
    """Writes the copy, syncs it, then its header, which makes it count, then gives it its name."""
    content, seal = copy.finish()
    size = wire.RECORDS_START + len(content)
    name = f"copy-{header.number:016d}.tmp"
    file = directory.create(name)
    try:
        file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        file.write_at(wire.RECORDS_START, content)
        file.sync()
        file.write_at(0, log_file.encode_header(replace(header, file_bytes=size)))
        file.sync()
    finally:
        file.close()
    directory.rename(name, log_file.log_name(header.number))
    directory.sync()
    return FileSummary.of(seal, size, copy.index)
