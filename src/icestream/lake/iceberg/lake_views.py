"""The read-only views of the whole lake, and the names by which clients choose one: the `warehouse` of /v1/config,
which becomes the prefix of all routes (ADR 73).

    none, "", the location of the warehouse, LIVE_WAREHOUSES    the live tables, without a prefix
    at:TIME     each table at the snapshot that was current then: `at:2026-07-01`, `at:2026-07-01T12:00:00Z`,
                `at:1782907200000` (ms). Without a zone it is UTC
    at:TAG      each table that has this tag or branch, at it
    backup:ID   the tables of a backup of `backup.target`, where it lies; `backup:latest`: of the newest one
    all else    404: a misspelt view must never be the live tables (hazard 93)

A view has one canonical name, which is the prefix: names of one view are one view for every cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from icestream import errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import Relation
from icestream.catalog.operations.namespace_operations import NamePage
from icestream.iceberg import past_tables
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import normalize_or_none
from icestream.iceberg.past_tables import ExpiredHistory
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import short_repr
from icestream.lake.catalog_rights import CatalogRights
from icestream.lake.iceberg.backup_view import BACKUP, BackupView, ReadableBackups
from icestream.lake.iceberg.lake_view import LakeView
from icestream.security.action import Action

# Names that clients send without being told to, or that their guides tell everybody to set. All are the live tables.
LIVE_WAREHOUSES: Final = {
    "": "DuckDB's ATTACH '', and settings that are left empty",
    "icestream": "our own documentation, as the name of the catalog",
    "rck_warehouse": "Iceberg's REST compatibility kit",
    "warehouse": "examples of Iceberg and of Trino",
    "default": "examples of PyIceberg, whose catalog without a name is `default`",
}
_AT: Final = "at:"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_MILLISECONDS: Final = re.compile(r"\d{12,14}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_FORMS: Final = "none for the live tables; at:TIME, at:TAG or backup:ID for a read-only view"


class PastView(LakeView):
    """The live tables as they were at a time, or at a tag. Namespaces are those of today."""

    shows_live_files = True

    def __init__(self, name: str, time_ms: int | None = None, reference: str = "") -> None:
        """`reference`: the branch or tag, for a view without a time."""
        self.name = name
        self._time_ms = time_ms
        self._reference = reference

    async def require(self, catalog: Catalog, rights: CatalogRights, identifier: Identifier, *actions: Action) -> None:
        await rights.require_relation(identifier, *actions)

    async def list_namespaces(
        self, catalog: Catalog, parent: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        is_visible = None if rights is None else rights.visible_namespaces
        return await catalog.namespaces.list(parent, token, size, is_visible)

    async def load_namespace(self, catalog: Catalog, namespace: Namespace) -> dict[str, str]:
        return await catalog.namespaces.load(namespace)

    async def load(self, catalog: Catalog, identifier: Identifier) -> tuple[str, TableMetadata]:
        live = await catalog.tables.load(identifier)
        table = self._past(live.table)
        if isinstance(table, ExpiredHistory):
            oldest = datetime.fromtimestamp(table.oldest_ms / 1000, UTC).isoformat(timespec="milliseconds")
            raise errors.UnknownTable(
                f"Table does not exist: {identifier} in view {self.name}: its snapshots of that time were expired, "
                f"its history begins at {oldest}"
            )
        if table is None:
            raise errors.UnknownTable(f"Table does not exist: {identifier} in view {self.name}")
        return f"{self.name} {live.location}", table

    async def list(
        self, catalog: Catalog, namespace: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        async def is_shown(relations: Sequence[tuple[Identifier, Relation]]) -> list[bool]:
            visibility = [True] * len(relations) if rights is None else await rights.visible_relations(relations)
            return [
                is_allowed and await self._has(catalog, identifier)
                for (identifier, _), is_allowed in zip(relations, visibility, strict=True)
            ]

        return await catalog.tables.list(namespace, token, size, is_shown)

    async def _has(self, catalog: Catalog, identifier: Identifier) -> bool:
        """Whether the table is in the view. One whose history was expired is: it is listed, and loading it says why."""
        try:
            return self._past((await catalog.tables.load(identifier)).table) is not None
        except errors.UnknownTable:
            return False  # dropped meanwhile

    def _past(self, table: TableMetadata) -> TableMetadata | ExpiredHistory | None:
        if self._time_ms is None:
            return past_tables.table_of_reference(table, self._reference, self.name)
        return past_tables.table_at(table, self._time_ms, self.name)


class LakeViews:
    """Finds views by their names."""

    def __init__(self, warehouse: str, now_ms: Callable[[], int], backups: ReadableBackups | None = None) -> None:
        """`warehouse`: its location, by which clients may call the live tables. `backups`: those of `backup.target`;
        None without a target."""
        self._warehouse = normalize_or_none(warehouse)
        self._now_ms = now_ms
        self._backups = backups

    async def of_warehouse(self, name: str | None) -> LakeView | None:
        """Returns the view that a client names as its warehouse; None for the live tables. Raises UnknownWarehouse."""
        if name is None or name in LIVE_WAREHOUSES:
            return None
        if "/" in name and self._warehouse is not None and normalize_or_none(name) == self._warehouse:
            return None
        return await self.of_name(name)

    async def of_name(self, name: str) -> LakeView:
        """Returns the view of a name, such as a prefix. Raises UnknownWarehouse, InvalidInput for an encrypted
        backup."""
        if name.startswith(BACKUP):
            return await self._of_backup(name.removeprefix(BACKUP))
        if name.startswith(_AT) and len(name) <= limits.CATALOG_VIEW_NAME_LENGTH_MAX:
            moment = name.removeprefix(_AT)
            time_ms = parse_time(moment)
            if time_ms is not None and time_ms > self._now_ms():
                raise errors.UnknownWarehouse(
                    f"warehouse {name} is a time in the future: its tables would still change",
                    hint="name a time that has passed",
                )
            if time_ms is not None:
                return PastView(f"{_AT}{time_ms}", time_ms)
            if _TAG.fullmatch(moment) is not None and not moment[:1].isdigit():
                return PastView(name, reference=moment)
        raise errors.UnknownWarehouse(f"there is no warehouse {short_repr(name)}", hint=_FORMS)

    async def _of_backup(self, backup: str) -> LakeView:
        if self._backups is None:
            raise errors.UnknownWarehouse(
                f"there is no warehouse {short_repr(BACKUP + backup)}: this node has no backup target",
                hint="set `backup.target`",
            )
        return await BackupView.open(self._backups, backup)


def parse_time(text: str) -> int | None:
    """Returns the milliseconds of a time as names of views have it; None if the text is none."""
    if _MILLISECONDS.fullmatch(text) is not None:
        return int(text)
    if _TIME.fullmatch(text) is None:
        return None
    # A plus in a query that was not encoded has become a space.
    restored = re.sub(r"(T\S+) (\d\d:?\d\d)$", r"\1+\2", text)
    try:
        moment = datetime.fromisoformat(restored)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
