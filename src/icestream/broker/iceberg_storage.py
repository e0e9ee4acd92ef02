"""Storage of messages in the write-ahead log and, behind it, in Iceberg tables; of cursors in the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from icestream import errors
from icestream.broker.cursor_store import CursorStore, open_subscription_stream
from icestream.broker.followed_offsets import erased_cuts, first_kept_offsets
from icestream.broker.read_ahead import ReadAhead
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.storage import CursorSource, SubscriptionStream
from icestream.broker.table_prefetch import TablePrefetch
from icestream.broker.table_tier import TableTier
from icestream.broker.tiered_shard_stream import TieredShardStream
from icestream.metadata.command import Compare, Operation
from icestream.metadata.store import MetadataStore
from icestream.model.block import BlockHead
from icestream.model.block_group import BlockGroup
from icestream.model.shard import DeclaredGap, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.appender import AppendGroup
from icestream.wal.producer_sequences import SequenceWindow
from icestream.wal.receipt import Receipt
from icestream.wal.retention import Retention
from icestream.wal.state import Shard
from icestream.wal.write_ahead_log import WriteAheadLog

_log = get_logger("storage")


class IcebergStorage:
    """The storage facade (storage.py) over the write-ahead log, the tables and the metadata store."""

    def __init__(
        self,
        log: WriteAheadLog,
        store: MetadataStore,
        clock: Clock,
        cursor_flush_ms: int,
        scan_requests: ScanRequests | None = None,
    ) -> None:
        """`scan_requests`: for reads of messages that the log no longer holds; None if topics have no tables."""
        self.log = log
        self.scan_requests = scan_requests
        self._table_prefetch = TablePrefetch()
        self._read_ahead = ReadAhead(asyncio.get_running_loop())
        self._clock = clock
        self._store = store
        self.cursors = CursorStore(store, clock, cursor_flush_ms, self.wait_durable)
        self._streams: dict[ShardKey, TieredShardStream] = {}  # of declared topics
        self.closed: dict[int, errors.StorageUnavailable] = {}  # by topic id: why the topic takes no messages now
        self._tasks = Tasks(self._task_failed)
        self.retained = first_kept_offsets(store, clock)
        self._tasks.start(self.cursors.run(), "cursors")
        self._tasks.start(self.retained.run(), "first kept offsets")
        self.erased = erased_cuts(store, clock)
        self.erased.on_changed = self._drop_caches
        self._tasks.start(self.erased.run(), "erased offsets")

    def _task_failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a background task of the storage failed", "exception": error}
        )

    # --- topics ---

    def declare_topic(self, topic: TopicIdentity, shards: int) -> None:
        self.log.declare_topic(topic)
        for number in range(shards):
            shard = self.log.shard(topic.id, number)
            if shard.key not in self._streams:
                self._streams[shard.key] = self._open_stream(topic, shard)

    def _open_stream(self, topic: TopicIdentity, shard: Shard) -> TieredShardStream:
        table: TableTier | None = None
        if self.scan_requests is not None and topic.has_table:
            declared_gaps = partial(self.log.gaps, shard.key)
            table = TableTier(self.scan_requests, self._table_prefetch, topic.name, shard.key, declared_gaps)
        first = partial(self.retained.of, shard.key)
        erased_below = partial(self.erased.of, shard.key)
        return TieredShardStream(self.log, shard, self._clock, self._read_ahead, table, first, erased_below)

    def _drop_caches(self, topic_id: int, cut: Mapping[int, int]) -> None:
        """Forgets what memory holds of messages below the cut of an erasure, of which some are erased."""
        for shard, end in cut.items():
            self._read_ahead.drop(ShardKey(topic_id, shard), 0, end)
        self._table_prefetch.clear()
        self.log.tail.clear()

    async def declare_lost_offsets(self, topic: TopicIdentity, gaps: Sequence[DeclaredGap]) -> None:
        self.log.declare_topic(topic)
        if missing := self.log.state.begin_behind(gaps):  # without those that an interrupted takeover has written
            await self.log.write_gaps(missing)

    def uncommitted(self, topic_id: int, shards: int) -> list[tuple[int, int]]:
        waiting = ((number, self.log.backlog.uncommitted_count(ShardKey(topic_id, number))) for number in range(shards))
        return [(number, messages) for number, messages in waiting if messages]

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        """Drops the messages of a deleted topic from the log: every floor moves to the end.

        Logs and counts the messages that were in no table (hazard 49).
        """
        # The streams go before the floors: no read or write can begin on a topic that is losing its messages.
        self.log.retention_job.set_retention(topic_id, shards, Retention())
        keys = [ShardKey(topic_id, number) for number in range(shards)]
        for key in keys:
            self._streams.pop(key, None)
        await self.log.sync()  # a floor never passes the synced offset
        shard_states = self.log.state.shards
        dropped = sum(messages for _, messages in self.uncommitted(topic_id, shards))
        if dropped:
            metrics.WAL_DELETED.inc(dropped)
            _log.warning("deleted a topic with messages that were in no table", topic_id=topic_id, messages=dropped)
        await self.log.advance_floor({key: shard_states[key].synced for key in keys if key in shard_states})

    async def release(self, floors: Mapping[ShardKey, int]) -> None:
        await self.log.advance_floor(floors)

    def set_retention(self, topic_id: int, shards: int, bytes_max: int, age_max_ms: int, messages_max: int = 0) -> None:
        self.log.retention_job.set_retention(topic_id, shards, Retention(bytes_max, age_max_ms * 1000, messages_max))

    async def restore_windows(self, windows: Sequence[tuple[ShardKey, int, SequenceWindow]]) -> None:
        for key, producer_id, window in windows:
            self.log.state.producers.restore(key, producer_id, window)
        # No record of the log has windows: checkpoints have them.
        if not await self.log.lifecycle.checkpoint():
            raise errors.StorageUnavailable("a checkpoint of the log was not written", hint="look at its disk")

    def open_producer(self, producer_id: int, producer_epoch: int) -> None:
        self.log.state.producers.open(producer_id, producer_epoch)

    def last_sequence(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        return self.log.state.producers.last_sequence(shard, producer_id, since_epoch)

    def recent_batches(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        return self.log.state.producers.recent(shard, producer_id, since_epoch)

    async def wait_durable(self) -> None:
        await self.log.sync()

    @property
    def row_bytes_max(self) -> int:
        return self.log.row_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        return self.log.batch_bytes_max

    # --- writes ---

    def store_messages(self, shard: ShardKey, messages: bytes, head: BlockHead | None = None) -> Receipt:
        self._check_open(shard)
        return self.log.submit([self.log.batch(self.stream(shard).shard, messages, head)])

    def takes_group(self, size: int, shards: int) -> bool:
        return self.log.takes_group(size, shards)

    def store_group(self, shards: Sequence[ShardKey], bodies: Sequence[bytes], group: BlockGroup) -> Receipt:
        if self.closed:
            for key in shards:
                self._check_open(key)
        try:
            streams = [*map(self._streams.__getitem__, shards)]
        except KeyError:
            streams = [*map(self.stream, shards)]  # raises for the one that is missing
        return self.log.submit([AppendGroup([stream.shard for stream in streams], bodies, group)])

    def _check_open(self, shard: ShardKey) -> None:
        if self.closed and (error := self.closed.get(shard.topic_id)) is not None:
            raise errors.StorageUnavailable(
                f"topic {shard.topic_id} takes no messages: {error.message}", hint=error.hint
            )

    def has_room(self, size: int) -> bool:
        # Room is not enough while others wait for it: taking it would overtake them.
        return not self.log.admission_queue and self.log.has_room(size)

    async def wait_for_room(self, size: int) -> None:
        await self.log.wait_for_room(size)

    # --- reads and cursors ---

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream:
        name = TopicName(namespace, topic)
        return await open_subscription_stream(self._store, self.cursors, self.stream, name, subscription)

    def shard_stream(self, shard: ShardKey) -> TieredShardStream:
        return self.stream(shard)

    @property
    def log_file_number(self) -> int:
        file = self.log.appender.file
        return file.number if file is not None else 0

    def has_shard(self, shard: ShardKey) -> bool:
        return shard in self.log.state.shards

    def stream(self, key: ShardKey) -> TieredShardStream:
        stream = self._streams.get(key)
        if stream is None:
            raise errors.UnknownTopic(f"there is no topic with id {key.topic_id}", hint="was it deleted?")
        return stream

    def update_subscription_cursor(self, source: CursorSource) -> None:
        self.cursors.mark(source)

    async def write_cursors(
        self, sources: Sequence[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        return await self.cursors.write(sources, compare, also)

    async def delete_cursors(
        self, keys: Sequence[str], also: Sequence[Operation] = (), on_deleted: Callable[[], None] = lambda: None
    ) -> None:
        await self.cursors.delete(keys, also, on_deleted)

    async def replace_cursors(
        self,
        keys: Sequence[str],
        compare: Sequence[Compare],
        operations: Sequence[Operation],
        on_replaced: Callable[[], None],
    ) -> bool:
        return await self.cursors.replace(keys, compare, operations, on_replaced)

    async def flush_cursors(self) -> None:
        await self.cursors.flush()

    async def shutdown(self) -> None:
        """Writes the cursors, then closes the log, also if the cursors cannot be written."""
        await self._tasks.stop()
        self._table_prefetch.clear()
        self._read_ahead.clear()
        # Before the log closes: writing cursors syncs the log, so that the acks of the last messages count.
        try:
            await self.cursors.flush()
        except errors.IcestreamError as error:
            _log.warning(
                "cursors could not be written; messages acked since the last flush will be delivered again",
                error=str(error),
            )
        finally:
            await self.log.close()
