"""What all tables and views that have a name need in some places, so that it stays (hazard 1).

    of a view      its metadata file: that is all it has
    of a table     its metadata file, and everything that it names by lists and manifests

A table that cannot be read, wholly or in part, might need anything. All are looked at nevertheless, so that whoever
mends them hears of all at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.cleanup.file_references import ManifestSource, files_of, lists_of, manifests_of, own_files
from icestream.catalog.documents import Documents
from icestream.iceberg.location import is_inside, normalize, normalize_or_none
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.needed")


class FilesInUse:
    """One look at all of them; what it has found is right when `look` has ended."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self.files: set[str] = set()  # in the places
        self.uuids: set[str] = set()  # of tables that have a name
        self.unread: dict[str, errors.IcestreamError] = {}  # by the keys of tables that could not be read

    def note(self, paths: Iterable[str]) -> None:
        for path in map(normalize_or_none, paths):
            if path and any(is_inside(path, place) for place in self._places):
                self.files.add(path)

    def is_near(self, home: str) -> bool:
        return any(is_inside(home, place) or is_inside(place, home) for place in self._places)

    def missed(self, key: str, file: str, error: errors.IcestreamError) -> None:
        if key not in self.unread:
            self.unread[key] = error
            words = {"table": str(catalog_keys.identifier_of(key)), "file": file, "reason": str(error)}
            _log.warning("nothing is purged while this table cannot be read: it might need any file", **words)


class FilesInUseScan:
    def __init__(self, store: MetadataStore, documents: Documents, manifests: ManifestSource) -> None:
        self._store = store
        self._documents = documents
        self._manifests = manifests
        self._harmless: set[str] = set()  # manifests that name nothing outside of their own table's location

    async def look(self, needed: FilesInUse) -> AsyncIterator[None]:
        """In steps, one file each."""
        after = ""
        while page := await self._store.list(catalog_keys.RELATIONS, after):
            after = page[-1][0]
            for key, entry in page:
                record = catalog_records.decode_relation(key, entry)
                needed.note([record.location])
                if isinstance(record, TableRecord):
                    needed.uuids.add(record.uuid.lower())
                    async for _ in self._table(key, record, needed):
                        yield

    async def _table(self, key: str, record: TableRecord, needed: FilesInUse) -> AsyncIterator[None]:
        try:
            table = await self._documents.read_table(record.location)
            async for _ in self._named_by(key, table, needed):
                yield
        except (errors.PersistentStorageError, errors.InvalidInput) as error:
            needed.missed(key, record.location, error)

    async def _named_by(self, key: str, table: TableMetadata, needed: FilesInUse) -> AsyncIterator[None]:
        home = normalize(table.location)
        is_near = needed.is_near(home)

        def damaged(file: str, error: errors.IcestreamError) -> None:
            needed.missed(key, file, error)

        needed.note([*own_files(table), *lists_of(table)])
        async for manifest in manifests_of(table, self._manifests, damaged):
            yield
            needed.note([manifest])
            if manifest not in self._harmless or is_near:
                paths = await files_of(manifest, self._manifests, damaged)
                needed.note(paths)
                self._remember(manifest, paths, home)

    def _remember(self, manifest: str, paths: Sequence[str], home: str) -> None:
        if paths and all(is_inside(normalize_or_none(path) or "", home) for path in paths):
            if len(self._harmless) >= limits.CATALOG_MANIFESTS_REMEMBERED:
                self._harmless.clear()
            self._harmless.add(manifest)
