"""The storage facade of seed 000: the only way to store and read messages.

    store_messages(shard, messages)       stores a columnar batch; the receipt has its offsets once the ack may be
                                          sent. All batches of a loop tick enter the log together
    create_subscription_stream(…)         reads a topic for one subscription, from its stored cursor on
    update_subscription_cursor(cursor)    marks a cursor as changed: it is written with the next flush
    shutdown()                            completes pending work, writes cursors, closes

`IcebergStorage` (iceberg_storage.py) keeps messages in the write-ahead log and, with the pipeline, in Iceberg tables;
`MemoryStorage` (memory_storage.py) keeps them in memory. Both pass the same contract tests. Every front end, and dead
letters too, use this facade: there is no second way.

Failures of storage are PersistentStorageErrors: a refusal (nothing was stored), an unknown outcome, a log that has
stopped. Mistakes of the caller are InvalidInput.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from icestream.broker.records import CursorRecord
from icestream.broker.scan_requests import ScanRequests
from icestream.metadata.command import Compare, Operation
from icestream.model.block import BlockHead
from icestream.model.block_group import BlockGroup
from icestream.model.filtered_rows import FilteredSection
from icestream.model.shard import DeclaredGap, ShardKey, TopicIdentity
from icestream.wal.producer_sequences import SequenceWindow
from icestream.wal.receipt import Receipt
from icestream.wal.tail import SectionRead


class ShardRead(NamedTuple):
    """The result of a read of one shard.

    `sections`: in order; the first may begin before the requested offset. `gaps`: those that the read skipped, in front
    of the sections.
    """

    sections: list[SectionRead]
    gaps: list[DeclaredGap]
    next_offset: int


class FilteredRead(NamedTuple):
    """The result of a read of one shard with topic filters: everything below `next_offset` is in it or does not match.

    `sections`: in order; the first may begin before the requested offset, and rows may be in them that do not match.
    `gaps`: those below `next_offset` that are recorded, in order.
    """

    sections: Sequence[SectionRead | FilteredSection]
    gaps: Sequence[DeclaredGap]
    next_offset: int


class TableRow(NamedTuple):
    """Where a message stood in the topic's table when it was read from there."""

    snapshot_id: int
    file_path: str
    row_offset: int  # its position in the file, from 0


class ShardStream(Protocol):
    """One shard as a subscription reads it. Reads are pulled; the stream only signals that there is more to read."""

    @property
    def key(self) -> ShardKey: ...

    @property
    def visible(self) -> int:
        """The offset after the last message that may be delivered."""

    @property
    def synced(self) -> int:
        """The offset after the last message that a stored cursor may refer to."""

    @property
    def epoch(self) -> int: ...

    def log_start(self) -> int:
        """The oldest offset that the log still holds."""

    async def history_start(self) -> int:
        """The oldest offset that can be read from any tier."""

    def gaps(self) -> Sequence[DeclaredGap]:
        """The declared gaps of the shard, rising."""

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        """Sections from memory, without waiting; empty if they are not in memory."""

    async def read(self, offset: int, bytes_max: int, *, cache: bool = False) -> ShardRead:
        """Reads from the tier that has the offset: memory, the log, the table.

        `cache`: keeps the result in memory for a short time, where `read_hot` finds it, because its messages are handed
        out one by one (read_ahead.py).

        Raises PositionGone if no tier has the offset, LakeAway while the table cannot be asked, TableUnreadable if its
        rows cannot be read.
        """

    def keep_read(self, sections: Sequence[SectionRead]) -> None:
        """Keeps sections of a read in memory for a short time, where `read_hot` finds them (read_ahead.py)."""

    def drop_read(self, start: int, end: int) -> None:
        """Drops what was kept of [start, end)."""

    async def read_matching(self, offset: int, bytes_max: int, topic_filters: Sequence[str]) -> FilteredRead:
        """Reads as `read`, and may leave out messages whose MQTT topic (mqtt/topics.py) no filter matches: the table's
        part of the history is read where it can match alone. No filter: all messages. The caller applies its filters
        to each row all the same.

        `next_offset` may be beyond all rows, and then nothing below it matches; it moves with every read below
        `visible`. Raises as `read`.
        """

    async def offset_for_time(self, time_us: int) -> int:
        """The smallest offset in any tier whose append time is at least this; the end if there is none."""

    async def offset_after_snapshot(self, snapshot_id: int) -> int:
        """The first offset that is not in this snapshot of the table. Raises InvalidInput."""

    def table_row(self, offset: int) -> TableRow | None:
        """Where the message was read in the table lately; None if it was read elsewhere, or too long ago.

        A hint: another commit may have moved the row since.
        """

    def follow(self, on_visible: Callable[[], None]) -> None:
        """Calls `on_visible` on the loop whenever `visible` has moved."""

    def unfollow(self, on_visible: Callable[[], None]) -> None:
        """Ends the calls of `follow`."""


class CursorSource(Protocol):
    """A cursor that lives in memory and is read when it is due to be written."""

    @property
    def cursor_key(self) -> str: ...

    @property
    def is_deleted(self) -> bool:
        """True once its subscription is deleted: it must not be written any more."""

    @property
    def is_partial(self) -> bool:
        """True if `cursor` leaves out acks of messages that are not synced yet."""

    def cursor(self) -> CursorRecord:
        """The value to write now; never beyond the synced offset (hazard 3)."""


