"""The tables of the backups of a target, as the catalog shows them in views (ADR 113).

A root never changes, so the index of a backup's tables is cached, up to limits.BACKUP_VIEW_TABLES_MAX tables of all
backups together. Whether its root still exists is asked each time: a deletion removes it first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_target import BackupTarget
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.table_view import METADATA_FILE
from icestream.iceberg.identifier import Identifier

LATEST: Final = "latest"


class ViewedTable(NamedTuple):
    """A table of a backup. `uuid`: that of the table itself; `view`: the name of its metadata file in the target."""

    topic: str
    uuid: str
    view: str


class ViewedTables(NamedTuple):
    """The tables of a backup."""

    id: str
    tables: Mapping[Identifier, ViewedTable]


class ViewedBackups:
    """The backups of a target that can be read in place: complete ones that are not encrypted."""

    def __init__(self, open_target: Callable[[], BackupTarget]) -> None:
        """`open_target`: opens the target, when it is needed for the first time."""
        self._open_target = open_target
        self._opened: BackupTarget | None = None
        self._indexes: OrderedDict[str, ViewedTables] = OrderedDict()
        self._loading = asyncio.Lock()  # one root at a time: requests of a client that attaches a view come together

    @property
    def _target(self) -> BackupTarget:
        if self._opened is None:
            self._opened = self._open_target()
        return self._opened

    async def find(self, name: str) -> ViewedTables:
        """Returns the tables of a complete backup, by its id or `latest`. Raises UnknownBackup, BackupDamaged;
        InvalidInput for an encrypted one."""
        if name == LATEST:
            root = await StoredBackups(self._target).latest()
            if root is None:
                raise errors.UnknownBackup("the target has no backup", hint="`icestream backup create` makes one")
            return self._index_of(root)
        try:
            backup_id = layout.check_backup_id(name)
        except errors.InvalidInput as error:
            raise errors.UnknownBackup(str(error), hint=error.hint) from None
        async with self._loading:
            index = self._indexes.get(backup_id)
            if index is None:
                return self._index_of(await StoredBackups(self._target).root(backup_id))
        if await self._target.size(layout.root_name(backup_id)) is None:
            self._indexes.pop(backup_id, None)
            raise errors.UnknownBackup(f"backup {backup_id} was deleted")
        return index

    async def document(self, view: str) -> bytes:
        """Returns a metadata file of a view. Raises BackupDamaged."""
        data = await self._target.get(view)
        if data is None:
            raise errors.BackupDamaged(f"object {view} of the backup does not exist")
        return data

    def _index_of(self, root: BackupRoot) -> ViewedTables:
        if root.encryption is not None:
            raise errors.InvalidInput(
                f"backup {root.id} is encrypted: engines cannot read it in place",
                hint="restore it with `icestream backup restore`",
            )
        index = ViewedTables(root.id, {
            Identifier(tuple(topic.table.namespace), topic.table.name): ViewedTable(
                # Not the path that the root says: a writer of the target would choose what is read.
                topic.name, topic.table.uuid, f"{layout.view_folder(root.id, topic.id)}/metadata/{METADATA_FILE}"
            )
            for topic in root.topics
            if topic.table is not None and topic.table.view
        })  # fmt: skip
        self._indexes[root.id] = index
        self._indexes.move_to_end(root.id)
        while len(self._indexes) > 1 and self._weight() > limits.BACKUP_VIEW_TABLES_MAX:
            self._indexes.popitem(last=False)
        return index

    def _weight(self) -> int:
        return sum(1 + len(index.tables) for index in self._indexes.values())
