"""The core of the log, without I/O: batches in, planned writes out; completions in, released records out.

    append(batches)      assigns offsets, builds records, plans writes. Takes as many batches as the present and the
                         next file have room for: batches without offsets can still be refused (hazard 16)
    drain_writes()       the planned writes. They must be performed in this order, one file after the other
    progress(w, s)       all writes up to ticket w are complete, all up to s are synced; moves `released_lsn`
    roll_back()          after a failed write: discards every record above the last one that may have been acknowledged
    file_ready(…)        the next file is prepared

    assigned --write--> written --sync--> synced
         `always`:            released when synced
         `periodic`, `none`:  released when written, except a record that assigns offsets beyond the synced reservation
                              (RESERVE): that one waits for its own sync

Invariants: LSNs and offsets are assigned without a hole; records are released in LSN order; nothing is planned for a
file before the seal of the file before it is planned; a file never grows beyond its capacity, footer included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from icestream import errors, limits
from icestream.model.block import Numbering, new_tuple
from icestream.model.block_group import BlockGroup
from icestream.model.shard import DeclaredGap
from icestream.model.sync_mode import SyncMode
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.index import MARK_BYTES, FileIndex
from icestream.wal.log_file import SEAL_POSITION, Seal, encode_seal
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.state import LogState, Shard
from icestream.wal.tail import SectionRead, Tail


class AppendBatch(NamedTuple):
    """Messages of one producer for one shard, as a block (model/block.py)."""

    shard: Shard
    rows: int
    block: bytes
    numbering: Numbering | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.block)


class AppendGroup(NamedTuple):
    """Batches of any number of producers for some shards, as a group (model/block_group.py)."""

    shards: Sequence[Shard]
    bodies: Sequence[bytes]  # of each shard: its blocks, one behind the other
    group: BlockGroup

    @property
    def size_bytes(self) -> int:
        """The bytes of all blocks."""
        return self.group.size_bytes


class Placed(NamedTuple):
    """A batch got offsets [base_offset, base_offset + rows); it may be acknowledged when record `lsn` is released."""

    base_offset: int
    lsn: int


class PlacedGroup(NamedTuple):
    """The batches of a group got offsets, one behind the other in each shard, but for the rejected ones.

    `base_offsets`: of each shard. `rejected`: by the index of the batch, its result. Released with record `lsn`, as
    `Placed`.
    """

    base_offsets: Sequence[int]
    lsn: int
    rejected: dict[int, Duplicate | errors.IcestreamError]


Result = Placed | PlacedGroup | Duplicate | errors.IcestreamError


def require_placed(results: Sequence[Result]) -> list[Placed]:
    """Returns the results if every batch was stored by this append; raises the first error otherwise."""
    placements: list[Placed] = []
    for result in results:
        if isinstance(result, errors.IcestreamError):
            raise result
        assert isinstance(result, Placed)
        placements.append(result)
    return placements


class PlannedWrite(NamedTuple):
    """One instruction to the sink: write `data` at `position` of file `number`, then sync the file if `sync`."""

    ticket: int
    number: int
    position: int
    data: bytes
    sync: bool


@dataclass(slots=True)
class OpenLogFile:
    """The file that gets records; includes writes that are planned but not performed yet."""

    number: int
    capacity: int
    first_lsn: int = 0
    position: int = wire.RECORDS_START
    index: FileIndex = field(default_factory=FileIndex)

    @property
    def room(self) -> int:
        """Bytes left for records, with the footer that they will need already subtracted; 0 if the footer is full."""
        if len(self.index.shards) + len(self.index.topics) > _FOOTER_SECTIONS_MAX:
            return 0
        return self.capacity - self.position - self.index.footer_bytes


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that gets no further record. `index` is None if it has no footer."""

    seal: Seal
    index: FileIndex | None


@dataclass(slots=True)
class _InFlightRecord:
    """A record between its assignment and its sync."""

    ticket: int
    lsn: int
    size: int
    number: int
    end: int
    needs_sync: bool
    ends: list[tuple[Shard, int, int, int]]  # shard, end offset, bytes, position of its section entry
    reservations: list[tuple[Shard, int]]


