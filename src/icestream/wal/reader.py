"""Reads from the log: one shard from an offset, the offset for a time, and the whole log in order.

Every result is a verified copy (hazard 15), made off the event loop (hazard 35), under a short and breakable pin
(hazard 33). Nothing beyond what is visible (`written` of a shard, `released_lsn`) is ever returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from icestream import errors, limits
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload
from icestream.wal import format as wire
from icestream.wal.appender import Appender
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import FileSummary, ShardRange, contiguous_start
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex, ShardIndex
from icestream.wal.record_scan import RecordTuple, ScannedRecord, decode_good_header, scan_records
from icestream.wal.state import LogState, Shard
from icestream.wal.tail import SectionRead

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a read. The first section may begin before the requested offset. `gaps` were stepped over."""

    sections: list[SectionRead]
    gaps: list[DeclaredGap]
    next_offset: int


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Verified records of one file: `data[position - start:]` is the record at `position`."""

    number: int
    start: int
    data: bytes
    records: list[RecordTuple]


class LogPosition(NamedTuple):
    """Where record `lsn` begins, if it is in that file."""

    number: int
    position: int
    lsn: int


class _ChainSpan(NamedTuple):
    """A chain of sections in a file, walked back from entry position `last` to `first`; about `own_bytes` long."""

    number: int
    last: int
    first: int
    own_bytes: int


class _LocatedFile(NamedTuple):
    """A file, and where its records end; 0 while it is being written."""

    number: int
    end: int


class Reader:
    """Reads of one open log. Results are copies; the reader keeps indexes of sealed files, never records."""

    def __init__(
        self,
        state: LogState,
        appender: Appender,
        lifecycle: FileLifecycle,
        directory: Directory,
        offload: Offload,
        wait_released: Callable[[int], Awaitable[None]],
    ) -> None:
        self._state = state
        self._appender = appender
        self._lifecycle = lifecycle
        self._directory = directory
        self._offload = offload
        self._wait_released = wait_released
        self._indexes: OrderedDict[int, FileIndex] = OrderedDict()

    # --- by offset ---

    async def read(self, key: ShardKey, offset: int, max_bytes: int = limits.READ_BYTES_DEFAULT) -> ReadResult:
        """Messages of one shard from `offset` on. Raises PositionGone below the earliest offset in the log."""
        shard = self._state.shard(key)
        gaps: list[DeclaredGap] = []
        while (gap := self._state.gap_at(key, offset)) is not None:
            gaps.append(gap)
            offset = gap.end
        # Taken once: a record that is released during the read belongs to the next read.
        visible = shard.written
        if offset >= visible:
            return ReadResult([], gaps, offset)
        points = self._point_count(shard, max_bytes)
        span = await self._locate_offset(key, offset, points)
        sections, chain_length = await self._read_pinned(
            span.number, lambda: self._walk(span, key, offset, visible, max_bytes)
        )
        # Sections may be small (one message each) or large. Measured by each read, so that the next one covers as many
        # index points as give about the requested bytes without walking thousands of sections.
        shard.sections_per_point = max(chain_length / points, 1.0)
        return ReadResult(sections, gaps, sections[-1].base_offset + sections[-1].rows)

    @staticmethod
    def _point_count(shard: Shard, max_bytes: int) -> int:
        """How many index points a read covers: enough for `max_bytes`, but at most READ_SECTIONS_MAX sections."""
        points = max_bytes // limits.INDEX_STRIDE_BYTES
        return max(1, min(points, int(limits.READ_SECTIONS_MAX / shard.sections_per_point)))

    def earliest(self, key: ShardKey) -> int:
        """The lowest offset of the shard from which on everything can be read; its end if nothing can."""
        return min(self._state.step_over(key, self._first_offset(key)), self._state.shard(key).written)

    def _first_offset(self, key: ShardKey) -> int:
        # Between spill log and log files there may be a hole that other shards' freed files left; only what is
        # contiguous up to the floor counts.
        if self._lifecycle.spills.end(key):
            return contiguous_start(self._spans(key), self._state.shard(key).floor)
        for file in self._lifecycle.files:
            if (file_range := file.find(key)) is not None:
                return file_range.first
        for _, index in self._appender.open_files():
            if key in index.shards:
                return index.shards[key].first_offset
        return self._state.shard(key).written

    def _spans(self, key: ShardKey) -> Iterator[tuple[int, int]]:
        """The offset spans of a spilled shard: in spill files, log files and gaps."""
        for _, file_range in self._files_by_offset(key):
            yield file_range.first, file_range.end
        for _, index in self._appender.open_files():
            if key in index.shards:
                yield index.shards[key].first_offset, index.shards[key].end_offset
        for gap in self._state.gaps.get(key, ()):
            yield gap.start, gap.end

    async def _locate_offset(self, key: ShardKey, offset: int, points: int) -> _ChainSpan:
        # Spill files and sealed files before open ones: a file that is sealed during the lookup is in both lists, never
        # in neither.
        file = self._sealed_file_of(key, offset)
        if file is not None:
            index = (await self._index(file)).shards[key]
            return _ChainSpan(file.number, *index.chain_for_offset(offset, points), _own_bytes(index, points))
        for number, open_index in self._appender.open_files():
            shard_index = open_index.shards.get(key)
            if shard_index is not None and shard_index.first_offset <= offset < shard_index.end_offset:
                chain = shard_index.chain_for_offset(offset, points)
                return self._open_span(number, key, chain, _own_bytes(shard_index, points))
        earliest = self.earliest(key)
        raise errors.PositionGone(
            f"offset {offset} of {key} is no longer in the log", hint=f"the log begins at offset {earliest}"
        )

    def _sealed_file_of(self, key: ShardKey, offset: int) -> FileSummary | None:
        """The sealed file that contains the offset; a spill file takes precedence.

        Bisects over all log files and skips those without the shard.
        """
        if offset < self._lifecycle.spills.end(key) and (spill := self._lifecycle.spills.find(key, offset)) is not None:
            return spill
        files = self._lifecycle.files
        low, high = 0, len(files)
        while low < high:
            at = middle = (low + high) // 2
            # Files without the shard cannot be compared with the offset: step to the next one that has it.
            while at < high and (file_range := files[at].find(key)) is None:
                at += 1
            if at == high or file_range is None or file_range.first > offset:
                high = middle
            elif file_range.end <= offset:
                low = at + 1
            else:
                return files[at]
        return None

    def _open_span(self, number: int, key: ShardKey, chain: tuple[int, int], own_bytes: int) -> _ChainSpan:
        """The span of a chain in a file that is being written, without sections that are not visible yet."""
        last, first = chain
        shard = self._state.shard(key)
        # The index already contains sections whose records are not released; readers must not see them.
        if shard.read_file == number and last > shard.read_position:
            last = shard.read_position
        return _ChainSpan(number, last, first, own_bytes)

    async def _index(self, file: FileSummary) -> FileIndex:
        """The index of a sealed file, from a bounded cache."""
        index = self._indexes.get(file.number)
        if index is None:
            # Two reads may load the same index at once. That costs a read and does no harm: an index of a sealed file
            # never changes.
            index = await self._read_pinned(file.number, lambda: self._load_index(file))
            self._indexes[file.number] = index
            while len(self._indexes) > limits.FOOTERS_RESIDENT_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(file.number)
        return index

    def _load_index(self, file: FileSummary) -> FileIndex:
        handle = self._open(file.number)
        try:
            return load_index(handle, file.seal)
        finally:
            handle.close()

    def _open(self, number: int) -> File:
        try:
            return self._directory.open(self._lifecycle.name_of(number))
        except FileNotFoundError:
            # Recycled between lookup and open: not damage. The caller resolves the position again.
            raise errors.StaleRead(
                f"log file {number} was recycled", hint="read again from the same position"
            ) from None

    async def _read_pinned(self, number: int, call: Callable[[], Result]) -> Result:
        """Runs a read of one file off the loop, under a pin. Raises StaleRead if the file was recycled meanwhile."""
        # A pin delays recycling for a bounded time and is then broken: a reader that hangs must not fill the disk.
        pin = self._lifecycle.pins.pin(number)
        try:
            result = await self._offload.run(call)
        except errors.LogError:
            # Bytes of a recycled file look like damage: under a broken pin they prove nothing.
            if not pin.broken:
                raise
        finally:
            self._lifecycle.pins.release(pin)
        if pin.broken:
            raise errors.StaleRead(
                f"log file {number} was recycled during a read", hint="read again from the same position"
            )
        return result

    def _walk(
        self, span: _ChainSpan, key: ShardKey, offset: int, visible: int, max_bytes: int
    ) -> tuple[list[SectionRead], int]:
        """The sections from the one that contains `offset`, and the length of the whole chain."""
        file = self._open(span.number)
        try:
            window = _SpanReader(file, span)
            entries = _chain(window, span, key, offset)
            sections: list[SectionRead] = []
            size = 0
            for front, entry in reversed(entries):
                is_enough = size + entry.body_bytes > max_bytes or len(sections) == limits.READ_SECTIONS_MAX
                # At least one section, however large, else a reader with a small bound would never advance.
                if sections and (is_enough or entry.end_offset > visible):
                    break
                sections.append(_read_section(window, span.number, front, entry))
                size += entry.body_bytes
            # The chain ends at a section that does not contain the offset: index and sections contradict each other.
            if not sections[0].base_offset <= offset < sections[0].base_offset + sections[0].rows:
                raise errors.LogDamaged(
                    f"log file {span.number} is damaged at position {entries[-1][1].position}: "
                    f"the chain of sections to offset {offset} of {key} is broken",
                    hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
                )
            return sections, len(entries)
        finally:
            file.close()

    # --- bytes of a file ---

    async def copy(self, number: int, start: int, end: int) -> bytes:
        """The synced bytes [start, end) of a file, for callers that verify the records themselves (hazard 0).

        Raises PositionGone if the file was freed, StaleRead if it is freed during the read, UnknownLogFile if it never
        existed.
        """
        # Only synced bytes: what the pipeline commits to a table must survive a power loss of this node (hazard 0).
        synced_end = self._synced_end(number)
        if not wire.RECORDS_START <= start < end <= synced_end:
            raise errors.InvalidInput(
                f"bytes {start} to {end} of log file {number} are not a synced range",
                hint=f"there are synced records from {wire.RECORDS_START} to {synced_end}",
            )

        def read() -> bytes:
            file = self._open(number)
            try:
                return file.read_at(start, end - start)
            finally:
                file.close()

        return await self._read_pinned(number, read)

    def _synced_end(self, number: int) -> int:
        for file in (*self._lifecycle.files, *self._lifecycle.spills.files, *self._lifecycle.spills.replaced):
            if file.number == number:
                return file.seal.end_position
        if any(number == open_number for open_number, _ in self._appender.open_files()):
            return self._appender.synced_end(number)
        if number >= self._lifecycle.next_number:
            raise errors.UnknownLogFile(f"log file {number} does not exist yet", hint="is it a file of this broker?")
        raise errors.PositionGone(f"log file {number} was freed", hint="the round is planned again")

    # --- by time ---

    async def offset_for_time(self, key: ShardKey, time_us: int) -> int:
        """The smallest offset whose append time is at least `time_us`; the shard's end if there is none (hazard 32)."""
        visible = self._state.shard(key).written
        for file, file_range in self._files_by_offset(key):
            if file_range.max_time_us >= time_us:
                index = (await self._index(file)).shards[key]
                chain = index.chain_for_time(time_us)
                # The maximum of the file may belong to a section that is not visible, or lie in another part of the
                # chain.
                if chain is not None:
                    span = _ChainSpan(file.number, *chain, _own_bytes(index))
                    return await self._first_at_time(span, key, time_us, visible)
        for number, open_index in self._appender.open_files():
            shard_index = open_index.shards.get(key)
            chain = shard_index.chain_for_time(time_us) if shard_index else None
            if shard_index is not None and chain is not None and shard_index.first_offset < visible:
                span = self._open_span(number, key, chain, _own_bytes(shard_index))
                return await self._first_at_time(span, key, time_us, visible)
        return visible

    def _files_by_offset(self, key: ShardKey) -> list[tuple[FileSummary, ShardRange]]:
        """The sealed files that contain a shard, spill files included, sorted by its offsets."""
        in_log = [(file, file_range) for file in self._lifecycle.files if (file_range := file.find(key)) is not None]
        return sorted([*self._lifecycle.spills.ranges_of(key), *in_log], key=lambda pair: pair[1].first)

    async def _first_at_time(self, span: _ChainSpan, key: ShardKey, time_us: int, visible: int) -> int:
        def search() -> int:
            file = self._open(span.number)
            try:
                window = _SpanReader(file, span)
                chain = reversed(_chain(window, span, key, -1))
                sections = (_read_section(window, span.number, *link) for link in chain)
                later = (section.base_offset for section in sections if section.append_time_us >= time_us)
                return min(next(later, visible), visible)
            finally:
                file.close()

        return await self._read_pinned(span.number, search)

    # --- the whole log ---

    async def follow(self, lsn: int = 1) -> AsyncIterator[RecordChunk]:
        """Every record from `lsn` on, in order, without end: waits for new ones.

        Raises PositionGone if `lsn` lies before the start of the log.
        """
        number = position = 0
        while True:
            await self._wait_released(lsn)
            located = self._locate_lsn(lsn)
            # Inside of one file the position continues behind the last record, without searching again.
            if located.number != number:
                number, position = located.number, wire.RECORDS_START
            # Taken before the read: a record released later may replace bytes that a failed write rolled back.
            bound = self._appender.released_lsn
            chunk = await self._next_chunk(located, position, bound)
            records = [record for record in chunk.records if record[1] >= lsn]
            position = ScannedRecord(*chunk.records[-1]).end
            if records:
                lsn = records[-1][1] + 1
                yield RecordChunk(chunk.number, chunk.start, chunk.data, records)

    def first_lsn(self) -> int:
        """The lowest LSN that the log has; the next one if it has none."""
        files = self._lifecycle.files
        if files:
            return files[0].seal.first_lsn
        sealing = self._appender.sealing()
        active = self._appender.file
        if sealing:
            return sealing[0].first_lsn
        return active.first_lsn if active is not None else self._state.lsn + 1

    def file_of_lsn(self, lsn: int) -> int:
        """The number of the file that has record `lsn`; of the oldest file for a lower one, of the file that gets the
        next record for a higher one. 0 if there is no file."""
        for file in self._lifecycle.files:
            if lsn <= file.seal.last_lsn:
                return file.number
        for seal in self._appender.sealing():
            if lsn <= seal.last_lsn:
                return seal.number
        return self._appender.current_number

    async def records(
        self, lsn: int, end_lsn: int, max_bytes: int, hint: LogPosition | None = None
    ) -> tuple[RecordChunk, LogPosition]:
        """Synced records of one file from `lsn` on, below `end_lsn`: at least one, about `max_bytes`. And the position
        behind them: with it as `hint` the next call need not look for its record.

        Raises PositionGone if `lsn` was freed, InvalidInput if it is not synced.
        """
        # Only synced records: what is durable elsewhere must survive a power loss of this node (hazard 0).
        bound = min(end_lsn - 1, self._appender.synced_lsn)
        if lsn > bound:
            raise errors.InvalidInput(f"record {lsn} is not synced: the end is {bound}")
        located = self._locate_lsn(lsn)
        is_hinted = hint is not None and hint.lsn == lsn and hint.number == located.number
        position = hint.position if hint is not None and is_hinted else wire.RECORDS_START
        while True:
            chunk = await self._next_chunk(located, position, bound)
            position = ScannedRecord(*chunk.records[-1]).end
            # A repair may have skipped `lsn`: then the first record behind it.
            records = [record for record in chunk.records if record[1] >= lsn]
            if records:
                break
        first, size = records[0][0], 0
        part: list[RecordTuple] = []
        for record in records:
            size = ScannedRecord(*record).end - first
            if part and size > max_bytes:
                break
            part.append(record)
        last = ScannedRecord(*part[-1])
        data = chunk.data[first - chunk.start : last.end - chunk.start]
        return RecordChunk(chunk.number, first, data, part), LogPosition(chunk.number, last.end, last.lsn + 1)

    async def _next_chunk(self, located: _LocatedFile, start: int, bound: int) -> RecordChunk:
        """At least one record. The record at `start` is released, so LogDamaged is raised if it cannot be read."""
        chunk = await self._read_pinned(located.number, lambda: self._read_chunk(located, start))
        records = [record for record in chunk.records if record[1] <= bound]
        if not records:
            raise errors.LogDamaged(
                f"log file {located.number} is damaged at position {start}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
            )
        return RecordChunk(chunk.number, chunk.start, chunk.data, records)

    def _locate_lsn(self, lsn: int) -> _LocatedFile:
        """The file that contains record `lsn`. Raises PositionGone if it was freed."""
        for file in self._lifecycle.files:
            if file.seal.first_lsn <= lsn <= file.seal.last_lsn:
                return _LocatedFile(file.number, file.seal.end_position)
        active = self._appender.file
        if active is not None and active.first_lsn <= lsn:
            return _LocatedFile(active.number, 0)
        for seal in self._appender.sealing():
            if seal.first_lsn <= lsn <= seal.last_lsn:
                return _LocatedFile(seal.number, seal.end_position)
        files = self._lifecycle.files
        first = files[0].seal.first_lsn if files else active.first_lsn if active else 0
        raise errors.PositionGone(f"record {lsn} is no longer in the log", hint=f"the log begins at record {first}")

    def _read_chunk(self, located: _LocatedFile, start: int) -> RecordChunk:
        file = self._open(located.number)
        try:
            size = min((located.end or file.size()) - start, limits.FOLLOW_BYTES_MAX)
            data = file.read_at(start, size)
            header = decode_good_header(data, 0, start, located.number)
            # A single record may exceed the chunk: it is read whole.
            if header is not None and header.record_bytes > size:
                data = file.read_at(start, header.record_bytes)
        finally:
            file.close()
        if header is None:
            return RecordChunk(located.number, start, data, [])
        records, _, _, _ = scan_records(data, start, located.number, header.lsn)
        return RecordChunk(located.number, start, data, records)


