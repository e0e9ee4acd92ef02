"""`EmbeddedCatalog`: our own catalog as a `TableCatalog`, in whichever process has a client of the metadata store.

The lake process and the pipeline's driver commit through it without HTTP. Its errors are those of any other catalog:

    store refuses (NotReady, DiskFull, …)     StorageUnavailable: nothing was changed, the caller keeps its files
    reply lost, outcome not determined        `CommitUnknown` for a commit, OutcomeUnknown for any other change
    any other error                           passed on as it is
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, TypeVar

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

Result = TypeVar("Result")


class EmbeddedCatalog:
    """A `TableCatalog` over the embedded catalog of this process."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        page = await _available(self._catalog.namespaces.list(parent, None, None))
        return [(*parent, name) for name in page.names]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        return await _available(self._catalog.namespaces.load(namespace))

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        await _available(self._catalog.namespaces.create(namespace, properties))

    async def drop_namespace(self, namespace: Namespace) -> None:
        await _available(self._catalog.namespaces.drop(namespace))

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        page = await _available(self._catalog.tables.list(namespace, None, None))
        return [Identifier(namespace, name) for name in page.names]

    async def load(self, identifier: Identifier) -> LoadedTable:
        return _loaded(await _available(self._catalog.tables.load(identifier)))

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        return _loaded(await _available(self._catalog.tables.create(identifier, definition)))

    async def check_registers(self, *, is_renaming: bool = False) -> None:
        """Never raises: it does both."""

    async def register(self, identifier: Identifier, metadata_location: str) -> LoadedTable:
        return _loaded(await _available(self._catalog.tables.register(identifier, metadata_location)))

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        request = CommitRequest(change.requirements, change.updates)
        try:
            committed = await _available(self._catalog.commits.commit(identifier, request))
        # The table goes with the refusal, so that the caller can plan again without another call.
        except errors.CommitConflict as conflict:
            return CommitRefused(conflict.message, await self._load_or_none(identifier), conflict.details)
        except errors.OutcomeUnknown as lost_reply:
            return CommitUnknown(lost_reply.message)
        return CommitDone(_loaded(committed), repeated=committed.repeated)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        """Commits to several tables in one transaction: all of them or none (hazard 47)."""
        if len(changes) == 1:  # a conflict of a single table does not name its table in `details`
            return {identifier: await self.commit(identifier, change) for identifier, change in changes.items()}
        requests = {
            identifier: CommitRequest(change.requirements, change.updates) for identifier, change in changes.items()
        }
        try:
            committed = await _available(self._catalog.commits.commit_all(requests))
        except errors.CommitConflict as conflict:
            return _refused_outcomes(changes, conflict)
        except errors.OutcomeUnknown as lost_reply:
            return dict.fromkeys(changes, CommitUnknown(lost_reply.message))
        # The tables themselves are left out, as in the REST protocol: a round of many tables needs none of them, and
        # plain JSON values of each would cost more than the commit.
        return {identifier: CommitDone(None, repeated=table.repeated) for identifier, table in committed.items()}

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        await _available(self._catalog.tables.drop(identifier, is_purging))

    async def rename(self, source: Identifier, target: Identifier) -> None:
        await _available(self._catalog.tables.rename(source, target))

    async def close(self) -> None:
        """Releases nothing: the store and the files belong to the caller."""

    async def _load_or_none(self, identifier: Identifier) -> LoadedTable | None:
        try:
            return await self.load(identifier)
        except errors.IcestreamError:
            return None


async def _available(call: Awaitable[Result]) -> Result:
    """Awaits a call of the catalog. Raises StorageUnavailable instead of what the metadata store refuses with."""
    try:
        return await call
    except errors.Refused as refusal:
        # Not ambiguous: a refusal says that the transaction was not applied (hazard 13).
        raise errors.StorageUnavailable(
            f"metadata store unavailable: {refusal.message}", hint=refusal.hint, is_ambiguous=False
        ) from refusal


def _refused_outcomes(
    changes: Mapping[Identifier, TableChange], conflict: errors.CommitConflict
) -> dict[Identifier, CommitOutcome]:
    """Returns the outcome of each table of a refused transaction; tables that the conflict does not name are
    bystanders."""
    conflicts = {str(entry["table"]): entry for entry in conflict.details.get("tables") or ()}
    return {
        identifier: CommitRefused(
            str(conflicts.get(str(identifier), {}).get("message") or conflict.message),
            details=conflicts.get(str(identifier), {}) if conflicts else conflict.details,
            is_bystander=bool(conflicts) and str(identifier) not in conflicts,
        )
        for identifier in changes
    }


def _loaded(committed: CommittedTable) -> LoadedTable:
    return LoadedTable(committed.table.as_json(), committed.location, committed=committed.committed)
