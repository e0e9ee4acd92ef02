"""Finds all damage in a log and plans its repair. Reads every record of every file, changes nothing.

The records are read in LSN order, not only those after the checkpoint.
    a bad section     of a record with a good header: exactly its offsets are lost. A GAP note takes its place, the
                      other sections of the record stay
    missing records   bytes without a good header, or a missing file: two REPAIR records, with the first and the last
                      missing LSN, take their place (one, if one is missing; two each for the records that the
                      checkpoint covers and for those after it). They keep the sections that are good by themselves, and
                      have a GAP note for the offsets that turn out to be missing when their shard continues, or at the
                      checkpoint
    an unknown end    a shard that does not continue after the last missing record. A closing record, in a file of its
                      own after all others, skips the offsets that may have been used. It is a REPAIR record: the next
                      start accepts positions beyond the end of the log, and declares them lost too
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.shard import DeclaredGap, ShardKey, TopicIdentity
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file, notes
from icestream.wal.file_summary import FileSummary
from icestream.wal.footer import read_footer
from icestream.wal.format import RECORDS_START, RecordKind, SectionKind
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.losses import Loss, LossLedger
from icestream.wal.record_scan import find_headers, lowest_lsn, scan_records
from icestream.wal.recovery import examine, is_missing, is_torn_write
from icestream.wal.spill_log import load_spill, spilled_until
from icestream.wal.survey import Survey, survey

_LSN_MAX: Final = 2**63


class RewrittenRecord(NamedTuple):
    """One record of a rewritten file: the sections that stay, and notes on what was lost."""

    kind: int
    lsn: int
    position: int  # of its header; 0 for a record that stands in for missing ones
    section_positions: tuple[int, ...] | None  # of the section entries that stay; None: all of them
    losses: tuple[Loss, ...] = ()


@dataclass(slots=True)
class FileRewrite:
    """A file that must be rewritten if `is_needed`."""

    name: str
    header: FileHeader
    parts: list[RewrittenRecord] = field(default_factory=list)
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class ClosingFile:
    """The file after all others: its notes have an LSN beyond every checkpoint. It begins with the first lost LSN."""

    header: FileHeader
    kind: int
    lsn_first: int
    lsn: int
    sections: list[wire.RecordSection]


@dataclass(slots=True)
class RepairPlan:
    """The damage of a log, and what a repair will do about it."""

    files: int = 0
    is_decided: bool = False  # a repair was interrupted after its point of no return: only its last steps are missing
    losses: list[Loss] = field(default_factory=list)
    rewrites: list[FileRewrite] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)  # files without valid records that a start would refuse
    closing: ClosingFile | None = None
    has_lost_end: bool = False  # shards that the log does not contain may have lost messages, too
    is_lost_whole: bool = False  # there is no log file and no checkpoint at all (lost_log.py)
    topics: dict[int, TopicIdentity] = field(default_factory=dict)
    nameless: list[TopicIdentity] = field(default_factory=list)  # placeholders for topics whose names are lost
    refusal: errors.LogDamaged | None = None  # a start refuses the log for a reason that has no known repair

    @property
    def is_needed(self) -> bool:
        """Whether the log is damaged in a way that the plan mends."""
        return bool(self.is_decided or self.is_lost_whole or self.losses or self.rewrites or self.set_aside)

    @property
    def gaps(self) -> list[DeclaredGap]:
        """All offsets that the repair declares lost, exactly known or not."""
        return [gap for loss in self.losses for gap in (*loss.gaps, *loss.unknown)]


def plan_repair(directory: Directory, step: Callable[[], None] = lambda: None) -> RepairPlan:
    """Plans the repair of a log, without changing it. `step` is called after each file, for a progress display."""
    contents = survey(directory)
    if contents.repair_decided:
        return RepairPlan(len(contents.files), is_decided=True)
    return _Planner(directory, contents).run(step)


def read_records(directory: Directory, name: str, start: int = RECORDS_START) -> bytes:
    """The bytes of a log file from its first record on."""
    file = directory.open(name)
    try:
        return file.read_at(start, max(file.size() - start, 0))
    finally:
        file.close()


@dataclass(slots=True)
class _LogFile:
    """A log file, with what its header, seal and record headers tell before its records are read."""

    name: str
    header: FileHeader
    seal: Seal | None
    size: int
    is_headless: bool = False
    first: int = 0  # the lowest LSN that it holds, 0 for none
    synced: int = 0  # the highest LSN that it proves to have been synced
    cut_bytes: int = 0  # the bytes missing at its end
    is_ended: bool = False  # it has a footer or a seal: the next file may have got records

    @property
    def is_short(self) -> bool:
        """Whether it was truncated: a file has its full size before it gets its name, and shrinks only when sealed."""
        return self.seal is None and self.size < self.header.file_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the seal says that the file has no valid record."""
        return self.seal is not None and self.seal.last_lsn < self.seal.first_lsn

    def read_headers(self, directory: Directory) -> None:
        """Fills in what headers and seal tell: first LSN, synced LSN, missing bytes at the end."""
        self.synced = self.header.synced_through
        if self.seal is not None:
            self.is_ended = True
            self.first = 0 if self.is_empty else self.seal.first_lsn
            self.synced = max(self.synced, self.seal.last_lsn)
            return
        data, number = read_records(directory, self.name), self.header.number
        headers = find_headers(data, RECORDS_START, number, 1)
        self.first = lowest_lsn(headers)
        if headers:
            self.synced = max(self.synced, *(synced for _, _, synced in headers))
            position, lsn, _ = headers[-1]
            # A footer behind the last record proves that the file was complete, even though its seal is gone.
            if scan_records(data[position - RECORDS_START :], position, number, lsn)[3] == "footer":
                self.is_ended = True
                return  # nothing after the footer can be missing
        is_size_unknown = self.size < RECORDS_START or (self.is_headless and _ends_too_early(data, number, headers))
        full_size = limits.LOG_FILE_BYTES_MAX if is_size_unknown else self.header.file_bytes
        self.cut_bytes = max(full_size - self.size, 0)
        # Bytes are missing behind the last good record. Whether they held synced records is unknown, so the repair must
        # assume it.
        if self.cut_bytes and headers:
            self.synced = max(self.synced, headers[-1][1])