# The cost of a section beside its blocks: its entry, padding, and at most one new shard and point in the footer.
_SECTION_COST = wire.ENTRY_BYTES + wire.ALIGN + wire.ENTRY_BYTES + 32 + 24
_RECORD_COST = wire.HEADER_BYTES
# A record may become the first mark of the footer.
_MARK_COST = wire.ENTRY_BYTES + MARK_BYTES
# A shard adds at most its messages, its topic's name and a reservation to a record, and two sections to the footer,
# which is a record too. So a file is full when its footer could not hold the shards of another record.
_SHARDS_MAX = limits.RECORD_SECTIONS_MAX // 8
_FOOTER_SECTIONS_MAX = limits.RECORD_SECTIONS_MAX - 2 * _SHARDS_MAX
_RESERVE_COST = wire.ENTRY_BYTES
# What a shard costs in addition that is new in the file: its topic's name, in the record and in the footer.
_NEW_SHARD_COST = 2 * (wire.ENTRY_BYTES + wire.ALIGN + 8 + limits.TOPIC_NAME_BYTES_MAX)


def group_cost_max(size: int, shards: int) -> int:
    """The largest part of a file that a group of `size` bytes for so many shards may need."""
    section_cost = _SECTION_COST + _RESERVE_COST + wire.ALIGN + _NEW_SHARD_COST
    return size + shards * section_cost + _RECORD_COST + _MARK_COST


