"""Recovery: opens a log after any kind of stop. The rules are in format.py (the end of the log, recovery).

    survey          lists files, seals and checkpoints (survey.py); changes nothing
    replay          loads the checkpoint and applies the records after it, in LSN order: the state of the log
    classify        the first record that is not good: tail or damage
    settle          only now changes the directory: copies the unsealed file into a fresh one and syncs it

Damage raises LogDamaged before anything is changed. A crash anywhere in `settle` leaves a directory from which the same
recovery gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from icestream import errors
from icestream.model.block import HEAD, NOT_NUMBERED
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.checkpoint import KeptCheckpoint
from icestream.wal.file_summary import FileSummary
from icestream.wal.footer import add_record, load_index
from icestream.wal.index import FileIndex, ShardIndex
from icestream.wal.log_copy import write_copy
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.losses import REASON, SKIP_MAX
from icestream.wal.record_scan import RecordTuple, ScannedRecord, find_headers, lowest_lsn, scan_records
from icestream.wal.spill_log import load_spill, spilled_until
from icestream.wal.state import LogState, Shard
from icestream.wal.survey import Survey, SurveyedFile, repair_hint, survey


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did, for log messages and for the operator."""

    clean: bool = True
    files: int = 0
    records_scanned: int = 0
    bytes_scanned: int = 0
    checkpoint_lsn: int = 0
    last_lsn: int = 0
    tail_file: str = ""
    tail_position: int = 0
    tail_bytes: int = 0
    rewritten_file: str = ""
    sync_failed_before: bool = False
    bad_checkpoints: list[str] = field(default_factory=list)
    gaps: list[DeclaredGap] = field(default_factory=list)


@dataclass(slots=True)
class RecoveredWal:
    """Everything that opening the log needs after recovery."""

    log_id: bytes
    state: LogState
    files: list[FileSummary]
    spills: list[FileSummary]  # of topics that cannot be committed (spill_log.py)
    spares: dict[str, int]
    checkpoints: list[KeptCheckpoint]  # newest first
    next_number: int
    report: RecoveryReport
    required: int = 0  # number of the log file that a start must find, 0 for none
    leftovers: list[int] = field(default_factory=list)  # files without a valid record that are removed later


@dataclass(slots=True)
class _Tail:
    """The unsealed file at the end of the log: its good records, to be copied, and their index."""

    file: SurveyedFile
    data: bytes
    records: list[RecordTuple]
    index: FileIndex


