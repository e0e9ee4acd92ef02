"""Our own catalog in the same process as a `TableCatalog`: for the lake process itself, and the twin of the others in
tests. From other processes it is asked over HTTP like any other REST catalog (rest.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icestream import errors
from icestream.catalog.operations.table_commits import CommittedTable
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalogs.table_catalog import (
    CommitDone,
    CommitOutcome,
    CommitRefused,
    CommitUnknown,
    LoadedTable,
    TableChange,
)
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.values import Object

if TYPE_CHECKING:
    from icestream.catalog.catalog import Catalog


class EmbeddedCatalog:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        page = await self._catalog.namespaces.list(parent, None, None)
        return [(*parent, name) for name in page.names]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        return await self._catalog.namespaces.load(namespace)

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        await self._catalog.namespaces.create(namespace, properties)

    async def drop_namespace(self, namespace: Namespace) -> None:
        await self._catalog.namespaces.drop(namespace)

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        page = await self._catalog.tables.list(namespace, None, None)
        return [Identifier(namespace, name) for name in page.names]

    async def load(self, identifier: Identifier) -> LoadedTable:
        return _loaded(await self._catalog.tables.load(identifier))

    async def create(self, identifier: Identifier, asked: Object) -> LoadedTable:
        return _loaded(await self._catalog.tables.create(identifier, asked))

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        try:
            made = await self._catalog.commits.commit(identifier, CommitRequest(change.requirements, change.updates))
        except errors.CommitConflict as error:
            return CommitRefused(error.message, await self._as_it_is(identifier), error.details)
        except errors.OutcomeUnknown as error:
            return CommitUnknown(error.message)
        return CommitDone(_loaded(made), repeated=made.repeated)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        if len(changes) == 1:  # a refusal speaks of the one table, without its name
            return {one: await self.commit(one, change) for one, change in changes.items()}
        asked = {one: CommitRequest(change.requirements, change.updates) for one, change in changes.items()}
        try:
            made = await self._catalog.commits.commit_all(asked)
        except errors.CommitConflict as error:
            named = {str(one["table"]): one for one in error.details.get("tables") or ()}
            return {
                one: CommitRefused(
                    str(named.get(str(one), {}).get("message") or error.message),
                    details=named.get(str(one), {}) if named else error.details,
                    is_bystander=bool(named) and str(one) not in named,
                )
                for one in changes
            }
        except errors.OutcomeUnknown as error:
            return dict.fromkeys(changes, CommitUnknown(error.message))
        return {one: CommitDone(_loaded(found), repeated=found.repeated) for one, found in made.items()}

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        await self._catalog.tables.drop(identifier, is_purging)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        await self._catalog.tables.rename(source, target)

    async def close(self) -> None:
        """Nothing is held."""

    async def _as_it_is(self, identifier: Identifier) -> LoadedTable | None:
        try:
            return await self.load(identifier)
        except errors.IcestreamError:
            return None


def _loaded(found: CommittedTable) -> LoadedTable:
    return LoadedTable(found.table.as_json(), found.location)
