"""Messages in the write-ahead log (and, with the pipeline, in Iceberg tables); cursors in the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from icestream import errors
from icestream.broker.cursors import CursorBook, read_stream
from icestream.broker.storage import CursorSource, Found, SubscriptionStream
from icestream.metadata.command import Compare, Operation
from icestream.metadata.store import MetadataStore
from icestream.model.block import BlockHead
from icestream.model.shard import Gap, ShardKey, Topic
from icestream.model.topic_name import TopicName
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.log import Log
from icestream.wal.receipt import Receipt
from icestream.wal.retention import Retention
from icestream.wal.state import Shard
from icestream.wal.tail import SectionRead

_log = get_logger("storage")


class IcebergStorage:
    def __init__(self, log: Log, store: MetadataStore, clock: Clock, cursor_flush_ms: int) -> None:
        self.log = log
        self._store = store
        self.cursors = CursorBook(store, clock, cursor_flush_ms, self.settle)
        self._streams: dict[ShardKey, LogShardStream] = {}  # of the topics that are there
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
            self._streams.setdefault(shard.key, LogShardStream(self.log, shard))

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        """Its messages are dropped from the log: every floor goes to the end."""
        self.log.retainer.set(topic_id, shards, Retention())
        keys = [ShardKey(topic_id, number) for number in range(shards)]
        for key in keys:
            self._streams.pop(key, None)
        await self.log.sync()
        known = self.log.state.shards
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
        return self.log.submit([self.log.batch(self.stream(shard).shard, messages, head)])

    def has_room(self, size: int) -> bool:
        return not self.log.turnstile and self.log.has_room(size)

    async def wait_for_room(self, size: int) -> None:
        await self.log.wait_for_room(size)

    # --- out ---

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream:
        name = TopicName(namespace, topic)
        return await read_stream(self._store, self.cursors, self.stream, name, subscription)

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
        try:
            await self.cursors.flush()
        except errors.IcestreamError as error:
            _log.warning("cursors could not be written: what was acked since is delivered again", error=str(error))
        finally:
            await self.log.close()


class LogShardStream:
    """One shard, read from the log: from memory while it is new, else from its files."""

    def __init__(self, log: Log, shard: Shard) -> None:
        self._log = log
        self.shard = shard
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

    def earliest(self) -> int:
        return self._log.reader.earliest(self.shard.key)

    def gaps(self) -> Sequence[Gap]:
        return self._log.gaps(self.shard.key)

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        return self._log.tail.read(self.shard.key, offset, self.shard.written, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> Found:
        result = await self._log.reader.read(self.shard.key, offset, bytes_max)
        return Found(result.sections, result.gaps, result.next_offset)

    async def offset_for_time(self, time_us: int) -> int:
        return await self._log.reader.offset_for_time(self.shard.key, time_us)

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