class FastReplay:
    """The fast path of replay for simple records: one section with one batch without sequence numbers.

    Most records of a log are like that if its messages came one by one, and a start replays hundreds of thousands of
    them. `apply` has the same effect as `add_record` and `LogState.apply` for such a record, without building objects
    in between. It leaves every other record to them, also one whose offsets do not continue its shard.

    `covered`: records up to this LSN are in the checkpoint already; they are indexed but not applied.
    """

    def __init__(self, state: LogState, index: FileIndex, covered: int) -> None:
        self._state = state
        self._index = index
        self._covered = covered
        self._shards: dict[tuple[int, int], tuple[Shard, ShardIndex]] = {}

    def apply(self, data: bytes, position: int, lsn: int) -> bool:
        """Applies and indexes the good DATA record with one section at `position`; False if it is not simple."""
        at = position - wire.RECORDS_START + wire.HEADER_BYTES
        entry = wire.ENTRY.unpack_from(data, at)
        topic_id, number, kind, _, _, epoch, base, time_us, rows, body_position, body_bytes, _, _ = entry
        if kind != wire.SectionKind.MESSAGES:
            return False
        head = HEAD.unpack_from(data, body_position - wire.RECORDS_START)
        # One block fills the section, and neither of its two numberings is set: the deduplication state does not
        # change.
        if head[1] != body_bytes or head[2] != NOT_NUMBERED or head[6] != NOT_NUMBERED or head[0] != rows:
            return False
        shard_and_index = self._shards.get((topic_id, number)) or self._look_up(topic_id, number)
        if shard_and_index is None:
            return False
        shard, shard_index = shard_and_index
        if lsn > self._covered:
            # Left to the slow path, which raises LogDamaged with the details.
            if base != shard.assigned:
                return False
            end = base + rows
            shard.assigned = shard.written = shard.synced = end
            if end > shard.reserved:
                shard.reserved = shard.reserve_pending = end
            shard.epoch, shard.append_time_us = epoch, time_us
            self._state.lsn = lsn
        if shard_index.own_bytes >= shard_index.point_due_bytes:
            self._index.add_point(shard_index, base, position + wire.HEADER_BYTES)
        shard_index.end_offset, shard_index.epoch, shard_index.append_time_us = base + rows, epoch, time_us
        if time_us > shard_index.max_time_us:  # noqa: PLR1730 (a call to max costs more than the rest of the line)
            shard_index.max_time_us = time_us
        shard_index.own_bytes += body_bytes + wire.ENTRY_BYTES
        shard_index.last_position = position + wire.HEADER_BYTES
        return True

    def _look_up(self, topic_id: int, number: int) -> tuple[Shard, ShardIndex] | None:
        """The shard and its part of the index; None until the slow path has met the shard in this file."""
        key = ShardKey(topic_id, number)
        shard_index = self._index.shards.get(key)
        shard = self._state.shards.get(key)
        if shard_index is None or shard is None:
            return None
        self._shards[topic_id, number] = shard, shard_index
        return shard, shard_index


