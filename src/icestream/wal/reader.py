"""Reads of the log: one shard from an offset, the offset of a time, and the whole log in order.

Everything is a copy that was verified (hazard 15), made off the loop (35), under a short and breakable pin (33).
Nothing beyond what may be seen (`written` of a shard, `released_lsn`) is ever returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from icestream import errors, limits
from icestream.model.shard import Gap, ShardKey
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload
from icestream.wal import format as wire
from icestream.wal.appender import Appender
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex, ShardIndex
from icestream.wal.reach import reaches_back
from icestream.wal.scan import good_header, scan_records
from icestream.wal.state import LogState, Shard
from icestream.wal.summary import FileSummary, Range
from icestream.wal.tail import SectionRead
from icestream.wal.upkeep import Upkeep

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a read found. The first section may begin before the offset asked for. `gaps` were stepped over."""

    sections: list[SectionRead]
    gaps: list[Gap]
    next_offset: int


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Verified records of one file: `data[position - start:]` is the record at `position`."""

    number: int
    start: int
    data: bytes
    records: list[tuple[int, int, int, int, int, int, int, int]]


class _Stretch(NamedTuple):
    """Where in a file to look: walk the chain back from `last` to `first`. About `own_bytes` of it are the shard's."""

    number: int
    last: int
    first: int
    own_bytes: int


class _Place(NamedTuple):
    """A file, and where its records end; 0 while it is written."""

    number: int
    end: int