class SubscriptionStream(NamedTuple):
    """A topic as one subscription reads it: its shards, and the stored cursor of each or None."""

    shards: list[ShardStream]
    cursors: list[CursorRecord | None]


class PersistentStorage(Protocol):
    """Stores and reads the messages of all topics, and keeps the cursors of their subscriptions."""

    @property
    def scan_requests(self) -> ScanRequests | None:
        """The queue of scan requests to the lake process; None if topics have no tables."""

    def declare_topic(self, topic: TopicIdentity, shards: int) -> None:
        """Declares a topic and its shards. Required before they are used."""

    async def declare_lost_offsets(self, topic: TopicIdentity, gaps: Sequence[DeclaredGap]) -> None:
        """Starts the shards of a topic that another node served after their gaps; what is below is in the table or
        lost. Synced when it returns. Does nothing for a shard that exists already."""

    def uncommitted(self, topic_id: int, shards: int) -> list[tuple[int, int]]:
        """(shard, messages) that are in no table and would be discarded with the topic; only shards that have some."""

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        """Drops a deleted topic: stores nothing more in it, and releases its part of the log."""

    async def release(self, floors: Mapping[ShardKey, int]) -> None:
        """Lets the log free what is below these offsets of shards that have no table: it is not needed any more.

        Raises InvalidInput, and releases nothing, for an offset beyond the synced one.
        """

    def set_retention(self, topic_id: int, shards: int, bytes_max: int, age_max_ms: int, messages_max: int = 0) -> None:
        """Bounds the messages of the topic that are in no table; 0: no bound. The oldest beyond it become a gap."""

    async def restore_windows(self, windows: Sequence[tuple[ShardKey, int, SequenceWindow]]) -> None:
        """Takes over what producers stored elsewhere, by shard and producer id; durable when it returns."""

    def open_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Refuses numbered batches of every other epoch of this producer from now on."""

    def last_sequence(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        """The last sequence number of a producer that is stored in a shard, by its epochs from `since_epoch` on."""

    def recent_batches(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        """(first sequence, messages, base offset) of the producer's last batches in the shard."""

    async def wait_durable(self) -> None:
        """Waits until everything that has offsets is durable or rolled back. Only then `recent_batches` is final."""

    @property
    def row_bytes_max(self) -> int:
        """The largest block of one message."""

    @property
    def batch_bytes_max(self) -> int:
        """The largest block of more than one message."""

    def store_messages(self, shard: ShardKey, messages: bytes, head: BlockHead | None = None) -> Receipt:
        """Stores a block (block.py) in a shard; `head`: its head, if the caller has decoded it.

        The blocks of one caller are stored in their order: if one fails because of the disk, those behind it fail in
        the same moment. Raises Refused if nothing is stored now, UnknownTopic for a topic that is not declared.
        """

    def takes_group(self, size: int, shards: int) -> bool:
        """True if a group of `size` bytes for so many shards can be stored as one."""

    def store_group(self, shards: Sequence[ShardKey], bodies: Sequence[bytes], group: BlockGroup) -> Receipt:
        """Stores a group of blocks in its shards, each as `store_messages` would; the one result is a PlacedGroup.

        Raises as `store_messages`, for the whole group: then nothing of it is stored.
        """

    def has_room(self, size: int) -> bool:
        """True if so many bytes can be stored now without InFlightFull, and nothing waits in `wait_for_room`."""

    async def wait_for_room(self, size: int) -> None:
        """Waits in order of arrival until there is room. The caller must store at once, without awaiting anything."""

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream: ...

    def shard_stream(self, shard: ShardKey) -> ShardStream:
        """The stream of one shard of a declared topic. Raises UnknownTopic."""

    @property
    def log_file_number(self) -> int:
        """The number of the log file that is written now; it rises. 0 for a storage without files."""

    def has_shard(self, shard: ShardKey) -> bool:
        """True if the shard was declared, in this run or an earlier one."""

    def update_subscription_cursor(self, source: CursorSource) -> None: ...

    async def write_cursors(
        self, sources: Sequence[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        """Writes cursors now, after a creation or a seek, with further operations in the same transaction.

        Returns False if a comparison failed: then nothing was written.
        """

    async def delete_cursors(
        self, keys: Sequence[str], also: Sequence[Operation] = (), on_deleted: Callable[[], None] = lambda: None
    ) -> None:
        """Deletes cursors, with further operations in the same transaction. `on_deleted` marks their sources as
        deleted: after it no write, in flight or later, restores a cursor."""

    async def replace_cursors(
        self,
        keys: Sequence[str],
        compare: Sequence[Compare],
        operations: Sequence[Operation],
        on_replaced: Callable[[], None],
    ) -> bool:
        """Applies one transaction that writes cursors of another topic at these keys. `on_replaced` marks the former
        sources as deleted: after it no write, in flight or later, brings them back.

        Returns False if a comparison failed: then nothing was changed.
        """

    async def flush_cursors(self) -> None:
        """Writes all changed cursors."""

    async def shutdown(self) -> None: ...