class Replay:
    """Applies the files in order and builds the state of the log; keeps the unsealed file for the copy."""

    def __init__(self, directory: Directory, contents: Survey, report: RecoveryReport) -> None:
        self.directory = directory
        self.contents = contents
        self.report = report
        # Starts from the newest good checkpoint; without one every record is replayed from the oldest file on.
        self.state = contents.checkpoint.state if contents.checkpoint else LogState()
        self.covered = contents.checkpoint.lsn if contents.checkpoint else 0  # records up to here are in the checkpoint
        self.summaries: list[FileSummary] = []
        self.spills: list[FileSummary] = []
        self.unsealed_middle: list[tuple[SurveyedFile, Seal, FileIndex]] = []
        self.tail: _Tail | None = None
        self.empty: list[SurveyedFile] = []
        self.repaired_lsn = 0
        self._expected = 0
        self._tail_first: dict[ShardKey, int] = {}

    def run(self) -> None:
        """Applies everything. Raises LogDamaged where a start would refuse the log."""
        files = self.contents.files
        # A repair that was interrupted has removed some files already: what is left would look like new damage.
        if self.contents.repair_decided:
            path = self.directory.describe("").rstrip("/")
            raise errors.LogDamaged(
                f"a repair of {path} was interrupted", hint=f"`icestream wal repair {path} --accept-loss` finishes it"
            )
        if bad_files := [*self.contents.bad_headers, *self.contents.bad_spills]:
            name, reason = bad_files[0]
            raise errors.LogDamaged(
                f"{self.directory.describe(name)} is damaged at position 0: {reason}", hint=repair_hint(self.directory)
            )
        # Spill files first: `_check_offsets_complete` needs to know which offsets they contain.
        for spill in self.contents.spills:
            self._load_spill(spill)
        for number, file in enumerate(files):
            later_files = files[number + 1 :]
            if file.seal is not None:
                self._replay_sealed(file, file.seal)
            else:
                self._replay_unsealed(file, later_files)
        last = self._expected - 1 if self._expected else 0
        self._check_offsets_complete()
        # Without any file: the checkpoint alone says where the log ends.
        last = last or self.covered  # every file was freed
        # Checkpoints are written at synced LSNs only. A log that ends before one has lost synced records at its end,
        # which leave no hole behind them.
        if last < self.contents.checkpointed_lsn:
            raise errors.LogDamaged(
                f"the log ends at record {last}, but a checkpoint covers record {self.contents.checkpointed_lsn}",
                hint=f"log files are missing from {self.directory.describe('')}. {repair_hint(self.directory)}",
            )
        self._check_headers(last)
        self._check_required_file()
        self.report.last_lsn = last

    def _check_headers(self, last: int) -> None:
        """Raises LogDamaged if a file header proves that more records were synced than the log has now."""
        newest = max(self.contents.files, key=lambda file: file.header.synced_through, default=None)
        if newest is not None and last < newest.header.synced_through:
            raise errors.LogDamaged(
                f"the log ends at record {last}, but record {newest.header.synced_through} was synced when "
                f"{newest.name} was prepared",
                hint=repair_hint(self.directory),
            )

    def _check_required_file(self) -> None:
        """Raises LogDamaged if the required file is missing.

        A missing newest file leaves no hole in the LSNs; only what other files state about it shows the loss.
        """
        required = self.contents.required
        if required is not None and is_missing(self.contents, required.number, self._holds_records):
            raise errors.LogDamaged(
                f"{self.directory.describe(log_file.log_name(required.number))} is missing: {required.evidence}",
                hint=f"put the file back if it was moved. {repair_hint(self.directory)}",
            )

    def _check_offsets_complete(self) -> None:
        """Raises LogDamaged if offsets at or above a floor are missing at the start of the log.

        Files are freed only when a checkpoint contains floors beyond them, so a missing offset was never freed.
        """
        for key, shard in self.state.shards.items():
            needed = spilled_until(self.spills, self.state, key)
            ranges = (summary.find(key) for summary in self.summaries)
            sealed_first = next((file_range.first for file_range in ranges if file_range is not None), None)
            first = sealed_first if sealed_first is not None else self._tail_first.get(key, shard.assigned)
            if needed < first:
                raise errors.LogDamaged(
                    f"offsets {needed} to {first - 1} of {key} are not in the log and were never freed",
                    hint=f"log files are missing from {self.directory.describe('')}. {repair_hint(self.directory)}",
                )

    def _check_continues(self, file: SurveyedFile, first_lsn: int) -> None:
        """Raises LogDamaged if there is a hole in the LSNs before this file, which begins with `first_lsn`."""
        # The first file with records: older ones were freed, which is allowed up to the record that the checkpoint
        # covers.
        if not self._expected:
            if first_lsn > self.covered + 1:
                raise self._hole_error(file, self.covered + 1, first_lsn)
            self._expected = first_lsn
        if first_lsn > self._expected:
            raise self._hole_error(file, self._expected, first_lsn)

    def _hole_error(self, file: SurveyedFile, expected: int, first_lsn: int) -> errors.LogDamaged:
        return errors.LogDamaged(
            f"{self.directory.describe(file.name)} begins with record {first_lsn}, expected {expected}: "
            "a log file or a checkpoint is missing",
            hint=repair_hint(self.directory),
        )

    def _replay_sealed(self, file: SurveyedFile, seal: Seal) -> None:
        if seal.last_lsn < seal.first_lsn:
            self.empty.append(file)
            return
        self._check_continues(file, seal.first_lsn)
        handle = self.directory.open(file.name)
        try:
            # Only files behind the checkpoint are scanned. Of all others the index in the footer is enough, so the time
            # of a start does not grow with the log (hazard 20).
            if seal.last_lsn > self.covered:
                data = handle.read_at(wire.RECORDS_START, seal.end_position - wire.RECORDS_START)
                records, end, _, _ = scan_records(data, wire.RECORDS_START, file.number, seal.first_lsn)
                if end != seal.end_position:
                    raise self._damage_error(
                        file, end, records[-1][1] + 1 if records else seal.first_lsn, "the file is sealed"
                    )
                index = self._apply(data, records)
            else:
                index = load_index(handle, seal)
        finally:
            handle.close()
        # The names of topics are in every file that uses them, because the file that declared them first may be freed.
        for topic in index.topics.values():
            self.state.declare_topic(topic)
        self.summaries.append(FileSummary.of(seal, file.size, index))
        self._expected = seal.last_lsn + 1

    def _load_spill(self, file: SurveyedFile) -> None:
        """Loads a spill file. Its records are not applied: checkpoints covered them before they were copied."""
        summary, index = load_spill(self.directory, file)
        for topic in index.topics.values():
            self.state.declare_topic(topic)
        self.spills.append(summary)

    def _replay_unsealed(self, file: SurveyedFile, later_files: list[SurveyedFile]) -> None:
        handle = self.directory.open(file.name)
        try:
            data = handle.read_at(wire.RECORDS_START, max(file.size - wire.RECORDS_START, 0))
        finally:
            handle.close()
        # Scanned for the LSN that must come next: an old record of a recycled file may have any other.
        first = self._expected or self._first_lsn(data, file.number)
        records, end, next_lsn, reason = scan_records(data, wire.RECORDS_START, file.number, first)
        if file.size < file.header.file_bytes and reason != "footer":
            # All of its space was allocated before it got its name: it was truncated, and synced records with it.
            raise self._damage_error(
                file, file.size, first, f"the file had {file.header.file_bytes} bytes when it was created"
            )
        if records:
            self._check_continues(file, first)
        # A file gets its first record after the file before it is synced. So records in a later file prove that this
        # one was complete, and only the last file with records can have a torn end.
        followers = [other for other in later_files if self._holds_records(other)]
        if not followers:
            self._classify_end(file, data, end, next_lsn)
        if not records:
            # Prepared and never used, or superseded by the copy of a recovery that crashed before it removed this file.
            if followers and self._first_lsn_of(followers[0]) > first:
                raise self._damage_error(file, end, first, f"{followers[0].name} holds later records")
            self.empty.append(file)
            return
        if followers:
            following_lsn = self._first_lsn_of(followers[0])
            if following_lsn > next_lsn:
                raise self._damage_error(file, end, next_lsn, f"{followers[0].name} holds later records")
            # Records that a failed write rolled back are still here; those of the later file are the valid ones.
            records = [record for record in records if ScannedRecord(*record).lsn < following_lsn]
            end, next_lsn = max((ScannedRecord(*record).end for record in records), default=end), following_lsn
            if not records:
                self.empty.append(file)
                return
            self._reseal(file, data, records, end, next_lsn)
        else:
            index = self._apply(data, records)
            self._tail_first = {key: shard_index.first_offset for key, shard_index in index.shards.items()}
            self.tail = _Tail(file, data, records, index)
            self._expected = next_lsn

    def _reseal(self, file: SurveyedFile, data: bytes, records: Sequence[RecordTuple], end: int, next_lsn: int) -> None:
        """Seals a file that lost only its seal: a later file holds records, so this one was synced entirely."""
        index = self._apply(data, records)
        seal = Seal(file.number, records[0][1], next_lsn - 1, end, 0, 0)
        self.unsealed_middle.append((file, seal, index))
        self.summaries.append(FileSummary.of(seal, file.size, index))
        self._expected = next_lsn

    def _first_lsn(self, data: bytes, number: int) -> int:
        """The LSN at which the log begins if its oldest file is unsealed: that of the first record."""
        headers = find_headers(data[: wire.HEADER_BYTES + 2**20], wire.RECORDS_START, number, 1)
        if headers and headers[0][0] == wire.RECORDS_START:
            return headers[0][1]
        return self.covered + 1

    def _holds_records(self, file: SurveyedFile) -> bool:
        if file.seal is not None:
            return file.seal.last_lsn >= file.seal.first_lsn
        return self._first_lsn_of(file) > 0

    def _first_lsn_of(self, file: SurveyedFile) -> int:
        """The lowest LSN in a file; 0 if it holds no record."""
        if file.seal is not None:
            return file.seal.first_lsn
        handle = self.directory.open(file.name)
        try:
            data = handle.read_at(wire.RECORDS_START, max(file.size - wire.RECORDS_START, 0))
        finally:
            handle.close()
        return lowest_lsn(find_headers(data, wire.RECORDS_START, file.number, 1))

    def _classify_end(self, file: SurveyedFile, data: bytes, end: int, lsn: int) -> None:
        """Decides whether the missing record `lsn` at `end` is the tail of the log or damage (hazard 5).

        Raises LogDamaged if anything proves that the record was synced. A tail goes into the report.
        """
        # Three witnesses for "it was synced": the file's header, a checkpoint, a later record in the same file. Without
        # one the record was never acknowledged in mode `always` and is dropped as the tail (ADR 2).
        if file.header.synced_through >= lsn:
            raise self._damage_error(file, end, lsn, "the file's header says that it was synced")
        if self.contents.checkpointed_lsn >= lsn:
            raise self._damage_error(file, end, lsn, "a checkpoint covers it")
        # Behind the first bad record good headers may follow: writes of one sync reach the disk in any order.
        rest = data[end - wire.RECORDS_START :]
        for position, later_lsn, synced_through in find_headers(rest, end, file.number, lsn):
            if synced_through >= lsn:
                raise self._damage_error(
                    file, end, lsn, f"record {later_lsn} at position {position} says that it was synced"
                )
        tail_bytes = len(rest.rstrip(b"\0"))
        if tail_bytes and is_torn_write(rest, file.number, end, lsn):
            self.report.tail_file, self.report.tail_position, self.report.tail_bytes = file.name, end, tail_bytes

    def _damage_error(self, file: SurveyedFile, position: int, lsn: int, evidence: str) -> errors.LogDamaged:
        return errors.LogDamaged(
            f"{self.directory.describe(file.name)} is damaged at position {position}: "
            f"record {lsn} cannot be read, and {evidence}",
            hint=repair_hint(self.directory),
        )

    def _apply(self, data: bytes, records: Sequence[RecordTuple]) -> FileIndex:
        """Applies the records after the checkpoint and returns the index of all records."""
        index = FileIndex()
        index.mark_records(records)
        fast_replay = FastReplay(self.state, index, self.covered)
        for record in records:
            position, lsn, kind, section_count = record[0], record[1], record[2], record[7]
            # Most records of a log of single messages take this branch.
            if section_count == 1 and kind == wire.RecordKind.DATA and fast_replay.apply(data, position, lsn):
                continue
            entries = add_record(index, data, position - wire.RECORDS_START, position, section_count)
            if lsn > self.covered:
                self.state.apply(lsn, entries, lambda entry: _body(data, entry))
            if kind == wire.RecordKind.REPAIR:
                self.repaired_lsn = lsn
        self.report.records_scanned += len(records)
        self.report.bytes_scanned += len(data)
        return index


