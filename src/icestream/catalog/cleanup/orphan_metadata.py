"""Removes orphan metadata files: no table points to them, because the attempt that wrote them crashed.

An orphan was written by this catalog, is old enough, is not recorded as retired (retired_files.py has its own delay),
and has a version of the table that another file has taken:

    its version is in the table's metadata log     another file has it, and the orphan was made from a file of the log
    its version is older than the log              an orphan only if the table says that old files are deleted; else it
                                                   may have been the table once, and stays
    its version is newer than the table's          stays: the transaction that points to it may still be in flight

The scan runs once in the life of a process, an hour after its start, because only a crash leaves orphans. It skips

    tables whose location this catalog did not choose     other catalogs may write there
    locations with two tables                             a file may be registered under two names, and the orphan of
                                                          one table may be the metadata file of the other
    registered tables                                     their metadata log may begin again at an older file; files
                                                          that came after it have been the table
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RetiredFilesRecord, TableRecord
from icestream.catalog.cleanup.files_in_use import current_metadata_files
from icestream.catalog.documents import Documents
from icestream.iceberg import metadata_file
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize, normalize_or_none
from icestream.iceberg.table_commit import DELETE_AFTER_COMMIT
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.table_properties import as_flag
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.orphans")


class OrphanMetadata:
    """Finds and removes orphan metadata files, once."""

    def __init__(self, store: MetadataStore, documents: Documents, files: TableFiles) -> None:
        self._store = store
        self._documents = documents
        self._files = files

    async def work(self, now_ms: int) -> AsyncIterator[None]:
        """Scans the metadata directories of all tables that this catalog created; yields after each file."""
        after = ""
        locations = await current_metadata_files(self._store)
        tables_per_directory = Counter(location.rpartition("/")[0] for location in locations)
        retired = await self._retired_files()
        while page := await self._store.list(catalog_keys.RELATIONS, after):
            after = page[-1][0]
            for key, entry in page:
                record = catalog_records.decode_relation(key, entry)
                yield
                if isinstance(record, TableRecord) and not record.is_registered:
                    try:
                        async for _ in self._scan_table(record, now_ms, tables_per_directory, retired):
                            yield
                    except (errors.PersistentStorageError, errors.InvalidInput) as error:
                        _log.warning(
                            "table cannot be read, its orphan metadata files stay",
                            table=str(catalog_keys.identifier_of(key)),
                            reason=str(error),
                        )

    async def _retired_files(self) -> set[str]:
        entries = await self._store.list_all(catalog_keys.RETIRED)
        records = [catalog_records.decode(RetiredFilesRecord, key, entry) for key, entry in entries]
        return {normalize_or_none(location) or "" for record in records for location in record.locations}

    async def _scan_table(
        self, record: TableRecord, now_ms: int, tables_per_directory: Counter[str], retired: set[str]
    ) -> AsyncIterator[None]:
        """Removes the orphans of one table."""
        try:
            table = await self._documents.read_table(record.location)
        except errors.MetadataFileMissing:
            return  # dropped or committed to meanwhile
        table_location = normalize(table.location)
        directory = normalize(metadata_file.directory(table.location, table.properties))
        has_own_location = table_location.endswith(f"-{record.uuid}") and is_inside(directory, table_location)
        if not has_own_location or tables_per_directory[directory] > 1:
            return
        history = {normalize(entry["metadata-file"]) for entry in table.metadata_log} | {normalize(record.location)}
        for name, modified_ms in await self._files.names(directory):
            location = f"{directory}/{name}"
            is_old = modified_ms + limits.CATALOG_FILE_GRACE_MS <= now_ms
            if is_old and location not in history and location not in retired and metadata_file.is_ours(name):
                yield
                if await self._is_orphan(record, table, history, location):
                    _log.info("removed orphan metadata file", file=location)
                    await self._files.remove(location)

    async def _is_orphan(self, record: TableRecord, table: TableMetadata, history: set[str], location: str) -> bool:
        """`history`: the current metadata file and those of the metadata log."""
        version = metadata_file.version_of(location)
        versions = {metadata_file.version_of(file) for file in history}
        # The transaction that points to it may still be in flight.
        if version > record.version:
            return False
        if version < min(versions):
            return as_flag(table.properties, DELETE_AFTER_COMMIT, False)
        if version not in versions:
            return False
        try:
            document = await self._documents.read_table(location)
        except errors.MetadataFileDamaged:
            return True  # the crash cut it off
        except errors.MetadataFileMissing:
            return False
        return bool(document.metadata_log) and normalize(document.metadata_log[-1]["metadata-file"]) in history
