"""The tables of topics in our own catalog. Which table belongs to which topic, and how far it has come, stands beside
the table's pointer (catalog/topic/binding.py); a commit claims its offsets there.

    the topic has a table        it is loaded, with its positions
    it had one                   nobody gives it another by himself: rows would be missing (`icestream lake adopt`, …)
    it never had one             a table is made and bound in one transaction: a crash leaves both or none
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from icestream import errors
from icestream.catalog import keys, records
from icestream.catalog.catalog import Catalog
from icestream.catalog.document.values import Object
from icestream.catalog.identifier import Identifier, identifier, namespace_of
from icestream.catalog.records import PartedRecord, TableRecord, TopicRecord
from icestream.catalog.table import table as tables
from icestream.catalog.topic.consequence import Consent, ShardLog, TopicLog
from icestream.metadata.store import MetadataStore
from icestream.model.backlog import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.bookkeeping import TopicRound, claim
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import Position, TopicTable
from icestream.warehouse import table_name
from icestream.warehouse.catalog import TableCatalog

NOT_AGAIN = "`icestream lake adopt`, `bind` or `recreate` gives the topic a table again (docs/lake.md)"


class OwnBooks:
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

    async def look(self, known: TopicTable) -> TopicTable:
        name = await self._table_of(known.topic_id)
        if name is None:
            raise errors.TopicTable(f"topic {known.topic} has no table any more", hint=NOT_AGAIN)
        found = await self._loaded(known.topic_id, known.topic, name)
        known.__dict__.update(found.__dict__)
        return known

    async def widen(self, known: TopicTable, topic: TopicBacklog) -> TopicTable:
        shards = {one.shard: (one.epoch, one.committed) for one in topic.shards}
        await self._making.topics.widen(known.identifier, known.topic_id, shards)
        return await self.look(known)

    def requirements(self, brought: TopicRound) -> list[Object]:
        found = claim(brought)
        return [found | {"lease": self._lease} if self._lease else found]

    def summary(self, brought: TopicRound) -> Mapping[str, str]:
        """The catalog writes it (catalog/topic/properties.py)."""
        return {}

    async def note(self, done: Sequence[TopicRound]) -> Collection[int]:
        """The catalog has."""
        return ()

    # --- looking ---

    async def _table_of(self, topic_id: int) -> Identifier | None:
        key = keys.topic_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        record = records.decode(TopicRecord, key, entry)
        return identifier(namespace_of(record.namespace), record.name)

    async def _loaded(self, topic_id: int, topic: str, name: Identifier) -> TopicTable:
        """Positions first: a document that is newer than they are conflicts with nothing."""
        key = keys.relation_key(name)
        entry = await self._store.get(key)
        record = None if entry is None else records.decode_relation(key, entry)
        if not isinstance(record, TableRecord) or record.binding is None or record.binding.topic_id != topic_id:
            raise errors.TopicTable(f"{name} does not belong to topic {topic} any more", hint=NOT_AGAIN)
        positions = {shard: Position(runs[-1].epoch, runs[-1].next) for shard, runs in record.binding.runs.items()}
        loaded = await self._catalog.load(name)
        return TopicTable(topic_id, topic, name, tables.load(loaded.metadata), positions)

    # --- making ---

    async def _made(self, topic: TopicBacklog) -> Identifier:
        key = keys.parted_key(topic.topic_id)
        if (entry := await self._store.get(key)) is not None:
            had = records.decode(PartedRecord, key, entry)
            raise errors.TopicTable(
                f"topic {topic.name} had the table {'.'.join((*had.namespace, had.name))} and has none now",
                hint=NOT_AGAIN,
            )
        name = table_name.table_of(TopicName.parse(topic.name), self._fixed)
        for depth in range(1, len(name.namespace) + 1):
            try:
                await self._making.namespaces.create(name.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        shards = {one.shard: ShardLog(one.epoch, one.committed, one.synced) for one in topic.shards}
        log = TopicLog(topic.name, topic.topic_id, shards)
        try:
            # What a retention dropped before there was a table is a declared gap of the log already.
            await self._making.topics.recreate(log, name, [Consent.GAP], layout=table_policy.new_layout(topic.policy))
        except errors.AlreadyExists as error:
            if await self._table_of(topic.topic_id) != name:  # else we did, and the answer was lost
                raise errors.TopicTable(error.message, hint=error.hint) from None
        return name