def _body(data: bytes, entry: wire.SectionEntry) -> bytes:
    start = entry.body_position - wire.RECORDS_START
    return data[start : start + entry.body_bytes]


def is_missing(contents: Survey, number: int, holds_records: Callable[[SurveyedFile], bool]) -> bool:
    """Whether the required log file was deleted: it does not exist, no copy replaces it, no later file has a record."""
    if log_file.log_name(number) in contents.replaced:
        return False
    return not any(
        number in (file.number, file.header.replaces) or (file.number > number and holds_records(file))
        for file in contents.files
    )


def is_torn_write(rest: bytes, number: int, position: int, lsn: int) -> bool:
    """Whether the bytes after the last good record are a torn write of this file, not old bytes of a recycled file."""
    return rest[:4] == wire.MAGIC_BYTES and (
        int.from_bytes(rest[16:24], "little") == number or bool(find_headers(rest, position, number, lsn))
    )


def examine(directory: Directory, contents: Survey) -> Replay:
    """Replays the log without changing it. Raises LogDamaged where a start would."""
    report = RecoveryReport(files=len(contents.files), sync_failed_before=contents.sync_failed)
    report.bad_checkpoints = list(contents.bad_checkpoints)
    report.checkpoint_lsn = contents.checkpoint.lsn if contents.checkpoint else 0
    replay = Replay(directory, contents, report)
    replay.run()
    return replay


