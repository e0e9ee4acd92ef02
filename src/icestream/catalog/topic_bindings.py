"""Which table belongs to which topic, by the records of the metadata store alone: no file is read or written.

The broker uses it where a topic is deleted, the catalog's operations wherever a topic is looked up. It is the one place
that knows what a topic leaves behind in the catalog.

Releasing the table of a deleted topic takes two steps, because detaching it writes a metadata file, which the broker
does not do (hazard 49):

    release     in the transaction that ends the deletion: a DeletedTableRecord says which table the topic had and what
                becomes of it. Until the next step nothing but the topic's name in the table's properties is wrong
    clean-up    the lake process detaches, drops or purges the table (cleanup/deleted_topic_tables.py)

What the table was then is kept for a while: the topic can come back to it (ADR 74).
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import DeletedTableRecord, DetachedRecord, TopicTableRecord
from icestream.iceberg.identifier import Identifier, check_namespace, identifier
from icestream.metadata.command import Absent, AtRevision, Compare, Delete, DeletePrefix, Operation, Put, PutWithTtl
from icestream.metadata.store import MetadataStore
from icestream.model.topic_deletion_policy import DeletedTablePolicy


class TopicBindings:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find_table(self, topic_id: int) -> Identifier | None:
        """Returns the name of the topic's table; None if it has none."""
        key = catalog_keys.topic_key(topic_id)
        entry = await self._store.get(key)
        return None if entry is None else table_identifier(catalog_records.decode(TopicTableRecord, key, entry))

    async def find_detached(self, topic_id: int) -> DetachedRecord | None:
        """Returns the table that a topic without a table had before; None if it never had one, or has one."""
        key = catalog_keys.detached_key(topic_id)
        entry = await self._store.get(key)
        return None if entry is None else catalog_records.decode(DetachedRecord, key, entry)

    async def is_released(self, topic_id: int) -> bool:
        """Returns whether the topic was deleted and the clean-up has not dealt with its table yet."""
        return await self._store.get(catalog_keys.deleted_topic_key(topic_id)) is not None

    async def find_former(self, topic_id: int) -> DetachedRecord | None:
        """Returns the table that a deleted topic had, while the topic can come back to it; None without one."""
        key = catalog_keys.former_key(topic_id)
        entry = await self._store.get(key)
        return None if entry is None else catalog_records.decode(DetachedRecord, key, entry)

    @staticmethod
    def plan_return(topic_id: int, former: DetachedRecord) -> list[Operation]:
        """What a returning topic adds to its transaction: its table is one that it was detached from."""
        return [
            Put(catalog_keys.detached_key(topic_id), catalog_records.encode(former)),
            Delete(catalog_keys.former_key(topic_id)),
        ]

    async def plan_return_of_offsets(self, topic_id: int) -> list[Operation]:
        """What a returning topic adds to its transaction: its first kept and erased offsets stay for good again
        (hazards 80, 86)."""
        keys = catalog_keys.retained_key(topic_id), catalog_keys.erased_key(topic_id)
        entries = [(key, await self._store.get(key)) for key in keys]
        return [Put(key, entry.value) for key, entry in entries if entry is not None]

    async def release_table(
        self, topic_id: int, end: DeletedTablePolicy, operations: Sequence[Operation] = (), grace_ms: int = 0
    ) -> None:
        """Removes everything that the catalog has recorded of a deleted topic, and hands its table to the clean-up.

        `end`: what becomes of the table. `operations` are applied in the same transaction. `grace_ms`: how long the
        topic can come back.
        """
        key = catalog_keys.topic_key(topic_id)
        is_applied = False
        # Again if a table of the topic is created, renamed or dropped meanwhile: the record must name the current one.
        while not is_applied:
            entry = await self._store.get(key)
            detached = await self.find_detached(topic_id)
            retained_key = catalog_keys.retained_key(topic_id)
            retained = await self._store.get(retained_key)
            erased_key = catalog_keys.erased_key(topic_id)
            erased = await self._store.get(erased_key)
            comparison: Compare = Absent(key)
            released: list[Operation] = [
                Delete(catalog_keys.detached_key(topic_id)),
                DeletePrefix(catalog_keys.marks_prefix(topic_id)),
                # Of a table in another catalog nothing else says that it is the topic's.
                Delete(catalog_keys.foreign_table_key(topic_id)),
                Delete(catalog_keys.structure_key(topic_id)),
                # A topic that comes back begins where it began.
                PutWithTtl(retained_key, retained.value, grace_ms)
                if retained is not None and grace_ms
                else Delete(retained_key),
                PutWithTtl(erased_key, erased.value, grace_ms)
                if erased is not None and grace_ms
                else Delete(erased_key),
                Delete(catalog_keys.retention_key(topic_id)),
                Delete(catalog_keys.consumers_key(topic_id)),
            ]
            if entry is not None:
                table = catalog_records.decode(TopicTableRecord, key, entry)
                record = DeletedTableRecord(table.namespace, table.name, table.uuid, end, grace_ms)
                released.append(Put(catalog_keys.deleted_topic_key(topic_id), catalog_records.encode(record)))
                comparison = AtRevision(key, entry.mod_revision)
            elif detached is not None and grace_ms:
                released.append(keep_former(topic_id, detached, grace_ms))
            is_applied = (await self._store.txn([comparison], [*operations, *released])).held


def keep_former(topic_id: int, detached: DetachedRecord, grace_ms: int) -> Operation:
    """Keeps what the table of a deleted topic was, as long as the topic can come back."""
    return PutWithTtl(catalog_keys.former_key(topic_id), catalog_records.encode(detached), grace_ms)


def table_identifier(record: TopicTableRecord) -> Identifier:
    return identifier(check_namespace(record.namespace), record.name)
