"""Operations on the tables of topics by an operator, with one interface for all catalogs; `/api/v1/lake` uses them.

EmbeddedOperations  the embedded catalog: one transaction each (catalog/operations/topic_operations.py)
ForeignOperations   another catalog: the same decisions, recorded in the mirror that the pipeline keeps of a topic's
                    table (foreign_operations.py)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.catalogs import topic_table_name
from icestream.iceberg.identifier import Identifier, check_namespace, identifier
from icestream.lake.unknown_table import hint_on_unknown_table
from icestream.model.topic_name import TopicName

ReadLog = Callable[[], Awaitable[TopicLog]]


class TableOwner(NamedTuple):
    topic: str
    topic_id: int


class TopicTableState(NamedTuple):
    """The table of a topic, or the one that it was detached from; neither, if it never had one."""

    table: Identifier | None
    detached: Identifier | None
    committed: Mapping[int, int]  # by shard, in the one or the other


class TopicTableOperations(Protocol):
    """`read_log` reads the state of the topic in the broker's log. A dry run returns a preview and changes nothing."""

    async def topic_table(self, topic_id: int) -> TopicTableState: ...

    async def owner(self, table: Identifier) -> TableOwner | None:
        """The topic of a table. Raises UnknownTable."""

    async def register(self, table: Identifier, metadata_file: str, topic_id: int) -> None:
        """Registers a table from its metadata file, for a topic, unless it is there. Raises AlreadyExists if another
        table has its name, InvalidInput if this catalog does not register tables."""

    async def bind(
        self, table: Identifier, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview: ...

    async def adopt(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview: ...

    async def rewind(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview: ...

    async def recreate(
        self, table: Identifier | None, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        """Creates a new table. If `table` is None it gets the former name, else the topic's. Returns its identifier."""

    async def detach(self, table: Identifier) -> None:
        """Raises TopicTableConflict for a table that belongs to no topic."""


class EmbeddedOperations:
    def __init__(self, catalog: Catalog, fixed: tuple[str, ...] | None = None) -> None:
        """`fixed`: the namespace of all tables, if the settings fix one."""
        self._catalog = catalog
        self._fixed = fixed

    async def owner(self, table: Identifier) -> TableOwner | None:
        async with hint_on_unknown_table(self._catalog, table):
            binding = (await self._catalog.commits.load(table)).record.binding
        return None if binding is None else TableOwner(binding.topic, binding.topic_id)

    async def topic_table(self, topic_id: int) -> TopicTableState:
        topics = self._catalog.topics
        table, detached = await topics.table_of(topic_id), await topics.find_detached(topic_id)
        former = None if detached is None else identifier(check_namespace(detached.namespace), detached.name)
        committed: Mapping[int, int] = detached.committed if detached is not None else {}
        if table is not None:
            binding = (await self._catalog.commits.load(table)).record.binding
            committed = binding.committed() if binding is not None else {}
        return TopicTableState(table, former, committed)

    async def register(self, table: Identifier, metadata_file: str, topic_id: int) -> None:
        dropped = await self._catalog.tables.read_file(metadata_file)
        await self._create_namespaces(Identifier(table.namespace, table.name))
        try:
            await self._catalog.tables.register(table, metadata_file)
        except errors.AlreadyExists:
            if (await self._catalog.tables.load(table)).table.uuid != dropped.uuid:
                raise

    async def bind(
        self, table: Identifier, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview:
        log = await read_log()
        async with hint_on_unknown_table(self._catalog, table):
            return (await self._catalog.topics.bind_empty(table, log, consents, is_dry)).preview

    async def adopt(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview:
        log = await read_log()
        async with hint_on_unknown_table(self._catalog, table):
            return (await self._catalog.topics.adopt(table, log, consents, positions, is_dry)).preview

    async def rewind(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview:
        log = await read_log()
        return (await self._catalog.topics.rewind(table, log, consents, snapshot_id, is_dry)).preview

    async def recreate(
        self, table: Identifier | None, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        log = await read_log()
        table = table or await self._name_for(log)
        if not is_dry:
            (await self._catalog.topics.recreate(log, table, is_dry=True)).preview.check(consents)
            await self._create_namespaces(table)
        return table, (await self._catalog.topics.recreate(log, table, consents, is_dry)).preview

    async def detach(self, table: Identifier) -> None:
        async with hint_on_unknown_table(self._catalog, table):
            await self._catalog.topics.detach(table, must_belong=True)

    async def _name_for(self, log: TopicLog) -> Identifier:
        if (table := await self._catalog.topics.table_of(log.topic_id)) is not None:
            return table
        if (detached := await self._catalog.topics.find_detached(log.topic_id)) is not None:
            return identifier(check_namespace(detached.namespace), detached.name)
        return topic_table_name.table_for_topic(TopicName.parse(log.topic), self._fixed)

    async def _create_namespaces(self, table: Identifier) -> None:
        for depth in range(1, len(table.namespace) + 1):
            try:
                await self._catalog.namespaces.create(table.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
