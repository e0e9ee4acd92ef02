"""The reader of all tiers: one shard, read from memory while it is new, then from the log's files, then from the table.

    tail     sections in memory                      wal/tail.py
    cache    sections that were read a moment ago    read_ahead.py, table_prefetch.py
    log      files of the write-ahead log            wal/reader.py
    table    rows of the topic's Iceberg table       table_tier.py

Below the first kept offset no tier is read: what a retention has removed is a gap (followed_offsets.py). Below the cut
of an erasure the table alone is read: it reports erased messages as gaps (followed_offsets.py).

Each read goes to the tier that has the offset at that moment. When a tier drops an offset, the next read of it goes to
the tier below, so there is no handover between tiers that a reader could miss. Readers do not hold log files back
(hazard 33).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icestream import errors
from icestream.broker.followed_offsets import RETENTION_REASON
from icestream.broker.read_ahead import ReadAhead
from icestream.broker.storage import FilteredRead, ShardRead, TableRow
from icestream.broker.table_tier import TableTier
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.observability import metrics
from icestream.observability.spans import now_ns, record, tracing
from icestream.runtime.clock import Clock
from icestream.wal.state import Shard
from icestream.wal.tail import SectionRead
from icestream.wal.write_ahead_log import WriteAheadLog

TAIL, LOG = "tail", "log"  # tiers in the metrics, beside those of table_tier.py


class TieredShardStream:
    """The ShardStream of IcebergStorage."""

    def __init__(
        self,
        log: WriteAheadLog,
        shard: Shard,
        clock: Clock,
        read_ahead: ReadAhead,
        table: TableTier | None = None,
        first: Callable[[], int] = int,
        erased_below: Callable[[], int] = int,
    ) -> None:
        """`table`: None if the topic has no table. `first`: the first kept offset, which a retention raises.
        `erased_below`: the cut of the last erasure, below which memory and log may hold erased messages."""
        self._log = log
        self._clock = clock
        self._read_ahead = read_ahead
        self._table = table
        self._first = first
        self._erased_below = erased_below
        self.shard = shard
        self._last_read_ns: int | None = None
        self._followers: list[Callable[[], None]] = []

    @property
    def key(self) -> ShardKey:
        return self.shard.key

    @property
    def visible(self) -> int:
        # Released, not only synced: in the modes without a sync per tick consumers get messages that are acked to their
        # producers. Cursors stay behind `synced`.
        return self.shard.written

    @property
    def synced(self) -> int:
        return self.shard.synced

    @property
    def epoch(self) -> int:
        return self.shard.epoch

    def gaps(self) -> Sequence[DeclaredGap]:
        return self._log.gaps(self.shard.key)

    # --- positions ---

    def log_start(self) -> int:
        return max(self._log.reader.earliest(self.shard.key), self._first(), self._erased_below())

    def _is_all_in_log(self) -> bool:
        """True if everything below the start of the log is a declared gap, so the table need not be asked."""
        return self._log.state.step_over(self.shard.key, 0) >= self.log_start()

    async def history_start(self) -> int:
        table_start = None if self._table is None or self._is_all_in_log() else await self._table.earliest()
        start = self.log_start() if table_start is None else min(table_start, self.log_start())
        return max(start, self._first())

    async def offset_for_time(self, time_us: int) -> int:
        # The table first, because it has the lower offsets.
        if self._table is not None and not self._is_all_in_log():
            offset = await self._table.offset_for_time(time_us)
            if offset is not None and offset < self.log_start():
                return max(offset, self._first())
        return max(await self._log.reader.offset_for_time(self.shard.key, time_us), self._first())

    async def offset_after_snapshot(self, snapshot_id: int) -> int:
        offset = await self._table.offset_after_snapshot(snapshot_id) if self._table is not None else None
        if offset is None:
            raise errors.InvalidInput(
                f"topic {self.shard.topic.name} has no table, so it has no snapshot {snapshot_id}",
                hint="start at an offset or at a time",
            )
        return max(offset, self._first())

    def table_row(self, offset: int) -> TableRow | None:
        return self._table.row(offset) if self._table is not None else None

    # --- reads ---

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        if offset < self._first() or offset < self._erased_below():
            return []  # `read` reports what was removed
        sections = self._log.tail.read(self.shard.key, offset, self.shard.written, bytes_max)
        if sections:
            self._count_read(TAIL)
            return sections
        return self._read_ahead.find(self.shard.key, offset)

    async def read(self, offset: int, bytes_max: int, *, cache: bool = False) -> ShardRead:
        read = await self._read(offset, bytes_max)
        if cache:  # not always: a sequential reader needs each block once, and would evict those of others
            self._read_ahead.keep(self.shard.key, read.sections)
        return read

    def keep_read(self, sections: Sequence[SectionRead]) -> None:
        self._read_ahead.keep(self.shard.key, sections)

    def drop_read(self, start: int, end: int) -> None:
        self._read_ahead.drop(self.shard.key, start, end)

    async def _read(self, offset: int, bytes_max: int) -> ShardRead:
        """Reads from the log or, if it no longer has the offset, from the table. Raises PositionGone if neither has."""
        if offset < self._first():
            return self._removed(offset)
        # The log first, although the table may have the offset too: it is local and cheaper.
        log_read = await self._read_log(offset, bytes_max)
        if log_read is not None:
            return log_read
        assert self._table is not None
        start_ns = now_ns() if tracing.is_on else 0
        table_read = await self._table.read(offset, bytes_max)
        if table_read is None:
            return await self._read_log_again(offset, bytes_max)
        read, tier = table_read
        self._count_table_read(tier, start_ns, offset, read.next_offset)
        return read

    async def read_matching(self, offset: int, bytes_max: int, topic_filters: Sequence[str]) -> FilteredRead:
        if not topic_filters:
            return FilteredRead(*await self._read(offset, bytes_max))
        if offset < self._first():
            return FilteredRead(*self._removed(offset))
        # What the log has is read whole: only the table is ordered by topics.
        log_read = await self._read_log(offset, bytes_max)
        if log_read is not None:
            return FilteredRead(*log_read)
        assert self._table is not None
        start_ns = now_ns() if tracing.is_on else 0
        table_read = await self._table.read_matching(offset, bytes_max, tuple(topic_filters))
        if table_read is None:
            return FilteredRead(*await self._read_log_again(offset, bytes_max))
        read, tier = table_read
        self._count_table_read(tier, start_ns, offset, read.next_offset)
        return read

    def _removed(self, offset: int) -> ShardRead:
        """The read of an offset that a retention removed: a gap up to the first kept one, whatever files still hold."""
        first = self._first()
        gap = DeclaredGap(self.shard.key, offset, first, self.shard.epoch, RETENTION_REASON, GapState.DROPPED)
        return ShardRead([], [gap], first)

    async def _read_log(self, offset: int, bytes_max: int) -> ShardRead | None:
        """Reads from the log; None if it no longer has the offset and the topic has a table. Raises PositionGone."""
        if self._table is not None and offset < self._erased_below():
            return None  # the log may hold erased messages; the table has the others
        start_ns = now_ns() if tracing.is_on else 0
        try:
            result = await self._log.reader.read(self.shard.key, offset, bytes_max)
        except errors.PositionGone:
            if self._table is None:
                raise
            return None
        self._count_read(LOG)
        if start_ns:
            self._trace_read("log.read", start_ns, offset, result.next_offset)
        return ShardRead(result.sections, result.gaps, result.next_offset)

    async def _read_log_again(self, offset: int, bytes_max: int) -> ShardRead:
        """Reads what neither log nor table had. Raises PositionGone."""
        # A table that was rewound has its rows in the log again.
        result = await self._log.reader.read(self.shard.key, offset, bytes_max)
        return ShardRead(result.sections, result.gaps, result.next_offset)

    def _count_table_read(self, tier: str, start_ns: int, offset: int, next_offset: int) -> None:
        self._count_read(tier)
        if start_ns:
            self._trace_read("table.read", start_ns, offset, next_offset)

    def _trace_read(self, name: str, start_ns: int, offset: int, next_offset: int) -> None:
        topic, shard = str(self.shard.topic.name), self.shard.key.shard
        record(name, start_ns, topic=topic, shard=shard, offset=offset, offsets=next_offset - offset)

    def _count_read(self, tier: str) -> None:
        """Counts a read by its tier, with the pause since the last read of this shard."""
        now_ns = self._clock.monotonic_ns()
        metrics.READS.add(tier)
        if self._last_read_ns is not None:
            metrics.READ_INTERVALS.observe(tier, (now_ns - self._last_read_ns) / 1e9)
        self._last_read_ns = now_ns

    # --- notifications ---

    def follow(self, on_visible: Callable[[], None]) -> None:
        self._followers.append(on_visible)
        self.shard.on_visible = self._notify

    def unfollow(self, on_visible: Callable[[], None]) -> None:
        self._followers.remove(on_visible)
        if not self._followers:
            self.shard.on_visible = None

    def _notify(self) -> None:
        for on_visible in self._followers:
            on_visible()
