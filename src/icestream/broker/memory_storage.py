"""The storage facade in memory: the same contract and the same tests as IcebergStorage, for tests and quick trials.

Nothing survives the process, and there is no quota. Whatever the log refuses is refused here with the same error.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from icestream import errors
from icestream.broker.cursor_store import CursorStore, open_subscription_stream
from icestream.broker.storage import CursorSource, FilteredRead, ShardRead, SubscriptionStream, TableRow
from icestream.metadata.command import Compare, Operation
from icestream.metadata.store import MetadataStore
from icestream.model.block import BlockHead, decode_block_head
from icestream.model.block_group import BlockGroup
from icestream.model.shard import DeclaredGap, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.appender import Placed, PlacedGroup, Result
from icestream.wal.log_options import LogOptions, too_large
from icestream.wal.producer_sequences import Duplicate, ProducerSequences, SequenceWindow
from icestream.wal.receipt import Receipt
from icestream.wal.state import Shard, Usage
from icestream.wal.tail import SectionRead


class MemoryStorage:
    """The storage facade (storage.py) in memory."""

    scan_requests = None

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        cursor_flush_ms: int,
        options: LogOptions = LogOptions(),  # noqa: B008 (a constant)
    ) -> None:
        """`options`: the bounds of a batch, as in the log."""
        self._options = options
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._shards: dict[ShardKey, MemoryShard] = {}
        self._producers = ProducerSequences()
        self._batches = 0
        self.cursors = CursorStore(store, clock, cursor_flush_ms, self.wait_durable)
        self._tasks = Tasks(self._task_failed)
        self._tasks.start(self.cursors.run(), "cursors")
        self._is_closed = False

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a background task of the storage failed", "exception": error})

    # --- topics and producers ---

    def declare_topic(self, topic: TopicIdentity, shards: int) -> None:
        for number in range(shards):
            self._shards.setdefault(ShardKey(topic.id, number), MemoryShard(topic, number))

    async def declare_lost_offsets(self, topic: TopicIdentity, gaps: Sequence[DeclaredGap]) -> None:
        for gap in gaps:
            shard = self._shards.setdefault(gap.key, MemoryShard(topic, gap.key.shard))
            shard.visible = max(shard.visible, gap.end)

    def uncommitted(self, topic_id: int, shards: int) -> list[tuple[int, int]]:
        """Always empty: topics in memory have no tables that messages could be missing in."""
        return []

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        for number in range(shards):
            self._shards.pop(ShardKey(topic_id, number), None)

    async def release(self, floors: Mapping[ShardKey, int]) -> None:
        shards = {self._shard(key): floor for key, floor in floors.items()}
        for shard, floor in shards.items():
            if floor > shard.visible:
                raise errors.InvalidInput(f"floor {floor} of {shard.key} is beyond its end {shard.visible}")
        for shard, floor in shards.items():
            shard.drop_below(floor)

    def set_retention(self, topic_id: int, shards: int, bytes_max: int, age_max_ms: int, messages_max: int = 0) -> None:
        """Does nothing: everything is kept until the process ends."""

    async def restore_windows(self, windows: Sequence[tuple[ShardKey, int, SequenceWindow]]) -> None:
        for key, producer_id, window in windows:
            self._producers.restore(key, producer_id, window)

    def open_producer(self, producer_id: int, producer_epoch: int) -> None:
        self._producers.open(producer_id, producer_epoch)

    def last_sequence(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        return self._producers.last_sequence(shard, producer_id, since_epoch)

    def recent_batches(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        return self._producers.recent(shard, producer_id, since_epoch)

    async def wait_durable(self) -> None:
        """Returns at once: there is nothing more durable than memory here."""

    @property
    def row_bytes_max(self) -> int:
        return self._options.batch_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        return self._options.rows_bytes_max

    # --- writes ---

    def has_room(self, size: int) -> bool:
        return True

    async def wait_for_room(self, size: int) -> None:
        """Returns at once: there is no bound."""

    def store_messages(self, shard: ShardKey, messages: bytes, head: BlockHead | None = None) -> Receipt:
        """Stores a block at once; its receipt is completed in the next turn of the loop."""
        if self._is_closed:
            raise _closed_error()
        receipt = Receipt()
        result = self._store_block(self._shard(shard), messages, head or decode_block_head(messages))
        # Settled in the next turn, as in the log: a caller must not come to rely on a result that is there at once.
        self._loop.call_soon(receipt.settle, [result])
        return receipt

    def takes_group(self, size: int, shards: int) -> bool:
        return size <= self.batch_bytes_max

    def store_group(self, shards: Sequence[ShardKey], bodies: Sequence[bytes], group: BlockGroup) -> Receipt:
        if self._is_closed:
            raise _closed_error()
        receipt = Receipt()
        memory_shards = [self._shard(shard) for shard in shards]
        bases, rejected = [shard.visible for shard in memory_shards], dict[int, Duplicate | errors.IcestreamError]()
        for shard, (start, end) in zip(memory_shards, group.shard_ranges(), strict=True):
            for index in range(start, end):
                block = group.block(index, bodies)
                result = self._store_block(shard, block, decode_block_head(block))
                if isinstance(result, Duplicate | errors.IcestreamError):
                    rejected[index] = result
        results: list[Result] = [PlacedGroup(bases, self._batches, rejected)]
        self._loop.call_soon(receipt.settle, results)
        return receipt

    def _store_block(self, shard: MemoryShard, messages: bytes, head: BlockHead) -> Result:
        """Stores a block unless it is a duplicate or out of order; returns the result that the log would give."""
        rows, size, numbering = head
        self._check_size(rows, size, len(messages))
        base = shard.visible
        self._batches += 1
        if numbering is not None:
            try:
                duplicate = self._producers.check(shard.key, numbering, rows)
            except errors.IcestreamError as error:
                return error
            if duplicate is not None:
                return Duplicate(duplicate.base_offset, 0)
            now_us = self._clock.wall_us()
            self._producers.record(shard.key, numbering, rows, base, self._batches, now_us, self._batches)
        shard.add(rows, messages, self._clock.wall_us())
        return Placed(base, self._batches)

    def _check_size(self, rows: int, size: int, received: int) -> None:
        """Raises InvalidInput or MessageTooLarge, as the log does."""
        if size != received:
            raise errors.InvalidInput(f"block header declares {size} bytes, received {received}")
        allowed = self._options.rows_bytes_max if rows > 1 else self._options.batch_bytes_max
        if size > allowed:
            raise too_large(rows, size, allowed)

    def shard_stream(self, shard: ShardKey) -> MemoryShard:
        return self._shard(shard)

    @property
    def log_file_number(self) -> int:
        return 0

    def has_shard(self, shard: ShardKey) -> bool:
        return shard in self._shards

    def _shard(self, key: ShardKey) -> MemoryShard:
        shard = self._shards.get(key)
        if shard is None:
            raise errors.UnknownTopic(f"there is no topic with id {key.topic_id}", hint="was it deleted?")
        return shard

    # --- reads and cursors ---

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream:
        name = TopicName(namespace, topic)
        return await open_subscription_stream(self._store, self.cursors, self._shard, name, subscription)

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
        self._is_closed = True
        await self._tasks.stop()
        await self.cursors.flush()


class MemoryShard:
    """All sections of one shard, in order; the ShardStream of MemoryStorage."""

    def __init__(self, topic: TopicIdentity, number: int) -> None:
        self._shard = Shard(topic, number, Usage())
        self.key = self._shard.key
        self.epoch = self._shard.epoch
        self.visible = 0
        self._sections: list[SectionRead] = []
        self._bases: list[int] = []
        self._followers: list[Callable[[], None]] = []

    @property
    def synced(self) -> int:
        return self.visible

    def add(self, rows: int, body: bytes, now_us: int) -> None:
        """Appends a section and notifies the readers."""
        self._sections.append(SectionRead(self.visible, rows, self._shard.stamp(now_us), self.epoch, body))
        self._bases.append(self.visible)
        self.visible += rows
        for on_visible in self._followers:
            on_visible()

    def drop_below(self, floor: int) -> None:
        """Forgets the sections that end at or below `floor`. The one that holds the floor stays whole, as in a file."""
        count = len(self._bases) if floor >= self.visible else max(bisect_right(self._bases, floor) - 1, 0)
        del self._sections[:count], self._bases[:count]

    def log_start(self) -> int:
        return self._bases[0] if self._bases else self.visible

    async def history_start(self) -> int:
        return self.log_start()

    def gaps(self) -> Sequence[DeclaredGap]:
        return ()

    def keep_read(self, sections: Sequence[SectionRead]) -> None:
        """Nothing is to be kept: everything is in memory."""

    def drop_read(self, start: int, end: int) -> None:
        """See `keep_read`."""

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        sections: list[SectionRead] = []
        index, size = bisect_right(self._bases, offset) - 1, 0
        while 0 <= index < len(self._sections) and offset < self.visible:
            size += len(self._sections[index].body)
            if sections and size > bytes_max:  # at least one section, however large it is
                break
            sections.append(self._sections[index])
            index += 1
        return sections

    async def read(self, offset: int, bytes_max: int, *, cache: bool = False) -> ShardRead:
        if offset < self.log_start():
            raise errors.PositionGone(
                f"offset {offset} of {self.key} was released; the first is {self.log_start()}", hint="start there"
            )
        sections = self.read_hot(offset, bytes_max)
        return ShardRead(sections, [], sections[-1].base_offset + sections[-1].rows if sections else offset)

    async def read_matching(self, offset: int, bytes_max: int, topic_filters: Sequence[str]) -> FilteredRead:
        """All messages, whatever the filters are: memory is not ordered by topics."""
        return FilteredRead(*await self.read(offset, bytes_max))

    async def offset_for_time(self, time_us: int) -> int:
        later = (section.base_offset for section in self._sections if section.append_time_us >= time_us)
        return next(later, self.visible)

    def table_row(self, offset: int) -> TableRow | None:
        return None

    async def offset_after_snapshot(self, snapshot_id: int) -> int:
        raise errors.InvalidInput(
            f"topics in memory have no tables, so there is no snapshot {snapshot_id}", hint="start at an offset"
        )

    def follow(self, on_visible: Callable[[], None]) -> None:
        self._followers.append(on_visible)

    def unfollow(self, on_visible: Callable[[], None]) -> None:
        self._followers.remove(on_visible)


def _closed_error() -> errors.LogClosed:
    return errors.LogClosed("the storage is closed", hint="the broker is shutting down: connect again later")
