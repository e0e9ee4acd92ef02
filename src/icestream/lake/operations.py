"""What an operator does to the tables of topics, wherever they are: `/api/v1/lake` asks for it in one way.

OwnOperations       the catalog is ours: one transaction each (catalog/operations/topic_operations.py)
ForeignOperations   it is another one: the same decisions, in the mirror that the pipeline keeps of a topic's table
                    (foreign_operations.py)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.catalogs import topic_table_name
from icestream.iceberg.identifier import Identifier, check_namespace, identifier
from icestream.lake.unknown_table import looking_for
from icestream.model.topic_name import TopicName

AskLog = Callable[[], Awaitable[TopicLog]]


class Owner(NamedTuple):
    topic: str
    topic_id: int


class Operations(Protocol):
    """`ask_log`: what the broker's log holds of the topic, now. A dry run only says what it would come to."""

    async def owner(self, table: Identifier) -> Owner | None:
        """The topic of a table. Raises UnknownTable."""

    async def bind(
        self, table: Identifier, ask_log: AskLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview: ...

    async def adopt(
        self,
        table: Identifier,
        ask_log: AskLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview: ...

    async def rewind(
        self,
        table: Identifier,
        ask_log: AskLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview: ...

    async def recreate(
        self, table: Identifier | None, ask_log: AskLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        """`table`: None: as it was called, else as its topic is."""

    async def detach(self, table: Identifier) -> None:
        """Raises TopicTableConflict for a table of no topic."""


class OwnOperations:
    def __init__(self, catalog: Catalog, fixed: tuple[str, ...] | None = None) -> None:
        """`fixed`: the one namespace of all tables, if there is one."""
        self._catalog = catalog
        self._fixed = fixed

    async def owner(self, table: Identifier) -> Owner | None:
        async with looking_for(self._catalog, table):
            binding = (await self._catalog.commits.load(table)).record.binding
        return None if binding is None else Owner(binding.topic, binding.topic_id)

    async def bind(
        self, table: Identifier, ask_log: AskLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview:
        log = await ask_log()
        async with looking_for(self._catalog, table):
            return (await self._catalog.topics.bind_empty(table, log, consents, is_dry)).preview

    async def adopt(
        self,
        table: Identifier,
        ask_log: AskLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview:
        log = await ask_log()
        async with looking_for(self._catalog, table):
            return (await self._catalog.topics.adopt(table, log, consents, positions, is_dry)).preview

    async def rewind(
        self,
        table: Identifier,
        ask_log: AskLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview:
        log = await ask_log()
        return (await self._catalog.topics.rewind(table, log, consents, snapshot_id, is_dry)).preview

    async def recreate(
        self, table: Identifier | None, ask_log: AskLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        log = await ask_log()
        table = table or await self._name_for(log)
        if not is_dry:
            (await self._catalog.topics.recreate(log, table, is_dry=True)).preview.check(consents)
            await self._with_namespace(table)
        return table, (await self._catalog.topics.recreate(log, table, consents, is_dry)).preview

    async def detach(self, table: Identifier) -> None:
        async with looking_for(self._catalog, table):
            await self._catalog.topics.detach(table, must_belong=True)

    async def _name_for(self, log: TopicLog) -> Identifier:
        if (table := await self._catalog.topics.table_of(log.topic_id)) is not None:
            return table
        if (parted := await self._catalog.topics.find_detached(log.topic_id)) is not None:
            return identifier(check_namespace(parted.namespace), parted.name)
        return topic_table_name.table_for_topic(TopicName.parse(log.topic), self._fixed)

    async def _with_namespace(self, table: Identifier) -> None:
        for depth in range(1, len(table.namespace) + 1):
            try:
                await self._catalog.namespaces.create(table.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