def recover(
    directory: Directory, clock: Clock, log_id: bytes, positions: Mapping[ShardKey, int], *, must_exist: bool = False
) -> RecoveredWal:
    """Recovers the log in the directory. Raises LogDamaged.

    `log_id`: the id of a log that does not exist yet. `positions`: offsets that are durable elsewhere (committed
    offsets, cursors); none may lie beyond the end of the log. `must_exist`: a missing log is damage, because the node
    had one.
    """
    # Everything up to `_settle` only reads: on damage the directory is left exactly as it was found.
    contents = survey(directory)
    replay = examine(directory, contents)
    report = replay.report
    state = replay.state
    state.lsn = max(state.lsn, report.last_lsn)
    checkpoint = contents.checkpoint
    is_new = not contents.files and checkpoint is None
    if is_new and must_exist:
        raise _missing_log_error(directory)
    # A clean checkpoint counts only at the very end of the log: anything behind it was written by a run that did not
    # close.
    clean = is_new or bool(checkpoint and checkpoint.clean and checkpoint.lsn == report.last_lsn)
    report.clean = clean and not contents.sync_failed
    ends_in_repair = replay.repaired_lsn != 0 and replay.repaired_lsn == report.last_lsn
    # Positions beyond the end of the log are damage, unless an operator has accepted the loss with `wal repair`.
    accept_loss = is_new or ends_in_repair
    report.gaps = _gaps_to_declare(state, positions, repair_hint(directory), accept_loss=accept_loss)
    if ends_in_repair:
        report.gaps += _unknown_ends(state, positions)
    for gap in report.gaps:
        if gap.key.topic_id not in state.topics:
            # A placeholder: the source of the position declares the real name later.
            state.declare_topic(TopicIdentity.nameless(gap.key.topic_id))
    # The id of an existing log never changes: every file carries it, and the metadata store has it too.
    identity = contents.log_id or log_id
    summaries, number = _settle(directory, clock, replay, identity)
    required = contents.required.number if contents.required else 0
    leftovers = sorted(file.number for file in _needed_empties(replay))
    return RecoveredWal(
        identity, state, summaries, replay.spills, contents.spares, contents.kept, number, report, required, leftovers
    )


