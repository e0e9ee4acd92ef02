"""Where tables, views and namespaces lie: no place of a table equals, contains or is inside of another's (hazard 110).

    place of a table        its location, the directory of its metadata files, and directories elsewhere in which its
                            properties place files
    place of a namespace    below which the catalog places its tables: never inside of a table's

A table whose metadata file lies in LOCATION/metadata/ has that location; the document is read only where it does not.
Places that the catalog chooses itself carry the UUID of their table and lie in that of their namespace, so they meet no
other. A change that chooses a place otherwise, or makes a namespace, writes the record `/catalog/places` again. A
change that is guarded has looked at all places and compares the revision of that record in its transaction: of two
changes that could meet, one fails and looks again.

The list of all tables is read anew for each question; what a pointer says about its place is kept until the pointer
changes. That no other place meets that of a table is kept until the record changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from cachebox import LRUCache

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import CatalogNamespaceRecord, Relation, TableRecord
from icestream.catalog.documents import Documents
from icestream.catalog.operations.namespace_operations import table_base
from icestream.catalog.transactions import TransactionGuard
from icestream.iceberg import metadata_file
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import is_inside, namespace_location, normalize_or_none
from icestream.iceberg.values import short_repr
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore

_ODD: Final = re.compile(r"[\x00-\x1f\x7f?#]")
LOCATION_HINT: Final = "leave the location to the catalog, or choose another one"


class ChosenPlace(NamedTuple):
    """A place that a change chooses for a table or view."""

    owner: Identifier
    location: str  # in canonical form
    uuid: str | None = None  # of the owner; None: it does not exist yet


class TablePlaces:
    def __init__(self, store: MetadataStore, documents: Documents, roots: Sequence[str]) -> None:
        """`roots`: the warehouse and other roots of tables, in canonical form."""
        self._store = store
        self._documents = documents
        self.roots = roots
        self._places: LRUCache[str, tuple[str, ...]] = LRUCache(limits.TABLE_PLACES_MAX)  # by metadata file
        self._owners: dict[str, Identifier] = {}  # by place: what the last list of all tables said
        self._lists = 0
        self._list_lock = asyncio.Lock()
        # By UUID and places: at which revision of the record no other place met these.
        self._alone: LRUCache[tuple[str, tuple[str, ...]], int] = LRUCache(limits.TABLE_PLACES_MAX)

    def guard(self, chosen: Sequence[ChosenPlace], namespaces: Sequence[str] = ()) -> TransactionGuard:
        """Returns the guard of a change that chooses places of tables, and of namespaces (in canonical form). It raises
        InvalidInput for one that meets another."""

        async def check() -> list[cmd.Compare]:
            key = catalog_keys.PLACES
            entry = await self._store.get(key)  # before the places: one that comes later has changed the record
            for first, second in combinations(chosen, 2):
                if first.owner != second.owner and _overlaps(first.location, (second.location,)):
                    raise _meets(first.location)
            await self._check(chosen, namespaces)
            return [cmd.Absent(key) if entry is None else cmd.AtRevision(key, entry.mod_revision)]

        return check

    def namespace_guard(self, namespace: Namespace, properties: Mapping[str, str]) -> TransactionGuard:
        """Returns the guard of a change that makes or moves a namespace; it raises InvalidInput for one inside of a
        table's place."""
        return self.guard((), sorted(self._bases(namespace, properties)))

    async def are_alone(self, uuid: str, places: Sequence[str]) -> bool:
        """Returns whether no other place meets those of an existing table."""
        key = uuid, tuple(places)
        entry = await self._store.get(catalog_keys.PLACES)
        revision = 0 if entry is None else entry.mod_revision
        if self._alone.get(key) == revision:
            return True
        owner = Identifier((), "")
        try:
            await self._check([ChosenPlace(owner, place, uuid) for place in places], ())
        except errors.InvalidInput:
            return False
        self._alone.insert(key, revision)
        return True

    async def owner_of(self, location: str) -> Identifier | None:
        """Returns the table or view in whose place a file lies; None if there is none. The list of all tables is read
        only where the last one does not know it, and by one request at a time."""
        lists = self._lists
        owner = await self._listed_owner(location)
        if owner is not None:
            return owner
        async with self._list_lock:
            if self._lists == lists:  # else another request has read it since
                self._owners = {
                    place: catalog_keys.identifier_of(key) for key, _, places in await self._all() for place in places
                }
                self._lists += 1
        return await self._listed_owner(location)

    async def _listed_owner(self, location: str) -> Identifier | None:
        place = location
        while place.rpartition("/")[0]:
            place = place.rpartition("/")[0]
            owner = self._owners.get(place)
            if owner is None:
                continue
            entry = await self._store.get(catalog_keys.relation_key(owner))
            # It may have been dropped, renamed or moved since.
            if entry is not None:
                record = catalog_records.decode_relation(catalog_keys.relation_key(owner), entry)
                return owner if place in await self._places_of(record) else None
        return None

    async def other_places(self, uuid: str) -> frozenset[str]:
        """Returns the places of all tables and views with another UUID."""
        return frozenset(place for _, record, places in await self._all() if record.uuid != uuid for place in places)

    async def _check(self, chosen: Sequence[ChosenPlace], namespaces: Sequence[str]) -> None:
        for _, record, places in await self._all():
            for place in chosen:
                if record.uuid != place.uuid and _overlaps(place.location, places):
                    raise _meets(place.location)
            for base in namespaces:
                if any(is_inside(base, place) for place in places):
                    raise _meets(base)
        if not chosen:
            return
        for base in await self._namespace_places():
            for place in chosen:
                if is_inside(base, place.location):  # tables of the namespace would lie inside of this one
                    raise _meets(place.location)

    async def _all(self) -> list[tuple[str, Relation, tuple[str, ...]]]:
        """Returns key, record and places of every table and view."""
        tables = []
        for key, entry in await self._store.list_all(catalog_keys.RELATIONS):
            record = catalog_records.decode_relation(key, entry)
            tables.append((key, record, await self._places_of(record)))
        return tables

    async def _places_of(self, record: Relation) -> tuple[str, ...]:
        elsewhere = record.places_elsewhere if isinstance(record, TableRecord) else ()
        return (*await self._of(record), *elsewhere)

    async def _namespace_places(self) -> set[str]:
        bases: set[str] = set()
        for key, entry in await self._store.list_all(catalog_keys.NAMESPACES):
            record = catalog_records.decode(CatalogNamespaceRecord, key, entry)
            bases |= self._bases(catalog_keys.namespace_of(key), record.properties)
        return bases

    def _bases(self, namespace: Namespace, properties: Mapping[str, str]) -> set[str]:
        """Returns the places of a namespace: views lie in the warehouse, wherever its tables lie."""
        warehouse = self.roots[0]
        places = (namespace_location(warehouse, namespace), table_base(namespace, properties, warehouse, self.roots))
        return {base for base in map(normalize_or_none, places) if base is not None}

    async def _of(self, record: Relation) -> tuple[str, ...]:
        places: tuple[str, ...] | None = self._places.get(record.location)
        if places is None:
            places = await self._read(record)
            self._places.insert(record.location, places)
        return places

    async def _read(self, record: Relation) -> tuple[str, ...]:
        directory = record.location.rpartition("/")[0]
        if directory.endswith("/metadata"):
            return (directory.removesuffix("/metadata"),)
        if not isinstance(record, TableRecord):
            return (directory,)
        try:
            table = await self._documents.read_table(record.location)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return (directory,)
        return (directory, table.location)


