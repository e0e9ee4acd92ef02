"""What durable sessions need of a storage: the calls of `PersistentStorage` (broker/storage.py) that they use.

Protocols, so that a storage needs no adapter, and an external store without a streaming API can be one (R10): `read` is
pulled, and `visible` is all that a reader has to be told. An iterator is a position in one shard (R02); replication is
the storage's business (R01).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from icestream.model.block_group import BlockGroup
from icestream.model.filtered_rows import FilteredSection
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.wal.receipt import Receipt
from icestream.wal.tail import SectionRead


class RowsRead(Protocol):
    """The result of a read: sections in order, the first may begin before the requested offset; skipped gaps."""

    @property
    def sections(self) -> list[SectionRead]: ...

    @property
    def gaps(self) -> list[DeclaredGap]: ...

    @property
    def next_offset(self) -> int: ...


class MatchingRowsRead(Protocol):
    """The result of a read with topic filters: what is below `next_offset` is in it or does not match."""

    @property
    def sections(self) -> Sequence[SectionRead | FilteredSection]: ...

    @property
    def gaps(self) -> Sequence[DeclaredGap]: ...

    @property
    def next_offset(self) -> int: ...


class ShardSource(Protocol):
    """One shard, read by offset through all tiers."""

    @property
    def visible(self) -> int:
        """The offset after the last message that may be delivered."""

    @property
    def synced(self) -> int:
        """The offset after the last message that a stored position may refer to."""

    def log_start(self) -> int:
        """The oldest offset that the log still holds."""

    async def history_start(self) -> int:
        """The oldest offset that can be read from any tier."""

    async def read(self, offset: int, bytes_max: int) -> RowsRead:
        """Reads from `offset` on. Raises PositionGone if no tier has the offset."""

    async def read_matching(self, offset: int, bytes_max: int, topic_filters: Sequence[str]) -> MatchingRowsRead:
        """Reads as `read`; may leave out rows that no filter matches. A storage that cannot choose returns all rows."""

    async def offset_for_time(self, time_us: int) -> int:
        """The smallest offset whose append time is at least this; the end if there is none."""


class DurableStorage(Protocol):
    """Stores and reads the messages of shards, and the state of sessions in shards of its own."""

    def store_group(self, shards: Sequence[ShardKey], bodies: Sequence[bytes], group: BlockGroup) -> Receipt:
        """Stores blocks in several shards in one record: all of them or none."""

    @property
    def log_file_number(self) -> int:
        """The number of the file that is written now; it rises. 0 for a storage without files."""

    def shard_stream(self, shard: ShardKey) -> ShardSource:
        """Raises UnknownTopic for a shard that is not declared."""

    async def wait_durable(self) -> None:
        """Waits until everything that has offsets is durable."""

    async def release(self, floors: Mapping[ShardKey, int]) -> None:
        """Everything below these offsets is not needed any more."""