class Reader:
    def __init__(
        self,
        state: LogState,
        appender: Appender,
        upkeep: Upkeep,
        directory: Directory,
        offload: Offload,
        wait_released: Callable[[int], Awaitable[None]],
    ) -> None:
        self._state = state
        self._appender = appender
        self._upkeep = upkeep
        self._directory = directory
        self._offload = offload
        self._wait_released = wait_released
        self._indexes: OrderedDict[int, FileIndex] = OrderedDict()

    # --- by offset ---

    async def read(self, key: ShardKey, offset: int, max_bytes: int = limits.READ_BYTES_DEFAULT) -> ReadResult:
        """Messages of one shard from `offset` on. Raises PositionGone below the earliest one that the log holds."""
        shard = self._state.shard(key)
        gaps: list[Gap] = []
        while (gap := self._state.gap_at(key, offset)) is not None:
            gaps.append(gap)
            offset = gap.end
        visible = shard.written
        if offset >= visible:
            return ReadResult([], gaps, offset)
        points = self._points(shard, max_bytes)
        stretch = await self._find(key, offset, points)
        sections, seen = await self._pinned(
            stretch.number, lambda: self._walk(stretch, key, offset, visible, max_bytes)
        )
        shard.sections_per_point = max(seen / points, 1.0)
        return ReadResult(sections, gaps, sections[-1].base_offset + sections[-1].rows)

    @staticmethod
    def _points(shard: Shard, max_bytes: int) -> int:
        """How many points of the index to go: as much as is wanted, and not more sections than one read may have."""
        wanted = max_bytes // limits.INDEX_STRIDE_BYTES
        return max(1, min(wanted, int(limits.READ_SECTIONS_MAX / shard.sections_per_point)))

    def earliest(self, key: ShardKey) -> int:
        """The lowest offset of the shard from which on all can still be read, or its end when none can."""
        return min(self._state.step_over(key, self._first_held(key)), self._state.shard(key).written)

    def _first_held(self, key: ShardKey) -> int:
        if self._upkeep.spills.end(key):
            return reaches_back(self._held(key), self._state.shard(key).floor)
        for file in self._upkeep.files:
            if (held := file.find(key)) is not None:
                return held.first
        for _, index in self._appender.open_files():
            if key in index.shards:
                return index.shards[key].first_offset
        return self._state.shard(key).written

    def _held(self, key: ShardKey) -> Iterator[tuple[int, int]]:
        """Beside a spill log: where the shard's offsets are, and where there are none."""
        for _, held in self._in_order(key):
            yield held.first, held.end
        for _, index in self._appender.open_files():
            if key in index.shards:
                yield index.shards[key].first_offset, index.shards[key].end_offset
        for gap in self._state.gaps.get(key, ()):
            yield gap.start, gap.end

    async def _find(self, key: ShardKey, offset: int, points: int) -> _Stretch:
        file = self._file_of(key, offset)
        if file is not None:
            index = (await self._index(file)).shards[key]
            return _Stretch(file.number, *index.chain_for_offset(offset, points), _own_bytes(index, points))
        for number, open_index in self._appender.open_files():
            held = open_index.shards.get(key)
            if held is not None and held.first_offset <= offset < held.end_offset:
                return self._open_stretch(number, key, held.chain_for_offset(offset, points), _own_bytes(held, points))
        earliest = self.earliest(key)
        raise errors.PositionGone(
            f"offset {offset} of {key} is not in the log any more", hint=f"the log begins at offset {earliest}"
        )

    def _file_of(self, key: ShardKey, offset: int) -> FileSummary | None:
        """The sealed file that holds the offset, by bisection over those that hold the shard at all; one of the spill
        log goes before."""
        if offset < self._upkeep.spills.end(key) and (spill := self._upkeep.spills.find(key, offset)) is not None:
            return spill
        files = self._upkeep.files
        low, high = 0, len(files)
        while low < high:
            at = middle = (low + high) // 2
            while at < high and (held := files[at].find(key)) is None:
                at += 1
            if at == high or held is None or held.first > offset:
                high = middle
            elif held.end <= offset:
                low = at + 1
            else:
                return files[at]
        return None

    def _open_stretch(self, number: int, key: ShardKey, chain: tuple[int, int], own_bytes: int) -> _Stretch:
        """In a file that is being written the chain may end in a section that nobody may see yet: start before it."""
        last, first = chain
        shard = self._state.shard(key)
        if shard.read_file == number and last > shard.read_position:
            last = shard.read_position
        return _Stretch(number, last, first, own_bytes)

    async def _index(self, file: FileSummary) -> FileIndex:
        """The whole index of a sealed file, from a bounded cache."""
        found = self._indexes.get(file.number)
        if found is None:
            found = await self._pinned(file.number, lambda: self._load_index(file))
            self._indexes[file.number] = found
            while len(self._indexes) > limits.FOOTERS_RESIDENT_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(file.number)
        return found

    def _load_index(self, file: FileSummary) -> FileIndex:
        handle = self._open(file.number)
        try:
            return load_index(handle, file.seal)
        finally:
            handle.close()

    def _open(self, number: int) -> File:
        try:
            return self._directory.open(self._upkeep.name_of(number))
        except FileNotFoundError:
            raise errors.StaleRead(
                f"log file {number} was recycled", hint="read again from the same position"
            ) from None

    async def _pinned(self, number: int, call: Callable[[], Answer]) -> Answer:
        """Runs a read of one file off the loop. What was read of a file that was recycled meanwhile does not count."""
        pin = self._upkeep.pins.take(number)
        try:
            answer = await self._offload.run(call)
        except errors.LogError:
            if not pin.broken:
                raise
        finally:
            self._upkeep.pins.release(pin)
        if pin.broken:
            raise errors.StaleRead(
                f"log file {number} was recycled during a read", hint="read again from the same position"
            )
        return answer

    def _walk(
        self, stretch: _Stretch, key: ShardKey, offset: int, visible: int, max_bytes: int
    ) -> tuple[list[SectionRead], int]:
        """The sections from the one with `offset` on, and how many the stretch has."""
        file = self._open(stretch.number)
        try:
            window = _Window(file, stretch)
            entries = _chain(window, stretch, key, offset)
            sections: list[SectionRead] = []
            size = 0
            for front, entry in reversed(entries):
                is_enough = size + entry.body_bytes > max_bytes or len(sections) == limits.READ_SECTIONS_MAX
                if sections and (is_enough or entry.end_offset > visible):
                    break
                sections.append(_read_section(window, stretch.number, front, entry))
                size += entry.body_bytes
            if not sections[0].base_offset <= offset < sections[0].base_offset + sections[0].rows:
                raise errors.LogDamaged(
                    f"log file {stretch.number} is damaged at position {entries[-1][1].position}: "
                    f"the way to offset {offset} of {key} is broken",
                    hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
                )
            return sections, len(entries)
        finally:
            file.close()

    # --- bytes of a file ---

    async def copy(self, number: int, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file, for whoever verifies the records himself. Synced ones only (hazard 0).

        Raises PositionGone, or StaleRead when it goes during the read; UnknownLogFile when there was none yet.
        """
        synced_end = self._synced_end(number)
        if not wire.RECORDS_START <= start < end <= synced_end:
            raise errors.InvalidInput(
                f"bytes {start} to {end} of log file {number}",
                hint=f"there are records from {wire.RECORDS_START} to {synced_end}",
            )

        def read() -> bytes:
            file = self._open(number)
            try:
                return file.read_at(start, end - start)
            finally:
                file.close()

        return await self._pinned(number, read)

    def _synced_end(self, number: int) -> int:
        for file in (*self._upkeep.files, *self._upkeep.spills.files, *self._upkeep.spills.replaced):
            if file.number == number:
                return file.seal.end_position
        if any(number == open_number for open_number, _ in self._appender.open_files()):
            return self._appender.synced_end(number)
        if number >= self._upkeep.next_number:
            raise errors.UnknownLogFile(f"there was no log file {number} yet", hint="is it a file of this broker?")
        raise errors.PositionGone(f"log file {number} is not there any more", hint="the round is planned anew")

    # --- by time ---

    async def offset_for_time(self, key: ShardKey, time_us: int) -> int:
        """The smallest offset whose append time is at least `time_us`; the end when there is none (hazard 32)."""
        visible = self._state.shard(key).written
        for file, held in self._in_order(key):
            if held.max_time_us >= time_us:
                index = (await self._index(file)).shards[key]
                chain = index.chain_for_time(time_us)
                if chain is not None:
                    stretch = _Stretch(file.number, *chain, _own_bytes(index))
                    return await self._first_at_time(stretch, key, time_us, visible)
        for number, open_index in self._appender.open_files():
            shard_index = open_index.shards.get(key)
            chain = shard_index.chain_for_time(time_us) if shard_index else None
            if shard_index is not None and chain is not None and shard_index.first_offset < visible:
                stretch = self._open_stretch(number, key, chain, _own_bytes(shard_index))
                return await self._first_at_time(stretch, key, time_us, visible)
        return visible

    def _in_order(self, key: ShardKey) -> list[tuple[FileSummary, Range]]:
        """The sealed files that hold a shard, by its offsets."""
        in_log = [(file, held) for file in self._upkeep.files if (held := file.find(key)) is not None]
        return sorted([*self._upkeep.spills.of(key), *in_log], key=lambda one: one[1].first)

    async def _first_at_time(self, stretch: _Stretch, key: ShardKey, time_us: int, visible: int) -> int:
        def look() -> int:
            file = self._open(stretch.number)
            try:
                window = _Window(file, stretch)
                chain = reversed(_chain(window, stretch, key, -1))
                sections = (_read_section(window, stretch.number, *link) for link in chain)
                later = (section.base_offset for section in sections if section.append_time_us >= time_us)
                return min(next(later, visible), visible)
            finally:
                file.close()

        return await self._pinned(stretch.number, look)

    # --- the whole log ---

    async def follow(self, lsn: int = 1) -> AsyncIterator[RecordChunk]:
        """Every record from `lsn` on, in order, without end: waits for new ones. Raises PositionGone below the log."""
        number = position = 0
        while True:
            await self._wait_released(lsn)
            found = self._locate(lsn)
            if found.number != number:
                number, position = found.number, wire.RECORDS_START
            # from before the read: what is released later may replace bytes that a failed write took back
            bound = self._appender.released_lsn
            chunk = await self._next_chunk(found, position, bound)
            wanted = [record for record in chunk.records if record[1] >= lsn]
            last = chunk.records[-1]
            position = last[0] + last[6]
            if wanted:
                lsn = wanted[-1][1] + 1
                yield RecordChunk(chunk.number, chunk.start, chunk.data, wanted)

    async def _next_chunk(self, found: _Place, start: int, bound: int) -> RecordChunk:
        """At least one record: the one that stands there is released, so it can be read or it is damaged."""
        chunk = await self._pinned(found.number, lambda: self._read_chunk(found, start))
        records = [record for record in chunk.records if record[1] <= bound]
        if not records:
            raise errors.LogDamaged(
                f"log file {found.number} is damaged at position {start}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
            )
        return RecordChunk(chunk.number, chunk.start, chunk.data, records)

    def _locate(self, lsn: int) -> _Place:
        """The file that holds `lsn`."""
        for file in self._upkeep.files:
            if file.seal.first_lsn <= lsn <= file.seal.last_lsn:
                return _Place(file.number, file.seal.end_position)
        active = self._appender.file
        if active is not None and active.first_lsn <= lsn:
            return _Place(active.number, 0)
        for seal in self._appender.sealing():
            if seal.first_lsn <= lsn <= seal.last_lsn:
                return _Place(seal.number, seal.end_position)
        files = self._upkeep.files
        first = files[0].seal.first_lsn if files else active.first_lsn if active else 0
        raise errors.PositionGone(f"record {lsn} is not in the log any more", hint=f"the log begins at record {first}")

    def _read_chunk(self, found: _Place, start: int) -> RecordChunk:
        file = self._open(found.number)
        try:
            size = min((found.end or file.size()) - start, limits.FOLLOW_BYTES_MAX)
            data = file.read_at(start, size)
            head = good_header(data, 0, start, found.number)
            if head is not None and head.record_bytes > size:
                data = file.read_at(start, head.record_bytes)
        finally:
            file.close()
        if head is None:
            return RecordChunk(found.number, start, data, [])
        records, _, _, _ = scan_records(data, start, found.number, head.lsn)
        return RecordChunk(found.number, start, data, records)


def _own_bytes(index: ShardIndex, points: int = 1) -> int:
    return min(index.own_bytes, points * limits.INDEX_STRIDE_BYTES)


class _Window:
    """A stretch of a file. One that is mostly the shard's own is read at once; of another only the shard's bytes are
    read, each for itself (hazard 19)."""

    def __init__(self, file: File, stretch: _Stretch) -> None:
        self._file = file
        self._start = stretch.first
        size = stretch.last + wire.ENTRY_BYTES - stretch.first
        self._data = file.read_at(stretch.first, size) if size <= 2 * stretch.own_bytes else b""

    def read_at(self, position: int, length: int) -> bytes:
        at = position - self._start
        if at >= 0 and at + length <= len(self._data):
            return self._data[at : at + length]
        return self._file.read_at(position, length)


def _chain(file: _Window, stretch: _Stretch, key: ShardKey, offset: int) -> list[tuple[bytes, wire.Entry]]:
    """The section entries from `last` back to `first`, or to the one that holds `offset`."""
    found: list[tuple[bytes, wire.Entry]] = []
    position = stretch.last
    while True:
        front = file.read_at(position, wire.ENTRY_BYTES)
        entry = wire.decode_entry(front.ljust(wire.ENTRY_BYTES, b"\0"), 0, position)
        is_ours = (entry.topic_id, entry.shard, entry.kind) == (*key, wire.SectionKind.MESSAGES)
        if not is_ours or entry.previous >= position:  # a chain only leads back
            raise errors.LogDamaged(
                f"log file {stretch.number} is damaged at position {position}: not a section of {key}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
            )
        found.append((front, entry))
        if position <= stretch.first or entry.base_offset <= offset or not entry.previous:
            return found
        position = entry.previous


def _read_section(file: _Window, number: int, front: bytes, entry: wire.Entry) -> SectionRead:
    body = file.read_at(entry.body_position, entry.body_bytes)
    if not wire.section_is_good(front, body, entry.crc):
        raise errors.LogDamaged(
            f"log file {number} is damaged at position {entry.body_position}: "
            f"offsets {entry.base_offset} to {entry.end_offset - 1} of topic {entry.topic_id} shard {entry.shard}",
            hint="icestream wal inspect shows the log; icestream wal repair declares what is lost",
        )
    return SectionRead(entry.base_offset, entry.rows, entry.append_time_us, entry.epoch, body)