def own_places(location: str, properties: dict[str, str]) -> list[str]:
    """Returns the directories in which a table may have files: its location, and those that its properties name."""
    own = normalize_or_none(location)
    return [*([own] if own is not None else ()), *metadata_file.places_elsewhere(location, properties)]


def is_own(path: str, places: Iterable[str]) -> bool:
    """Returns whether a path of a table's file lies in one of its places."""
    places = list(places)
    # Paths as writers make them need no look at their segments: there are thousands in a snapshot.
    if "%" not in path and "/." not in path and any(_is_plainly_inside(path, place) for place in places):
        return True
    canonical = normalize_or_none(path)
    return canonical is not None and any(is_inside(canonical, place) for place in places)


def _is_plainly_inside(path: str, place: str) -> bool:
    prefix = place if place.endswith("/") else f"{place}/"
    return path.startswith(prefix) and "//" not in path[len(prefix) - 1 :] and not _ODD.search(path)


def is_in_one_of(location: str, places: frozenset[str]) -> bool:
    """Returns whether a location is one of these places or inside of one. All in canonical form."""
    while location:
        if location in places:
            return True
        location = location.rpartition("/")[0]
    return False


def _overlaps(location: str, places: Iterable[str]) -> bool:
    return any(is_inside(location, place) or is_inside(place, location) for place in places)


def _meets(location: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"Invalid location: {short_repr(location)} is, contains or is inside of the place of another table",
        hint=LOCATION_HINT,
    )
