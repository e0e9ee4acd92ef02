"""Makes a damaged log open again, and says exactly what that costs. Nothing changes without `apply`.

Goes through every record of every file, not only those behind the checkpoint:
    a section whose CRC fails     is replaced by a GAP note in the same record; the other sections of the record stay
    a stretch without records     is replaced by a REPAIR record, which carries the LSN before the next good one, and
                                  the GAP notes of the offsets that turn out to be missing after it
    a lost end                    is replaced by a REPAIR record with the highest LSN known; the next start then accepts
                                  that other parts know offsets beyond it, and declares them lost
A file that needs a change is written anew beside the log, its original is kept as `damaged-…`, and it takes the
original's place by a rename: a crash in between leaves the damaged log as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from icestream.model.shard import Gap, GapState, ShardKey
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import log_file, notes
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.rewrite import Copy, publish_copy, sections_of
from icestream.wal.scan import find_headers, good_header
from icestream.wal.survey import Survey, survey

REASON = "lost to damage of the log"


@dataclass(slots=True)
class Loss:
    """Bytes of one file that cannot be read, and which messages that costs."""

    file: str
    position: int
    size: int
    lsn_first: int
    lsn_last: int
    gaps: list[Gap] = field(default_factory=list)


class _Kept(NamedTuple):
    """One record of a file as it will be: a good one, a mended one, or a stand-in for what was lost."""

    kind: int
    lsn: int
    synced_through: int
    append_time_us: int
    sections: list[wire.Section]
    loss: Loss | None


@dataclass(slots=True)
class _FilePlan:
    header: FileHeader
    name: str
    records: list[_Kept]
    is_sealed: bool

    @property
    def needs_rewrite(self) -> bool:
        return any(record.loss for record in self.records)


@dataclass(slots=True)
class RepairPlan:
    losses: list[Loss] = field(default_factory=list)
    rewrites: list[_FilePlan] = field(default_factory=list)
    files: int = 0

    @property
    def gaps(self) -> list[Gap]:
        return [gap for loss in self.losses for gap in loss.gaps]


class _Planner:
    def __init__(self, directory: Directory, found: Survey) -> None:
        self.directory = directory
        self.found = found
        self.covered = found.checkpoint.lsn if found.checkpoint else 0
        self.plan = RepairPlan(files=len(found.files))
        self.plans: list[_FilePlan] = []
        self._expected = 0
        self._ends: dict[ShardKey, int] = {}
        self._last_loss: Loss | None = None

    def run(self, step: Callable[[], None]) -> RepairPlan:
        headers = {file.name: (file.header, file.seal) for file in self.found.files}
        for name, _ in self.found.bad_headers:
            number = log_file.log_number(name)
            assert number is not None
            headers[name] = (FileHeader(self.found.log_id or bytes(16), number, 0, 0, 0, 0), None)
        for name, (header, seal) in sorted(headers.items()):
            self._file(name, header, seal, bad_header=name not in {file.name for file in self.found.files})
            step()
        self._end()
        self.plan.rewrites = [plan for plan in self.plans if plan.needs_rewrite]
        return self.plan

    def _file(self, name: str, header: FileHeader, seal: Seal | None, *, bad_header: bool) -> None:
        data = self._content(name)
        end = seal.end_position - wire.RECORDS_START if seal else len(data)
        plan = _FilePlan(header, name, [], seal is not None)
        self.plans.append(plan)
        at = 0
        while at < end:
            record = self._record(name, data, at, end, header.number, seal)
            if record is None:
                break
            kept, at = record
            plan.records.append(kept)
            self._expected = kept.lsn + 1
        if bad_header:
            loss = self._lose(name, 0, log_file.SECTOR, self._expected, self._expected - 1)
            plan.records.append(_Kept(wire.RecordKind.REPAIR, max(self._expected - 1, 1), 0, 0, [], loss))

    def _content(self, name: str) -> bytes:
        file = self.directory.open(name)
        try:
            return file.read_at(wire.RECORDS_START, max(file.size() - wire.RECORDS_START, 0))
        finally:
            file.close()

    def _record(
        self, name: str, data: bytes, at: int, end: int, number: int, seal: Seal | None
    ) -> tuple[_Kept, int] | None:
        """The record at `at`, mended if need be, or a stand-in for what should be there; None at the file's end."""
        position = wire.RECORDS_START + at
        header = good_header(data, at, position, number)
        if header is not None and header.kind == wire.RecordKind.FOOTER:
            return None
        if header is not None and (not self._expected or header.lsn == self._expected):
            if len(data) - at >= header.record_bytes and (seal or self._is_evidence(data, at, header, number)):
                return self._mended(name, data, at, header), at + header.record_bytes
            if self._whole(data, at, header):
                return self._mended(name, data, at, header), at + header.record_bytes
        return self._stand_in(name, data, at, end, number, seal)

    def _whole(self, data: bytes, at: int, header: wire.Header) -> bool:
        if len(data) - at < header.record_bytes:
            return False
        return all(wire.check_section(data, at, header, entry) for entry in wire.decode_entries(data, at, header))

    def _is_evidence(self, data: bytes, at: int, header: wire.Header, number: int) -> bool:
        """Whether something later says that this record was synced."""
        if self.covered >= header.lsn:
            return True
        rest = data[at + header.record_bytes :]
        later = find_headers(rest, header.position + header.record_bytes, number, header.lsn)
        return any(synced >= header.lsn for _, _, synced in later)

    def _mended(self, name: str, data: bytes, at: int, header: wire.Header) -> _Kept:
        entries = wire.decode_entries(data, at, header)
        sections: list[wire.Section] = []
        loss: Loss | None = None
        for entry, section in zip(entries, sections_of(data, at, header), strict=True):
            if wire.check_section(data, at, header, entry):
                self._follow(entry)
                sections.append(section)
                continue
            loss = loss or self._lose(name, entry.body_position, entry.body_bytes, header.lsn, header.lsn)
            if entry.kind == wire.SectionKind.MESSAGES:
                key = ShardKey(entry.topic_id, entry.shard)
                gap = Gap(key, entry.base_offset, entry.end_offset, entry.epoch, REASON, GapState.LOST)
                loss.gaps.append(gap)
                sections.append(notes.gap_section(gap))
                self._ends[key] = entry.end_offset
        return _Kept(header.kind, header.lsn, header.synced_through, header.append_time_us, sections, loss)

    def _follow(self, entry: wire.Entry) -> None:
        """A good section: when it does not begin where its shard ended, the last loss held what lies between."""
        if entry.kind != wire.SectionKind.MESSAGES:
            return
        key = ShardKey(entry.topic_id, entry.shard)
        expected = self._ends.get(key)
        if expected is None and self._last_loss is not None:
            expected = self._known_before(key)
        if expected is not None and entry.base_offset > expected and self._last_loss is not None:
            gap = Gap(key, expected, entry.base_offset, entry.epoch, REASON, GapState.LOST)
            self._last_loss.gaps.append(gap)
        self._ends[key] = entry.end_offset

    def _known_before(self, key: ShardKey) -> int:
        """Where a shard began that has no message before the loss: 0, unless older files were freed."""
        first = self.plans[0].records[0].lsn if self.plans and self.plans[0].records else 1
        if first <= 1 or self.found.checkpoint is None:
            return 0
        shard = self.found.checkpoint.state.shards.get(key)
        return shard.floor if shard else 0

    def _stand_in(
        self, name: str, data: bytes, at: int, end: int, number: int, seal: Seal | None
    ) -> tuple[_Kept, int] | None:
        position = wire.RECORDS_START + at
        low = self._expected or 1
        later = [one for one in find_headers(data[at:end], position, number, low) if one[0] > position]
        if later and (seal or any(synced >= low for _, _, synced in later) or self._expected == 0):
            next_position, next_lsn, _ = later[0]
            loss = self._lose(name, position, next_position - position, low, next_lsn - 1)
            return _Kept(wire.RecordKind.REPAIR, next_lsn - 1, 0, 0, [], loss), next_position - wire.RECORDS_START
        if seal is not None and low <= seal.last_lsn:
            loss = self._lose(name, position, end - at, low, seal.last_lsn)
            return _Kept(wire.RecordKind.REPAIR, seal.last_lsn, 0, 0, [], loss), end
        return None

    def _lose(self, name: str, position: int, size: int, first: int, last: int) -> Loss:
        loss = Loss(name, position, size, first, last)
        self.plan.losses.append(loss)
        self._last_loss = loss
        return loss

    def _end(self) -> None:
        """Holes between files, and an end that others know to have been further."""
        last = 0
        for plan in self.plans:
            if not plan.records:
                continue
            first = plan.records[0].lsn
            if last and first > last + 1:
                loss = self._lose(plan.name, wire.RECORDS_START, 0, last + 1, first - 1)
                plan.records.insert(0, _Kept(wire.RecordKind.REPAIR, first - 1, 0, 0, [], loss))
                self._holes_after(plan, loss)
            last = plan.records[-1].lsn
        if last < self.covered and self.plans:
            self._lost_end(last)

    def _holes_after(self, plan: _FilePlan, loss: Loss) -> None:
        """A whole file is missing: what its shards lost shows where they go on."""
        ends: dict[ShardKey, int] = {}
        reached = False
        for other in self.plans:
            reached = reached or other is plan
            for record in other.records:
                for section in record.sections:
                    if section.kind != wire.SectionKind.MESSAGES:
                        continue
                    key = ShardKey(section.topic_id, section.shard)
                    if reached and section.base_offset > ends.get(key, 0):
                        start = ends.get(key, 0)
                        loss.gaps.append(Gap(key, start, section.base_offset, section.epoch, REASON, GapState.LOST))
                    ends[key] = section.base_offset + section.rows

    def _lost_end(self, last: int) -> None:
        plan = self.plans[-1]
        loss = self._lose(plan.name, wire.RECORDS_START, 0, last + 1, self.covered)
        assert self.found.checkpoint is not None
        for key, shard in self.found.checkpoint.state.shards.items():
            end = self._ends.get(key, 0)
            if shard.synced > end:
                loss.gaps.append(Gap(key, end, shard.synced, shard.epoch, REASON, GapState.LOST))
        plan.records.append(_Kept(wire.RecordKind.REPAIR, self.covered, 0, 0, [], loss))


