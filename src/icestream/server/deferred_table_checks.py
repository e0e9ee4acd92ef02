"""Tables whose records a start could not read: the log is held against them as soon as they can be (hazards 3, 5).

    closed    the topic takes no message: what it got now might have offsets that its table knows already
    open      the record was read, or is gone, and the log reaches as far as the table
    behind    it was read, and the log ends before the table: the topic stays closed, and the next start says what can
              be done

So the end of the log is the one that the start found, however late the comparison comes, and over any number of starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from icestream import errors
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_keys import FOREIGN_TABLES
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.runtime.tasks import Tasks
from icestream.server.stored_positions import CommittedEnds, committed_ends

_log = get_logger("server")


class DeferredTableChecks:
    def __init__(self, store: MetadataStore, storage: IcebergStorage, unread: Mapping[str, int]) -> None:
        """`unread`: the topics of records, by their keys."""
        self._store = store
        self._storage = storage
        self._unread = dict(unread)
        self._behind: set[int] = set()  # topics
        self._tasks = Tasks(self._failed)
        for key, topic_id in self._unread.items():
            reason = f"the record of its table cannot be read, so nobody knows how far the log must reach: {key}"
            storage.closed[topic_id] = errors.StorageUnavailable(reason, hint="mend the record or drop the table")

    def start(self) -> None:
        for prefix in (catalog_keys.RELATIONS, FOREIGN_TABLES):
            if any(key.startswith(prefix) for key in self._unread):
                self._tasks.start(self._follow(prefix), f"late tables below {prefix}")

    async def stop(self) -> None:
        await self._tasks.stop()

    def _failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "tables that could not be read are not looked at any more", "exception": error}
        )

    async def _follow(self, prefix: str) -> None:
        """Until each was read."""
        changes = self._store.watch(prefix, await self._store.revision())
        await self._look(prefix)
        while any(key.startswith(prefix) for key in self._unread):
            found = await anext(changes)
            if isinstance(found, Resync) or any(event.key in self._unread for event in found.events):
                await self._look(prefix)

    async def _look(self, prefix: str) -> None:
        for key in [key for key in self._unread if key.startswith(prefix)]:
            entry = await self._store.get(key)
            try:
                committed = committed_ends(key, entry) if entry is not None else CommittedEnds(0, {})
            except errors.MetadataDamaged:
                continue
            self._compare(self._unread.pop(key), committed)

    def _compare(self, topic_id: int, committed: CommittedEnds) -> None:
        """A table that is another topic's by now says nothing of this one."""
        ends = committed.ends if committed.topic_id == topic_id else {}
        behind = [(shard, end) for shard, end in ends.items() if end > self._end(ShardKey(topic_id, shard))]
        if not behind:
            if topic_id not in self._behind and topic_id not in self._unread.values():  # there may be another record
                self._storage.closed.pop(topic_id, None)
                _log.info("a topic whose table could not be read takes messages again", topic_id=topic_id)
            return
        self._behind.add(topic_id)
        (shard, end), *_ = behind
        reason = f"shard {shard} ends at offset {self._end(ShardKey(topic_id, shard))} in the log, its table at {end}"
        hint = "the log is older than what was committed: start the broker again, it says what can be done"
        self._storage.closed[topic_id] = errors.StorageUnavailable(reason, hint=hint)
        _log.error("a topic takes no messages", topic_id=topic_id, reason=reason, hint=hint)

    def _end(self, key: ShardKey) -> int:
        shard = self._storage.log.state.shards.get(key)
        return max(shard.assigned, shard.reserved) if shard is not None else 0
