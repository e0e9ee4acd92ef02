"""Opens a log that may have ended in any way. The rules are in format.py: the end of the log, recovery.

    survey          what is there (survey.py), nothing changed
    replay          checkpoint, then the records behind it, in LSN order: what the log knows
    judge           the first record that is not good: tail or damage
    settle          only now the directory changes: the unsealed file is copied into a fresh one and synced

A start that finds damage raises LogDamaged before anything is changed. A crash anywhere in `settle` leaves a directory
from which the same recovery gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from icestream import errors
from icestream.model.shard import Gap, GapState, ShardKey, TopicIdentity
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.checkpoint import KeptCheckpoint
from icestream.wal.fast_replay import FastReplay
from icestream.wal.file_summary import FileSummary
from icestream.wal.footer import add_record, load_index
from icestream.wal.index import FileIndex
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.losses import REASON, SKIP_MAX
from icestream.wal.record_scan import begins_with, find_headers, scan_records
from icestream.wal.rewrite import write_copy
from icestream.wal.spill_log import load_spill, spilled_until
from icestream.wal.state import LogState
from icestream.wal.survey import Survey, SurveyedFile, repair_hint, survey


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did, for the log and for a person."""

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
    gaps: list[Gap] = field(default_factory=list)


@dataclass(slots=True)
class RecoveredWal:
    log_id: bytes
    state: LogState
    files: list[FileSummary]
    spills: list[FileSummary]  # of topics that cannot be committed (spills.py)
    spares: dict[str, int]
    checkpoints: list[KeptCheckpoint]  # newest first
    next_number: int
    report: RecoveryReport
    required: int = 0  # number of the log file that a start must find, 0 for none
    leftovers: list[int] = field(default_factory=list)  # that file, when no record in it counts: it goes later


@dataclass(slots=True)
class _Tail:
    """The unsealed file: its good records, to be copied, and their index."""

    file: SurveyedFile
    data: bytes
    records: list[tuple[int, int, int, int, int, int, int, int]]
    index: FileIndex