def _missing_log_error(directory: Directory) -> errors.LogDamaged:
    path = directory.describe("").rstrip("/")
    return errors.LogDamaged(
        f"there is no log in {path}, but by the metadata store this node has had one",
        hint="mount the disk of the log, or bring the directory back. If it is lost for good: "
        f"`icestream wal repair {path} --accept-loss` gives up every message that is not in a table",
    )


def _gaps_to_declare(
    state: LogState, positions: Mapping[ShardKey, int], hint: str, *, accept_loss: bool
) -> list[DeclaredGap]:
    """The gaps after which each shard continues: beyond every offset that a client may have seen (hazard 3)."""
    gaps: list[DeclaredGap] = []
    for key in {*state.shards, *positions}:
        shard = state.shards.get(key)
        end = shard.assigned if shard else 0
        reserved = shard.reserved if shard else 0
        epoch = shard.epoch if shard else 0
        durable = positions.get(key, 0)
        if durable > max(end, reserved) and not accept_loss:
            raise errors.LogDamaged(
                f"{key} ends at offset {end} in the log, but offset {durable} is known to have been synced",
                hint=f"the log is older than what was committed or acked. {hint}",
            )
        # Offsets up to the reservation may have been acknowledged and seen before the power failed; they are never
        # assigned again (hazard 3).
        if reserved > end:
            gaps.append(DeclaredGap(key, end, reserved, epoch, "unclean stop", GapState.UNUSED))
        if durable > max(end, reserved):
            gaps.append(DeclaredGap(key, max(end, reserved), durable, epoch, "lost with the log", GapState.LOST))
    return sorted(gaps, key=lambda gap: (gap.key, gap.start))


