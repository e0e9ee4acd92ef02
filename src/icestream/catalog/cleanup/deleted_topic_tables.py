"""Tables of topics that were deleted: they stay, as tables like any other, or are dropped, or purged (hazard 49).

The broker writes down, in the transaction that ends the deletion, which table the topic had and what becomes of it.
Parting them takes a new metadata file, which only the lake process writes; until then nothing but the name of a topic
that is gone is wrong. A crash anywhere begins again: a table that is parted or dropped is the topic's no more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import DeletedTopicRecord
from icestream.catalog.operations.table_operations import TableOperations
from icestream.catalog.operations.topic_operations import TopicOperations
from icestream.iceberg.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.model.topic_deletion_policy import DeletedTablePolicy
from icestream.observability.log import get_logger

_log = get_logger("catalog.partings")


class DeletedTopicTables:
    def __init__(self, store: MetadataStore, topics: TopicOperations, tables: TableOperations) -> None:
        self._store = store
        self._topics = topics
        self._tables = tables

    async def work(self) -> AsyncIterator[None]:
        for key, entry in await self._store.list_all(catalog_keys.DELETED_TOPICS):
            topic_id = int(key.removeprefix(catalog_keys.DELETED_TOPICS))
            end = catalog_records.decode(DeletedTopicRecord, key, entry).end
            table = await self._topics.table_of(topic_id)  # as it is called now
            if table is not None:
                await (self._part(table) if end is DeletedTablePolicy.KEEP else self._drop(table, end))
            await self._store.txn([], [cmd.Delete(catalog_keys.parted_key(topic_id)), cmd.Delete(key)])
            yield

    async def _part(self, table: Identifier) -> None:
        try:
            await self._topics.detach(table)
        except (errors.UnknownTable, errors.MetadataFileMissing, errors.MetadataFileDamaged) as error:
            _log.warning("the table of a deleted topic cannot be parted from it", table=str(table), reason=str(error))
        else:
            _log.info("the table of a deleted topic is like any other now", table=str(table))

    async def _drop(self, table: Identifier, end: DeletedTablePolicy) -> None:
        try:
            await self._tables.drop(table, is_purging=end is DeletedTablePolicy.PURGE, is_forced=True)
        except errors.UnknownTable as error:
            _log.warning("the table of a deleted topic is gone already", table=str(table), reason=str(error))
        else:
            _log.info("the table of a deleted topic is dropped", table=str(table), end=end)