class Replay:
    """Goes through the files in order and builds the state; keeps the unsealed file for the copy."""

    def __init__(self, directory: Directory, found: Survey, report: RecoveryReport) -> None:
        self.directory = directory
        self.found = found
        self.report = report
        self.state = found.checkpoint.state if found.checkpoint else LogState()
        self.covered = found.checkpoint.lsn if found.checkpoint else 0
        self.summaries: list[FileSummary] = []
        self.spills: list[FileSummary] = []
        self.unsealed_middle: list[tuple[SurveyedFile, Seal, FileIndex]] = []
        self.tail: _Tail | None = None
        self.empty: list[SurveyedFile] = []
        self.repaired_lsn = 0
        self._expected = 0
        self._tail_first: dict[ShardKey, int] = {}

    def run(self) -> None:
        files = self.found.files
        if self.found.repair_decided:
            where = self.directory.describe("").rstrip("/")
            raise errors.LogDamaged(
                f"a repair of {where} was interrupted", hint=f"`icestream wal repair {where} --accept-loss` finishes it"
            )
        if bad := [*self.found.bad_headers, *self.found.bad_spills]:
            name, why = bad[0]
            raise errors.LogDamaged(
                f"{self.directory.describe(name)} is damaged at position 0: {why}", hint=repair_hint(self.directory)
            )
        for spill in self.found.spills:
            self._spill(spill)
        for number, file in enumerate(files):
            later = files[number + 1 :]
            if file.seal is not None:
                self._sealed(file, file.seal)
            else:
                self._unsealed(file, later)
        last = self._expected - 1 if self._expected else 0
        self._check_nothing_is_missing()
        last = last or self.covered  # every file was freed
        if last < self.found.checkpointed_lsn:
            raise errors.LogDamaged(
                f"the log ends at record {last}, but a checkpoint covers record {self.found.checkpointed_lsn}",
                hint=f"log files are missing from {self.directory.describe('')}. {repair_hint(self.directory)}",
            )
        self._check_headers(last)
        self._check_required_is_there()
        self.report.last_lsn = last

    def _check_headers(self, last: int) -> None:
        """No file may have been made when more records were synced than the log has now."""
        newest = max(self.found.files, key=lambda file: file.header.synced_through, default=None)
        if newest is not None and last < newest.header.synced_through:
            raise errors.LogDamaged(
                f"the log ends at record {last}, but record {newest.header.synced_through} was synced when "
                f"{newest.name} was prepared",
                hint=repair_hint(self.directory),
            )

    def _check_required_is_there(self) -> None:
        """The newest file may be gone without a hole in the LSNs: then only what was said about it tells."""
        required = self.found.required
        if required is not None and is_missing(self.found, required.number, self._holds_records):
            raise errors.LogDamaged(
                f"{self.directory.describe(log_file.log_name(required.number))} is missing: {required.evidence}",
                hint=f"put the file back if it was moved. {repair_hint(self.directory)}",
            )

    def _check_nothing_is_missing(self) -> None:
        """From its floor on every shard must be here: files are freed only when a checkpoint knows floors beyond."""
        for key, shard in self.state.shards.items():
            needed = spilled_until(self.spills, self.state, key)
            ranges = (summary.find(key) for summary in self.summaries)
            held = next((held.first for held in ranges if held is not None), None)
            first = held if held is not None else self._tail_first.get(key, shard.assigned)
            if needed < first:
                raise errors.LogDamaged(
                    f"offsets {needed} to {first - 1} of {key} are not in the log and were never freed",
                    hint=f"log files are missing from {self.directory.describe('')}. {repair_hint(self.directory)}",
                )

    def _arrive(self, file: SurveyedFile, first_lsn: int) -> None:
        """The next file begins with this LSN: there must be no hole before it."""
        if not self._expected:
            if first_lsn > self.covered + 1:
                raise self._hole(file, self.covered + 1, first_lsn)
            self._expected = first_lsn
        if first_lsn > self._expected:
            raise self._hole(file, self._expected, first_lsn)

    def _hole(self, file: SurveyedFile, expected: int, first_lsn: int) -> errors.LogDamaged:
        return errors.LogDamaged(
            f"{self.directory.describe(file.name)} begins with record {first_lsn}, expected {expected}: "
            "a log file or a checkpoint is missing",
            hint=repair_hint(self.directory),
        )

    def _sealed(self, file: SurveyedFile, seal: Seal) -> None:
        if seal.last_lsn < seal.first_lsn:
            self.empty.append(file)
            return
        self._arrive(file, seal.first_lsn)
        handle = self.directory.open(file.name)
        try:
            if seal.last_lsn > self.covered:
                data = handle.read_at(wire.RECORDS_START, seal.end_position - wire.RECORDS_START)
                records, end, _, _ = scan_records(data, wire.RECORDS_START, file.number, seal.first_lsn)
                if end != seal.end_position:
                    raise self._damage(
                        file, end, records[-1][1] + 1 if records else seal.first_lsn, "the file is sealed"
                    )
                index = self._apply(data, records)
            else:
                index = load_index(handle, seal)
        finally:
            handle.close()
        for topic in index.topics.values():
            self.state.declare_topic(topic)
        self.summaries.append(FileSummary.of(seal, file.size, index))
        self._expected = seal.last_lsn + 1

    def _spill(self, file: SurveyedFile) -> None:
        """Its records say nothing about the state: what they held was covered by checkpoints before it was copied."""
        summary, index = load_spill(self.directory, file)
        for topic in index.topics.values():
            self.state.declare_topic(topic)
        self.spills.append(summary)

    def _unsealed(self, file: SurveyedFile, later: list[SurveyedFile]) -> None:
        handle = self.directory.open(file.name)
        try:
            data = handle.read_at(wire.RECORDS_START, max(file.size - wire.RECORDS_START, 0))
        finally:
            handle.close()
        first = self._expected or self._first_lsn(data, file.number)
        records, end, next_lsn, reason = scan_records(data, wire.RECORDS_START, file.number, first)
        if file.size < file.header.file_bytes and reason != "footer":
            # it had all its space before its name: somebody cut it, and with it records that were synced
            raise self._damage(
                file, file.size, first, f"the file was {file.header.file_bytes} bytes long when it was made"
            )
        if records:
            self._arrive(file, first)
        follows = [other for other in later if self._holds_records(other)]
        if not follows:
            self._judge(file, data, end, next_lsn)
        if not records:
            # prepared and never used; or overtaken by the copy of a recovery that died before it removed this one
            if follows and self._begins_with(follows[0]) > first:
                raise self._damage(file, end, first, f"{follows[0].name} holds later records")
            self.empty.append(file)
            return
        if follows:
            following = self._begins_with(follows[0])
            if following > next_lsn:
                raise self._damage(file, end, next_lsn, f"{follows[0].name} holds later records")
            # records that a failed write took back stand here again; those of the later file are the ones that count
            records = [record for record in records if record[1] < following]
            end, next_lsn = max((record[0] + record[6] for record in records), default=end), following
            if not records:
                self.empty.append(file)
                return
            self._seal_again(file, data, records, end, next_lsn)
        else:
            index = self._apply(data, records)
            self._tail_first = {key: held.first_offset for key, held in index.shards.items()}
            self.tail = _Tail(file, data, records, index)
            self._expected = next_lsn

    def _seal_again(
        self, file: SurveyedFile, data: bytes, records: Sequence[tuple[int, ...]], end: int, next_lsn: int
    ) -> None:
        """Only its seal is gone: a later file holds records, so this one was synced. Its end meets the next file."""
        index = self._apply(data, records)
        seal = Seal(file.number, records[0][1], next_lsn - 1, end, 0, 0)
        self.unsealed_middle.append((file, seal, index))
        self.summaries.append(FileSummary.of(seal, file.size, index))
        self._expected = next_lsn

    def _first_lsn(self, data: bytes, number: int) -> int:
        """The log's oldest file is unsealed: its first record says where the log begins."""
        headers = find_headers(data[: wire.HEADER_BYTES + 2**20], wire.RECORDS_START, number, 1)
        if headers and headers[0][0] == wire.RECORDS_START:
            return headers[0][1]
        return self.covered + 1

    def _holds_records(self, file: SurveyedFile) -> bool:
        if file.seal is not None:
            return file.seal.last_lsn >= file.seal.first_lsn
        return self._begins_with(file) > 0

    def _begins_with(self, file: SurveyedFile) -> int:
        """The lowest LSN in a file, 0 when it holds no record."""
        if file.seal is not None:
            return file.seal.first_lsn
        handle = self.directory.open(file.name)
        try:
            data = handle.read_at(wire.RECORDS_START, max(file.size - wire.RECORDS_START, 0))
        finally:
            handle.close()
        return begins_with(find_headers(data, wire.RECORDS_START, file.number, 1))

    def _judge(self, file: SurveyedFile, data: bytes, end: int, lsn: int) -> None:
        """Record `lsn` should stand at `end` and does not: damage when it is known to have been synced (hazard 5)."""
        if file.header.synced_through >= lsn:
            raise self._damage(file, end, lsn, "the file's header says that it was synced")
        if self.found.checkpointed_lsn >= lsn:
            raise self._damage(file, end, lsn, "a checkpoint covers it")
        rest = data[end - wire.RECORDS_START :]
        for position, later_lsn, synced_through in find_headers(rest, end, file.number, lsn):
            if synced_through >= lsn:
                raise self._damage(file, end, lsn, f"record {later_lsn} at position {position} says that it was synced")
        cut = len(rest.rstrip(b"\0"))
        if cut and is_debris(rest, file.number, end, lsn):
            self.report.tail_file, self.report.tail_position, self.report.tail_bytes = file.name, end, cut

    def _damage(self, file: SurveyedFile, position: int, lsn: int, evidence: str) -> errors.LogDamaged:
        return errors.LogDamaged(
            f"{self.directory.describe(file.name)} is damaged at position {position}: "
            f"record {lsn} cannot be read, and {evidence}",
            hint=repair_hint(self.directory),
        )

    def _apply(self, data: bytes, records: Sequence[tuple[int, ...]]) -> FileIndex:
        """Applies the records behind the checkpoint; the index of all of them."""
        index = FileIndex()
        index.mark_records(records)
        plain = FastReplay(self.state, index, self.covered)
        for found in records:
            position, lsn, kind = found[0], found[1], found[2]
            if found[7] == 1 and kind == wire.RecordKind.DATA and plain.take(data, position, lsn):
                continue
            entries = add_record(index, data, position - wire.RECORDS_START, position, found[7])
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


