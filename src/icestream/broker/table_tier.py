"""The tier below the log: rows of the topic's table, requested from the lake process (scan_requests.py).

A scan reply is in order and without a hole: sections, and gaps with their reasons. Where the log has declared a gap
itself, the log's reason and state are used. A reply with gaps between its sections is returned piece by piece, each
with its gaps in front, as reads of the log are; the rest of it is kept for the reader that continues there
(table_prefetch.py).

A reply with topic filters has the rows that match. What lies between them was passed over, which is no gap: gaps are
those that the lake process or the log has recorded.

Readers of the same range share a read: requests that are in flight (scan_requests.py), and replies that others got a
moment ago (table_prefetch.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from icestream import limits
from icestream.broker.expiring_cache import FilteredShard
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.storage import FilteredRead, ShardRead, TableRow
from icestream.broker.table_prefetch import Piece, TablePrefetch
from icestream.model.filtered_rows import FilteredSection
from icestream.model.scan_messages import MissingRange, RowRange, ScanKind, ScanResponse
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.observability import metrics
from icestream.wal.tail import SectionRead

CACHE, TABLE = "cache", "table"


class TableTier:
    """Reads one shard of a topic's table through the lake process."""

    def __init__(
        self,
        scan_requests: ScanRequests,
        prefetch: TablePrefetch,
        topic: str,
        key: ShardKey,
        declared_gaps: Callable[[], Sequence[DeclaredGap]],
    ) -> None:
        """`declared_gaps`: the gaps that the log knows of this shard."""
        self._scan_requests = scan_requests
        self._prefetch = prefetch
        self._topic = topic
        self._key = key
        self._declared_gaps = declared_gaps
        self._recent_ends: deque[int] = deque(maxlen=limits.SCANS_NEAR_MAX)  # where the last replies ended
        self._recent_rows: deque[tuple[int, RowRange]] = deque(maxlen=limits.SCAN_ROW_RANGES_MAX)  # with their snapshot

    async def read(self, offset: int, bytes_max: int) -> tuple[ShardRead, str] | None:
        """The messages at `offset` and the tier that they came from; None if the table has no row there, or the topic
        has no table. Raises LakeAway, TableUnreadable."""
        # The cheapest first: the rest of a reply, then rows of a recent one, then a reply that was prefetched.
        pieces = self._prefetch.take_leftover(self._key, offset)
        if pieces is not None:
            return self._first_read(offset, pieces), CACHE
        recent = self._prefetch.recent_from(self._key, offset)
        if recent is not None:
            return recent, CACHE
        reply = await self._scan(offset, bytes_max)
        if reply.end is None or offset >= reply.end:
            return None
        return self._first_read(offset, self._pieces(reply)), CACHE if reply.is_cached else TABLE

    async def read_matching(
        self, offset: int, bytes_max: int, topic_filters: tuple[str, ...]
    ) -> tuple[FilteredRead, str] | None:
        """The messages from `offset` on that the filters match, and their tier; None as `read`. Raises as `read`."""
        source = FilteredShard(*self._key, topic_filters)
        recent = self._prefetch.filtered_from(source, offset)
        if recent is not None:
            return recent, CACHE
        reply = await self._scan(offset, bytes_max, topic_filters)
        if reply.end is None or offset >= reply.end:
            return None
        read = self._filtered_read(offset, reply)
        self._prefetch.remember_filtered(source, offset, read)
        return read, CACHE if reply.is_cached else TABLE

    def _filtered_read(self, offset: int, reply: ScanResponse) -> FilteredRead:
        sections = [
            FilteredSection(
                memoryview(section.offsets).cast("q"),
                memoryview(section.append_times_us).cast("q"),
                section.epoch,
                section.body,
            )
            for section in reply.sections
        ]
        recorded = {(gap.start, gap.end): gap for missing in reply.missing for gap in self._gaps(missing)}
        for gap in self._declared_gaps():
            start, end = max(gap.start, offset), min(gap.end, reply.next_offset)
            if start < end:
                recorded[start, end] = DeclaredGap(self._key, start, end, gap.epoch, gap.reason, gap.state)
        gaps = sorted(recorded.values(), key=_start)
        metrics.READ_GAPS.value += len(gaps)
        metrics.READ_GAP_OFFSETS.value += sum(gap.end - gap.start for gap in gaps)
        return FilteredRead(sections, gaps, reply.next_offset)

    async def _scan(self, offset: int, bytes_max: int, topic_filters: tuple[str, ...] = ()) -> ScanResponse:
        """The scan reply at `offset`, prefetched or requested now. Prefetches the next one of a sequential reader."""
        # A scan costs a round trip and the decoding of a row group, however little is requested.
        bytes_max = max(bytes_max, limits.SCAN_READ_BYTES)
        source = FilteredShard(*self._key, topic_filters) if topic_filters else self._key
        prefetched = self._prefetch.take(source, offset, bytes_max)
        scan = self._request(ScanKind.READ, offset, bytes_max, topic_filters) if prefetched is None else prefetched
        reply = await scan
        if reply.snapshot_id is not None:
            self._recent_rows.extend((reply.snapshot_id, row_range) for row_range in reply.row_ranges)
        # Only for a reader that has continued once: a redelivery or a seek reads a single place, and a prefetch for it
        # would take a slot of a reader that needs it.
        next_offset = reply.next_offset
        if self._is_sequential(offset, next_offset) and reply.end is not None and next_offset < reply.end:
            following = self._request(ScanKind.READ, next_offset, bytes_max, topic_filters)
            self._prefetch.start(source, next_offset, bytes_max, following)
        return reply

    def _is_sequential(self, offset: int, end: int) -> bool:
        """True if a read at `offset` starts where an earlier reply ended: the reader scans sequentially, so prefetch.

        Remembers `end`, where the present reply ends.
        """
        is_sequential = offset in self._recent_ends
        if is_sequential:
            self._recent_ends.remove(offset)
        if end not in self._recent_ends:
            self._recent_ends.append(end)
        return is_sequential

    def row(self, offset: int) -> TableRow | None:
        """Where the message was read lately, for the cursors of its readers; None if no recent reply had it."""
        for snapshot_id, part in reversed(self._recent_rows):
            if part.start <= offset < part.start + part.rows:
                return TableRow(snapshot_id, part.file_path, part.first_row + offset - part.start)
        return None

    async def earliest(self) -> int | None:
        """The first offset in the table; None if it has no row of this shard."""
        return (await self._request(ScanKind.EARLIEST)).offset

    async def offset_for_time(self, time_us: int) -> int | None:
        """The first offset in the table at or after a time; None if it has no such row."""
        return (await self._request(ScanKind.TIME, time_us)).offset

    async def offset_after_snapshot(self, snapshot_id: int) -> int | None:
        """The first offset that is not in a snapshot; None if the topic has no table. Raises InvalidInput."""
        return (await self._request(ScanKind.SNAPSHOT, snapshot_id)).offset

    async def _request(
        self, question: ScanKind, value: int = 0, bytes_max: int = 0, topic_filters: tuple[str, ...] = ()
    ) -> ScanResponse:
        return await self._scan_requests.request(question, self._topic, self._key, value, bytes_max, topic_filters)

    # --- pieces of a reply ---

    def _pieces(self, reply: ScanResponse) -> list[Piece]:
        """The sections and gaps of a reply in the order of their offsets."""
        sections = [
            SectionRead(section.base_offset, section.rows, section.append_time_us, section.epoch, section.body)
            for section in reply.sections
        ]
        gaps = [gap for missing in reply.missing for gap in self._gaps(missing)]
        return sorted((*gaps, *sections), key=_start)

    def _gaps(self, missing: MissingRange) -> list[DeclaredGap]:
        """Splits missing offsets where the log has declared gaps: these carry the log's reason."""
        gaps: list[DeclaredGap] = []
        start = missing.start
        overlapping = (gap for gap in self._declared_gaps() if gap.end > start)
        for declared in sorted(overlapping, key=lambda gap: gap.start):
            if declared.start >= missing.end:
                break
            if start < declared.start:
                gaps.append(self._undeclared_gap(start, declared.start, missing))
            end = min(declared.end, missing.end)
            gaps.append(
                DeclaredGap(self._key, max(start, declared.start), end, declared.epoch, declared.reason, declared.state)
            )
            start = end
        return [*gaps, self._undeclared_gap(start, missing.end, missing)] if start < missing.end else gaps

    def _undeclared_gap(self, start: int, end: int, missing: MissingRange) -> DeclaredGap:
        return DeclaredGap(self._key, start, end, 0, missing.reason, GapState(missing.state))

    def _first_read(self, offset: int, pieces: list[Piece]) -> ShardRead:
        """The first gaps and the sections behind them. Keeps the pieces from the next gap on for the next read."""
        gaps: list[DeclaredGap] = []
        sections: list[SectionRead] = []
        for piece in pieces:
            if isinstance(piece, SectionRead):
                sections.append(piece)
            elif not sections:
                gaps.append(piece)
            else:
                break
        # A read has gaps in front of its messages and none between them, so that consumers hear of a gap before what
        # follows it.
        count = len(gaps) + len(sections)
        next_offset = _end(pieces[count - 1])
        if count < len(pieces):
            self._prefetch.put_leftover(self._key, next_offset, pieces[count:])
        metrics.READ_GAPS.value += len(gaps)
        metrics.READ_GAP_OFFSETS.value += sum(gap.end - gap.start for gap in gaps)
        read = ShardRead(sections, gaps, next_offset)
        # A reader that could take only a part of it asks again from the middle.
        self._prefetch.remember(self._key, offset, read)
        return read


def _start(piece: Piece) -> int:
    return piece.base_offset if isinstance(piece, SectionRead) else piece.start


def _end(piece: Piece) -> int:
    return piece.base_offset + piece.rows if isinstance(piece, SectionRead) else piece.end
