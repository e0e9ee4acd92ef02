"""The storage facade of seed 000: the one way in and out of what is stored.

    store_messages(shard, messages)       a columnar batch becomes durable; the receipt tells its offsets when its ack
                                          may leave. All batches of a loop tick enter the log together
    create_subscription_stream(…)         reads a topic for one subscription, from its stored cursor on
    update_subscription_cursor(cursor)    the cursor changed: it is written with the next flush
    shutdown()                            finishes what was begun, writes cursors, closes

`IcebergStorage` (iceberg_storage.py) keeps messages in the write-ahead log and, with the pipeline, in Iceberg tables;
`MemoryStorage` (memory_storage.py) keeps them in memory. Both pass the same tests. Every front end, and the dead
letters too, go through here: there is no second way.

What storage runs into is a PersistentStorageError: a refusal (nothing was stored), an outcome that is not known, a log
that stopped. What the caller got wrong is InvalidInput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from icestream.broker.records import CursorRecord
from icestream.broker.scan_requests import ScanRequests
from icestream.metadata.command import Compare, Operation
from icestream.model.block import BlockHead
from icestream.model.shard import Gap, ShardKey, Topic
from icestream.wal.receipt import Receipt
from icestream.wal.tail import SectionRead


class ShardRead(NamedTuple):
    """What a read found: sections in order, the first perhaps from before the offset; gaps that were stepped over."""

    sections: list[SectionRead]
    gaps: list[Gap]
    next_offset: int


class ShardStream(Protocol):
    """One shard as a subscription reads it. Pull: nothing is sent that was not asked for."""

    @property
    def key(self) -> ShardKey: ...

    @property
    def visible(self) -> int:
        """Behind the last message that may be delivered."""

    @property
    def synced(self) -> int:
        """Behind the last message that a stored cursor may know."""

    @property
    def epoch(self) -> int: ...

    def earliest(self) -> int:
        """The oldest message that the log holds."""

    async def first(self) -> int:
        """The oldest message that can be read, in whatever tier."""

    def gaps(self) -> Sequence[Gap]: ...

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        """Sections from memory, at once; none when they are not there."""

    async def read(self, offset: int, bytes_max: int, *, keep: bool = False) -> ShardRead:
        """From wherever it is: memory, the log, the table. Raises PositionGone where none of them has it, LakeAway
        while nobody can tell what the table has, TableUnreadable when nobody can read it. `keep`: `read_hot` finds
        what was read for a moment, because its messages are handed out one by one (read_ahead.py)."""

    async def offset_for_time(self, time_us: int) -> int:
        """The smallest offset whose append time is at least this, in whatever tier; the end when there is none."""

    async def offset_behind_snapshot(self, snapshot_id: int) -> int:
        """The first offset that was not in the table when it was made. Raises InvalidInput."""

    def follow(self, on_visible: Callable[[], None]) -> None:
        """Calls back, on the loop, when `visible` has moved."""

    def unfollow(self, on_visible: Callable[[], None]) -> None: ...


class CursorSource(Protocol):
    """A cursor that lives in memory and is asked for its present value when it is to be written."""

    @property
    def cursor_key(self) -> str: ...

    @property
    def is_deleted(self) -> bool:
        """Its subscription is gone, so it must not be written any more."""

    @property
    def is_cut(self) -> bool:
        """The cursor lacks something: acks of messages that are not synced yet."""

    def cursor(self) -> CursorRecord: ...


class SubscriptionStream(NamedTuple):
    """A topic as one subscription reads it: its shards, and the stored cursor of each, None for none."""

    shards: list[ShardStream]
    cursors: list[CursorRecord | None]


class PersistentStorage(Protocol):
    @property
    def desk(self) -> ScanRequests | None:
        """Where the lake process is asked about tables; None where there are none."""

    def declare_topic(self, topic: Topic, shards: int) -> None:
        """Makes the topic known, before it is used."""

    async def begin_behind(self, topic: Topic, gaps: Sequence[Gap]) -> None:
        """Shards of a topic that another node served: each goes on behind its gap, and below it is in its table, or
        nowhere. Synced; nothing happens to a shard that is there already."""

    def uncommitted(self, topic_id: int, shards: int) -> list[tuple[int, int]]:
        """(shard, messages) that are in no table, and go with the topic when it is deleted; none where nothing is."""

    async def forget_topic(self, topic_id: int, shards: int) -> None:
        """The topic is deleted: nothing is stored in it from now on, and what it holds in the log may go."""

    def set_retention(self, topic_id: int, shards: int, bytes_max: int, age_max_ms: int) -> None:
        """What of the topic is kept while it is in no table; 0: all of it. The oldest beyond it become a gap."""

    def open_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Only this epoch of the producer may store numbered batches from now on."""

    def last_sequence(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> int | None:
        """The last number of a producer that is stored in a shard, by its epochs from `since_epoch` on."""

    def recent_batches(self, shard: ShardKey, producer_id: int, since_epoch: int = 0) -> list[tuple[int, int, int]]:
        """(first number, messages, base offset) of its last batches there."""

    async def settle(self) -> None:
        """Until all that has offsets is durable or taken back: only then is what `recent_batches` tells a promise."""

    @property
    def batch_bytes_max(self) -> int:
        """The largest block of more than one message."""

    def store_messages(self, shard: ShardKey, messages: bytes, head: BlockHead | None = None) -> Receipt:
        """A block (block.py) for one shard, and its head where the caller knows it. Raises Refused when nothing is
        stored now, UnknownTopic for a topic that was not declared or is forgotten. What one caller stores in a shard
        is stored in that order: where a batch fails because of the disk, those behind it fail in the same moment."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be stored now, without InFlightFull and before nobody who waits."""

    async def wait_for_room(self, size: int) -> None:
        """Until it is one's turn and there is room. Whoever is let in stores at once, before anything else happens."""

    async def create_subscription_stream(self, namespace: str, topic: str, subscription: str) -> SubscriptionStream: ...

    def shard_stream(self, shard: ShardKey) -> ShardStream:
        """One shard of a topic that was declared."""

    def update_subscription_cursor(self, source: CursorSource) -> None: ...

    async def write_cursors(
        self, sources: Sequence[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        """Writes cursors now, at creation and after a seek, and what belongs to them in the same step. False: a
        comparison did not hold, and nothing was written."""

    async def delete_cursors(
        self, keys: Sequence[str], also: Sequence[Operation] = (), then: Callable[[], None] = lambda: None
    ) -> None:
        """Deletes cursors, and what belongs to them in the same step. `then` tells their sources that they are deleted:
        after it no write that is under way or still to come brings one back."""

    async def flush_cursors(self) -> None:
        """Writes all that have changed."""

    async def shutdown(self) -> None: ...