def is_missing(found: Survey, number: int, holds_records: Callable[[SurveyedFile], bool]) -> bool:
    """Whether the required log file was deleted: it is not there, no copy replaces it, and no later file holds a
    record."""
    if log_file.log_name(number) in found.replaced:
        return False
    return not any(
        number in (file.number, file.header.replaces) or (file.number > number and holds_records(file))
        for file in found.files
    )


def is_debris(rest: bytes, number: int, position: int, lsn: int) -> bool:
    """Whether what lies behind the last good record is a torn write of this file, not a recycled file's past."""
    return rest[:4] == wire.MAGIC_BYTES and (
        int.from_bytes(rest[16:24], "little") == number or bool(find_headers(rest, position, number, lsn))
    )


def examine(directory: Directory, found: Survey) -> Replay:
    """Replays what is there, without changing it. Raises LogDamaged where a start would."""
    report = RecoveryReport(files=len(found.files), sync_failed_before=found.sync_failed)
    report.bad_checkpoints = list(found.bad_checkpoints)
    report.checkpoint_lsn = found.checkpoint.lsn if found.checkpoint else 0
    replay = Replay(directory, found, report)
    replay.run()
    return replay


def recover(
    directory: Directory, clock: Clock, log_id: bytes, positions: Mapping[ShardKey, int], *, must_exist: bool = False
) -> RecoveredWal:
    """Opens what is in the directory. `log_id` is for a log that does not exist yet; `positions` are offsets that are
    durable elsewhere (committed, cursors): none may lie beyond the end of the log. `must_exist`: raises LogDamaged when
    there is no log, because the node had one."""
    found = survey(directory)
    replay = examine(directory, found)
    report = replay.report
    state = replay.state
    state.lsn = max(state.lsn, report.last_lsn)
    is_new = not found.files and found.checkpoint is None
    if is_new and must_exist:
        raise _log_is_gone(directory)
    clean = is_new or bool(found.checkpoint and found.checkpoint.clean and found.checkpoint.lsn == report.last_lsn)
    report.clean = clean and not found.sync_failed
    ends_in_repair = replay.repaired_lsn != 0 and replay.repaired_lsn == report.last_lsn
    accept = is_new or ends_in_repair
    report.gaps = _gaps(state, positions, repair_hint(directory), accept_loss=accept)
    if ends_in_repair:
        report.gaps += _unknown_ends(state, positions)
    for gap in report.gaps:
        if gap.key.topic_id not in state.topics:
            state.declare_topic(
                TopicIdentity.nameless(gap.key.topic_id)
            )  # its name is known to whoever knows the position
    identity = found.log_id or log_id
    summaries, number = _settle(directory, clock, replay, identity)
    required = found.required.number if found.required else 0
    leftovers = [file.number for file in replay.empty if file.number == required]
    return RecoveredWal(
        identity, state, summaries, replay.spills, found.spares, found.kept, number, report, required, leftovers
    )


