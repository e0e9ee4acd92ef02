"""The tables of topics in our own catalog. Which table belongs to which topic, and how far it has come, stands beside
the table's pointer (catalog/topic_rules/binding.py); a commit claims its offsets there.

    the topic has a table        it is loaded, with its positions
    it had one                   nobody gives it another by himself: rows would be missing (`icestream lake adopt`, …)
    it never had one             a table is made and bound in one transaction: a crash leaves both or none. Tables
                                 of many new topics share transactions
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import DetachedRecord, TableRecord, TopicRecord
from icestream.catalog.operations.topic_operations import NewTopicTable
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalogs import topic_table_name
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier, Namespace, check_namespace, identifier
from icestream.iceberg.values import Object
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.offset_ledger import TopicCommit, claim
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import Position, TopicTable

NOT_AGAIN = "`icestream lake adopt`, `bind` or `recreate` gives the topic a table again (docs/lake.md)"


class EmbeddedLedger:
    is_own = True

    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        making: Catalog,
        fixed: tuple[str, ...] | None,
        lease: str = "",
    ) -> None:
        """`making`: the catalog in this process, which shares the store with the one that is asked over HTTP.
        `lease`: the name of the driver's."""
        self._lease = lease
        self._store = store
        self._catalog = catalog
        self._making = making
        self._fixed = fixed

    async def open(self, topic: TopicBacklog) -> TopicTable:
        name = await self._table_of(topic.topic_id)
        if name is None:
            name = await self._made(topic)
        return await self._loaded(topic.topic_id, topic.name, name)

    async def make_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """One sync for all of them, a transaction for each NEW_TABLES_MAX. Empty when one of them cannot be made: each
        is opened by itself then, and only the one in question stops. Raises StorageUnavailable."""
        try:
            return await self._made_together(topics)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError:
            return {}

    async def _made_together(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        named = await asyncio.gather(*(self._table_of(one.topic_id) for one in topics))
        new = {topic.topic_id: topic for topic, name in zip(topics, named, strict=True) if name is None}
        if len(new) < 2:
            return {}
        names = {topic_id: self._name_of(topic) for topic_id, topic in new.items()}
        wanted = [
            NewTopicTable(_log_of(topic), names[topic_id], table_policy.new_layout(topic.policy))
            for topic_id, topic in new.items()
        ]
        for namespace in {one.namespace for one in names.values()}:
            await self._make_namespace(namespace)
        made = await self._making.topics.create_first(wanted)
        return {
            topic_id: TopicTable(topic_id, new[topic_id].name, names[topic_id], done.table, _positions(binding))
            for topic_id, (done, binding) in made.items()
        }

    async def look(self, known: TopicTable) -> TopicTable:
        name = await self._table_of(known.topic_id)
        if name is None:
            raise errors.TopicTableConflict(f"topic {known.topic} has no table any more", hint=NOT_AGAIN)
        found = await self._loaded(known.topic_id, known.topic, name)
        known.__dict__.update(found.__dict__)
        return known

    async def widen(self, known: TopicTable, topic: TopicBacklog) -> TopicTable:
        shards = {one.shard: (one.epoch, one.committed) for one in topic.shards}
        await self._making.topics.widen(known.identifier, known.topic_id, shards)
        return await self.look(known)

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        log = TopicLog(table.topic, table.topic_id, shards)
        await self._making.topics.undo_round(table.identifier, log, snapshot_id)

    def requirements(self, brought: TopicCommit) -> list[Object]:
        found = claim(brought)
        return [found | {"lease": self._lease} if self._lease else found]

    def summary(self, brought: TopicCommit) -> Mapping[str, str]:
        """The catalog writes it (catalog/topic_rules/topic_properties.py)."""
        return {}

    async def note(self, done: Sequence[TopicCommit]) -> Collection[int]:
        """The catalog has."""
        return ()

    # --- looking ---

    async def _table_of(self, topic_id: int) -> Identifier | None:
        key = catalog_keys.topic_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        record = catalog_records.decode(TopicRecord, key, entry)
        return identifier(check_namespace(record.namespace), record.name)

    async def _loaded(self, topic_id: int, topic: str, name: Identifier) -> TopicTable:
        """Positions first: a document that is newer than they are conflicts with nothing."""
        key = catalog_keys.relation_key(name)
        entry = await self._store.get(key)
        record = None if entry is None else catalog_records.decode_relation(key, entry)
        if not isinstance(record, TableRecord) or record.binding is None or record.binding.topic_id != topic_id:
            raise errors.TopicTableConflict(f"{name} does not belong to topic {topic} any more", hint=NOT_AGAIN)
        loaded = await self._catalog.load(name)
        return TopicTable(topic_id, topic, name, tables.load(loaded.metadata), _positions(record.binding))

    # --- making ---

    async def _made(self, topic: TopicBacklog) -> Identifier:
        key = catalog_keys.detached_key(topic.topic_id)
        if (entry := await self._store.get(key)) is not None:
            had = catalog_records.decode(DetachedRecord, key, entry)
            raise errors.TopicTableConflict(
                f"topic {topic.name} had the table {'.'.join((*had.namespace, had.name))} and has none now",
                hint=NOT_AGAIN,
            )
        name = self._name_of(topic)
        await self._make_namespace(name.namespace)
        layout = table_policy.new_layout(topic.policy)
        try:
            # What a retention dropped before there was a table is a declared gap of the log already.
            await self._making.topics.recreate(_log_of(topic), name, [Consent.GAP], layout=layout)
        except errors.AlreadyExists as error:
            if await self._table_of(topic.topic_id) != name:  # else we did, and the answer was lost
                raise errors.TopicTableConflict(error.message, hint=error.hint) from None
        return name

    def _name_of(self, topic: TopicBacklog) -> Identifier:
        return topic_table_name.table_for_topic(TopicName.parse(topic.name), self._fixed)

    async def _make_namespace(self, namespace: Namespace) -> None:
        """With those above it, where they do not exist."""
        for depth in range(1, len(namespace) + 1):
            try:
                await self._making.namespaces.create(namespace[:depth], {})
            except errors.AlreadyExists:
                continue


def _log_of(topic: TopicBacklog) -> TopicLog:
    shards = {one.shard: ShardLog(one.epoch, one.committed, one.synced) for one in topic.shards}
    return TopicLog(topic.name, topic.topic_id, shards)


def _positions(binding: Binding) -> dict[int, Position]:
    return {shard: Position(runs[-1].epoch, runs[-1].next) for shard, runs in binding.runs.items()}
