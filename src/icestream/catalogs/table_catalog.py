"""`TableCatalog`: the interface of every catalog for the pipeline's committer, the readers and `icestream lake`.

    catalog = open_catalog(settings)                # processes/configured_catalog.py: embedded, rest, glue, sql
    loaded = await catalog.load(Identifier(("shop",), "orders"))
    outcome = await catalog.commit(identifier, TableChange(requirements, updates))

Requirements and updates are those of Iceberg's REST protocol, as plain JSON values. A commit ends in one of three ways:

    CommitDone      it is in the table; `table` is the table with it, and perhaps with later commits
    CommitRefused   it is not in the table and never will be: the table changed since the commit was planned. Plan again
                    from `table`
    CommitUnknown   it may have been applied, or may still be: the table cannot be read, or the outcome was not
                    determined before the deadline. Keep every file, and read the table again later (hazard 13)

An error that is raised instead means that nothing was changed: the request was invalid, the table does not exist,
access was denied, or the catalog could not be reached at all. After a lost reply the table is read back; a commit is
never repeated blindly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.values import Object


@dataclass(frozen=True)
class LoadedTable:
    """A table as the catalog sent it. `config`: properties for reading its files, with secrets, so they are not
    shown."""

    metadata: Object
    metadata_location: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    # What the table of a topic has, by shard, as our own catalog recorded it with this metadata; None: not known.
    committed: Mapping[int, int] | None = None

    @property
    def uuid(self) -> str | None:
        uuid = self.metadata.get("table-uuid")
        return uuid if isinstance(uuid, str) else None

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}

    @property
    def current_snapshot_id(self) -> int | None:
        snapshot_id = self.metadata.get("current-snapshot-id")
        return None if snapshot_id is None or snapshot_id == -1 else int(snapshot_id)


@dataclass(frozen=True)
class TableChange:
    """Requirements and updates of a commit to one table."""

    requirements: Sequence[Object]
    updates: Sequence[Object]


@dataclass(frozen=True)
class CommitDone:
    """The commit is in the table."""

    table: LoadedTable | None  # None for several tables in one request, whose response has none
    was_read_back: bool = False  # the reply was lost, and the table that was read back has the commit
    repeated: int | None = None  # our own catalog: the round was committed before, as this snapshot; nothing was added


@dataclass(frozen=True)
class CommitRefused:
    """The commit is not in the table, and never will be."""

    reason: str
    table: LoadedTable | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    is_bystander: bool = False  # another table of the same request was refused, this one was not in conflict


@dataclass(frozen=True)
class CommitUnknown:
    """The commit may be in the table, or may still be applied."""

    reason: str


CommitOutcome = CommitDone | CommitRefused | CommitUnknown


class TableCatalog(Protocol):
    """Errors: UnknownNamespace, UnknownTable, AlreadyExists, NotEmpty, InvalidInput, TopicTableConflict, AccessDenied,
    StorageUnavailable (CircuitOpen), UnexpectedAnswer; OutcomeUnknown of a change other than a commit."""

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        """Returns the namespaces directly in `parent`; () is the root."""

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        """Returns the properties of a namespace."""

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None: ...

    async def drop_namespace(self, namespace: Namespace) -> None: ...

    async def list_tables(self, namespace: Namespace) -> list[Identifier]: ...

    async def load(self, identifier: Identifier) -> LoadedTable: ...

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        """`definition`: schema, and optionally location, partition-spec, write-order, properties."""

    async def check_registers(self, *, is_renaming: bool = False) -> None:
        """Raises InvalidInput if this catalog does not register tables from their metadata files. `is_renaming`: or
        does not rename them."""

    async def register(self, identifier: Identifier, metadata_location: str) -> LoadedTable:
        """Gives a name to the table of a metadata file that is there. Raises AlreadyExists also if the name is that of
        this very table."""

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome: ...

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        """Commits in one request if the catalog can, else one after the other; returns the outcome of each table."""

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        """Drops a table. `is_purging` requests that the catalog removes its files, too."""

    async def rename(self, source: Identifier, target: Identifier) -> None: ...

    async def close(self) -> None: ...