def _own_bytes(index: ShardIndex, points: int = 1) -> int:
    """About how many bytes of a chain over `points` index points belong to the shard itself."""
    return min(index.own_bytes, points * limits.INDEX_STRIDE_BYTES)


class _SpanReader:
    """Reads bytes of a chain span.

    A span that consists mostly of the shard's own bytes is read at once. Of any other span only the shard's own
    sections are read, one by one, so that the cost does not depend on other shards (hazard 19).
    """

    def __init__(self, file: File, span: _ChainSpan) -> None:
        self._file = file
        self._start = span.first
        size = span.last + wire.ENTRY_BYTES - span.first
        # At most half of it foreign: one larger read is cheaper than many small ones.
        self._data = file.read_at(span.first, size) if size <= 2 * span.own_bytes else b""

    def read_at(self, position: int, length: int) -> bytes:
        """Bytes of the file, from the span if it was read at once."""
        at = position - self._start
        if at >= 0 and at + length <= len(self._data):
            return self._data[at : at + length]
        return self._file.read_at(position, length)


def _chain(file: _SpanReader, span: _ChainSpan, key: ShardKey, offset: int) -> list[tuple[bytes, wire.SectionEntry]]:
    """The section entries from `last` back to `first`, or to the one that contains `offset`. Raises LogDamaged."""
    links: list[tuple[bytes, wire.SectionEntry]] = []
    position = span.last
    while True:
        front = file.read_at(position, wire.ENTRY_BYTES)
        entry = wire.decode_entry(front.ljust(wire.ENTRY_BYTES, b"\0"), 0, position)
        is_ours = (entry.topic_id, entry.shard, entry.kind) == (*key, wire.SectionKind.MESSAGES)
        if not is_ours or entry.previous >= position:  # a chain only leads back
            raise errors.LogDamaged(
                f"log file {span.number} is damaged at position {position}: not a section of {key}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
            )
        links.append((front, entry))
        if position <= span.first or entry.base_offset <= offset or not entry.previous:
            return links
        position = entry.previous


def _read_section(file: _SpanReader, number: int, front: bytes, entry: wire.SectionEntry) -> SectionRead:
    """Reads and verifies one section. Raises LogDamaged if its CRC is wrong."""
    body = file.read_at(entry.body_position, entry.body_bytes)
    if not wire.section_is_good(front, body, entry.crc):
        raise errors.LogDamaged(
            f"log file {number} is damaged at position {entry.body_position}: "
            f"offsets {entry.base_offset} to {entry.end_offset - 1} of topic {entry.topic_id} shard {entry.shard}",
            hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
        )
    return SectionRead(entry.base_offset, entry.rows, entry.append_time_us, entry.epoch, body)
