"""Tables of deleted topics: detached and kept as ordinary tables, or dropped, or purged (hazard 49).

The transaction that ends the deletion of a topic records which table it had and what becomes of it (topic_bindings.py).
Detaching takes a new metadata file, which only the lake process writes. After a crash anywhere the work begins again: a
table that is detached or dropped no longer belongs to the topic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import DeletedTableRecord
from icestream.catalog.operations.table_operations import TableOperations
from icestream.catalog.operations.topic_operations import TopicOperations
from icestream.catalog.topic_bindings import keep_former
from icestream.iceberg.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.model.topic_deletion_policy import DeletedTablePolicy
from icestream.observability.log import get_logger

_log = get_logger("catalog.deleted_topics")


class DeletedTopicTables:
    """Ends the tables of deleted topics as their policies say."""

    def __init__(self, store: MetadataStore, topics: TopicOperations, tables: TableOperations) -> None:
        self._store = store
        self._topics = topics
        self._tables = tables

    async def work(self) -> AsyncIterator[None]:
        """Detaches, drops or purges the table of each deleted topic; yields after each."""
        for key, entry in await self._store.list_all(catalog_keys.DELETED_TOPICS):
            topic_id = int(key.removeprefix(catalog_keys.DELETED_TOPICS))
            deleted = catalog_records.decode(DeletedTableRecord, key, entry)
            end = deleted.end
            table = await self._topics.table_of(topic_id)  # it may have been renamed since
            if table is not None:
                await (self._detach(table) if end is DeletedTablePolicy.KEEP else self._drop(table, end))
            # Last: a crash before it repeats the work, which finds that the table is no longer the topic's.
            detached = await self._topics.find_detached(topic_id)
            former_table: list[cmd.Operation] = []
            if detached is not None and deleted.grace_ms and end is not DeletedTablePolicy.PURGE:
                former_table = [keep_former(topic_id, detached, deleted.grace_ms)]
            await self._store.txn([], [*former_table, cmd.Delete(catalog_keys.detached_key(topic_id)), cmd.Delete(key)])
            yield

    async def _detach(self, table: Identifier) -> None:
        try:
            await self._topics.detach(table)
        except (errors.UnknownTable, errors.MetadataFileMissing, errors.MetadataFileDamaged) as error:
            _log.warning("cannot detach the table of a deleted topic", table=str(table), reason=str(error))
        else:
            _log.info("detached table from deleted topic", table=str(table))

    async def _drop(self, table: Identifier, end: DeletedTablePolicy) -> None:
        try:
            await self._tables.drop(table, is_purging=end is DeletedTablePolicy.PURGE, is_forced=True)
        except errors.UnknownTable as error:
            _log.warning("table of deleted topic does not exist any more", table=str(table), reason=str(error))
        else:
            _log.info("dropped table of deleted topic", table=str(table), end=end)
