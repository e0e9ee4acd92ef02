"""Metadata files that nothing points to: of attempts that ended in a crash, or were let go of before one.

Such a file was written by this catalog, is old enough, and is of a version of the table that was decided otherwise:

    its version is in the table's history     another file has it, and this one was made from a file of the history
    its version is older than the history     only where the table says that old files go; else it may have been the
                                              table once, and stays as the table's properties say
    its version is newer than the table's     stays: what would point to it may still be on its way

It is looked for once in the life of a process, an hour after its start, because only a crash leaves one; and only where
the table's place was made by this catalog: elsewhere other catalogs may write. Nor where two tables live in one place
(a file registered under a second name): one's left-over may be the other. Nor of a table that was registered, also in
place of itself: its history may begin again at an older file, and those that came after that one have been the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.cleanup.pointers import pointed_to
from icestream.catalog.documents import Documents
from icestream.iceberg import metadata_file
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize
from icestream.iceberg.properties import as_flag
from icestream.iceberg.table_commit import DELETE_AFTER_COMMIT
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.leftovers")


class OrphanMetadata:
    def __init__(self, store: MetadataStore, documents: Documents, files: TableFiles) -> None:
        self._store = store
        self._documents = documents
        self._files = files

    async def work(self, now_ms: int) -> AsyncIterator[None]:
        after = ""
        tables_in = Counter(location.rpartition("/")[0] for location in await pointed_to(self._store))
        while page := await self._store.list(catalog_keys.RELATIONS, after):
            after = page[-1][0]
            for key, entry in page:
                record = catalog_records.decode_relation(key, entry)
                yield
                if isinstance(record, TableRecord) and not record.is_registered:
                    try:
                        async for _ in self._looked_at(record, now_ms, tables_in):
                            yield
                    except (errors.PersistentStorageError, errors.InvalidInput) as error:  # then nothing is known
                        words = {"table": str(catalog_keys.identifier_of(key)), "reason": str(error)}
                        _log.warning("left-overs of a table that cannot be read stay", **words)

    async def _looked_at(self, record: TableRecord, now_ms: int, tables_in: Counter[str]) -> AsyncIterator[None]:
        try:
            table = await self._documents.read_table(record.location)
        except errors.MetadataFileMissing:
            return  # gone meanwhile
        home = normalize(table.location)
        where = normalize(metadata_file.directory(table.location, table.properties))
        if not home.endswith(f"-{record.uuid}") or not is_inside(where, home) or tables_in[where] > 1:
            return
        known = {normalize(entry["metadata-file"]) for entry in table.metadata_log} | {normalize(record.location)}
        for name, modified_ms in await self._files.names(where):
            location = f"{where}/{name}"
            is_old = modified_ms + limits.CATALOG_FILE_GRACE_MS <= now_ms
            if is_old and location not in known and metadata_file.is_ours(name):
                yield
                if await self._is_left(record, table, known, location):
                    _log.info("a metadata file that nothing points to is removed", file=location)
                    await self._files.remove(location)

    async def _is_left(self, record: TableRecord, table: TableMetadata, known: set[str], location: str) -> bool:
        version = metadata_file.version_of(location)
        versions = {metadata_file.version_of(one) for one in known}
        if version > record.version:
            return False
        if version < min(versions):
            return as_flag(table.properties, DELETE_AFTER_COMMIT, False)
        if version not in versions:
            return False
        try:
            found = await self._documents.read_table(location)
        except errors.MetadataFileDamaged:
            return True  # cut off while it was written
        except errors.MetadataFileMissing:
            return False
        return bool(found.metadata_log) and normalize(found.metadata_log[-1]["metadata-file"]) in known
