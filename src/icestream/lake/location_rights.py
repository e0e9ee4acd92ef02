"""Which locations and files a client may name in the catalog while security is on (hazards 109, 110).

    location of a new or moved table    NAMESPACE'S PLACE/NAME-UUID, as the catalog and Trino make them; administrators
                                        may choose any other inside of the warehouse and `lake.table_roots`
    …                                   never one that equals, contains or is inside of the place of another table or
                                        view, or that contains the place of a namespace
    write.data.path and the like        inside of the table's location; others by an administrator
    files of a commit                   in the table's location, or in the directories that its properties name; others
                                        by an administrator, for the table of a topic none of another table

Whether a place meets another is part of the change's transaction (`guard`, catalog/operations/table_places.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.file_rules import FileRule
from icestream.catalog.operations.table_places import ChosenPlace, is_own, own_places
from icestream.catalog.transactions import TransactionGuard
from icestream.iceberg import metadata_file, values
from icestream.iceberg import updates as update
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import is_inside, is_unique, normalize
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object, short_repr
from icestream.lake.catalog_rights import CatalogRights

_LOCATION_HINT: Final = "leave the location to the catalog, or let an administrator choose it"
_FILE_HINT: Final = "write the files below the table's location, or let an administrator commit them"


class LocationRights:
    """What a request may name; collects the places that it chooses."""

    def __init__(self, catalog: Catalog, rights: CatalogRights) -> None:
        self._catalog = catalog
        self._rights = rights
        self._chosen: list[ChosenPlace] = []

    def guard(self) -> TransactionGuard | None:
        """Returns the guard of the transaction: the places that were checked here meet no other. None if the request
        chooses none."""
        return self._catalog.places.guard(self._chosen) if self._chosen else None

    async def check_new(self, identifier: Identifier, location: str | None, properties: dict[str, str]) -> None:
        """For a table or view that is created. `location`: None if the catalog chooses it. Raises PermissionDenied,
        InvalidInput."""
        place = None if location is None else normalize(location)
        if place is not None:
            await self._check_chosen(identifier, place, None)
        await self._check_properties(identifier, None, properties, place)

    async def check_commit(
        self, identifier: Identifier, table: TableMetadata | None, updates: Sequence[Object], is_topic: bool
    ) -> None:
        """For a commit to a table; None: the table is created. `is_topic`: it belongs to a topic. Raises
        PermissionDenied, InvalidInput."""
        uuid = None if table is None else table.uuid
        location = None if table is None else normalize(table.location)
        location = await self.check_moved(identifier, uuid, location, updates)
        for entry in updates:
            if update.action(entry) == "set-properties":
                name = values.present_name(entry, "updates", "updated")
                await self._check_properties(identifier, uuid, values.optional_text_map(entry, name), location)
        # Properties of the table itself were checked when they were set; those of this commit lie in the location.
        places = own_places(location or "", {} if table is None else dict(table.properties))
        paths = await self._paths(table, updates, places)
        elsewhere = [path for path in paths if not is_own(path, places)]
        if elsewhere and not await self._rights.is_administrator():
            raise _foreign_file(elsewhere[0])
        if elsewhere and is_topic:
            # Consumers would be served from them: not even an administrator mixes the messages of two tables.
            rule = FileRule(places, self._catalog.places.roots, await self._catalog.places.other_places(uuid or ""))
            for path in elsewhere:
                if rule.refuses(path):
                    raise _foreign_file(path)

    async def check_moved(
        self, identifier: Identifier, uuid: str | None, location: str | None, updates: Sequence[Object]
    ) -> str | None:
        """For a table or view whose updates may move it; `location`: where it lies. Returns where it lies then. Raises
        PermissionDenied, InvalidInput."""
        for entry in updates:
            chosen = entry.get("location") if update.action(entry) == "set-location" else None
            if isinstance(chosen, str) and normalize(chosen) != location:
                location = normalize(chosen)
                await self._check_chosen(identifier, location, uuid)
        return location

    async def check_registered(self, identifier: Identifier, location: str, table: TableMetadata | None) -> None:
        """For a metadata file that becomes the pointer of a table. `table`: the one that it replaces. A file that is
        not that table's own may belong to any other: only an administrator may register it."""
        if table is not None and is_own(location, own_places(table.location, dict(table.properties))):
            return
        await self._rights.require_administrator()
        try:
            registered = await self._catalog.tables.read_file(location)
        except errors.IcestreamError:
            return  # the registration itself says what is wrong with the file
        places = own_places(registered.location, dict(registered.properties))
        self._chosen += [ChosenPlace(identifier, place, registered.uuid) for place in places]

    async def _check_chosen(self, identifier: Identifier, location: str, uuid: str | None) -> None:
        base = normalize(await self._catalog.tables.base(identifier.namespace))
        if not is_unique(location, base) and not await self._rights.is_administrator():
            raise errors.PermissionDenied(
                f"the location {short_repr(location)} is not one that the catalog would choose", hint=_LOCATION_HINT
            )
        self._chosen.append(ChosenPlace(identifier, location, uuid))

    async def _check_properties(
        self, identifier: Identifier, uuid: str | None, properties: dict[str, str], location: str | None
    ) -> None:
        """`location`: of the table; None: not known yet, so nothing can be inside of it."""
        for name in (metadata_file.PATH, *metadata_file.DATA_PATHS):
            path = properties.get(name)
            if not path or (location is not None and is_inside(normalize(path), location)):
                continue
            if not await self._rights.is_administrator():
                raise errors.PermissionDenied(f"{name} is outside of the table's location", hint=_LOCATION_HINT)
            self._chosen.append(ChosenPlace(identifier, normalize(path), uuid))

    async def _paths(self, table: TableMetadata | None, updates: Sequence[Object], places: Sequence[str]) -> list[str]:
        """The files that a commit names for the first time. What lies elsewhere is named, and not read."""
        paths: list[str] = []
        for entry in updates:
            match update.action(entry):
                case "add-snapshot" if isinstance(snapshot := entry.get("snapshot"), dict):
                    paths += await self._snapshot_paths(table, snapshot, places)
                case "set-statistics" | "set-partition-statistics":
                    paths += _statistics_path(entry)
        return paths

    async def _snapshot_paths(
        self, table: TableMetadata | None, snapshot: dict[str, Any], places: Sequence[str]
    ) -> list[str]:
        locations = [snapshot.get("manifest-list"), *(snapshot.get("manifests") or ())]
        paths = [path for path in locations if isinstance(path, str)]
        if not all(is_own(path, places) for path in paths) and not await self._rights.is_administrator():
            return paths  # before a file of another table is read
        return await self._catalog.snapshot_paths.named_first(table, snapshot)


def _statistics_path(entry: Object) -> list[str]:
    holders = (entry.get("statistics"), entry.get("partition-statistics"))
    paths = [holder.get("statistics-path") for holder in holders if isinstance(holder, dict)]
    return [path for path in paths if isinstance(path, str)]


def _foreign_file(path: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(
        f"the commit names {short_repr(path)}, which is outside of the table's location", hint=_FILE_HINT
    )
