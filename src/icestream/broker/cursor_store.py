"""Writes cursors: all that changed, in as few transactions as their bounds allow, every interval (hazard 17).

A cursor changes with every ack and is only marked for that; what is written is its value at the moment of the write,
one interval after the first change that is not written. It never passes what is synced (hazard 3), so the log is synced
first: otherwise, in the modes without a sync per tick, a crash would repeat far more than one interval. What could not
be written stays marked, and holds up no other; so does what had to leave out an ack of a message that came behind that
sync. Nothing changed: nothing is written, and nothing runs.

One write at a time, deletions too: a cursor that is deleted does not come back by a write that was under way.
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


class CursorStore:
    def __init__(
        self, store: MetadataStore, clock: Clock, interval_ms: int, settle: Callable[[], Awaitable[None]]
    ) -> None:
        """`settle`: until what the cursors may know is durable."""
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._settle = settle
        self._changed: dict[str, CursorSource] = {}
        self._news = asyncio.Event()
        self._changed_ns = 0  # when the first change came that is not written
        self._writing = asyncio.Lock()

    async def read(self, key: str) -> records.CursorRecord | None:
        entry = await self._store.get(key)
        return records.decode(records.CursorRecord, key, entry.value) if entry else None

    def mark(self, source: CursorSource) -> None:
        self._changed[source.cursor_key] = source
        if not self._news.is_set():
            self._wake_up()

    def _wake_up(self) -> None:
        self._changed_ns = self._clock.monotonic_ns()
        self._news.set()

    async def write(
        self, sources: Iterable[CursorSource], compare: Sequence[Compare] = (), also: Sequence[Operation] = ()
    ) -> bool:
        """These, now, and what belongs to them in the same step. False: a comparison did not hold."""
        async with self._writing:
            return await self._write({one.cursor_key: one for one in sources}, compare, also)

    async def delete(self, keys: Sequence[str], also: Sequence[Operation], then: Callable[[], None]) -> None:
        """The first step holds `also`; where the keys are too many for it, others follow."""
        async with self._writing:
            first = limits.METADATA_TXN_OPERATIONS_MAX - len(also)
            await self._store.txn([], [*also, *map(Delete, keys[:first])])
            for at in range(first, len(keys), limits.METADATA_TXN_OPERATIONS_MAX):
                await self._store.txn([], [Delete(key) for key in keys[at : at + limits.METADATA_TXN_OPERATIONS_MAX]])
            for key in keys:
                self._changed.pop(key, None)
            then()

    async def flush(self) -> None:
        """All that are marked."""
        async with self._writing:
            if self._changed:
                await self._write(dict(self._changed), (), ())

    async def _write(
        self, sources: dict[str, CursorSource], compare: Sequence[Compare], also: Sequence[Operation]
    ) -> bool:
        with suppress(errors.PersistentStorageError):  # the log has stopped: what is not synced is left out
            await self._settle()
        for key in sources:
            self._changed.pop(key, None)  # before its value is taken: a change from now on counts again
        left, held = dict(sources), True
        refused: errors.MetadataFull | None = None
        try:
            async with aclosing(self._groups(sources, also)) as groups:
                async for group in groups:
                    try:
                        held = (await self._store.txn(compare, group)).held
                    except errors.MetadataFull as error:
                        if compare or also:
                            raise
                        refused = error
                        continue
                    if not held:
                        break
                    _written(group, left)
                    compare = ()
        finally:
            for source in left.values():
                if held and not source.is_deleted:
                    self.mark(source)
        if refused is not None:
            raise refused
        return held

    async def _groups(
        self, sources: dict[str, CursorSource], also: Sequence[Operation]
    ) -> AsyncGenerator[list[Operation], None]:
        """Pieces that fit one transaction each; the first has what belongs to the cursors. Others have their turn
        between slices of them."""
        group: list[Operation] = list(also)
        size = 0
        for number, (key, source) in enumerate(sources.items(), 1):
            if not number % limits.CURSOR_SLICE:
                await asyncio.sleep(0)
            if source.is_deleted:
                continue
            value = records.encode(source.cursor())
            if source.is_cut:
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
        """Flushes one interval after the first change, again and again."""
        while True:
            await self._news.wait()
            passed_ns = self._clock.monotonic_ns() - self._changed_ns
            await self._clock.sleep(max(self._interval_ms / 1000 - passed_ns / 1e9, 0))
            self._news.clear()
            try:
                await self.flush()
            except errors.IcestreamError as error:
                self._wake_up()
                _log.warning("cursors could not be written; they are tried again", error=str(error))


def _written(group: Sequence[Operation], left: dict[str, CursorSource]) -> None:
    for one in group:
        if isinstance(one, Put) and left.pop(one.key, None) is not None:
            metrics.CURSORS_WRITTEN.value += 1


# Room for the comparison, and for what belongs to the cursors: a record of a few hundred bytes.
_OPERATIONS_MAX = limits.METADATA_TXN_OPERATIONS_MAX - 1
_BYTES_MAX = limits.METADATA_TXN_BYTES_MAX - 8 * limits.KIB


async def open_subscription_stream(
    store: MetadataStore,
    cursors: CursorStore,
    shard_of: Callable[[ShardKey], ShardStream],
    name: TopicName,
    subscription: str,
) -> SubscriptionStream:
    """The shards of a topic and the stored cursors of a subscription, as far as they are this topic's."""
    key = records.topic_key(name)
    entry = await store.get(key)
    if entry is None:
        raise errors.UnknownTopic(f"there is no topic {name}", hint="create it, or publish to it once")
    record = records.decode(records.TopicRecord, key, entry.value)
    found = [
        await cursors.read(
            records.cursor_key(name, subscription, number, record.shards, is_partitioned=record.is_partitioned)
        )
        for number in range(record.shards)
    ]
    known = [cursor if cursor and cursor.topic_id == record.id else None for cursor in found]
    return SubscriptionStream([shard_of(ShardKey(record.id, number)) for number in range(record.shards)], known)
