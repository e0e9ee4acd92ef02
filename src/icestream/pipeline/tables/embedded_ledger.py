"""The tables of topics in our own catalog. The binding beside the table's pointer (catalog/topic_rules/binding.py)
records which topic a table belongs to and the next offset of each shard; a commit claims its offsets there.

    the topic has a table        it is loaded, with its positions
    it had one                   it gets no other by itself, because rows would be missing (`icestream lake adopt`, …)
    it never had one             a table is created and bound in one transaction: a crash leaves both or none. The
                                 tables of many new topics share transactions
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import DetachedRecord, TableRecord, TopicTableRecord
from icestream.catalog.operations.topic_operations import NewTopicTable
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalogs import topic_table_name
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier, Namespace, check_namespace
from icestream.iceberg.identifier import identifier as identifier_of
from icestream.iceberg.values import Object
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.offset_ledger import (
    TopicCommit,
    claim_requirement,
    job_claim,
    job_requirement,
)
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import Position, TopicTable

REBIND_HINT = "`icestream lake adopt`, `bind` or `recreate` gives the topic a table again (docs/lake.md)"


class EmbeddedLedger:
    """The ledger of our own catalog."""

    is_embedded = True

    def __init__(
        self,
        store: MetadataStore,
        table_catalog: TableCatalog,
        catalog: Catalog,
        fixed_namespace: tuple[str, ...] | None,
        lease_name: str = "",
    ) -> None:
        """`table_catalog`: loads tables. `catalog`: the same catalog, for what engines cannot ask: bindings of topics.
        `fixed_namespace`: the namespace of all tables, None if each topic's namespace has its own. `lease_name`: of the
        driver's lease."""
        self._lease_name = lease_name
        self._store = store
        self._table_catalog = table_catalog
        self._catalog = catalog
        self._fixed_namespace = fixed_namespace

    async def open(self, topic: TopicBacklog) -> TopicTable:
        identifier = await self._bound_table(topic.topic_id)
        if identifier is None:
            identifier = await self._create(topic)
        return await self._load(topic.topic_id, topic.name, identifier)

    async def find(self, topic_id: int, topic: str) -> TopicTable | None:
        identifier = await self._bound_table(topic_id)
        return None if identifier is None else await self._load(topic_id, topic, identifier)

    async def create_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """Costs one sync for all tables, and a transaction for each NEW_TABLES_MAX. Returns nothing if one of them
        cannot be created: each is opened by itself then, and only that one is halted. Raises StorageUnavailable."""
        try:
            return await self._create_together(topics)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError:
            return {}

    async def _create_together(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """Creates the tables of those topics that have none, if they are at least two. Raises the error of the first
        that fails."""
        bound_tables = await asyncio.gather(*(self._bound_table(topic.topic_id) for topic in topics))
        new_topics = {topic.topic_id: topic for topic, bound in zip(topics, bound_tables, strict=True) if bound is None}
        if len(new_topics) < 2:
            return {}
        identifiers = {topic_id: self._table_identifier(topic) for topic_id, topic in new_topics.items()}
        new_tables = [
            NewTopicTable(_topic_log(topic), identifiers[topic_id], table_policy.new_layout(topic.policy))
            for topic_id, topic in new_topics.items()
        ]
        for namespace in {identifier.namespace for identifier in identifiers.values()}:
            await self._create_namespace(namespace)
        created = await self._catalog.topics.create_first(new_tables)
        return {
            topic_id: TopicTable(
                topic_id, new_topics[topic_id].name, identifiers[topic_id], committed.table, _positions(binding)
            )
            for topic_id, (committed, binding) in created.items()
        }

    async def refresh(self, table: TopicTable) -> TopicTable:
        identifier = await self._bound_table(table.topic_id)
        if identifier is None:
            raise errors.TopicTableConflict(f"topic {table.topic} has no table any more", hint=REBIND_HINT)
        loaded = await self._load(table.topic_id, table.topic, identifier)
        table.__dict__.update(loaded.__dict__)
        return table

    async def add_shards(self, table: TopicTable, topic: TopicBacklog) -> TopicTable:
        shards = {shard.shard: (shard.epoch, shard.committed) for shard in topic.shards}
        await self._catalog.topics.widen(table.identifier, table.topic_id, shards)
        return await self.refresh(table)

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        log = TopicLog(table.topic, table.topic_id, shards)
        await self._catalog.topics.undo_round(table.identifier, log, snapshot_id)

    def requirements(self, commit: TopicCommit) -> list[Object]:
        claim = job_requirement(commit) if commit.is_job else claim_requirement(commit)
        return [claim | {"lease": self._lease_name} if self._lease_name else claim]

    async def check_job(self, commit: TopicCommit) -> int | None:
        """Looks for the job in the binding. The catalog would recognise it too, but the snapshot that it has to be
        sent with cannot be built: the replaced files are gone. The lease is compared by the catalog."""
        binding = await self._binding(commit.table.identifier)
        committed = None if binding is None else binding.find_round(commit.round_id)
        is_same = committed is not None and committed.claimed == job_claim(commit).sum
        return committed.snapshot_id if committed is not None and is_same else None

    async def announce(self, commit: TopicCommit) -> None:
        """Nothing: the transaction of the commit writes the first kept offsets."""

    def summary(self, commit: TopicCommit) -> Mapping[str, str]:
        """Nothing: the catalog writes the progress of a round itself (catalog/topic_rules/topic_properties.py)."""
        return {}

    async def record(self, commits: Sequence[TopicCommit]) -> Collection[int]:
        """Does nothing: the catalog recorded the offsets in the transaction of the commit."""
        return ()

    # --- loading ---

    async def _bound_table(self, topic_id: int) -> Identifier | None:
        """Returns the table that the topic is bound to; None if it has none."""
        key = catalog_keys.topic_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        record = catalog_records.decode(TopicTableRecord, key, entry)
        return identifier_of(check_namespace(record.namespace), record.name)

    async def _load(self, topic_id: int, topic: str, identifier: Identifier) -> TopicTable:
        # Positions first: if the table changes in between, its metadata is newer than they are, and the next commit
        # conflicts. The other way round old metadata would be paired with new positions.
        binding = await self._binding(identifier)
        if binding is None or binding.topic_id != topic_id:
            raise errors.TopicTableConflict(f"{identifier} does not belong to topic {topic} any more", hint=REBIND_HINT)
        loaded = await self._table_catalog.load(identifier)
        return TopicTable(topic_id, topic, identifier, tables.load(loaded.metadata), _positions(binding))

    async def _binding(self, identifier: Identifier) -> Binding | None:
        """Returns the binding beside the table's pointer; None if there is no such table, or it belongs to no topic."""
        key = catalog_keys.relation_key(identifier)
        entry = await self._store.get(key)
        record = None if entry is None else catalog_records.decode_relation(key, entry)
        return record.binding if isinstance(record, TableRecord) else None

    # --- creating ---

    async def _create(self, topic: TopicBacklog) -> Identifier:
        """Creates and binds the table of a topic. Raises TopicTableConflict for a topic that had one before, or whose
        name is taken."""
        key = catalog_keys.detached_key(topic.topic_id)
        if (entry := await self._store.get(key)) is not None:
            detached = catalog_records.decode(DetachedRecord, key, entry)
            raise errors.TopicTableConflict(
                f"topic {topic.name} had the table {'.'.join((*detached.namespace, detached.name))} and has none now",
                hint=REBIND_HINT,
            )
        identifier = self._table_identifier(topic)
        await self._create_namespace(identifier.namespace)
        layout = table_policy.new_layout(topic.policy)
        try:
            # Consent to a gap: what retention dropped before there was a table is a declared gap of the log already.
            await self._catalog.topics.recreate(_topic_log(topic), identifier, [Consent.GAP], layout=layout)
        except errors.AlreadyExists as error:
            # If the topic is bound to it, this driver created it and the reply was lost.
            if await self._bound_table(topic.topic_id) != identifier:
                raise errors.TopicTableConflict(error.message, hint=error.hint) from None
        return identifier

    def _table_identifier(self, topic: TopicBacklog) -> Identifier:
        return topic_table_name.table_for_topic(TopicName.parse(topic.name), self._fixed_namespace)

    async def _create_namespace(self, namespace: Namespace) -> None:
        """Creates the namespace and its parents, those that do not exist."""
        for depth in range(1, len(namespace) + 1):
            try:
                await self._catalog.namespaces.create(namespace[:depth], {})
            except errors.AlreadyExists:
                continue


def _topic_log(topic: TopicBacklog) -> TopicLog:
    shards = {shard.shard: ShardLog(shard.epoch, shard.committed, shard.synced) for shard in topic.shards}
    return TopicLog(topic.name, topic.topic_id, shards)


def _positions(binding: Binding) -> dict[int, Position]:
    return {shard: Position(runs[-1].epoch, runs[-1].next) for shard, runs in binding.runs.items()}