def _log_is_gone(directory: Directory) -> errors.LogDamaged:
    where = directory.describe("").rstrip("/")
    return errors.LogDamaged(
        f"there is no log in {where}, but by the metadata store this node has had one",
        hint="mount the disk of the log, or bring the directory back. If it is lost for good: "
        f"`icestream wal repair {where} --accept-loss` gives up every message that is not in a table",
    )


def _gaps(state: LogState, positions: Mapping[ShardKey, int], hint: str, *, accept_loss: bool) -> list[Gap]:
    """Where each shard goes on: behind everything that anybody may have seen (hazard 3). The rest is a declared gap."""
    gaps: list[Gap] = []
    for key in {*state.shards, *positions}:
        shard = state.shards.get(key)
        end = shard.assigned if shard else 0
        reserved = shard.reserved if shard else 0
        epoch = shard.epoch if shard else 0
        known = positions.get(key, 0)
        if known > max(end, reserved) and not accept_loss:
            raise errors.LogDamaged(
                f"{key} ends at offset {end} in the log, but offset {known} is known to have been synced",
                hint=f"the log is older than what was committed or acked. {hint}",
            )
        if reserved > end:
            gaps.append(Gap(key, end, reserved, epoch, "unclean stop", GapState.UNUSED))
        if known > max(end, reserved):
            gaps.append(Gap(key, max(end, reserved), known, epoch, "lost with the log", GapState.LOST))
    return sorted(gaps, key=lambda gap: (gap.key, gap.start))


