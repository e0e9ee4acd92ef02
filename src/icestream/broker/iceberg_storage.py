"""Messages in the write-ahead log and, behind it, in Iceberg tables; cursors in the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from icestream import errors
from icestream.broker.cursor_store import CursorStore, open_subscription_stream
from icestream.broker.read_ahead import ReadAhead
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.storage import CursorSource, ShardRead, SubscriptionStream
from icestream.broker.table_prefetch import TablePrefetch
from icestream.broker.table_tier import TableTier
from icestream.metadata.command import Compare, Operation
from icestream.metadata.store import MetadataStore
from icestream.model.block import BlockHead
from icestream.model.shard import Gap, ShardKey, Topic
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.log import Log
from icestream.wal.receipt import Receipt
from icestream.wal.retention import Retention
from icestream.wal.state import Shard
from icestream.wal.tail import SectionRead

_log = get_logger("storage")
TAIL, LOG = "tail", "log"  # tiers in the metrics, beside those of table_tier.py


class IcebergStorage:
    def __init__(
        self, log: Log, store: MetadataStore, clock: Clock, cursor_flush_ms: int, desk: ScanRequests | None = None
    ) -> None:
        """`desk`: where to ask for what the log does not hold any more; None: nowhere."""
        self.log = log
        self.desk = desk
        self._near = TablePrefetch()
        self._ahead = ReadAhead(asyncio.get_running_loop())
        self._clock = clock
        self._store = store
        self.cursors = CursorStore(store, clock, cursor_flush_ms, self.settle)
        self._streams: dict[ShardKey, LogShardStream] = {}  # of the topics that are there
        self.closed: dict[int, errors.StorageUnavailable] = {}  # topics that take no message for now, and why
        self._tasks = Tasks(self._task_failed)
        self._tasks.start(self.cursors.run(), "cursors")

    def _task_failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a task of the storage failed", "exception": error}
        )

    # --- topics ---

    def declare_topic(self, topic: Topic, shards: int) -> None:
        self.log.declare_topic(topic)
        for number in range(shards):
            shard = self.log.shard(topic.id, number)
            if shard.key not in self._streams:
                self._streams[shard.key] = self._stream(topic, shard)

    def _stream(self, topic: Topic, shard: Shard) -> LogShardStream:
        return LogShardStream(self.log, shard, self._clock, self._ahead, self._table(topic, shard))

    def _table(self, topic: Topic, shard: Shard) -> TableTier | None:
        if self.desk is None:
            return None
        return TableTier(self.desk, self._near, topic.name, shard.key, lambda: self.log.gaps(shard.key))

    async def begin_behind(self, topic: Topic, gaps: Sequence[Gap]) -> None:
        self.log.declare_topic(topic)
        if missing := self.log.state.begin_behind(gaps):
            await self.log.write_gaps(missing)

    def uncommitted(self, topic_id: int, shards: int) -> list[tuple[int, int]]:
        waiting = ((number, self.log.backlog.waiting(ShardKey(topic_id, number))) for number in range(shards))
        return [(number, messages) for number, messages in waiting if messages]

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        """Its messages are dropped from the log: every floor goes to the end. What is in no table is said (49)."""
        self.log.retainer.set(topic_id, shards, Retention())
        keys = [ShardKey(topic_id, number) for number in range(shards)]
        for key in keys:
            self._streams.pop(key, None)
        await self.log.sync()
        known = self.log.state.shards
        dropped = sum(messages for _, messages in self.uncommitted(topic_id, shards))
        if dropped:
            metrics.WAL_DELETED.inc(dropped)
            _log.warning("a topic was deleted with messages that were in no table", topic_id=topic_id, messages=dropped)
        await self.log.advance_floor({key: known[key].synced for key in keys if key in known})

    def set_retention(self, topic_id: int, shards: int, bytes_max: int, age_max_ms: int) -> None:
        self.log.retainer.set(topic_id, shards, Retention(bytes_max, age_max_ms * 1000))

    def open_producer(self, producer_id: int, producer_epoch: int) -> None:
        self.log.state.producers.open(producer_id, producer_epoch)

    def last_sequence(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        return self.log.state.producers.last_sequence(shard, producer_id, since_epoch)

    def recent_batches(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        return self.log.state.producers.recent(shard, producer_id, since_epoch)

    async def settle(self) -> None:
        await self.log.sync()

    @property
    def batch_bytes_max(self) -> int:
        return self.log.batch_bytes_max

    # --- in ---

    def store_messages(self, shard: ShardKey, messages: bytes, head: BlockHead | None = None) -> Receipt:
        if self.closed and (why := self.closed.get(shard.topic_id)) is not None:
            raise errors.StorageUnavailable(f"topic {shard.topic_id} takes no message: {why.message}", hint=why.hint)
        return self.log.submit([self.log.batch(self.stream(shard).shard, messages, head)])

    def has_room(self, size: int) -> bool:
        return not self.log.turnstile and self.log.has_room(size)

    async def wait_for_room(self, size: int) -> None:
        await self.log.wait_for_room(size)

    # --- out ---

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream:
        name = TopicName(namespace, topic)
        return await open_subscription_stream(self._store, self.cursors, self.stream, name, subscription)

    def shard_stream(self, shard: ShardKey) -> LogShardStream:
        return self.stream(shard)

    def stream(self, key: ShardKey) -> LogShardStream:
        found = self._streams.get(key)
        if found is None:
            raise errors.UnknownTopic(f"there is no topic with id {key.topic_id}", hint="was it deleted?")
        return found

    def update_subscription_cursor(self, source: CursorSource) -> None:
        self.cursors.mark(source)

    async def write_cursors(
        self, sources: Sequence[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        return await self.cursors.write(sources, compare, also)

    async def delete_cursors(
        self, keys: Sequence[str], also: Sequence[Operation] = (), then: Callable[[], None] = lambda: None
    ) -> None:
        await self.cursors.delete(keys, also, then)

    async def flush_cursors(self) -> None:
        await self.cursors.flush()

    async def shutdown(self) -> None:
        """Cursors first: whoever has heard of a position finds it in the log. The log is closed in any case."""
        await self._tasks.stop()
        self._near.close()
        self._ahead.clear()
        try:
            await self.cursors.flush()
        except errors.IcestreamError as error:
            _log.warning("cursors could not be written: what was acked since is delivered again", error=str(error))
        finally:
            await self.log.close()


class LogShardStream:
    """One shard, read from memory while it is new, else from the log's files, else from the topic's table.

    A position belongs to whatever tier has it at that moment: a tier that lets go of it hands over by that alone, so
    there is no seam. Nobody holds the log for a reader (hazard 33).
    """

    def __init__(self, log: Log, shard: Shard, clock: Clock, ahead: ReadAhead, table: TableTier | None = None) -> None:
        self._log = log
        self._clock = clock
        self._ahead = ahead
        self._table = table
        self.shard = shard
        self._read_ns = clock.monotonic_ns()
        self._followers: list[Callable[[], None]] = []

    @property
    def key(self) -> ShardKey:
        return self.shard.key

    @property
    def visible(self) -> int:
        return self.shard.written

    @property
    def synced(self) -> int:
        return self.shard.synced

    @property
    def epoch(self) -> int:
        return self.shard.epoch

    def gaps(self) -> Sequence[Gap]:
        return self._log.gaps(self.shard.key)

    # --- where it begins ---

    def earliest(self) -> int:
        return self._log.reader.earliest(self.shard.key)

    def _is_all_held(self) -> bool:
        """Below the log there is nothing but what it has declared as a gap."""
        return self._log.state.step_over(self.shard.key, 0) >= self.earliest()

    async def first(self) -> int:
        found = None if self._table is None or self._is_all_held() else await self._table.first()
        return self.earliest() if found is None else min(found, self.earliest())

    async def offset_for_time(self, time_us: int) -> int:
        """The table first: it has the lower offsets."""
        if self._table is not None and not self._is_all_held():
            found = await self._table.at_time(time_us)
            if found is not None and found < self.earliest():
                return found
        return await self._log.reader.offset_for_time(self.shard.key, time_us)

    async def offset_behind_snapshot(self, snapshot_id: int) -> int:
        found = await self._table.behind_snapshot(snapshot_id) if self._table is not None else None
        if found is None:
            raise errors.InvalidInput(
                f"topic {self.shard.topic.name} has no table, so it has no snapshot {snapshot_id}",
                hint="start at an offset or at a time",
            )
        return found

    # --- reading ---

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        found = self._log.tail.read(self.shard.key, offset, self.shard.written, bytes_max)
        if found:
            self._count(TAIL)
            return found
        return self._ahead.find(self.shard.key, offset)

    async def read(self, offset: int, bytes_max: int, *, keep: bool = False) -> ShardRead:
        found = await self._read(offset, bytes_max)
        if keep:
            self._ahead.keep(self.shard.key, found.sections)
        return found

    async def _read(self, offset: int, bytes_max: int) -> ShardRead:
        try:
            result = await self._log.reader.read(self.shard.key, offset, bytes_max)
        except errors.PositionGone:
            if self._table is None:
                raise
        else:
            self._count(LOG)
            return ShardRead(result.sections, result.gaps, result.next_offset)
        found = await self._table.read(offset, bytes_max)
        if found is None:
            return await self._read_again(offset, bytes_max)
        self._count(found[1])
        return found[0]

    async def _read_again(self, offset: int, bytes_max: int) -> ShardRead:
        """The table does not have it: a table that was rewound, whose rows came into the log again, or nobody has."""
        result = await self._log.reader.read(self.shard.key, offset, bytes_max)
        return ShardRead(result.sections, result.gaps, result.next_offset)

    def _count(self, tier: str) -> None:
        now_ns = self._clock.monotonic_ns()
        metrics.READS.add(tier)
        metrics.READ_PAUSES.add(tier, (now_ns - self._read_ns) / 1e9)
        self._read_ns = now_ns

    # --- news ---

    def follow(self, on_visible: Callable[[], None]) -> None:
        self._followers.append(on_visible)
        self.shard.on_visible = self._moved

    def unfollow(self, on_visible: Callable[[], None]) -> None:
        self._followers.remove(on_visible)
        if not self._followers:
            self.shard.on_visible = None

    def _moved(self) -> None:
        for on_visible in self._followers:
            on_visible()
