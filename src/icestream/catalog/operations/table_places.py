"""Where tables and views lie: finds those whose place equals, contains or is inside of a location.

A place is the location of a table and the directory of its metadata files. A table whose metadata file lies in
LOCATION/metadata/ has that location; the document is read only where it does not.

The list is read anew for each question, and what a pointer says about its place is kept until the pointer changes. It
is asked where a client chooses a location, which is rare: locations that the catalog makes carry the UUID of their
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachebox import LRUCache

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import CatalogNamespaceRecord, Relation, TableRecord
from icestream.catalog.documents import Documents
from icestream.catalog.operations.namespace_operations import table_base
from icestream.iceberg import metadata_file
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import is_inside, normalize_or_none
from icestream.metadata.store import MetadataStore


class TablePlaces:
    def __init__(self, store: MetadataStore, documents: Documents, roots: Sequence[str]) -> None:
        """`roots`: the warehouse and other roots of tables, in canonical form."""
        self._store = store
        self._documents = documents
        self._roots = roots
        self._places: LRUCache[str, tuple[str, ...]] = LRUCache(limits.TABLE_PLACES_MAX)  # by metadata file

    async def overlapping(self, location: str, uuid: str | None) -> list[Identifier]:
        """Returns the tables and views, except the one with this UUID, whose place equals, contains or is inside of a
        location in canonical form."""
        overlapping = []
        for key, entry in await self._store.list_all(catalog_keys.RELATIONS):
            record = catalog_records.decode_relation(key, entry)
            if record.uuid != uuid and _overlaps(location, await self._of(record)):
                overlapping.append(catalog_keys.identifier_of(key))
        return overlapping

    async def holds_namespace(self, location: str) -> bool:
        """Returns whether tables of a namespace lie inside of a location: it cannot be that of one table."""
        for key, entry in await self._store.list_all(catalog_keys.NAMESPACES):
            levels = catalog_keys.namespace_of(key)
            record = catalog_records.decode(CatalogNamespaceRecord, key, entry)
            base = normalize_or_none(table_base(levels, record.properties, self._roots[0], self._roots))
            if base is not None and is_inside(base, location):
                return True
        return False

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
    configured = (properties.get(name, "") for name in (metadata_file.PATH, *metadata_file.DATA_PATHS))
    places = (normalize_or_none(place) for place in (location, *configured) if place)
    return [place for place in places if place is not None]


def is_own(path: str, places: Iterable[str]) -> bool:
    """Returns whether a path of a table's file lies in one of its places."""
    canonical = normalize_or_none(path)
    return canonical is not None and any(is_inside(canonical, place) for place in places)


def _overlaps(location: str, places: Iterable[str]) -> bool:
    return any(is_inside(location, place) or is_inside(place, location) for place in places)
