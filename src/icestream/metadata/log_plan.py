"""Plans where the next record of the metadata log goes, without I/O: entries in, writes out; completions in.

    append(entries, …)       plans one record, in the present file or, if it does not fit, in the next one, after the
                             seal of the present one
    take_writes()            the planned writes. They must be performed in this order
    synced(ticket)           everything up to this ticket is on disk
    file_ready(…)            the next file is prepared

Invariants: LSNs have no hole; a file's first record carries identity, state and promises; nothing is planned for a file
before the seal of the one before it; a file never grows beyond its capacity. A file may be removed only when the
present one has a synced record, because that record carries term and vote; and never the file with the last entry that
the newest snapshot covers, unless a later one has entries: it proves that nothing behind the snapshot is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icestream.metadata.core import HardState
from icestream.metadata.log_format import (
    ENTRY_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Base,
    Identity,
    LogRecord,
    Promise,
    record_bytes,
    sections,
)
from icestream.wal import format as wire
from icestream.wal.appender import PlannedWrite
from icestream.wal.log_file import SEAL_POSITION, Seal, encode_seal


class LogFile(NamedTuple):
    """A sealed file."""

    number: int
    last_index: int  # the highest index of an entry in it, 0 when it has none


@dataclass(slots=True)
class OpenFile:
    """The file that gets records, and how far it is filled."""

    number: int
    capacity: int
    position: int = wire.RECORDS_START
    first_lsn: int = 0
    last_index: int = 0
    synced_index: int = 0

    @property
    def room(self) -> int:
        return self.capacity - self.position


class LogPlan:
    """The plan of one metadata log."""

    def __init__(
        self, identity: Identity, state: HardState, lsn: int, promises: dict[int, Promise] | None = None
    ) -> None:
        self.identity = identity
        self.promises = promises or {}  # of other nodes
        self.lsn = self.synced_lsn = lsn
        self.file: OpenFile | None = None
        self.next_file: OpenFile | None = None
        self.planned_bytes = 0  # of records, since the start
        self._state = state
        self._ticket = 0
        self._writes: list[PlannedWrite] = []
        self._unsynced: deque[tuple[int, int, OpenFile, int]] = deque()  # ticket, lsn, file and its last index
        self._sealing: deque[tuple[int, LogFile]] = deque()

    def file_ready(self, number: int, capacity: int) -> None:
        """Takes over a prepared file, as the active one if there is none."""
        assert self.next_file is None
        self.next_file = OpenFile(number, capacity)
        if self.file is None:
            self.file, self.next_file = self.next_file, None

    @property
    def wants_file(self) -> bool:
        """True if the active file is half full and no prepared file is behind it."""
        return self.next_file is None and (self.file is None or 2 * self.file.position > self.file.capacity)

    def room_for(self, size: int, count: int) -> bool:
        """True if a record with this many bytes in this many entries fits."""
        needed = size + count * ENTRY_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES
        if self.file is not None and needed <= self.file.room:
            return True
        return self.next_file is not None and needed <= self.next_file.room

    # --- writes ---

    def identify(self, identity: Identity, now_us: int) -> int:
        """Plans an identity record. There must be room."""
        self.identity = identity
        return self._append(LogRecord(identity=identity, state=self._state), now_us)

    def append(
        self,
        entries: Sequence[tuple[int, bytes]],
        state: HardState | None,
        now_us: int,
        base: Base | None = None,
        commit: int = 0,
        promises: dict[int, Promise] | None = None,
    ) -> int:
        """Plans one record and returns the ticket whose sync makes it durable. There must be room.

        `commit`: writes the commit index, too; it is not written otherwise.
        """
        record = LogRecord(
            base=base,
            entries=[entry for _, entry in entries],
            first_index=entries[0][0] if entries else 0,
            promises=promises,
        )
        if promises is not None:
            self.promises = promises
        if state is not None:
            # Only for a new term or vote. A commit index that moved alone is not worth a record (node.py, rule 4).
            record.state = state if state[:2] != self._state[:2] else None
            self._state = state
        if commit:
            record.state = self._state = self._state._replace(commit=max(commit, self._state.commit))
        return self._append(record, now_us)

    def _append(self, record: LogRecord, now_us: int) -> int:
        file = self.file
        assert file is not None
        sections = self._sections(record, is_first=not file.first_lsn)
        if record_bytes(sections) > file.room:
            file = self._rotate()
            # Encoded again: the first record of a file also carries identity, state and promises.
            sections = self._sections(record, is_first=True)
        self.lsn += 1
        file.first_lsn = file.first_lsn or self.lsn
        if record.base is not None:
            file.last_index = max(file.last_index, record.base.index)
        if record.entries:
            file.last_index = max(file.last_index, record.last_index)
        data = wire.encode_record(
            wire.RecordKind.DATA, self.lsn, file.number, self.synced_lsn, now_us, file.position, wire.ALIGN, sections
        )
        ticket = self._plan(file.number, file.position, data)
        file.position += len(data)
        self.planned_bytes += len(data)
        self._unsynced.append((ticket, self.lsn, file, file.last_index))
        return ticket

    def _sections(self, record: LogRecord, *, is_first: bool) -> list[wire.RecordSection]:
        if is_first:
            record.identity, record.state, record.promises = self.identity, self._state, self.promises
        return sections(record)

    def _rotate(self) -> OpenFile:
        assert self.next_file is not None
        self.seal()
        self.file, self.next_file = self.next_file, None
        return self.file

    def seal(self) -> None:
        """Seals the active file; a file without a record stays as it is."""
        file = self.file
        if file is not None and file.first_lsn:
            seal = Seal(file.number, file.first_lsn, self.lsn, file.position, 0, 0)
            ticket = self._plan(file.number, SEAL_POSITION, encode_seal(seal))
            self._sealing.append((ticket, LogFile(file.number, file.last_index)))
        self.file = None

    def _plan(self, number: int, position: int, data: bytes) -> int:
        self._ticket += 1
        self._writes.append(PlannedWrite(self._ticket, number, position, data, sync=True))
        return self._ticket

    def take_writes(self) -> list[PlannedWrite]:
        """Returns the writes planned since the last call."""
        writes, self._writes = self._writes, []
        return writes

    # --- completions ---

    def synced(self, ticket: int) -> list[LogFile]:
        """Notes that everything up to this ticket is on disk; returns the files that are sealed now."""
        while self._unsynced and self._unsynced[0][0] <= ticket:
            _, self.synced_lsn, file, last_index = self._unsynced.popleft()
            file.synced_index = last_index
        sealed = []
        while self._sealing and self._sealing[0][0] <= ticket:
            sealed.append(self._sealing.popleft()[1])
        return sealed

    @property
    def is_settled(self) -> bool:
        """True if no write is in flight."""
        return not (self._writes or self._unsynced or self._sealing)

    def coverable(self, files: Sequence[LogFile], covered: int, newest: int) -> list[LogFile]:
        """The oldest files that are not needed if every entry up to `covered` is in both kept snapshots."""
        if self.file is None or not 0 < self.file.first_lsn <= self.synced_lsn:
            return []
        covered_files = []
        for file in files:
            if file.last_index > covered:
                break
            covered_files.append(file)
        last_indexes = [file.last_index for file in files[len(covered_files) :]]
        # One file with an entry at or behind the newest snapshot stays as the proof that the log has reached it.
        if max([self.file.synced_index, *last_indexes]) < newest:
            return covered_files[:-1]
        return covered_files
