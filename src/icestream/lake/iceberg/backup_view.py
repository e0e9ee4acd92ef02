"""`backup:ID`: the tables of a backup as a read-only view of the lake, read where the backup lies (ADR 113).

    which tables     those of the backup, under the names that they had at its cut, and the namespaces that these are in
    their rows       those of the pinned snapshot. What was in no table yet at the cut is in the backup, not in the view
    rights           of today. A table that still exists, by its UUID: the rights to it. Else, because its topic was
                     deleted or created anew, both those to the topic and to the name of the table (hazard 117)
    keys             none are given: objects of one backup lie beside those of all topics and all other backups

Nothing of a view is kept but the index of tables: a backup whose root is gone is gone from the next request on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import Relation, TableRecord
from icestream.catalog.operations.namespace_operations import NamePage, page_size
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.iceberg import table_metadata
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import short_repr
from icestream.lake.catalog_rights import CatalogRights, name_resource, relation_resources
from icestream.lake.iceberg.lake_view import LakeView
from icestream.model.topic_name import TopicName
from icestream.security.action import Action
from icestream.security.resource import Resource, topic_resource

BACKUP: Final = "backup:"


class BackupTable(Protocol):
    """A table of a backup: the name of its topic, and the UUID that the table itself had."""

    @property
    def topic(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def view(self) -> str: ...


class BackupTables(Protocol):
    """The tables of a backup by their names."""

    @property
    def id(self) -> str: ...

    @property
    def tables(self) -> Mapping[Identifier, BackupTable]: ...


class ReadableBackups(Protocol):
    """The backups of a target."""

    async def find(self, name: str) -> BackupTables:
        """Returns the tables of a complete backup, by its id or `latest`. Raises UnknownBackup; InvalidInput for an
        encrypted one, or a name that is no id."""

    async def document(self, view: str) -> bytes:
        """Returns a metadata file of a view. Raises BackupDamaged."""


class BackupView(LakeView):
    """The tables of one backup."""

    def __init__(self, backups: ReadableBackups, backup: BackupTables) -> None:
        self.name = f"{BACKUP}{backup.id}"
        self._backups = backups
        self._tables = backup.tables

    @classmethod
    async def open(cls, backups: ReadableBackups, name: str) -> BackupView:
        """The view of a backup, by its id or `latest`. Raises UnknownWarehouse if there is none, InvalidInput for an
        encrypted one."""
        try:
            return cls(backups, await backups.find(name))
        except errors.UnknownBackup as error:
            raise errors.UnknownWarehouse(
                f"there is no warehouse {short_repr(BACKUP + name)}: {error}",
                hint="`icestream backup list` shows the backups of `backup.target`",
            ) from None

    async def require(self, catalog: Catalog, rights: CatalogRights, identifier: Identifier, *actions: Action) -> None:
        table = self._tables.get(identifier)
        resources = [name_resource(identifier)]
        if table is not None:
            entry = await catalog.relations.entry(identifier)
            key = catalog_keys.relation_key(identifier)
            live = None if entry is None else catalog_records.decode_relation(key, entry)
            resources = _resources(identifier, table, live)
        await rights.require_resources(identifier, resources, *actions, exists=table is not None)

    async def load(self, catalog: Catalog, identifier: Identifier) -> tuple[str, TableMetadata]:
        table = self._tables.get(identifier)
        if table is None:
            raise errors.UnknownTable(f"Table does not exist: {identifier} in view {self.name}")
        data = await self._backups.document(table.view)
        try:
            return f"{self.name} {table.view}", table_metadata.decode(data)
        except errors.InvalidInput as error:
            raise errors.BackupDamaged(f"{table.view} is not the metadata of a table: {error}") from None

    async def list(
        self, catalog: Catalog, namespace: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        self._check_namespace(namespace)
        tables = {identifier: table for identifier, table in self._tables.items() if identifier.namespace == namespace}
        if rights is not None:
            live = await _live_records(catalog, namespace)
            groups = [_resources(identifier, table, live.get(identifier)) for identifier, table in tables.items()]
            shown = await rights.visible_resources(groups)
            tables = {
                identifier: tables[identifier] for identifier, is_shown in zip(tables, shown, strict=True) if is_shown
            }
        return _page([identifier.name for identifier in tables], token, size)

    async def list_namespaces(
        self, catalog: Catalog, parent: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        if parent:
            self._check_namespace(parent)
        depth = len(parent)
        names = list({
            identifier.namespace[depth]
            for identifier in self._tables
            if len(identifier.namespace) > depth and identifier.namespace[:depth] == parent
        })  # fmt: skip
        if rights is not None:
            shown = await rights.visible_namespaces([(*parent, name) for name in names])
            names = [name for name, is_shown in zip(names, shown, strict=True) if is_shown]
        return _page(names, token, size)

    async def load_namespace(self, catalog: Catalog, namespace: Namespace) -> dict[str, str]:
        self._check_namespace(namespace)
        return {}

    def _check_namespace(self, namespace: Namespace) -> None:
        if not any(identifier.namespace[: len(namespace)] == namespace for identifier in self._tables):
            namespace_plans.existing(namespace, None)


def _resources(identifier: Identifier, table: BackupTable, live: Relation | None) -> list[Resource]:
    """What a caller needs rights to. `live`: what has the name today."""
    if isinstance(live, TableRecord) and live.uuid == table.uuid:
        return relation_resources(identifier, live)
    return [topic_resource(TopicName.parse(table.topic)), name_resource(identifier)]


async def _live_records(catalog: Catalog, namespace: Namespace) -> dict[Identifier, Relation]:
    prefix, after = catalog_keys.relations_in(namespace), ""
    records: dict[Identifier, Relation] = {}
    while entries := await catalog.store.list(prefix, after):
        for key, entry in entries:
            record = catalog_records.decode_relation(key, entry)
            if relation_plans.kind_of(record) == relation_plans.TABLE:
                records[Identifier(namespace, catalog_keys.last_name(prefix, key))] = record
        after = entries[-1][0]
    return records


def _page(names: Sequence[str], token: str | None, size: int | None) -> NamePage:
    """A page of names, all of them for a client that sends no token, as `RelationLookup.list`."""
    ordered = sorted(names)
    if token is None:
        return NamePage(ordered, None)
    after, count = catalog_keys.name_of_token(token), page_size(size)
    rest = [name for name in ordered if not after or name > after]
    page = rest[:count]
    return NamePage(page, catalog_keys.page_token(page[-1]) if len(rest) > count else None)
