"""Writes changed cursors to the metadata store: every interval, in as few transactions as possible (hazard 17).

A cursor changes with every ack and is only marked as changed then; its value is read at the moment of the write, one
interval after the first unwritten change. A written cursor never passes the synced offset (hazard 3), so the log is
synced first: otherwise, in the modes without a sync per tick, a crash would redeliver far more than one interval. A
cursor that could not be written stays marked and does not delay others; so does one that had to leave out an ack of a
message that came after that sync. Without changes nothing is written and no timer runs.

Writes and deletions are serialised: a write in flight cannot restore a cursor that is being deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.storage import CursorSource, ShardStream, SubscriptionStream
from icestream.metadata.command import Compare, Delete, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("cursors")

# Leaves room for the comparison, and for the operations written with the cursors: a record of a few hundred bytes.
_OPERATIONS_MAX = limits.METADATA_TXN_OPERATIONS_MAX - 1
_BYTES_MAX = limits.METADATA_TXN_BYTES_MAX - 8 * limits.KIB


class CursorStore:
    """The cursors of all subscriptions of a broker: in memory with their deliveries, written in groups."""

    def __init__(
        self, store: MetadataStore, clock: Clock, interval_ms: int, wait_durable: Callable[[], Awaitable[None]]
    ) -> None:
        """`wait_durable`: waits until the messages that cursors may refer to are durable."""
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._wait_durable = wait_durable
        self._changed: dict[str, CursorSource] = {}
        self._has_changes = asyncio.Event()
        self._first_change_ns = 0  # the time of the first change that is not written
        self._write_lock = asyncio.Lock()

    async def read(self, key: str) -> records.CursorRecord | None:
        """The stored cursor; None if there is none. Raises MetadataDamaged."""
        entry = await self._store.get(key)
        return records.decode(records.CursorRecord, key, entry.value) if entry else None

    def mark(self, source: CursorSource) -> None:
        """Marks a cursor as changed: it is written with the next flush."""
        self._changed[source.cursor_key] = source
        if not self._has_changes.is_set():
            self._start_interval()

    def _start_interval(self) -> None:
        self._first_change_ns = self._clock.monotonic_ns()
        self._has_changes.set()

    async def write(
        self, sources: Iterable[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        """Writes these cursors now, with further operations in the same transaction.

        Returns False if a comparison failed: then nothing was written.
        """
        async with self._write_lock:
            return await self._write({source.cursor_key: source for source in sources}, compare, also)

    async def delete(self, keys: Sequence[str], also: Sequence[Operation], on_deleted: Callable[[], None]) -> None:
        """Deletes cursors, then calls `on_deleted`. The first transaction holds `also`; further ones follow if the keys
        do not fit."""
        async with self._write_lock:
            # `also` holds the record that refers to the cursors. It goes first: a crash after it leaves cursors that
            # belong to nothing, whereas a subscription without its cursors would restart at the beginning.
            first = limits.METADATA_TXN_OPERATIONS_MAX - len(also)
            await self._store.txn([], [*also, *map(Delete, keys[:first])])
            for start in range(first, len(keys), limits.METADATA_TXN_OPERATIONS_MAX):
                chunk = keys[start : start + limits.METADATA_TXN_OPERATIONS_MAX]
                await self._store.txn([], [Delete(key) for key in chunk])
            for key in keys:
                self._changed.pop(key, None)
            on_deleted()

    async def replace(
        self,
        keys: Sequence[str],
        compare: Sequence[Compare],
        operations: Sequence[Operation],
        on_replaced: Callable[[], None],
    ) -> bool:
        """Applies a transaction that writes other cursors at these keys, then calls `on_replaced`.

        Returns False if a comparison failed: then nothing was changed.
        """
        async with self._write_lock:
            if not (await self._store.txn(compare, operations)).held:
                return False
            for key in keys:
                self._changed.pop(key, None)
            on_replaced()
            return True

    async def flush(self) -> None:
        """Writes all cursors that are marked as changed."""
        async with self._write_lock:
            if self._changed:
                await self._write(dict(self._changed), (), ())

    async def _write(
        self, sources: dict[str, CursorSource], compare: Sequence[Compare], also: Sequence[Operation]
    ) -> bool:
        """Writes cursors in as few transactions as possible; the first one has `compare` and `also`.

        Cursors that were not written, for whatever reason, are marked again. Returns False if a comparison failed.
        """
        with suppress(errors.PersistentStorageError):  # the log has stopped: acks of unsynced messages are left out
            await self._wait_durable()
        for key in sources:
            self._changed.pop(key, None)  # before its value is read: a change from now on marks it again
        unwritten, is_applied = dict(sources), True
        refusal: errors.MetadataFull | None = None
        try:
            async with aclosing(self._groups(sources, also)) as groups:
                async for group in groups:
                    try:
                        is_applied = (await self._store.txn(compare, group)).held
                    except errors.MetadataFull as error:
                        if compare or also:
                            raise
                        # Other groups may only overwrite what is there and still fit.
                        refusal = error
                        continue
                    if not is_applied:
                        break
                    _remove_written(group, unwritten)
                    compare = ()  # it guards the first group, which has changed what it compares
        finally:
            for source in unwritten.values():
                # After a failed comparison the caller discards the sources: marking them would write them later.
                if is_applied and not source.is_deleted:
                    self.mark(source)
        if refusal is not None:
            raise refusal
        return is_applied

    async def _groups(
        self, sources: dict[str, CursorSource], also: Sequence[Operation]
    ) -> AsyncGenerator[list[Operation], None]:
        """Groups of operations that fit one transaction each; the first group begins with `also`.

        Yields to the event loop between slices, because encoding many cursors takes long.
        """
        group: list[Operation] = list(also)
        size = 0
        for number, (key, source) in enumerate(sources.items(), 1):
            if not number % limits.CURSOR_SLICE:
                await asyncio.sleep(0)
            if source.is_deleted:
                continue
            value = records.encode(source.cursor())
            if source.is_partial:  # acks of messages that are not synced yet were left out
                self.mark(source)
            cost = len(key.encode()) + len(value)
            if len(group) == _OPERATIONS_MAX or size + cost > _BYTES_MAX:
                yield group
                group, size = [], 0
            group.append(Put(key, value))
            size += cost
        if group:
            yield group

    async def run(self) -> None:
        """Flushes one interval after the first change, until cancelled."""
        while True:
            await self._has_changes.wait()
            # Counted from the first change and not from the last one: a subscription that acks all the time would never
            # be written.
            passed_ns = self._clock.monotonic_ns() - self._first_change_ns
            await self._clock.sleep(max(self._interval_ms / 1000 - passed_ns / 1e9, 0))
            # Before the flush: a change during it begins an interval of its own.
            self._has_changes.clear()
            try:
                await self.flush()
            except errors.IcestreamError as error:
                self._start_interval()
                _log.warning("cursors could not be written; retrying after the next interval", error=str(error))


def _remove_written(group: Sequence[Operation], unwritten: dict[str, CursorSource]) -> None:
    """Removes the cursors of a written group from those that are still to be written."""
    for operation in group:
        if isinstance(operation, Put) and unwritten.pop(operation.key, None) is not None:
            metrics.CURSORS_WRITTEN.value += 1


async def open_subscription_stream(
    store: MetadataStore,
    cursors: CursorStore,
    shard_stream: Callable[[ShardKey], ShardStream],
    name: TopicName,
    subscription: str,
) -> SubscriptionStream:
    """The shards of a topic and the stored cursors of a subscription. Raises UnknownTopic."""
    key = records.topic_key(name)
    entry = await store.get(key)
    if entry is None:
        raise errors.UnknownTopic(f"there is no topic {name}", hint="create it, or publish to it once")
    record = records.decode(records.TopicRecord, key, entry.value)
    stored = [
        await cursors.read(
            records.cursor_key(name, subscription, number, record.shards, is_partitioned=record.is_partitioned)
        )
        for number in range(record.shards)
    ]
    # A cursor of another topic id is left over from a deleted topic of the same name.
    own_cursors = [cursor if cursor and cursor.topic_id == record.id else None for cursor in stored]
    streams = [shard_stream(ShardKey(record.id, number)) for number in range(record.shards)]
    return SubscriptionStream(streams, own_cursors)
