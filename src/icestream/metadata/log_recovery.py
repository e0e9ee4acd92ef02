"""Opens a metadata log after any kind of stop. The rules are in log_format.py.

    survey      lists files, seals and snapshots; changes nothing
    walk        reads every record of every file, in LSN order: hard state and entries
    classify    the first record that is not good: tail or damage (hazard 5)
    settle      only now changes the directory: copies the unsealed file into a fresh one and syncs it (hazard 6)

Damage raises LogDamaged before anything is changed. A crash anywhere in `settle` leaves a directory from which the same
recovery gives the same result. Blocking: runs off the loop. wal/recovery.py has the same steps for the message log,
whose records mean something else; the scanner and the survey are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from icestream import errors
from icestream.metadata import eraftpb
from icestream.metadata.core import HardState
from icestream.metadata.log_format import Base, Identity, LogRecord, Promise, decode_record
from icestream.metadata.log_plan import LogFile
from icestream.metadata.snapshot_file import (
    FoundSnapshots,
    StoredSnapshot,
    adopt_snapshot,
    find_snapshots,
    open_snapshot,
)
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.watermark import Mark
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.log_copy import with_generation
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.record_scan import RecordTuple, ScannedRecord, decode_good_header, find_headers, scan_records
from icestream.wal.survey import Survey, SurveyedFile, survey

ALONE_HINT = "nothing was changed; `icestream metadata repair` shows what can be saved and what would be lost"
MEMBER_HINT = (
    "nothing was changed; a member of a cluster must not continue with an outdated metadata log or one from a backup: "
    "`icestream cluster rejoin` lets this node join anew, with its topics"
)


@dataclass(slots=True)
class MetadataReport:
    """Report of a recovery, for logs and operators."""

    files: int = 0
    records: int = 0
    snapshot_index: int = 0
    last_index: int = 0
    tail_file: str = ""
    tail_position: int = 0
    tail_bytes: int = 0
    rewritten_file: str = ""
    sync_failed_before: bool = False
    bad_snapshots: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RecoveredLog:
    """Everything that opening the metadata store needs after recovery."""

    log_id: bytes
    identity: Identity | None  # None: a new log
    state: HardState
    entries: list[bytes]  # behind the snapshot
    machine: StateMachine  # as of the snapshot
    snapshots: list[StoredSnapshot]  # newest first
    files: list[LogFile]
    lsn: int
    next_number: int
    report: MetadataReport
    promises: dict[int, Promise] = field(default_factory=dict)  # of other nodes
    knows_others: bool = False  # the node has, or had, peers


@dataclass(slots=True)
class _UnsealedFile:
    """The unsealed file: its valid records, to be copied."""

    file: SurveyedFile
    data: bytes
    records: list[RecordTuple]
    last_index: int


class Walk:
    """Reads the files in order and collects their content."""

    def __init__(
        self,
        directory: Directory,
        surveyed: Survey,
        snapshots: FoundSnapshots,
        report: MetadataReport,
        mark: Mark | None = None,
    ) -> None:
        self._mark = mark
        self._directory = directory
        self._survey = surveyed
        self._snapshots = snapshots
        self.report = report
        self._covered = snapshots.good[0].head.index if snapshots.good else 0
        self.received_names = snapshots.received_names
        self.identity: Identity | None = None
        self.state = HardState(0, 0, 0)
        self.promises: dict[int, Promise] = {}
        self.entries: list[bytes] = []  # behind the newest good snapshot
        self.first_index = self.last_index = 0  # of all entries of the log
        self.lsn = 0
        self.files: list[LogFile] = []
        self.empty: list[SurveyedFile] = []
        self.tail: _UnsealedFile | None = None
        self._walked_number = -1  # of the last file without damage
        self.received: StoredSnapshot | None = None  # of another node, with a BASE record in the log

    @property
    def knows_others(self) -> bool:
        """True if the log belongs to a node that has or had other members."""
        if self.identity is None:
            return False
        confs = [self.identity.conf, *(snapshot.head.conf for snapshot in self._snapshots.good[:1])]
        members = {node for conf in confs if conf for node in eraftpb.decode_conf(conf).everybody}
        if members - {self.identity.node_id}:
            return True
        return any(eraftpb.decode_entry(entry).kind != eraftpb.NORMAL for entry in self.entries)

    @property
    def _hint(self) -> str:
        """The hint for an operator whose log is damaged."""
        has_others = self.knows_others or (self._mark is not None and self._mark.has_others)
        return MEMBER_HINT if has_others else ALONE_HINT

    def run(self) -> None:
        """Reads all files. Raises LogDamaged, LogOutdated."""
        if self._survey.bad_headers:
            name, why = self._survey.bad_headers[0]
            raise errors.LogDamaged(
                f"{self._directory.describe(name)} is damaged at position 0: {why}", hint=self._hint
            )
        files = self._survey.files
        for number, file in enumerate(files):
            self._walk_file(file, files[number + 1 :])
        self._check_whole()

    @property
    def newest_snapshot(self) -> StoredSnapshot | None:
        """The snapshot behind which `entries` continue; None if there is none."""
        return self.received or (self._snapshots.good[0] if self._snapshots.good else None)

    @property
    def joins_snapshot(self) -> bool:
        """Whether the collected entries begin right behind the newest snapshot, or with the first entry of all."""
        return 0 < self.first_index <= self._covered + 1

    def take_prefix(self) -> None:
        """Collects the records of a damaged file before the damage; for a repair, after `run` has raised."""
        file = next((surveyed for surveyed in self._survey.files if surveyed.number > self._walked_number), None)
        if file is None:
            return
        data = self._records_of(file)
        first = decode_good_header(data, 0, wire.RECORDS_START, file.number)
        expected = self.lsn + 1 if self.lsn else (first.lsn if first else 0)
        if first is not None and first.lsn == expected:
            records, _, next_lsn, _ = scan_records(data, wire.RECORDS_START, file.number, expected)
            self._take(data, records)
            self.lsn = next_lsn - 1

    def _records_of(self, file: SurveyedFile) -> bytes:
        """The bytes of a file from its first record on."""
        handle = self._directory.open(file.name)
        try:
            return handle.read_at(wire.RECORDS_START, max(file.size - wire.RECORDS_START, 0))
        finally:
            handle.close()

    def _walk_file(self, file: SurveyedFile, later: Sequence[SurveyedFile]) -> None:
        """Reads one file and classifies its end."""
        data = self._records_of(file)
        first = decode_good_header(data, 0, wire.RECORDS_START, file.number)
        begins = first.lsn if first else file.header.synced_through + 1
        expected = self.lsn + 1 if self.lsn else begins
        if file.size < file.header.file_bytes:
            # All of its space was written before it got its name: it was truncated, and synced records with it.
            raise self._damage(file, file.size, expected, f"the file was {file.header.file_bytes} bytes long")
        # LSNs continue from file to file. The oldest file may begin anywhere: those before it were removed behind a
        # snapshot.
        if first and begins != expected:
            raise self._damage(file, wire.RECORDS_START, expected, f"record {begins} is there instead")
        if file.seal is not None:
            data = data[: max(file.seal.end_position - wire.RECORDS_START, 0)]
        records, end, next_lsn, _ = scan_records(data, wire.RECORDS_START, file.number, expected)
        is_end = False
        if file.seal is None:
            is_end = self._judge(file, data, end, next_lsn, later)
        elif (end, next_lsn - 1) != (file.seal.end_position, file.seal.last_lsn):
            raise self._damage(file, end, next_lsn, "the file is sealed")
        self._walked_number = file.number
        if not records:
            self.empty.append(file)
            return
        last_index = self._take(data, records)
        self.lsn = next_lsn - 1
        if is_end:
            self.tail = _UnsealedFile(file, data, records, last_index)
        else:
            self.files.append(LogFile(file.number, last_index))

    def _judge(self, file: SurveyedFile, data: bytes, end: int, lsn: int, later: Sequence[SurveyedFile]) -> bool:
        """Classifies the missing record `lsn` at `end`: damage if anything proves that it was synced (hazard 5).

        Returns True if the log ends here, False if it continues in a later file and only the seal is missing.
        """
        begins = [first for first in map(self._begins_with, later) if first]
        if begins:
            # A later file begins only after this one is complete and synced, so a record that is missing here was
            # synced.
            if begins[0] != lsn:
                raise self._damage(file, end, lsn, f"a later file holds record {begins[0]}")
            return False
        rest = data[end - wire.RECORDS_START :]
        # Readable records behind an unreadable one prove nothing by themselves: writes reach the disk in any order.
        # Their header says up to where the log was synced when they were written.
        for position, later_lsn, synced_through in find_headers(rest, end, file.number, lsn):
            if synced_through >= lsn:
                raise self._damage(file, end, lsn, f"record {later_lsn} at position {position} says that it was synced")
        # Zeros are prepared space, anything else is the rest of a write that was never confirmed: reported, not an
        # error.
        if cut := len(rest.rstrip(b"\0")):
            self.report.tail_file, self.report.tail_position, self.report.tail_bytes = file.name, end, cut
        return True

    def _begins_with(self, file: SurveyedFile) -> int:
        """The lowest LSN in a file, 0 if it has no record."""
        if file.seal is not None:
            return file.seal.first_lsn
        headers = find_headers(self._records_of(file), wire.RECORDS_START, file.number, 1)
        return min((lsn for _, lsn, _ in headers), default=0)

    def _damage(self, file: SurveyedFile, position: int, lsn: int, evidence: str) -> errors.LogDamaged:
        """The error for an unreadable record, with the evidence that it was synced."""
        return errors.LogDamaged(
            f"{self._directory.describe(file.name)} is damaged at position {position}: "
            f"record {lsn} cannot be read, and {evidence}",
            hint=self._hint,
        )

    def _take(self, data: bytes, records: Sequence[RecordTuple]) -> int:
        """Collects the content of records; returns the highest index."""
        highest = 0
        for scanned in records:
            at = ScannedRecord(*scanned)
            record = decode_record(data, at.position - wire.RECORDS_START, at.position, at.section_count)
            # The last one counts for each: later records replace what earlier ones said.
            self.identity = record.identity or self.identity
            self.state = record.state or self.state
            self.promises = record.promises or self.promises
            if record.base is not None:
                self._take_base(record.base)
                highest = max(highest, record.base.index)
            if record.entries:
                self._take_entries(record, at.lsn)
                highest = max(highest, record.last_index)
        self.report.records += len(records)
        return highest

    def _take_entries(self, record: LogRecord, lsn: int) -> None:
        """Adds the entries of a record; entries of the same index replace those of an older term."""
        first, entries = record.first_index, record.entries
        self.first_index = self.first_index or first
        if self.last_index and first > self.last_index + 1:
            raise errors.LogDamaged(
                f"record {lsn} begins with entry {first}, expected {self.last_index + 1}: entries are missing",
                hint=self._hint,
            )
        self.last_index = record.last_index
        # The snapshot has all of it; what was collected behind the snapshot before is overwritten by a record that ends
        # there.
        if self.last_index <= self._covered:
            self.entries.clear()
            return
        start = max(first, self._covered + 1)
        # A new leader overwrites the uncommitted end of its predecessor's log.
        del self.entries[start - self._covered - 1 :]
        self.entries += entries[start - first :]

    def _take_base(self, base: Base) -> None:
        """Continues behind a received snapshot, which must exist or be covered by a later one."""
        if base.index > self._covered:
            self.received = self._snapshots.received.get((base.index, base.digest))
            if self.received is None:
                raise errors.LogDamaged(
                    f"the log in {self._directory.describe('')} continues behind a snapshot of entry {base.index}, "
                    "which is missing or damaged",
                    hint=self._hint,
                )
            self._covered = base.index
        self.entries.clear()
        self.first_index = self.first_index or base.index + 1
        self.last_index = base.index

    def _check_mark(self) -> None:
        """Compares the log with the watermark beside its directory (watermark.py)."""
        mark, where = self._mark, self._directory.describe("")
        if mark is None:
            return
        if self._survey.log_id and self._survey.log_id != mark.log_id:
            raise errors.LogOutdated(
                f"the metadata log in {where} is not the one that this node used last: it was copied there",
                hint=self._hint,
            )
        if self.lsn < mark.lsn:
            raise errors.LogOutdated(
                f"the metadata log in {where} ends at record {self.lsn}, but record {mark.lsn} was synced: files or "
                "their ends are missing, or the directory was brought back from a backup",
                hint=self._hint,
            )

    def _check_whole(self) -> None:
        """Checks that snapshot and entries together have no hole."""
        where = self._directory.describe("")
        reached = max(self._covered, self.last_index)
        synced_through = max((file.header.synced_through for file in self._survey.files), default=0)
        if synced_through > self.lsn:
            raise errors.LogDamaged(
                f"the log in {where} ends at record {self.lsn}, but the header of a file says that record "
                f"{synced_through} was synced",
                hint=f"log files are missing. {self._hint}",
            )
        # A snapshot is taken of applied entries, which were synced before: a log that ends earlier has lost some.
        if self._snapshots.index_max > self.last_index:
            raise errors.LogDamaged(
                f"the log in {where} ends at entry {self.last_index}, but there is a snapshot of entry "
                f"{self._snapshots.index_max}",
                hint=f"log files are missing or cut. {self._hint}",
            )
        if reached and not 0 < self.first_index <= self._covered + 1:
            raise errors.LogDamaged(
                f"the log in {where} begins with entry {self.first_index}, and no valid snapshot reaches it",
                hint=f"a snapshot is missing or damaged. {self._hint}",
            )
        if self.lsn and self.identity is None:
            raise errors.LogDamaged(f"no record in {where} contains the identity of the node", hint=self._hint)
        # Last: the checks above name the place of the damage, the mark only says that something is missing.
        self._check_mark()


# --- settle -----------------------------------------------------------------------------------------------------------


def recover(directory: Directory, clock: Clock, new_log_id: bytes, mark: Mark | None = None) -> RecoveredLog:
    """Recovers the log in the directory. Raises LogDamaged, LogOutdated.

    `new_log_id`: the id of a log that does not exist yet. `mark`: how far the log was synced; None if that is unknown.
    """
    surveyed = survey(directory)
    snapshots = find_snapshots(directory)
    report = MetadataReport(files=len(surveyed.files), sync_failed_before=surveyed.sync_failed)
    report.bad_snapshots = list(snapshots.bad)
    walk = Walk(directory, surveyed, snapshots, report, mark)
    # Everything is read and judged before the first change: a damaged log stays as it is, for `icestream metadata
    # repair`.
    walk.run()
    log_id = surveyed.log_id or new_log_id
    if any(snapshot.head.log_id != log_id for snapshot in snapshots.good):
        raise errors.LogDamaged(
            f"{directory.describe('')} holds snapshots of another log",
            hint="move the files that do not belong here out of the directory",
        )
    if walk.received is not None:
        snapshots.good.insert(0, adopt_snapshot(directory, walk.received))
    machine = open_snapshot(directory, snapshots.good[0]) if snapshots.good else StateMachine()
    report.snapshot_index = snapshots.good[0].head.index if snapshots.good else 0
    report.last_index = walk.last_index
    number = _settle(directory, clock, surveyed, walk, log_id)
    return RecoveredLog(
        log_id, walk.identity, walk.state, walk.entries, machine, snapshots.good, walk.files, walk.lsn, number, report,
        walk.promises, walk.knows_others,
    )  # fmt: skip


def _settle(directory: Directory, clock: Clock, surveyed: Survey, walk: Walk, log_id: bytes) -> int:
    """Applies the decisions to the directory; returns the next file number. Safe to crash after each step."""
    # Files that only take space are removed first: a full disk must be able to start.
    adopted = walk.received.name if walk.received else ""
    unused = [name for name in walk.received_names if name != adopted]
    for name in [*surveyed.unfinished, *surveyed.replaced, *(file.name for file in walk.empty), *unused]:
        directory.remove(name)
    number = surveyed.number_max + 1
    tail = walk.tail
    if tail is not None:
        header = FileHeader(log_id, number, tail.file.number, walk.lsn, clock.wall_us(), 0)
        _write_copy(directory, header, tail)
        walk.files.append(LogFile(number, tail.last_index))
        # After the copy has its name. With both, a start takes the copy, whose header names the file that it replaces.
        directory.remove(tail.file.name)
        walk.report.rewritten_file = tail.file.name
        number += 1
    if surveyed.sync_failed:
        directory.remove(log_file.SYNC_FAILED_NAME)
    directory.sync()
    return number


def _write_copy(directory: Directory, header: FileHeader, tail: _UnsealedFile) -> None:
    """Copies the records into a new file with header and seal, syncs it, then renames it into place."""
    first, last = tail.records[0], tail.records[-1]
    position = ScannedRecord(*last).end
    content = bytes(with_generation(tail.data[: position - wire.RECORDS_START], tail.records, header.number))
    seal = Seal(header.number, first[1], last[1], position, 0, 0)
    name = f"copy-{header.number:016d}.tmp"
    file = directory.create(name)
    try:
        file.write_at(0, log_file.encode_header(replace(header, file_bytes=position)) + log_file.encode_seal(seal))
        file.write_at(wire.RECORDS_START, content)
        file.sync()
    finally:
        file.close()
    directory.rename(name, log_file.log_name(header.number))
    directory.sync()