def _ends_too_early(data: bytes, number: int, headers: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a file ends inside a record, or where its footer would have no room: so it was longer.

    A record that no sync reached looks the same; then only unused offsets are given up.
    """
    end = RECORDS_START
    if headers:
        position = headers[-1][0]
        end = wire.decode_header(data, position - RECORDS_START, position).end
    rest = data[end - RECORDS_START :]
    return len(rest) < wire.HEADER_BYTES + wire.ENTRY_BYTES or is_torn_write(rest, number, end, 1)


def _list_files(directory: Directory, contents: Survey) -> list[_LogFile]:
    """All log files by number, those with a bad header included."""
    log_id = contents.log_id or bytes(16)
    files = [_LogFile(file.name, replace(file.header, log_id=log_id), file.seal, file.size) for file in contents.files]
    for name, _ in contents.bad_headers:
        number = log_file.log_number(name) or 0
        data = read_records(directory, name, 0)
        seal = log_file.decode_seal(data[log_file.SEAL_POSITION :], number)
        header = FileHeader(log_id, number, 0, 0, 0, 0)
        files.append(_LogFile(name, header, seal, len(data), is_headless=True))
    for file in files:
        file.read_headers(directory)
    return sorted(files, key=lambda file: file.header.number)


def _is_whole(data: bytes, entry: wire.SectionEntry) -> bool:
    """Whether the section is complete and its own CRC fits, independent of the rest of its record."""
    if entry.body_position < entry.position:
        return False
    at, start = entry.position - RECORDS_START, entry.body_position - RECORDS_START
    body = data[start : start + entry.body_bytes]
    return len(body) == entry.body_bytes and wire.section_is_good(data[at : at + wire.ENTRY_BYTES], body, entry.crc)


class _Planner:
    """Reads the files in order. `expected` is the next LSN, `synced` the highest LSN that anything proves synced."""

    def __init__(self, directory: Directory, contents: Survey) -> None:
        self.directory = directory
        self.contents = contents
        self.files = _list_files(directory, contents)
        state = contents.checkpoint.state if contents.checkpoint else None
        self.covered = contents.checkpoint.lsn if contents.checkpoint else 0
        self.synced = max([contents.checkpointed_lsn, *(max(file.synced, file.first - 1) for file in self.files)])
        self.firsts = [file.first for file in self.files if file.first]
        self.expected = min([self.covered + 1, *self.firsts[:1]])
        self.plan = RepairPlan(len(self.files), topics=dict(state.topics) if state else {})
        spills = self._load_spills()
        spilled = {key: spilled_until(spills, state, key) for key in state.shards} if state else {}
        self.ledger = LossLedger(state, spilled)
        self.last_number = 0
        self.torn: list[str] = []  # files without valid records, but with bytes that look like one
        self.can_have_records = True  # the file before this one was ended, so this one may have got records
        if self.expected > 1:
            # Records before the oldest one were freed, unless a shard misses offsets of them.
            self.ledger.last = Loss(self._name_of_first(), RECORDS_START, 0, 1, self.expected - 1)

    def _load_spills(self) -> list[FileSummary]:
        """The readable spill files. Offsets of the others turn out to be missing when their shard continues."""
        summaries: list[FileSummary] = []
        self.plan.set_aside += [name for name, _ in self.contents.bad_spills]
        for file in self.contents.spills:
            try:
                summary, index = load_spill(self.directory, file)
            except errors.LogDamaged:
                self.plan.set_aside.append(file.name)
                continue
            self.plan.topics.update(index.topics)
            summaries.append(summary)
        return summaries

    def _name_of_first(self) -> str:
        return next((file.name for file in self.files if file.first), "") or self._name_of_checkpoint()

    def _name_of_checkpoint(self) -> str:
        """The newest checkpoint that can be read, else any."""
        return [*(checkpoint.name for checkpoint in self.contents.kept), *self.contents.bad_checkpoints][0]

    def run(self, step: Callable[[], None]) -> RepairPlan:
        """Reads all files and returns the plan."""
        freed = self.ledger.last
        for at, file in enumerate(self.files):
            following = next((later.first for later in self.files[at + 1 :] if later.first), 0)
            rewrite = FileRewrite(file.name, file.header)
            if not file.is_empty:
                self._walk(file, rewrite, following)
            self._finish(file, rewrite, following)
            step()
        first_lsn = self.expected
        # Records that were proven to be synced, or a whole file, are missing behind the last record.
        if self.expected <= self.synced or self._missing_file:
            self._lose_newest()
        self.ledger.pass_checkpoint()
        if freed:
            self._lose_oldest(freed)
        self.plan.losses = self.ledger.losses
        self.plan.has_lost_end = self.ledger.has_lost_end
        self._plan_closing(first_lsn)
        nameless = self.ledger.topic_ids - self.plan.topics.keys()
        self.plan.nameless = [TopicIdentity.nameless(number) for number in sorted(nameless)]
        # The planner reads more than a start, but judges by other code: recovery itself has the last word.
        if not self.plan.is_needed:
            self._check_by_recovery()
        return self.plan

    # --- one file ---

    def _walk(self, file: _LogFile, rewrite: FileRewrite, following: int) -> None:
        """Reads the valid records. Records up to `until` must exist, records up to `limit` may exist."""
        data = self._content(file)
        # Between two files with records nothing may be missing and nothing may follow.
        until = limit = following - 1
        # A seal states exactly where its records end.
        if file.seal:
            until = limit = file.seal.last_lsn
        elif not following:
            until, limit = self.synced, _LSN_MAX
        end = file.seal.end_position if file.seal else RECORDS_START + len(data)
        at = RECORDS_START
        for position, lsn, _ in find_headers(data, RECORDS_START, file.header.number, 1):
            if position < at or position >= end:
                continue  # inside a record (a message that looks like a record), or after the end
            header = wire.decode_header(data, position - RECORDS_START, position)
            entries = wire.decode_entries(data, position - RECORDS_START, header)
            if lsn >= self.expected:
                if lsn > limit or self._is_tail(data, entries, lsn, until):
                    break
                if lsn > self.expected and (header.kind != RecordKind.REPAIR or position > at):
                    self._lose_records(file, rewrite, data, (at, position), lsn - 1)
                self._keep_record(rewrite, data, header, entries)
            at = header.end
        if self.expected <= until:
            self._lose_records(file, rewrite, data, (at, end), until, is_end=not file.seal and not following)

    def _is_tail(self, data: bytes, entries: Sequence[wire.SectionEntry], lsn: int, until: int) -> bool:
        """Whether the record is part of the tail: after a hole, or torn, and nothing proves that it was synced (5)."""
        if lsn > self.expected and lsn - 1 > until:
            return True
        return lsn > until and not all(_is_whole(data, entry) for entry in entries)

    def _content(self, file: _LogFile) -> bytes:
        """The bytes of the file's records; takes topic names from its footer, in case their notes are lost."""
        if file.seal:
            handle = self.directory.open(file.name)
            try:
                footer = read_footer(handle, file.seal)
            finally:
                handle.close()
            if footer:
                self.plan.topics.update(footer.topics)
        return read_records(self.directory, file.name)

    def _finish(self, file: _LogFile, rewrite: FileRewrite, following: int) -> None:
        """Adds the losses of a file beyond its records, and decides whether it is rewritten or set aside."""
        if file.is_headless and not rewrite.parts and not following and self.can_have_records:
            # A file has its header before it gets its name: with the header its records are lost, too.
            self.ledger.pass_checkpoint()
            self.ledger.lose(Loss(file.name, 0, file.size, self.expected, self.expected))
            self.ledger.doubt_all(file.size)
        elif file.is_headless:
            self.ledger.losses.append(Loss(file.name, 0, log_file.SECTOR, 0, 0))
        if file.is_short and not file.cut_bytes:
            self.ledger.losses.append(Loss(file.name, log_file.SEAL_POSITION, log_file.SECTOR, 0, 0))
        if file.cut_bytes and not following:
            self.ledger.pass_checkpoint()
            size = max(file.header.file_bytes - file.size, 0)
            self.ledger.lose(Loss(file.name, file.size, size, self.expected, self.expected))
            self.ledger.doubt_all(file.cut_bytes)
        if rewrite.parts and (rewrite.is_needed or file.is_headless or file.is_short):
            self.plan.rewrites.append(rewrite)
        elif not rewrite.parts and (file.is_headless or file.is_short or (following and file.first)):
            self.plan.set_aside.append(file.name)
        elif not rewrite.parts and file.first:
            self.torn.append(file.name)
        self.last_number = file.header.number
        self.can_have_records = file.is_ended or not file.first

    # --- records ---

    def _keep_record(
        self, rewrite: FileRewrite, data: bytes, header: wire.RecordHeader, entries: Sequence[wire.SectionEntry]
    ) -> None:
        """Keeps a record with a good header: its good sections stay, a bad one becomes a loss."""
        self.expected = header.lsn + 1
        if header.lsn > self.covered:
            self.ledger.pass_checkpoint()
        losses: list[Loss] = []
        good_positions: list[int] = []
        for entry in entries:
            if _is_whole(data, entry):
                self._follow(data, entry)
                good_positions.append(entry.position)
            else:
                losses.append(self.ledger.lose_section(rewrite.name, header.lsn, entry))
        missing_bytes = header.end - RECORDS_START - len(data)
        if missing_bytes > 0 and not losses:  # only padding is cut off
            self.ledger.losses.append(Loss(rewrite.name, header.end - missing_bytes, missing_bytes, 0, 0))
        rewrite.is_needed = rewrite.is_needed or bool(losses) or missing_bytes > 0
        positions = tuple(good_positions) if losses else None
        rewrite.parts.append(RewrittenRecord(header.kind, header.lsn, header.position, positions, tuple(losses)))

    def _follow(self, data: bytes, entry: wire.SectionEntry) -> None:
        """Applies a good section to the ledger and remembers topic names."""
        self.ledger.follow(data, entry)
        if entry.kind == SectionKind.TOPIC:
            start = entry.body_position - RECORDS_START
            self.plan.topics[entry.topic_id] = notes.decode_topic(entry, data[start : start + entry.body_bytes])

    def _lose_records(
        self,
        file: _LogFile,
        rewrite: FileRewrite,
        data: bytes,
        span: tuple[int, int],
        last: int,
        *,
        is_end: bool = False,
    ) -> None:
        """Adds the loss of the records from `expected` to `last`, which should be at the positions `span`.

        `is_end`: it is unknown whether `last` was the last record.
        """
        start, end = span
        first, self.expected = self.expected, last + 1
        saved: list[wire.SectionEntry] = []
        if first <= self.covered:
            saved = self._replace_records(rewrite, data, span, (first, min(last, self.covered)))
            span = (end, end)
        if last > self.covered:
            # Separate from the records that the checkpoint covers, because a start replays only records after it.
            self.ledger.pass_checkpoint()
            saved += self._replace_records(rewrite, data, span, (max(first, self.covered + 1), last))
        if last > self.covered or is_end:
            size = end - start + file.cut_bytes
            if start == RECORDS_START and not (file.seal and file.seal.first_lsn == first):
                # Files with lower numbers may be missing entirely.
                size += (file.header.number - self.last_number - 1) * limits.LOG_FILE_BYTES_MAX
            saved_keys = {
                ShardKey(entry.topic_id, entry.shard) for entry in saved if entry.kind == SectionKind.MESSAGES
            }
            self.ledger.doubt_all(size, but=saved_keys if first == last else set())

    def _replace_records(
        self, rewrite: FileRewrite, data: bytes, span: tuple[int, int], lsns: tuple[int, int]
    ) -> list[wire.SectionEntry]:
        """Plans repair records in place of missing ones; returns the sections that are salvaged."""
        start, end = span
        first, last = lsns
        saved = self._salvage(data, start, end)
        loss = self.ledger.lose(Loss(rewrite.name, start, end - start, first, last, is_noted=True))
        positions = tuple(entry.position for entry in saved)
        rewrite.parts.append(RewrittenRecord(RecordKind.REPAIR, last, 0, positions, (loss,)))
        rewrite.is_needed = True
        return saved

    def _salvage(self, data: bytes, start: int, end: int) -> list[wire.SectionEntry]:
        """The sections of a record without a good header that are good by themselves (hazard 19)."""
        saved: list[wire.SectionEntry] = []
        at = start + wire.HEADER_BYTES
        limit = min(end, RECORDS_START + len(data), at + wire.ENTRY_BYTES * limits.RECORD_SECTIONS_MAX)
        while at + wire.ENTRY_BYTES <= limit:
            entry = wire.decode_entry(data, at - RECORDS_START, at)
            if entry.kind in (SectionKind.MESSAGES, SectionKind.TOPIC) and _is_whole(data, entry):
                # The directory ends where the first body begins: entries behind that would be message bytes.
                limit = min(limit, entry.body_position)
                if entry.kind == SectionKind.TOPIC or self.ledger.continues(entry):
                    self._follow(data, entry)
                    saved.append(entry)
            at += wire.ENTRY_BYTES
        return saved

    # --- the ends of the log ---

    @property
    def _missing_file(self) -> str:
        """The name of the required log file if it was deleted, else an empty string."""
        required = self.contents.required
        first_of = {file.header.number: file.first for file in self.files}
        if required and is_missing(self.contents, required.number, lambda file: first_of[file.number] > 0):
            return log_file.log_name(required.number)
        return ""

    def _lose_newest(self) -> None:
        """Adds the loss of records after the last one, or of a file, whose existence is proven."""
        last = self.files[-1] if self.files else None
        name, position = (last.name, last.size) if last else (self._name_of_checkpoint(), 0)
        if self._missing_file:
            name, position = self._missing_file, 0
        self.ledger.lose(Loss(name, position, 0, self.expected, max(self.synced, self.expected)))
        missing_count = max(self.contents.number_max - self.last_number, 1)
        self.ledger.doubt_all(missing_count * limits.LOG_FILE_BYTES_MAX)

    def _lose_oldest(self, loss: Loss) -> None:
        """Adds the loss of offsets before the oldest record that no gap explains and that were not freed.

        If no file is left, the newest records are lost, too.
        """
        loss.gaps = [gap for gap in loss.gaps if not self.ledger.is_declared(gap)]
        if loss.gaps:
            self.ledger.losses.insert(0, loss)
        if loss.gaps and not self.firsts:
            self.ledger.last = loss
            self.ledger.doubt_all(limits.LOG_FILE_BYTES_MAX)

    def _plan_closing(self, first_lsn: int) -> None:
        """Plans the closing file if offsets must be skipped or notes must be replayed."""
        sections = self.ledger.closing_sections(self.covered)
        if sections or self.ledger.has_lost_end:
            header = FileHeader(self.contents.log_id or bytes(16), self.contents.number_max + 1, 0, 0, 0, 0)
            kind = RecordKind.REPAIR if self.ledger.has_lost_end else RecordKind.DATA
            self.plan.closing = ClosingFile(header, kind, first_lsn, max(first_lsn, self.synced + 1), sections)
            self.plan.set_aside += self.torn  # a file follows: these are no longer the end of the log

    def _check_by_recovery(self) -> None:
        """Runs recovery on a log without damage: if that refuses it, no repair is known."""
        try:
            examine(self.directory, survey(self.directory))
        except errors.LogDamaged as error:
            self.plan.refusal = errors.LogDamaged(
                f"{error.message}; every record can be read, and no repair is known for this",
                hint="keep the directory as it is and report this",
            )
