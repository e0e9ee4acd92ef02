"""Deletes a topic for good, in steps that a crash may end anywhere (hazard 49).

    1  the decision     the topic's record goes, a DeletedTopic comes, in one transaction. Its table stays, as a table
                        like any other; that is written down there too, and the lake process parts them. Messages that
                        are in no table are dropped: how many, by shard, stands in the decision
    2  the rest         cursors, then subscriptions, consumers and producers; then what the log holds of it
    3  the end          the DeletedTopic goes

The node whose topic it was begins again with 2 when it finds a DeletedTopic. Nothing in 2 belongs to a topic of the
same name that is created later: that is why it is finished first.
"""

from __future__ import annotations

from icestream import errors
from icestream.broker import records
from icestream.broker.neighbours import Neighbours
from icestream.broker.schema_records import topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.catalog import keys as catalog_keys
from icestream.catalog import records as catalog_records
from icestream.catalog.records import TopicRecord
from icestream.metadata.command import Delete, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName


class TopicDeletion:
    def __init__(self, store: MetadataStore, storage: PersistentStorage, neighbours: Neighbours) -> None:
        self._store = store
        self._neighbours = neighbours
        self._storage = storage
        self._unfinished: dict[TopicName, records.DeletedTopic] = {}

    async def decide(self, name: TopicName, record: records.TopicRecord) -> list[str] | None:
        """The name of the table that stays behind, level by level; None where the topic has none."""
        dropped = self._storage.uncommitted(record.id, record.shards)
        deleted = records.DeletedTopic(
            record.id, name.namespace, name.name, record.shards, record.is_partitioned, dropped, record.owner
        )
        key = records.deleted_topic_key(record.id)
        operations: list[Operation] = [
            Delete(records.topic_key(name)),
            Delete(topic_schema_key(name)),
            Put(key, records.encode(deleted)),
            Delete(catalog_keys.parted_key(record.id)),
        ]
        table = await self._store.get(catalog_keys.topic_key(record.id))
        if table is not None:
            operations.append(Put(catalog_keys.deleted_topic_key(record.id), table.value))
        await self._store.txn([], operations)
        self._unfinished[name] = deleted
        if table is None:
            return None
        left = catalog_records.decode(TopicRecord, catalog_keys.topic_key(record.id), table)
        return [*left.namespace, left.name]

    async def finish(self, name: TopicName) -> None:
        """Nothing to do where no deletion of that name was begun."""
        deleted = self._unfinished.get(name)
        if deleted is not None:
            await self._finish(name, deleted)
            del self._unfinished[name]

    async def check_finished(self, name: TopicName) -> None:
        """Raises NotReady while another node deletes a topic of that name: what it does would reach a new one."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopic, key, entry.value)
            if (deleted.namespace, deleted.name) == (name.namespace, name.name):
                raise errors.NotReady(
                    f"topic {name} is still being deleted by the node that served it", hint="try again in a moment"
                )

    async def finish_all(self) -> None:
        """At a start: what was decided before."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopic, key, entry.value)
            if self._neighbours.is_own(deleted.owner):
                await self._finish(TopicName(deleted.namespace, deleted.name), deleted)

    async def _finish(self, name: TopicName, deleted: records.DeletedTopic) -> None:
        below = f"{name.namespace}/{name.name}/"
        prefix = records.SUBSCRIPTIONS + below
        await self._storage.delete_cursors(
            [
                records.cursor_key(
                    name, key.removeprefix(prefix), shard, deleted.shards, is_partitioned=deleted.is_partitioned
                )
                for key, _ in await self._store.list_all(prefix)
                for shard in range(deleted.shards)
            ]
        )
        for kind in (records.SUBSCRIPTIONS, records.PLANNED_SUBSCRIPTIONS, records.CONSUMERS, records.PRODUCERS):
            await self._store.delete_prefix(kind + below)
        await self._storage.forget_topic(deleted.id, deleted.shards)
        await self._store.delete(records.deleted_topic_key(deleted.id))