class Appender:
    """Assigns offsets and LSNs, lays records out in files, and decides when a record is released."""

    def __init__(self, state: LogState, mode: SyncMode, align: int = wire.ALIGN, tail: Tail | None = None) -> None:
        self.state = state
        self.tail = tail or Tail(0)
        self.advanced_shards: list[Shard] = []  # followed shards with newly visible messages
        self.mode = mode
        self.released_lsn = state.lsn
        self.synced_lsn = state.lsn
        self.in_flight_bytes = 0
        self.file: OpenLogFile | None = None
        self.next_file: OpenLogFile | None = None
        self._align = align
        self._section_cost = _SECTION_COST if mode is SyncMode.ALWAYS else _SECTION_COST + _RESERVE_COST
        self._ticket = 0
        self._writes: list[PlannedWrite] = []
        self._unreleased: deque[_InFlightRecord] = deque()
        self._unsynced: deque[_InFlightRecord] = deque()
        self._sealing: deque[tuple[int, SealedFile]] = deque()
        self._sealed: list[SealedFile] = []
        self.sealed_count = 0
        self.sealing_bytes = 0  # of the files whose seal is planned
        self._released_at = (0, 0)  # file number and end position of the last released record
        self._synced_at = (0, 0)  # and of the last synced record
        self._gathered: list[Shard] = []
        self._gathered_notes: list[wire.RecordSection] = []

    # --- files ---

    def file_ready(self, number: int, capacity: int) -> None:
        """Takes over the prepared file `number` as the next one; there must be no other next file."""
        assert self.next_file is None
        self.next_file = OpenLogFile(number, capacity)

    def rotate(self) -> bool:
        """Plans the seal of the present file and switches to the next one; False if no next file is prepared."""
        if self.next_file is None:
            return False
        self._plan_seal(has_successor=True)
        self.file, self.next_file = self.next_file, None
        self.file.first_lsn = self.state.lsn + 1
        return True

    def close(self) -> None:
        """Plans the seal of the present file; nothing is appended after it."""
        self._plan_seal(has_successor=False)
        self.file = None

    @property
    def current_number(self) -> int:
        """The number of the log file that gets the next record; 0 if none is ready."""
        file = self.file or self.next_file
        return file.number if file is not None else 0

    def _plan_seal(self, *, has_successor: bool) -> None:
        """Plans footer and seal of the present file; does nothing without one."""
        file = self.file
        if file is None:
            return
        last = self.state.lsn
        # Epoch and append time of a shard are copied here, once for each file, instead of after every record.
        for key, shard_index in file.index.shards.items():
            shard = self.state.shards[key]
            shard_index.epoch, shard_index.append_time_us = shard.epoch, shard.append_time_us
        footer = wire.encode_record(
            wire.RecordKind.FOOTER, last, file.number, self.synced_lsn, 0, file.position, wire.ALIGN,
            file.index.sections(),
        )  # fmt: skip
        # The seal names its successor: a start that does not find that file reports damage instead of taking the sealed
        # file for the end of the log (ADR 41).
        next_number = self.next_file.number if has_successor and self.next_file else 0
        seal = Seal(file.number, file.first_lsn, last, file.position, file.position, len(footer), next_number)
        # Every record must be durable before the seal. The footer need not be: a bad one is rebuilt from the records.
        self._plan(file.number, file.position, footer, sync=self.synced_lsn < last)
        ticket = self._plan(file.number, SEAL_POSITION, encode_seal(seal), sync=True)
        self._sealing.append((ticket, SealedFile(seal, file.index)))
        self.sealing_bytes += seal.end_position + seal.footer_bytes

    def sealing(self) -> list[Seal]:
        """The seals that are planned but not yet on disk."""
        return [sealed.seal for _, sealed in self._sealing]

    def open_files(self) -> list[tuple[int, FileIndex]]:
        """Number and index of each file that is not sealed on disk yet, oldest first."""
        open_files = [(sealed.seal.number, sealed.index) for _, sealed in self._sealing if sealed.index is not None]
        if self.file is not None:
            open_files.append((self.file.number, self.file.index))
        return open_files

    def drain_sealed(self) -> list[SealedFile]:
        """Returns the files whose seal has reached the disk since the last call."""
        sealed, self._sealed = self._sealed, []
        return sealed

    # --- append ---

    def append(self, batches: Sequence[AppendBatch | AppendGroup], now_us: int) -> list[Result]:
        """Assigns offsets to the batches and returns a result for each, in order.

        Returns fewer results than batches if no file has room for the rest. The loop is the hot path and is
        written out: it makes no call in the common case.
        """
        results: list[Result] = []
        limit = self._record_limit()
        gathered_bytes = 0
        lsn = self.state.lsn + 1
        for batch in batches:
            if isinstance(batch, AppendGroup):
                # A group stays in one record: it has one answer, which leaves when that record is released.
                cost = self._group_cost(batch)
                if gathered_bytes + cost > limit or len(self._gathered) + len(batch.shards) > _SHARDS_MAX:
                    self._close_record(now_us)
                    # The cost depends on the file: a shard that is new in it needs its topic's name and a place in the
                    # footer. So it is computed again after each step that may change the file.
                    gathered_bytes, cost = 0, self._group_cost(batch)
                    if not self._make_room(cost):
                        break
                    cost = self._group_cost(batch)
                    limit = max(self._record_limit(), cost)
                    lsn = self.state.lsn + 1
                results.append(self._gather_group(batch, lsn, now_us))
                gathered_bytes += cost
                continue
            shard, rows, block, numbering = batch.shard, batch.rows, batch.block, batch.numbering
            # Deduplication comes before the room check: a duplicate needs no room, and is answered even while no file
            # is ready.
            if numbering is not None:
                rejection = self._check_sequence(batch)
                if rejection is not None:
                    results.append(rejection)
                    continue
            cost = len(block) if shard.rows else len(block) + self._opening_cost(shard)
            # The record is full, or the file is: close the record, then rotate if the batch does not fit behind it
            # either. The costs are upper bounds, so the footer always fits and a planned record never has to be taken
            # back.
            if gathered_bytes + cost > limit or len(self._gathered) >= _SHARDS_MAX:
                if self._gathered:
                    self._close_record(now_us)
                    gathered_bytes = 0
                    cost = len(block) + self._opening_cost(shard)
                if not self._make_room(cost):
                    break
                cost = len(block) + self._opening_cost(shard)
                # A batch larger than the target of a record gets a record of its own.
                limit = max(self._record_limit(), cost)
                lsn = self.state.lsn + 1
            base = shard.assigned
            if not shard.rows:
                self._gathered.append(shard)
            shard.blocks.append(block)
            shard.rows += rows
            shard.assigned = base + rows
            gathered_bytes += cost
            if numbering is not None:
                # Recorded now and not at the ack: a retry on another connection may arrive in the same tick. Its result
                # carries the LSN of this record, so that neither of the two is acknowledged before it (hazard 7).
                self.state.producers.record(shard.key, numbering, rows, base, lsn, now_us, self.synced_lsn)
            results.append(new_tuple(Placed, (base, lsn)))
        self._close_record(now_us)
        return results

    def _group_cost(self, batch: AppendGroup) -> int:
        """The bytes that a group adds to the record and to the footer, at most."""
        cost = batch.group.size_bytes + len(batch.shards) * (self._section_cost + wire.ALIGN)
        number = self.file.number if self.file is not None else 0
        new_shards = len([shard for shard in batch.shards if shard.entry_file != number])
        return cost + new_shards * _NEW_SHARD_COST

    def _gather_group(self, batch: AppendGroup, lsn: int, now_us: int) -> PlacedGroup:
        """Assigns offsets to a group that the record has room for."""
        shards, group = batch.shards, batch.group
        bases = [shard.assigned for shard in shards]
        # Judged as a whole, and only here, where the record has room: `admit_group` also records the sequence numbers,
        # and a group without room must stay unknown, because it can still be refused.
        rejected, lsn_max = self.state.producers.admit_group(
            [shard.key for shard in shards], group, bases, lsn, now_us, self.synced_lsn, self.released_lsn
        )
        is_stored = False
        gathered = self._gathered
        for shard, rows, body in zip(shards, *group.stored(rejected, batch.bodies), strict=True):
            if rows:
                is_stored = True
                if not shard.rows:
                    gathered.append(shard)
                shard.blocks.append(body)
                shard.rows += rows
                shard.assigned += rows
        # A group of duplicates alone waits for the record that has the originals: its ack must not be earlier than
        # theirs.
        return PlacedGroup(bases, lsn if is_stored else lsn_max, rejected)

    def declare_gaps(self, gaps: Sequence[DeclaredGap], now_us: int) -> int:
        """Writes declared gaps, each as a note in a record of its own; returns how many the files had room for."""
        # One gap per record: after a crash between two of them recovery declares the rest again.
        for number, gap in enumerate(gaps):
            shard = self.state.shard(gap.key)
            note = wire.padded(len(notes.gap_section(gap).body))
            if not self._make_room(self._opening_cost(shard) + wire.ENTRY_BYTES + note):
                return number
            self._add_topic_note(shard)
            self._gathered_notes.append(notes.gap_section(gap))
            self.state.declare_gap(gap)
            shard.assigned = max(shard.assigned, gap.end)
            self._gathered.append(shard)
            self._close_record(now_us)
        return len(gaps)

    def _check_sequence(self, batch: AppendBatch) -> Duplicate | errors.IcestreamError | None:
        """None if the numbered batch is to be stored, else its result."""
        assert batch.numbering is not None
        try:
            return self.state.producers.check(batch.shard.key, batch.numbering, batch.rows, self.released_lsn)
        except (errors.InvalidInput, errors.InFlightFull) as error:
            return error

    def _opening_cost(self, shard: Shard) -> int:
        """The bytes that the first batch of a shard adds to a record and to the footer, beside its block."""
        if self.file is not None and shard.entry_file == self.file.number:
            return self._section_cost
        return self._section_cost + _NEW_SHARD_COST

    def _record_limit(self) -> int:
        room = 0 if self.file is None else self.file.room - _RECORD_COST - _MARK_COST - self._align
        return min(limits.RECORD_BYTES_TARGET - _RECORD_COST - self._align, room)

    def _make_room(self, cost: int) -> bool:
        """Whether the present file has room for a record of one batch; rotates to the next file if necessary."""
        needed = cost + _RECORD_COST + _MARK_COST + self._align
        if self.file is not None and self.file.room >= needed:
            return True
        if self.next_file is None or self.next_file.room < needed:
            return False
        return self.rotate()

    # --- records ---

    def _close_record(self, now_us: int) -> None:
        """Builds one record from the gathered batches and notes, and plans its write."""
        if not self._gathered:
            return
        file = self.file
        assert file is not None
        reservations: list[tuple[Shard, int]] = []
        needs_sync = self.mode is SyncMode.ALWAYS
        if not needs_sync:
            # A power loss may take this record back after clients have seen its offsets. A synced promise above them
            # keeps them from being given out again (ADR 3).
            needs_sync = self._reserve_offsets(reservations)
        for shard in self._gathered:
            # Each file names the topics that it holds, so that it can be read when all files before it are gone.
            if shard.entry_file != file.number:
                self._add_topic_note(shard)
        sections, ends = self._sections(file, now_us)
        lsn = self.state.lsn + 1
        data = wire.encode_record(
            wire.RecordKind.DATA, lsn, file.number, self.synced_lsn, now_us, file.position, self._align, sections
        )
        self.state.lsn = lsn
        ticket = self._plan(file.number, file.position, data, sync=needs_sync)
        if file.position >= file.index.mark_due:
            file.index.mark(file.position, lsn)
        file.position += len(data)
        record = _InFlightRecord(ticket, lsn, len(data), file.number, file.position, needs_sync, ends, reservations)
        self._unreleased.append(record)
        self.in_flight_bytes += len(data)
        self._gathered = []
        self._gathered_notes = []

    def _add_topic_note(self, shard: Shard) -> None:
        """Adds the topic's name to the record, unless this file has it already."""
        assert self.file is not None
        if shard.topic.id not in self.file.index.topics:
            self.file.index.add_topic(shard.topic)
            self._gathered_notes.append(notes.topic_section(shard.topic))

    def _reserve_offsets(self, reservations: list[tuple[Shard, int]]) -> bool:
        """Adds RESERVE notes where they are due; returns whether the record must wait for its own sync.

        A gap alone adds none: a shard without new messages needs no reservation, and with one it would have another gap
        after each unclean stop.
        """
        must_wait = False
        for shard in self._gathered:
            remaining = shard.reserve_pending - shard.assigned
            # Renewed at half, so that the new reservation is usually synced by the next periodic sync before it is
            # needed, and no record has to wait for a sync of its own (ADR 3).
            if remaining < limits.RESERVE_BLOCK_OFFSETS // 2 and (shard.rows or remaining < 0):
                shard.reserve_pending = shard.assigned + limits.RESERVE_BLOCK_OFFSETS
                self._add_topic_note(shard)
                self._gathered_notes.append(notes.reserve_section(shard.key, shard.epoch, shard.reserve_pending))
                reservations.append((shard, shard.reserve_pending))
            # `reserved`, not `reserve_pending`: a reservation counts once it is synced. An ack beyond it could be
            # forgotten by a power loss, and its offsets assigned a second time (hazard 3).
            must_wait = must_wait or shard.assigned > shard.reserved
        return must_wait

    def _sections(
        self, file: OpenLogFile, now_us: int
    ) -> tuple[list[wire.RecordSection], list[tuple[Shard, int, int, int]]]:
        """The sections of the record, notes first, and the new end of each shard."""
        # Notes come first: replay must know the name of a topic before the messages that use its id.
        sections: list[Any] = list(self._gathered_notes)
        ends: list[tuple[Shard, int, int, int]] = []
        number, index, tail = file.number, file.index, self.tail
        at = file.position + wire.HEADER_BYTES + wire.ENTRY_BYTES * len(sections)
        for shard in self._gathered:
            rows, blocks, end = shard.rows, shard.blocks, shard.assigned
            if not rows:
                ends.append((shard, end, 0, 0))
                continue
            base = end - rows
            body = blocks[0] if len(blocks) == 1 else b"".join(blocks)
            size = len(body) + wire.ENTRY_BYTES
            if now_us >= shard.append_time_us:
                time_us = shard.append_time_us = now_us
            else:
                time_us = shard.stamp(now_us)
            # Sections of a shard are chained backwards inside of a file (ADR 6). The chain starts anew in each file, so
            # that a freed file leaves no dangling position.
            if shard.entry_file == number:
                previous, shard_index = shard.entry_position, shard.index
            else:
                previous, shard_index = 0, index.open(shard.key, base)
                shard.entry_file, shard.index = number, shard_index
            if shard_index.own_bytes >= shard_index.point_due_bytes:
                index.add_point(shard_index, base, at)
            shard_index.own_bytes += size
            shard_index.end_offset = end
            shard_index.last_position = shard.entry_position = at
            if time_us > shard_index.max_time_us:  # noqa: PLR1730 (a call to max costs more than the rest of the line)
                shard_index.max_time_us = time_us
            shard.usage.held_bytes += size
            topic_id, shard_number = shard.key
            sections.append((topic_id, shard_number, 1, 0, shard.epoch, base, time_us, rows, previous, body))
            # Added before the write is performed; readers stop at `Shard.written`, so they cannot see it early.
            tail.add(shard.key, new_tuple(SectionRead, (base, rows, time_us, shard.epoch, body)))
            ends.append((shard, end, size, at))
            at += wire.ENTRY_BYTES
            shard.rows, shard.blocks = 0, []
        return sections, ends

    def _plan(self, number: int, position: int, data: bytes, *, sync: bool) -> int:
        self._ticket += 1
        self._writes.append(PlannedWrite(self._ticket, number, position, data, sync))
        return self._ticket

    def plan_sync(self) -> None:
        """Plans a sync of everything planned so far."""
        if self.file is not None:
            self._plan(self.file.number, self.file.position, b"", sync=True)

    def drain_writes(self) -> list[PlannedWrite]:
        """Returns the writes planned since the last call."""
        writes, self._writes = self._writes, []
        return writes

    # --- completions ---

    def progress(self, written: int, synced: int) -> None:
        """Moves the watermarks: writes up to ticket `written` are complete, up to `synced` synced.

        A sync covers every write before it, also those that did not ask for one.
        """
        unreleased = self._unreleased
        while unreleased:
            record = unreleased[0]
            # Stops at the first record that is not complete: records are released in LSN order, whatever order the disk
            # has.
            if record.ticket > synced and (record.needs_sync or record.ticket > written):
                break
            unreleased.popleft()
            self._mark_released(record)
            self._unsynced.append(record)
        unsynced = self._unsynced
        while unsynced and unsynced[0].ticket <= synced:
            self._mark_synced(unsynced.popleft())
        while self._sealing and self._sealing[0][0] <= synced:
            sealed = self._sealing.popleft()[1]
            self._sealed.append(sealed)
            self.sealed_count += 1
            self.sealing_bytes -= sealed.seal.end_position + sealed.seal.footer_bytes

    def roll_back(self) -> list[SealedFile]:
        """After a failed write: discards every record that was not released (hazard 16).

        Returns the files whose seals must be written and synced, in order, before the next append. If that fails too,
        the node stops. The next append needs a new file.
        """
        assert not self._gathered
        last_lsn = self.released_lsn
        for record in self._unreleased:
            self.in_flight_bytes -= record.size
            for shard, _, size, _ in record.ends:
                # Offsets of rolled back records may be assigned again: they were neither acknowledged nor visible to
                # readers.
                shard.assigned = shard.written
                shard.usage.held_bytes -= size
                # The next section of the shard starts a new chain in a new file.
                shard.entry_file = 0
                shard.reserve_pending = shard.reserved
        self._unreleased.clear()
        self._writes.clear()
        # The tail contains rolled back sections. Dropping all of it is simpler than finding them, and a failed write is
        # rare.
        self.tail.clear()
        self.state.producers.roll_back(last_lsn)
        self.state.lsn = last_lsn
        return self._unfinished_files(last_lsn)

    def _mark_released(self, record: _InFlightRecord) -> None:
        number = record.number
        for shard, end, _, position in record.ends:
            shard.written = end
            # A gap has no section: its shard's end moves, and there is nothing new to read.
            if position:
                shard.read_file = number
                shard.read_position = position
                if shard.on_visible is not None:
                    self.advanced_shards.append(shard)
        self.released_lsn = record.lsn
        self._released_at = (number, record.end)
        self.in_flight_bytes -= record.size

    def mark_files_sealed(self) -> None:
        """The files that `roll_back` returned are sealed and synced, and with them every remaining record."""
        for record in self._unsynced:
            self._mark_synced(record)
        self._unsynced.clear()

    def _mark_synced(self, record: _InFlightRecord) -> None:
        for shard, end, _, _ in record.ends:
            shard.synced = end
        for shard, reserved in record.reservations:
            shard.reserved = reserved
        self.synced_lsn = record.lsn
        self._synced_at = (record.number, record.end)

    def synced_end(self, number: int) -> int:
        """The position after the last synced record of a file that is not sealed on disk yet."""
        for seal in self.sealing():
            # A file whose seal is on its way is complete up to its end as soon as its last record is synced.
            if seal.number == number and seal.last_lsn <= self.synced_lsn:
                return seal.end_position
        return self._synced_at[1] if self._synced_at[0] == number else wire.RECORDS_START

    def _unfinished_files(self, last_lsn: int) -> list[SealedFile]:
        """Every file with unfinished writes, sealed at its last valid record, without a footer."""
        # Records are released in order, so at most one of these files contains the last released record: it is sealed
        # behind that record. The others contain only records that were rolled back: they are sealed empty.
        unfinished = [sealed.seal for _, sealed in self._sealing]
        self._sealing.clear()
        self.sealing_bytes = 0
        if self.file is not None:
            unfinished.append(Seal(self.file.number, self.file.first_lsn, last_lsn, 0, 0, 0))
            self.file = None
        number, end = self._released_at
        return [
            SealedFile(
                Seal(seal.number, seal.first_lsn, last_lsn, end, 0, 0, self.current_number)
                if seal.number == number
                else Seal.empty(seal.number, last_lsn),
                None,
            )
            for seal in unfinished
        ]
