"""Copies records into a fresh log file: recovery and repair never trust bytes that were not synced again (hazard 6)."""

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
from icestream.wal.record_scan import RecordTuple, ScannedRecord


class LogFileBuilder:
    """Builds the contents of a log file, record by record, with its index."""

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
        """Encodes the record at the present position, with new positions, section chain and generation."""
        at = self.position + wire.HEADER_BYTES
        chained = []
        for section in sections:
            key = ShardKey(section.topic_id, section.shard)
            if section.kind == wire.SectionKind.MESSAGES:
                chained.append(section._replace(previous=self._last_entry.get(key, 0)))
                self._last_entry[key] = at
            else:
                chained.append(section)
            at += wire.ENTRY_BYTES
        data = wire.encode_record(kind, lsn, self.number, synced_through, time_us, self.position, wire.ALIGN, chained)
        add_record(self.index, data, 0, self.position, len(chained))
        if self.position >= self.index.mark_due:
            self.index.mark(self.position, lsn)
        self.parts.append(data)
        self.position += len(data)
        self.first_lsn = self.first_lsn or lsn
        self.last_lsn = lsn

    def finish(self) -> tuple[bytes, Seal]:
        """The bytes of the remaining records and the footer, and the seal."""
        footer = wire.encode_record(
            wire.RecordKind.FOOTER, self.last_lsn, self.number, self.last_lsn, 0, self.position, wire.ALIGN,
            self.index.sections(),
        )  # fmt: skip
        seal = Seal(self.number, self.first_lsn, self.last_lsn, self.position, self.position, len(footer))
        return b"".join((*self.parts, footer)), seal


def write_copy(
    directory: Directory, header: FileHeader, data: bytes, records: Sequence[RecordTuple], index: FileIndex
) -> FileSummary:
    """Copies the good records of `data` into file `header.number`, each at its old position.

    The records are contiguous from the first position on, and `index` is their index.
    """
    first, last = records[0], records[-1]
    assert ScannedRecord(*first).position == wire.RECORDS_START
    builder = LogFileBuilder(header.number)
    builder.position = ScannedRecord(*last).end
    builder.parts = [with_generation(data[: builder.position - wire.RECORDS_START], records, header.number)]
    builder.index, builder.first_lsn, builder.last_lsn = index, first[1], last[1]
    return publish_copy(directory, header, builder)


def with_generation(data: bytes, records: Sequence[RecordTuple], generation: int) -> bytearray:
    """The same records with another generation, that is, as records of another file.

    Only the headers contain the generation: the sections and their CRCs stay as they are.
    """
    content = bytearray(data)
    view = memoryview(content)
    for record in records:
        at, header_bytes = record[0] - wire.RECORDS_START, record[5]
        wire.GENERATION.pack_into(content, at + wire.GENERATION_AT, generation)
        crc = crc32(view[at + wire.HEADER_BYTES : at + header_bytes], crc32(view[at : at + wire.HEADER_CRC_AT]))
        wire.HEADER_CRC.pack_into(content, at + wire.HEADER_CRC_AT, crc)
    return content


def publish_copy(directory: Directory, header: FileHeader, builder: LogFileBuilder) -> FileSummary:
    """Writes the file under a temporary name, then renames it."""
    name = f"copy-{header.number:016d}.tmp"
    summary = write_whole(directory, name, header, builder)
    directory.rename(name, log_file.log_name(header.number))
    directory.sync()
    return summary


def write_whole(directory: Directory, name: str, header: FileHeader, builder: LogFileBuilder) -> FileSummary:
    """Writes and syncs the contents, then the header, which makes the file valid."""
    content, seal = builder.finish()
    size = wire.RECORDS_START + len(content)
    file = directory.create(name)
    try:
        file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        file.write_at(wire.RECORDS_START, content)
        file.sync()
        # The header after a sync of everything else: a crash in between leaves a file that no start takes for a log
        # file.
        file.write_at(0, log_file.encode_header(replace(header, file_bytes=size)))
        file.sync()
    finally:
        file.close()
    return FileSummary.of(seal, size, builder.index)
