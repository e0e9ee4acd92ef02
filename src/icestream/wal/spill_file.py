"""Writes one spill file (spills.py). Blocking: each step runs off the loop.

records          as they come, into a file that has no name yet
footer, seal     then a sync: everything that the file will hold is on disk
header           then a sync: the file is one
name             then a sync of the directory: it counts. Only now may the log let go of what it holds
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from icestream.model.shard import ShardKey, Topic
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file, notes
from icestream.wal.log_file import FileHeader
from icestream.wal.rewrite import Copy
from icestream.wal.summary import FileSummary
from icestream.wal.tail import SectionRead


class SpillFile:
    def __init__(self, directory: Directory, header: FileHeader, topic: Topic) -> None:
        self._directory = directory
        self._header = header
        self._topic = topic
        self._copy = Copy(header.number)
        self._name = f"spill-{header.number:016d}.tmp"
        self._file = directory.create(self._name)

    @property
    def size(self) -> int:
        return self._copy.position

    @property
    def is_empty(self) -> bool:
        return not self._copy.last_lsn

    def add(self, key: ShardKey, sections: Sequence[SectionRead]) -> None:
        """As one record."""
        position = self._copy.position
        named = [notes.topic_section(self._topic)] if self.is_empty else []
        placed = [_section(key, one) for one in sections]
        time_us = sections[-1].append_time_us
        self._copy.add(wire.RecordKind.DATA, self._copy.last_lsn + 1, self._copy.last_lsn, time_us, named + placed)
        self._file.write_at(position, bytes(self._copy.parts.pop()))

    def publish(self) -> FileSummary:
        """The file as it counts from here on."""
        footer, seal = self._copy.finish()
        size = seal.end_position + len(footer)
        header = replace(self._header, synced_through=seal.last_lsn, file_bytes=size)
        self._file.write_at(seal.end_position, footer)
        self._file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        self._file.sync()
        self._file.write_at(0, log_file.encode_header(header))
        self._file.sync()
        self._file.close()
        self._directory.rename(self._name, log_file.spill_name(seal.number))
        self._directory.sync()
        return FileSummary.of(seal, size, self._copy.index)

    def give_up(self) -> None:
        """What is left goes at the next start at the latest."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._directory.remove(self._name)


def _section(key: ShardKey, one: SectionRead) -> wire.Section:
    """As it was in the log."""
    fields = (one.epoch, one.base_offset, one.append_time_us, one.rows)
    return wire.Section(*key, wire.SectionKind.MESSAGES, 0, *fields, 0, one.body)
