"""RetainedLog: the retained messages of a node in a shard of the state topic (ADR 60).

    open      folds the transactions of the shard into the set
    write     appends what changed since the last call: values first, then the applied offsets, in blocks of bounded
              size. An applied offset without its values would lose them; values without it are folded again
    compact   writes every value again when the shard is longer than SESSION_LOG_FACTOR times the live values, or its
              begin holds log files that others have filled since; then everything before is released
    forget    drops the values of erased rows, and compacts: nothing of them is in the shard any more. If the storage
              refuses that, the values are put back

Each value is taken when its block is made, so a newer one is never followed by an older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from icestream import errors, limits
from icestream.durable.retained import RetainedSet
from icestream.durable.session_records import (
    AnyRecord,
    RetainedApplied,
    RetainedValue,
    decode_transaction,
    encode_transaction,
)
from icestream.durable.shard_storage import DurableStorage
from icestream.model.block import NOT_NUMBERED, decode_block_head, iter_blocks
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey
from icestream.wal.appender import PlacedGroup


class RetainedLog:
    """The retained set of a node and its log."""

    def __init__(self, storage: DurableStorage, shard: ShardKey, values: RetainedSet) -> None:
        self.values = values
        self._storage = storage
        self._shard = shard
        self._writing = asyncio.Lock()  # beats and backups write
        self._held_bytes = 0
        self._file_number = 0  # of the last compaction; 0: what a start has read

    async def open(self) -> None:
        """Folds the shard. Raises LogDamaged for a block that is not a transaction."""
        stream = self._storage.shard_stream(self._shard)
        offset = stream.log_start()
        while offset < stream.visible:
            read = await stream.read(offset, limits.SESSION_LOG_READ_BYTES)
            for section in read.sections:
                position = section.base_offset
                for block in iter_blocks(section.body):
                    if position >= offset:
                        self._held_bytes += block.block_bytes
                        try:
                            self.values.apply(decode_transaction(block))
                        except errors.DecodeError as error:
                            raise errors.LogDamaged(
                                f"the block at offset {position} of the retained messages cannot be read: "
                                f"{error.message}",
                                hint="a newer version of Icestream may have written it: use that version",
                            ) from error
                    position += block.rows
            offset = read.next_offset

    async def write(self) -> None:
        """Appends what changed. A storage that takes nothing now gets it with the next call."""
        async with self._writing:
            await self._write()

    async def forget(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> int:
        """Drops the values of erased rows for good; returns how many. Raises NotReady if the storage takes nothing now:
        then the set has them again, as the log does."""
        async with self._writing:
            values = self.values.forget(topic_id, places)
            is_compacted = False
            try:
                is_compacted = not values or await self._compact()
            finally:
                # Otherwise the next erasure and its check would not hear of values that the log still has.
                if not is_compacted:
                    self.values.put_back(values)
            if not is_compacted:
                raise errors.NotReady("the retained messages of MQTT cannot be written again now", hint="erase again")
            return len(values)

    async def _write(self) -> None:
        records = self.values.take_changes()
        try:
            await self._append(records)
        except errors.Refused:
            self.values.keep_changes(records)
            return
        live = self.values.held_bytes + limits.MQTT_PACKET_OVERHEAD_BYTES * len(self.values)
        is_long = self._held_bytes > limits.SESSION_LOG_FACTOR * live + limits.SESSION_LOG_SLACK_BYTES
        # Of large sets the files that a compaction itself fills do not count.
        own_files = 4 * live // limits.LOG_FILE_BYTES_DEFAULT
        is_old = self._held_bytes and self._storage.log_file_number > self._file_number + 2 + own_files
        if is_long or is_old:
            await self._compact()

    async def _compact(self) -> bool:
        start, file_number = self._storage.shard_stream(self._shard).visible, self._storage.log_file_number
        before = self._held_bytes
        topics = self.values.topics()
        applied = [RetainedApplied(0, 0, *key, offset) for key, offset in self.values.applied.items()]
        values = (value for topic in topics if (value := self.values.value(topic)) is not None)
        try:
            await self._append(values)
            # The offsets of before: values that changed since are folded again from their rows.
            await self._append(applied)
            await self._storage.wait_durable()
            await self._storage.release({self._shard: start})
        except errors.Refused:
            return False
        self._held_bytes -= before
        self._file_number = file_number
        return True

    async def _append(self, records: Iterable[AnyRecord]) -> None:
        for part in transactions(records):
            block = encode_transaction(part)
            rows = decode_block_head(block).rows
            group = BlockGroup([len(block)], [rows], [NOT_NUMBERED], [0], [NOT_NUMBERED], [1])
            (result,) = await self._storage.store_group([self._shard], [block], group)
            assert isinstance(result, PlacedGroup)
            self._held_bytes += len(block)


def transactions(records: Iterable[AnyRecord]) -> Iterator[list[AnyRecord]]:
    """The records in transactions of bounded size."""
    part: list[AnyRecord] = []
    size = 0
    for record in records:
        part.append(record)
        size += limits.MQTT_PACKET_OVERHEAD_BYTES
        if isinstance(record, RetainedValue):
            size += len(record.payload) + len(record.properties) + len(record.topic)
        if size >= limits.RETAINED_BLOCK_BYTES or len(part) >= limits.SESSION_BLOCK_RECORDS:
            yield part
            part, size = [], 0
    if part:
        yield part
