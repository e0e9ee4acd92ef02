"""Iterators: a shard, a position in it, and a topic filter. Pulled, serialisable, never a file or a snapshot (R19).

    bytes     msgpack array [version 1, topic id, shard, position, filter]; anything else is a DecodeError

Position p: every row below p was handed out or does not match; the next row has an offset of at least p. An offset is
assigned once, and whatever a reader may see lies below a promise that is on disk (wal/format.py), so every message that
is written after a reader holds or stores p gets an offset of at least p (R12): across crashes, restarts, another node,
and clocks that go back, because no clock takes part. `next_rows` reads whichever tier has the position, so an iterator
knows nothing of rotation, commits and compaction (R13).

The topic of a row is its key. A row of a native producer, whose key may be anything, has the topic `native_topic`
unless its key is a topic name (mqtt/topics.py).

The filter goes along with each read, so that the table is read only where it may match (`read_matching`). The position
steps over what was left out, as over what does not match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from icestream import errors, limits
from icestream.durable.shard_storage import DurableStorage, ShardSource
from icestream.model import envelope
from icestream.model.block import Block, iter_blocks
from icestream.model.filtered_rows import FilteredSection
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.mqtt.topics import check_filter, matches, row_topic
from icestream.wal.tail import SectionRead

VERSION: Final = 1
_INT64_MAX: Final = 2**63 - 1
_Fields = tuple[
    Annotated[int, Meta(ge=VERSION, le=VERSION)],
    Annotated[int, Meta(ge=1, le=_INT64_MAX)],
    Annotated[int, Meta(ge=0, le=2**31 - 1)],
    Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)],
    Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TEXT_BYTES_MAX)],
]
_decoder: Final = msgspec.msgpack.Decoder(_Fields)


class ShardIterator(NamedTuple):
    """Where a reader of one shard is, and what it wants to see."""

    shard: ShardKey
    position: int
    filter: str

    def encode(self) -> bytes:
        """The iterator as bytes, for another process or another time."""
        return msgspec.msgpack.encode((VERSION, *self.shard, self.position, self.filter))

    @classmethod
    def decode(cls, data: bytes) -> ShardIterator:
        """Raises DecodeError for bytes that are not an iterator."""
        try:
            _, topic_id, shard, position, topic_filter = _decoder.decode(data)
            check_filter(topic_filter)
        except (msgspec.MsgspecError, UnicodeDecodeError, errors.PacketRefused) as error:
            raise errors.DecodeError(f"not an iterator: {error}") from None
        return cls(ShardKey(topic_id, shard), position, topic_filter)


class IteratedRow(NamedTuple):
    """A row that matches, in its block."""

    offset: int
    topic: str
    block: Block
    row: int
    append_time_us: int


class IteratedBatch(NamedTuple):
    """Rows in the order of their offsets, the declared gaps that were stepped over, and where to go on.

    No rows and a moved iterator: nothing matched so far. The same iterator: nothing more is visible now.
    """

    rows: list[IteratedRow]
    gaps: Sequence[DeclaredGap]
    iterator: ShardIterator


async def iterator_at_end(storage: DurableStorage, shard: ShardKey, topic_filter: str) -> ShardIterator:
    """An iterator behind everything that is visible now; what is below is synced, so it may be stored (hazard 56)."""
    end = storage.shard_stream(shard).visible
    await storage.wait_durable()
    return ShardIterator(shard, end, topic_filter)


async def iterator_at_time(storage: DurableStorage, shard: ShardKey, topic_filter: str, time_us: int) -> ShardIterator:
    """An iterator at the first row that was appended at this time or later; the time itself is included (R19)."""
    return ShardIterator(shard, await storage.shard_stream(shard).offset_for_time(time_us), topic_filter)


async def iterator_at_start(storage: DurableStorage, shard: ShardKey, topic_filter: str) -> ShardIterator:
    """An iterator at the oldest row that any tier has: where a reader goes on whose position is gone (R27)."""
    return ShardIterator(shard, await storage.shard_stream(shard).history_start(), topic_filter)


async def next_rows(
    source: ShardSource, iterator: ShardIterator, native_topic: str, bytes_max: int = limits.ITERATOR_READ_BYTES
) -> IteratedBatch:
    """Reads the next part of the shard; the filter is always applied to the topic itself (hazard 70).

    Raises PositionGone if retention removed the position, LakeAway or TableUnreadable while the table cannot be read.
    """
    if iterator.position >= source.visible:
        return IteratedBatch([], (), iterator)
    # `#` leaves out next to nothing, and without a filter the read is shared with all other readers.
    filters = () if iterator.filter == "#" else (iterator.filter,)
    read = await source.read_matching(iterator.position, bytes_max, filters)
    rows = list(_matching_rows(read.sections, iterator, native_topic))
    return IteratedBatch(rows, read.gaps, iterator._replace(position=read.next_offset))


def _matching_rows(
    sections: Iterable[SectionRead | FilteredSection], iterator: ShardIterator, native_topic: str
) -> Iterator[IteratedRow]:
    topics: dict[object, str | None] = {}  # by key; None: it does not match. Rows share topics
    for block, offsets, times in section_blocks(sections):
        if offsets[-1] < iterator.position:
            continue
        for row, key in enumerate(block.values(envelope.KEY)):
            if key not in topics:
                name = row_topic(key, native_topic)
                topics[key] = name if matches(iterator.filter, name) else None
            topic = topics[key]
            if topic is not None and offsets[row] >= iterator.position:
                yield IteratedRow(offsets[row], topic, block, row, times[row])


def section_blocks(
    sections: Iterable[SectionRead | FilteredSection],
) -> Iterator[tuple[Block, Sequence[int], Sequence[int]]]:
    """The blocks of a read, with the offset and the append time of each of their rows."""
    for section in sections:
        if isinstance(section, FilteredSection):
            offsets, times = section.offsets, section.append_times_us
        else:
            offsets = range(section.base_offset, section.base_offset + section.rows)
            times = [section.append_time_us] * section.rows
        first = 0
        for block in iter_blocks(section.body):
            end = first + block.rows
            yield block, offsets[first:end], times[first:end]
            first = end
