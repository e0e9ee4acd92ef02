"""Purges: removes the files of dropped tables, an hour after the drop or later (hazard 23).

    0  hold      a table that a backup holds is left alone (catalog_holds.py)
    1  read      the table's last metadata file names all other files. The purge is cancelled if the table has a name
                 again, by a registration, or says gc.enabled=false because others use its files
    2  scan      every other table of the catalog is read for files in the purged table's location: those stay, and so
                 does every current metadata file. While one cannot be read, all purges wait: it might use any file
                 (hazard 1)
    3  begin     the record says so, and the table can no longer be registered
    4  remove    data files, manifest by manifest; then manifests, manifest lists, statistics, old metadata files; at
                 last the metadata file that names them all
    5  end       the record is deleted

Only files that the table's own metadata names are removed, and of these only those in its location and in the
warehouse. A crash anywhere leaves a record that begins again with 1: as long as any file is left, so is what names it.
Damaged manifest lists and manifests of the purged table stay, with the files that only they name: a warning tells
which, and the purge ends. A purge whose storage does not answer is tried again later, without delaying the others.

The work is cut into steps of one file, so that the caller can pause between any two.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_holds, catalog_keys, catalog_records
from icestream.catalog.catalog_records import PurgeRecord
from icestream.catalog.cleanup.file_references import (
    ManifestSource,
    document_references,
    files_of,
    lists_of,
    manifests_of,
)
from icestream.catalog.cleanup.files_in_use import FilesInUse, FilesInUseScan
from icestream.catalog.documents import Documents
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize, normalize_or_none, object_identity
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.table_properties import as_flag
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

GC_ENABLED: Final = "gc.enabled"
_log = get_logger("catalog.purge")


@dataclass(frozen=True, slots=True)
class DuePurge:
    """A purge that is due, with its table as its last metadata file says."""

    key: str
    entry: Entry
    record: PurgeRecord
    table: TableMetadata
    location: str

    @property
    def uuid(self) -> str:
        return self.key.removeprefix(catalog_keys.PURGES)


class Purges:
    """Carries out the purges that are due."""

    def __init__(
        self,
        store: MetadataStore,
        documents: Documents,
        files: TableFiles,
        manifests: ManifestSource,
        roots: Sequence[str],
    ) -> None:
        self._store = store
        self._documents = documents
        self._files = files
        self._manifests = manifests
        self._roots = roots
        self._scan = FilesInUseScan(store, documents, manifests)
        self._failed_keys: set[str] = set()

    async def next_due_ms(self) -> int | None:
        """When the next purge is due; None without any."""
        times = [record.time_ms for _, _, record in await self._records()]
        return min(times) + limits.CATALOG_FILE_GRACE_MS if times else None

    async def _records(self) -> list[tuple[str, Entry, PurgeRecord]]:
        entries = await self._store.list_all(catalog_keys.PURGES)
        return [(key, entry, catalog_records.decode(PurgeRecord, key, entry)) for key, entry in entries]

    async def work(self, now_ms: int) -> AsyncIterator[None]:
        """Carries out what is due, in steps. Raises the first failure at the end; what failed comes last in the next
        pass."""
        records = await self._records()
        due = [
            (key, entry, record)
            for key, entry, record in records
            if record.time_ms + limits.CATALOG_FILE_GRACE_MS <= now_ms
        ]
        # A purge whose storage fails must not keep the others waiting in every pass.
        due.sort(key=lambda item: item[0] in self._failed_keys)
        failures: list[errors.PersistentStorageError] = []
        pending: dict[str, DuePurge] = {}
        for key, entry, record in due[: limits.CATALOG_PURGES_AT_ONCE]:
            with self._collecting(key, failures):
                if await self._postpone_if_held(key, entry, record, now_ms):
                    continue
                if (purge := await self._read(key, entry, record)) is not None:
                    pending[purge.uuid] = purge
            yield
        if pending:
            in_use = FilesInUse([purge.location for purge in pending.values()])
            async for _ in self._scan.run(in_use):
                yield
            async for _ in self._purge_all(pending, in_use, failures):
                yield
        if failures:
            raise failures[0]

    async def _purge_all(
        self, pending: dict[str, DuePurge], in_use: FilesInUse, failures: list[errors.PersistentStorageError]
    ) -> AsyncIterator[None]:
        """Purges these tables, except those that were registered again meanwhile. Raises the error of a table that
        cannot be read."""
        for uuid in in_use.uuids & pending.keys():
            purge = pending.pop(uuid)
            await self._end(purge.key, "purge cancelled: the table is registered again", table=purge.location)
        # No purge goes on while a table cannot be read: it might use any of the files.
        for error in in_use.unreadable.values():
            raise error
        for purge in pending.values():
            with self._collecting(purge.key, failures):
                async for _ in self._purge(purge, in_use.files):
                    yield

    @contextlib.contextmanager
    def _collecting(self, key: str, failures: list[errors.PersistentStorageError]) -> Iterator[None]:
        """Collects a failure of storage instead of raising it, so that it does not delay other purges."""
        try:
            yield
        except errors.PersistentStorageError as error:
            failures.append(error)
            self._failed_keys.add(key)
            _log.warning("purge failed, it is retried", uuid=key.removeprefix(catalog_keys.PURGES), reason=str(error))

    async def _purge(self, purge: DuePurge, in_use: set[str]) -> AsyncIterator[None]:
        """Removes the files of one table, except those in use by others."""
        if not await self._begin(purge):
            return
        damaged: dict[str, str] = {}
        async for _ in self._remove(purge, in_use, damaged):
            yield
        for file, reason in [*damaged.items()][:1]:  # one warning, however many files are damaged
            _log.warning(
                "purge leaves damaged manifests, and the files that only these name",
                table=purge.location,
                file=file,
                reason=reason,
                damaged=len(damaged),
            )
        await self._end(purge.key, "purge done", table=purge.location, kept=len(in_use))

    # --- read ---

    async def _postpone_if_held(self, key: str, entry: Entry, record: PurgeRecord, now_ms: int) -> bool:
        """True if a backup holds the table (hazard 76): its purge is due again after another grace."""
        uuid = key.removeprefix(catalog_keys.PURGES)
        holders = await catalog_holds.held_snapshots(self._store, uuid)
        if not holders:
            return False
        # Not left as due: the clean-up would look at it again without a pause.
        later = msgspec.structs.replace(record, time_ms=now_ms)
        await self._store.txn([cmd.AtRevision(key, entry.mod_revision)], [cmd.Put(key, catalog_records.encode(later))])
        _log.info("purge waits for the backups of its table", uuid=uuid, holders=sorted(holders)[:8])
        return True

    async def _read(self, key: str, entry: Entry, record: PurgeRecord) -> DuePurge | None:
        """Reads the table of a purge; None if there is nothing to purge, and the record is deleted."""
        try:
            table = await self._documents.read_table(record.location)
            location = normalize(table.location)
        except errors.MetadataFileMissing:
            # The metadata file is removed last: everything else was removed before.
            await self._end(key, "purge was done before: its metadata file is removed", file=record.location)
            return None
        except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
            _log.warning("purge leaves all files of its table", file=record.location, reason=str(error))
            await self._end(key, "purge cancelled: its metadata file is damaged", file=record.location)
            return None
        if not any(is_inside(location, root) for root in self._roots):
            await self._end(key, "purge cancelled: the table lies outside the warehouse", table=location)
            return None
        if not as_flag(table.properties, GC_ENABLED, True):
            await self._end(key, "purge cancelled: the table says gc.enabled=false", table=location)
            return None
        return DuePurge(key, entry, record, table, location)

    async def _end(self, key: str, message: str, **fields: object) -> None:
        await self._store.delete(key)
        self._failed_keys.discard(key)
        _log.info(message, uuid=key.removeprefix(catalog_keys.PURGES), **fields)

    # --- begin, remove ---

    async def _begin(self, purge: DuePurge) -> bool:
        """Marks the purge as begun, after which the table cannot be registered. False if it was registered before."""
        if purge.record.is_begun:
            return True
        begun = msgspec.structs.replace(purge.record, is_begun=True)
        comparison = cmd.AtRevision(purge.key, purge.entry.mod_revision)
        return (await self._store.txn([comparison], [cmd.Put(purge.key, catalog_records.encode(begun))])).held

    async def _remove(self, purge: DuePurge, in_use: set[str], damaged: dict[str, str]) -> AsyncIterator[None]:
        """Removes the files of a table. `damaged` receives manifest lists and manifests that cannot be read, with the
        reason: they stay."""

        def removable(path: str) -> str | None:
            location = normalize_or_none(path)
            # A path that cannot be normalized might be another spelling of a file in use (hazard 82).
            if location is None or object_identity(location) in in_use or path in damaged:
                return None
            return location if is_inside(location, purge.location) else None

        def on_damaged(file: str, error: errors.IcestreamError) -> None:
            damaged[file] = str(error)

        # Data files go before the manifests that name them, and the metadata file goes last: after a crash every file
        # that is left can still be found from it.
        manifests: list[str] = []
        async for manifest in manifests_of(purge.table, self._manifests, on_damaged):
            yield
            manifests.append(manifest)
            for path in await files_of(manifest, self._manifests, on_damaged):
                if (location := removable(path)) is not None:
                    await self._files.remove(location)
                    yield
        last = normalize(purge.record.location)
        for path in (*manifests, *lists_of(purge.table), *document_references(purge.table)):
            if (location := removable(path)) is not None and location != last:
                await self._files.remove(location)
                yield
        if removable(last) is not None:
            await self._files.remove(last)
        await self._files.remove_empty(purge.location)
