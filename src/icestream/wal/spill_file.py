"""Writes one spill file (spill_log.py). Blocking: each step runs off the event loop.

records          as they are read, into a file under a temporary name
footer, seal     then a sync: all contents are on disk
header           then a sync: the file is a valid log file
name             then a sync of the directory: the spill file is durable. Only now may the log free these messages
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from icestream.model.shard import ShardKey, TopicIdentity
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file, notes
from icestream.wal.file_summary import FileSummary
from icestream.wal.log_copy import LogFileBuilder
from icestream.wal.log_file import FileHeader
from icestream.wal.tail import SectionRead


class SpillFileWriter:
    """A spill file while it is being written: `add` records, then `publish` or `discard`."""

    def __init__(self, directory: Directory, header: FileHeader, topic: TopicIdentity) -> None:
        self._directory = directory
        self._header = header
        self._topic = topic
        self._builder = LogFileBuilder(header.number)
        self._name = f"spill-{header.number:016d}.tmp"
        self._file = directory.create(self._name)

    @property
    def size(self) -> int:
        return self._builder.position

    @property
    def is_empty(self) -> bool:
        return not self._builder.last_lsn

    def add(self, key: ShardKey, sections: Sequence[SectionRead]) -> None:
        """Writes sections of one shard as one record."""
        position = self._builder.position
        topic_notes = [notes.topic_section(self._topic)] if self.is_empty else []
        messages = [_message_section(key, section) for section in sections]
        time_us = sections[-1].append_time_us
        last_lsn = self._builder.last_lsn
        self._builder.add(wire.RecordKind.DATA, last_lsn + 1, last_lsn, time_us, topic_notes + messages)
        self._file.write_at(position, bytes(self._builder.parts.pop()))

    def publish(self) -> FileSummary:
        """Makes the file durable under its name and returns its summary."""
        footer, seal = self._builder.finish()
        size = seal.end_position + len(footer)
        header = replace(self._header, synced_through=seal.last_lsn, file_bytes=size)
        self._file.write_at(seal.end_position, footer)
        self._file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        self._file.sync()
        # The header is last: a crash before it leaves a file that no start takes for a spill file.
        self._file.write_at(0, log_file.encode_header(header))
        self._file.sync()
        self._file.close()
        self._directory.rename(self._name, log_file.spill_name(seal.number))
        self._directory.sync()
        return FileSummary.of(seal, size, self._builder.index)

    def discard(self) -> None:
        """Removes the unfinished file; if that fails, the next start removes it."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._directory.remove(self._name)


def _message_section(key: ShardKey, section: SectionRead) -> wire.RecordSection:
    """The same section as in the log, to be encoded again."""
    fields = (section.epoch, section.base_offset, section.append_time_us, section.rows)
    return wire.RecordSection(*key, wire.SectionKind.MESSAGES, 0, *fields, 0, section.body)
