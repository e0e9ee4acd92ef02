"""Compares the log with tables whose records could not be read at the start, once they can be (hazards 3, 5).

    closed    the topic takes no messages: they might get offsets that its table has already
    open      the record was read, or deleted, and the log reaches as far as the table
    behind    the record was read, and the log ends before the table: the topic stays closed; the next start shows how
              to repair it

A closed topic gets no messages, so the end of its log is that of the start, however late the comparison happens.
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
from icestream.processes.node.stored_positions import CommittedEnds, committed_ends
from icestream.runtime.tasks import Tasks

_log = get_logger("server")


class DeferredTableChecks:
    def __init__(self, store: MetadataStore, storage: IcebergStorage, unread: Mapping[str, int]) -> None:
        """`unread`: the topic ids of unreadable records, by record key."""
        self._store = store
        self._storage = storage
        self._unread = dict(unread)
        self._behind: set[int] = set()  # topic ids
        self._tasks = Tasks(self._task_failed)
        for key, topic_id in self._unread.items():
            reason = f"the table record {key} cannot be read: it is unknown how far the log must reach"
            storage.closed[topic_id] = errors.StorageUnavailable(reason, hint="repair the record or drop the table")

    def start(self) -> None:
        for prefix in (catalog_keys.RELATIONS, FOREIGN_TABLES):
            if any(key.startswith(prefix) for key in self._unread):
                self._tasks.start(self._follow(prefix), f"deferred table checks {prefix}")

    async def stop(self) -> None:
        await self._tasks.stop()

    def _task_failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "deferred table checks have stopped", "exception": error}
        )

    async def _follow(self, prefix: str) -> None:
        """Until every record with the prefix was read."""
        changes = self._store.watch(prefix, await self._store.revision())
        await self._check_readable(prefix)
        while any(key.startswith(prefix) for key in self._unread):
            change = await anext(changes)
            if isinstance(change, Resync) or any(event.key in self._unread for event in change.events):
                await self._check_readable(prefix)

    async def _check_readable(self, prefix: str) -> None:
        for key in [key for key in self._unread if key.startswith(prefix)]:
            entry = await self._store.get(key)
            try:
                committed = committed_ends(key, entry) if entry is not None else CommittedEnds(0, {})
            except errors.MetadataDamaged:
                continue
            self._compare(self._unread.pop(key), committed)

    def _compare(self, topic_id: int, committed: CommittedEnds) -> None:
        """Opens the topic if its log reaches as far as the table. A table of another topic is ignored."""
        ends = committed.ends if committed.topic_id == topic_id else {}
        behind = [(shard, end) for shard, end in ends.items() if end > self._end(ShardKey(topic_id, shard))]
        if not behind:
            if (
                topic_id not in self._behind and topic_id not in self._unread.values()
            ):  # the topic may have another unread record
                self._storage.closed.pop(topic_id, None)
                _log.info("topic reopened: its table record is readable again", topic_id=topic_id)
            return
        self._behind.add(topic_id)
        (shard, end), *_ = behind
        reason = f"shard {shard} ends at offset {self._end(ShardKey(topic_id, shard))} in the log, its table at {end}"
        hint = "the log is older than the table: restart the broker, which shows how to repair it"
        self._storage.closed[topic_id] = errors.StorageUnavailable(reason, hint=hint)
        _log.error("topic stays closed: its log ends before its table", topic_id=topic_id, reason=reason, hint=hint)

    def _end(self, key: ShardKey) -> int:
        shard = self._storage.log.state.shards.get(key)
        return max(shard.assigned, shard.reserved) if shard is not None else 0