def _unknown_ends(state: LogState, positions: Mapping[ShardKey, int]) -> list[Gap]:
    """Shards that only others know, behind a repair that gave up the end of the log: their first records may have been
    in what was lost, so more offsets are skipped than can have been given out (hazard 0)."""
    keys = sorted(key for key in positions if key not in state.shards)
    return [Gap(key, positions[key], positions[key] + SKIP_MAX, 0, REASON, GapState.LOST) for key in keys]


def _settle(directory: Directory, clock: Clock, replay: Replay, log_id: bytes) -> tuple[list[FileSummary], int]:
    """Makes the directory agree with what was decided. Each step may be the last one before a crash."""
    found = replay.found
    # first what only takes room: a full disk must be able to start
    required = found.required.number if found.required else 0
    for file in replay.empty:
        if file.number == required:
            _empty(directory, file, replay.report.last_lsn)
    unneeded = (file.name for file in replay.empty if file.number != required)
    for name in [*found.unfinished, *found.replaced, *unneeded]:
        directory.remove(name)
    for file, seal, index in replay.unsealed_middle:
        _write_seal(directory, file, seal, index)
    number = found.number_max + 1
    summaries = list(replay.summaries)
    tail = replay.tail
    if tail is not None:
        last = tail.records[-1][1]
        header = FileHeader(log_id, number, tail.file.number, last, clock.wall_us(), 0)
        summaries.append(write_copy(directory, header, tail.data, tail.records, tail.index))
        replay.report.rewritten_file = tail.file.name
        directory.remove(tail.file.name)
        number += 1
    for name in found.bad_checkpoints:
        directory.remove(name)
    if found.sync_failed:
        directory.remove(log_file.SYNC_FAILED_NAME)
    directory.sync()
    return summaries, number


def _empty(directory: Directory, file: SurveyedFile, last_lsn: int) -> None:
    """Gives back the room of a file without records. Its name stays until a later file is required: a start that died
    before it made one must not look like the loss of this one."""
    handle = directory.open(file.name)
    try:
        if file.seal is None:
            handle.write_at(log_file.SEAL_POSITION, log_file.encode_seal(Seal.empty(file.number, last_lsn)))
            handle.sync()
        if file.size > wire.RECORDS_START:
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
