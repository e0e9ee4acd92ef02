"""Copies records into a fresh file of their own: how recovery and repair make bytes count again (hazard 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icestream.model.shard import ShardKey
from icestream.runtime.checksum import crc32
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.file_summary import FileSummary
from icestream.wal.footer import add_record
from icestream.wal.index import FileIndex
from icestream.wal.log_file import FileHeader, Seal


class LogFileBuilder:
    """The bytes of a file that is being made, record by record."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = FileIndex()
        self.parts: list[bytes | bytearray] = []
        self.position = wire.RECORDS_START
        self.first_lsn = 0
        self.last_lsn = 0
        self._last_entry: dict[ShardKey, int] = {}

    def add(
        self, kind: int, lsn: int, synced_through: int, time_us: int, sections: Sequence[wire.RecordSection]
    ) -> None:
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
        if self.position >= self.index.mark_due:
            self.index.mark(self.position, lsn)
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


def write_copy(
    directory: Directory, header: FileHeader, data: bytes, records: Sequence[tuple[int, ...]], index: FileIndex
) -> FileSummary:
    """Copies the good records of `data` into the file `header.number`, each to the place that it has. They stand one
    behind the other from the first place on, and `index` is theirs."""
    first, last = records[0], records[-1]
    assert first[0] == wire.RECORDS_START
    copy = LogFileBuilder(header.number)
    copy.position = last[0] + last[6]
    copy.parts = [restamped(data[: copy.position - wire.RECORDS_START], records, header.number)]
    copy.index, copy.first_lsn, copy.last_lsn = index, first[1], last[1]
    return publish_copy(directory, header, copy)


def restamped(data: bytes, records: Sequence[tuple[int, ...]], generation: int) -> bytearray:
    """The same records as those of another file. Only their headers say which one: nothing else is made anew, and no
    section is touched."""
    content = bytearray(data)
    view = memoryview(content)
    for found in records:
        at, header_bytes = found[0] - wire.RECORDS_START, found[5]
        wire.GENERATION.pack_into(content, at + wire.GENERATION_AT, generation)
        crc = crc32(view[at + wire.HEADER_BYTES : at + header_bytes], crc32(view[at : at + wire.HEADER_CRC_AT]))
        wire.HEADER_CRC.pack_into(content, at + wire.HEADER_CRC_AT, crc)
    return content


def publish_copy(directory: Directory, header: FileHeader, copy: LogFileBuilder) -> FileSummary:
    """Writes the copy, then gives it its name."""
    name = f"copy-{header.number:016d}.tmp"
    summary = write_whole(directory, name, header, copy)
    directory.rename(name, log_file.log_name(header.number))
    directory.sync()
    return summary


def write_whole(directory: Directory, name: str, header: FileHeader, copy: LogFileBuilder) -> FileSummary:
    """Writes the copy, syncs it, then its header, which makes it count."""
    content, seal = copy.finish()
    size = wire.RECORDS_START + len(content)
    file = directory.create(name)
    try:
        file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        file.write_at(wire.RECORDS_START, content)
        file.sync()
        file.write_at(0, log_file.encode_header(replace(header, file_bytes=size)))
        file.sync()
    finally:
        file.close()
    return FileSummary.of(seal, size, copy.index)
