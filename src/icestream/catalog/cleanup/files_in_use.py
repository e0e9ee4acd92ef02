"""The files that tables and views in the catalog use at some locations: a purge must not remove them (hazard 1), nor
must the clean-up of one table remove what another one names (hazard 76).

    of a view      its metadata file
    of a table     its metadata file, and everything that it names, through manifest lists and manifests

Files are compared as objects (`object_identity`): engines write one path in several forms. The clean-up, which looks
often, does not read tables whose snapshots the pipeline alone has written: they name files of their own folder.

A table that cannot be read, wholly or in part, might use any file. The scan goes on nevertheless, so that the operator
is told of all unreadable tables at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.cleanup.file_references import (
    ManifestSource,
    document_references,
    files_of,
    lists_of,
    manifests_of,
)
from icestream.catalog.documents import Documents
from icestream.iceberg.location import is_inside, normalize, normalize_or_none, object_identity
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.files_in_use")


async def current_metadata_files(store: MetadataStore) -> set[str]:
    """Returns the metadata files that tables and views point to now. They are never removed: one file may be registered
    under two names, and what one table retires, or takes for its orphan, may be what the other points to."""
    locations: set[str] = set()
    after = ""
    while page := await store.list(catalog_keys.RELATIONS, after):
        after = page[-1][0]
        locations.update(normalize(catalog_records.decode_relation(key, entry).location) for key, entry in page)
    return locations


class FilesInUse:
    """The result of a scan, complete when `FilesInUseScan.run` has ended."""

    def __init__(self, locations: Sequence[str]) -> None:
        """`locations`: only files below these matter."""
        self._locations = [object_identity(location) for location in locations]
        self.files: set[str] = set()  # below the locations, as objects
        self.uuids: set[str] = set()  # of all tables in the catalog
        self.unreadable: dict[str, errors.IcestreamError] = {}  # by the keys of tables

    def add(self, paths: Iterable[str], own_location: str | None = None) -> None:
        """Adds those of the paths that are below the locations, but not below `own_location`."""
        own_identity = None if own_location is None else object_identity(own_location)
        for path in paths:
            # No file to be removed can be meant by a path that is not a location.
            identity = None if normalize_or_none(path) is None else object_identity(path)
            if identity is None or (own_identity is not None and is_inside(identity, own_identity)):
                continue
            if any(is_inside(identity, location) for location in self._locations):
                self.files.add(identity)

    def overlaps(self, table_location: str, own_location: str | None = None) -> bool:
        """True if a table there may have files below the locations, or the locations files of it. `own_location`: one
        of the locations that does not count."""
        identity = object_identity(table_location)
        own_identity = None if own_location is None else object_identity(own_location)
        return any(
            is_inside(identity, location) or is_inside(location, identity)
            for location in self._locations
            if location != own_identity
        )

    def add_unreadable(self, key: str, file: str, error: errors.IcestreamError) -> None:
        """Records the first error of a table, and logs it."""
        if key not in self.unreadable:
            self.unreadable[key] = error
            _log.warning(
                "no files of tables are removed: this table cannot be read and might use any of them",
                table=str(catalog_keys.identifier_of(key)),
                file=file,
                reason=str(error),
            )


class FilesInUseScan:
    """Scans all tables. Remembers manifests that need not be read in the next scan."""

    def __init__(self, store: MetadataStore, documents: Documents, manifests: ManifestSource) -> None:
        self._store = store
        self._documents = documents
        self._manifests = manifests
        self._self_contained: set[str] = set()  # manifests that name only files in their own table's location

    async def run(self, in_use: FilesInUse, own_locations: Mapping[str, str] | None = None) -> AsyncIterator[None]:
        """Adds the files of all tables and views to `in_use`, in steps of one file. `own_locations`: of the clean-up,
        the locations by the UUIDs of their tables; what these name of their own it knows itself."""
        after = ""
        while page := await self._store.list(catalog_keys.RELATIONS, after):
            after = page[-1][0]
            for key, entry in page:
                record = catalog_records.decode_relation(key, entry)
                in_use.add([record.location])
                if not isinstance(record, TableRecord):
                    continue
                in_use.uuids.add(record.uuid.lower())
                own_location = None if own_locations is None else own_locations.get(record.uuid)
                if own_locations is None or not _names_own_files(record, in_use, own_location):
                    async for _ in self._scan_table(key, record, in_use, own_location):
                        yield

    async def _scan_table(
        self, key: str, record: TableRecord, in_use: FilesInUse, own_location: str | None
    ) -> AsyncIterator[None]:
        try:
            table = await self._documents.read_table(record.location)
            async for _ in self._scan_references(key, table, in_use, own_location):
                yield
        except (errors.PersistentStorageError, errors.InvalidInput) as error:
            in_use.add_unreadable(key, record.location, error)

    async def _scan_references(
        self, key: str, table: TableMetadata, in_use: FilesInUse, own_location: str | None
    ) -> AsyncIterator[None]:
        """Adds the files that a table refers to; reads those manifests that may name a file below the locations."""
        table_location = normalize(table.location)
        overlaps = in_use.overlaps(table_location, own_location)

        def on_damaged(file: str, error: errors.IcestreamError) -> None:
            in_use.add_unreadable(key, file, error)

        # Of its own files the clean-up reads the live ones; manifests name replaced ones, too.
        in_use.add([*document_references(table), *lists_of(table)], own_location)
        async for manifest in manifests_of(table, self._manifests, on_damaged):
            yield
            in_use.add([manifest], own_location)
            # A self-contained manifest of a table elsewhere cannot name a file that matters: it is not read again.
            if manifest not in self._self_contained or overlaps:
                paths = await files_of(manifest, self._manifests, on_damaged)
                in_use.add(paths, own_location)
                self._remember(manifest, paths, table_location)

    def _remember(self, manifest: str, paths: Sequence[str], table_location: str) -> None:
        """Remembers a self-contained manifest. Manifests never change, so that holds for every later scan."""
        if paths and all(is_inside(normalize_or_none(path) or "", table_location) for path in paths):
            if len(self._self_contained) >= limits.CATALOG_MANIFESTS_REMEMBERED:
                # Only costs reads: the next scan fills it again.
                self._self_contained.clear()
            self._self_contained.add(manifest)


def _names_own_files(record: TableRecord, in_use: FilesInUse, own_location: str | None) -> bool:
    """True if a table cannot name a file that matters: its snapshots are those of the pipeline, and it lies elsewhere,
    which the place of its metadata file tells."""
    folder = normalize(record.location).rpartition("/")[0].removesuffix("/metadata")
    return record.is_pipeline_only and not record.places_elsewhere and not in_use.overlaps(folder, own_location)