def plan_repair(directory: Directory, step: Callable[[], None] = lambda: None) -> RepairPlan:
    """What is damaged and what a repair would cost. Reads everything, changes nothing. `step` is called once a file."""
    return _Planner(directory, survey(directory)).run(step)


def apply_repair(directory: Directory, clock: Clock, plan: RepairPlan) -> list[str]:
    """Carries the plan out; the names under which the damaged originals are kept."""
    kept: list[str] = []
    for file in plan.rewrites:
        copy = Copy(file.header.number)
        for record in file.records:
            copy.add(record.kind, record.lsn, record.synced_through, record.append_time_us, list(_sections(record)))
        kept.append(_keep_original(directory, file.name))
        publish_copy(directory, replace(file.header, synced_through=copy.last_lsn, created_us=clock.wall_us()), copy)
    directory.sync()
    return kept


def _sections(record: _Kept) -> Iterator[wire.Section]:
    yield from record.sections
    if record.kind == wire.RecordKind.REPAIR and record.loss:
        yield from (notes.gap_section(gap) for gap in record.loss.gaps)


def _keep_original(directory: Directory, name: str) -> str:
    number = 1
    while (aside := f"damaged-{number}-{name}") in directory.names():
        number += 1
    source = directory.open(name)
    try:
        data = source.read_at(0, source.size())
    finally:
        source.close()
    target = directory.create(aside)
    try:
        target.write_at(0, data)
        target.sync()
    finally:
        target.close()
    directory.sync()
    return aside