def _unknown_ends(state: LogState, positions: Mapping[ShardKey, int]) -> list[DeclaredGap]:
    """Gaps for shards that are known only by their positions, after a repair that gave up the end of the log.

    Their first records may have been lost, so more offsets are skipped than can have been assigned (hazard 0).
    """
    keys = sorted(key for key in positions if key not in state.shards)
    return [DeclaredGap(key, positions[key], positions[key] + SKIP_MAX, 0, REASON, GapState.LOST) for key in keys]


def _settle(directory: Directory, clock: Clock, replay: Replay, log_id: bytes) -> tuple[list[FileSummary], int]:
    """Applies the decisions to the directory; returns the sealed files and the next file number.

    A crash may happen after each step.
    """
    contents = replay.contents
    # Files that only take space are removed first: a full disk must be able to start.
    needed = _needed_empties(replay)
    for file in needed:
        _truncate_empty(directory, file, replay.report.last_lsn)
    unneeded = (file.name for file in replay.empty if file not in needed)
    for name in [*contents.unfinished, *contents.replaced, *unneeded]:
        directory.remove(name)
    for file, seal, index in replay.unsealed_middle:
        _write_seal(directory, file, seal, index)
    number = contents.number_max + 1
    summaries = list(replay.summaries)
    tail = replay.tail
    if tail is not None:
        last = tail.records[-1][1]
        # A copy under a new number, which names the file it replaces: at no moment is there neither of them, and if
        # both exist the copy counts (hazard 6).
        header = FileHeader(log_id, number, tail.file.number, last, clock.wall_us(), 0)
        summaries.append(write_copy(directory, header, tail.data, tail.records, tail.index))
        replay.report.rewritten_file = tail.file.name
        directory.remove(tail.file.name)
        number += 1
    # Last: as long as they exist, their names prove up to which LSN the log was synced.
    for name in contents.bad_checkpoints:
        directory.remove(name)
    if contents.sync_failed:
        directory.remove(log_file.SYNC_FAILED_NAME)
    directory.sync()
    return summaries, number


def _needed_empties(replay: Replay) -> list[SurveyedFile]:
    """The files without records that keep their names until a later file is required.

    None of them if the required file holds records: it, or its copy, is sealed and stands for every file before it.
    Else the required file and those after it, because one of these may be what names it: without that, the header of
    the required file could name an older one, which was removed long ago.
    """
    required = replay.contents.required.number if replay.contents.required else 0
    if required not in (file.number for file in replay.empty):
        return []
    return [file for file in replay.empty if file.number >= required]


def _truncate_empty(directory: Directory, file: SurveyedFile, last_lsn: int) -> None:
    """Releases the space of a file without records, but keeps its name until a later file is required.

    Otherwise a start that crashed before it created that file would look like the loss of this one.
    """
    if file.size <= wire.RECORDS_START:
        return
    seal = file.seal or Seal.empty(file.number, last_lsn)
    handle = directory.open(file.name)
    try:
        # Written again if it is there: after a failed sync it may exist only in the page cache (hazard 6). A file that
        # is cut off and not sealed is damage.
        handle.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        handle.sync()
        handle.truncate(wire.RECORDS_START)
        handle.sync()
    finally:
        handle.close()


def _write_seal(directory: Directory, file: SurveyedFile, seal: Seal, index: FileIndex) -> None:
    handle = directory.open(file.name)
    try:
        handle.write_at(log_file.SEAL_POSITION, log_file.encode_seal(seal))
        handle.sync()
    finally:
        handle.close()
