"""Purges: the files of a dropped table go, an hour after the drop or later (hazard 23).

    1  look      the table's last metadata file names all the others. Its name is taken again, by a registration: no
                 purge any more. It says gc.enabled=false: others use its files, none goes
    2  others    every other table of the catalog is read for files in the purged table's location: those stay, and so
                 does whatever is a table or view itself. One that cannot be read might need anything: all purges wait
                 until it can, or is dropped (hazard 1)
    3  begin     the record says so from now on, and nobody registers the table any more
    4  remove    data files, manifest by manifest; then manifests, lists, statistics, old metadata files; last the
                 metadata file that names them all
    5  end       the record goes

Only what the table's own metadata names goes, and of that only what lies in its location and in the warehouse. A crash
anywhere leaves a record that begins again with 1: as long as anything is left, what names it is left too. Lists and
manifests of the purged table that are damaged stay, with what only they name: a warning says where, and the purge ends.
One that a disk or a store does not give is tried again; the purges behind it do not wait for it.

The work is cut into small steps, one file each, so that whoever does it can pause between any two.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import PurgeRecord
from icestream.catalog.cleanup.file_references import ManifestSource, files_of, lists_of, manifests_of, own_files
from icestream.catalog.cleanup.files_in_use import FilesInUse, FilesInUseScan
from icestream.catalog.documents import Documents
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize, normalize_or_none
from icestream.iceberg.properties import as_flag
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

GC_ENABLED: Final = "gc.enabled"
_log = get_logger("catalog.purge")


@dataclass(frozen=True, slots=True)
class Doomed:
    key: str
    entry: Entry
    record: PurgeRecord
    table: TableMetadata
    location: str

    @property
    def uuid(self) -> str:
        return self.key.removeprefix(catalog_keys.PURGES)


class Purges:
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
        self._needed = FilesInUseScan(store, documents, manifests)
        self._failed: set[str] = set()  # keys of purges that are there

    async def next_due_ms(self) -> int | None:
        found = [record.time_ms for _, _, record in await self._records()]
        return min(found) + limits.CATALOG_FILE_GRACE_MS if found else None

    async def _records(self) -> list[tuple[str, Entry, PurgeRecord]]:
        found = await self._store.list_all(catalog_keys.PURGES)
        return [(key, entry, catalog_records.decode(PurgeRecord, key, entry)) for key, entry in found]

    async def work(self, now_ms: int) -> AsyncIterator[None]:
        """All that is due, in steps. What fails is told at the end, and comes last the next time."""
        due = [one for one in await self._records() if one[2].time_ms + limits.CATALOG_FILE_GRACE_MS <= now_ms]
        due.sort(key=lambda one: one[0] in self._failed)
        failed: list[errors.PersistentStorageError] = []
        doomed: dict[str, Doomed] = {}
        for key, entry, record in due[: limits.CATALOG_PURGES_AT_ONCE]:
            with self._noting(key, failed):
                if (found := await self._found(key, entry, record)) is not None:
                    doomed[found.uuid] = found
            yield
        if doomed:
            needed = FilesInUse([one.location for one in doomed.values()])
            async for _ in self._needed.look(needed):
                yield
            async for _ in self._purge_all(doomed, needed, failed):
                yield
        if failed:
            raise failed[0]

    async def _purge_all(
        self, doomed: dict[str, Doomed], needed: FilesInUse, failed: list[errors.PersistentStorageError]
    ) -> AsyncIterator[None]:
        for uuid in needed.uuids & doomed.keys():
            one = doomed.pop(uuid)
            await self._end(one.key, "a purge is given up: the table has a name again", table=one.location)
        for error in needed.unread.values():
            raise error
        for one in doomed.values():
            with self._noting(one.key, failed):
                async for _ in self._purge(one, needed.files):
                    yield

    @contextlib.contextmanager
    def _noting(self, key: str, failed: list[errors.PersistentStorageError]) -> Iterator[None]:
        """The others do not wait for one whose disk or store does not answer."""
        try:
            yield
        except errors.PersistentStorageError as error:
            failed.append(error)
            self._failed.add(key)
            _log.warning("a purge is tried again later", uuid=key.removeprefix(catalog_keys.PURGES), reason=str(error))

    async def _purge(self, one: Doomed, kept: set[str]) -> AsyncIterator[None]:
        if not await self._begun(one):
            return
        damaged: dict[str, str] = {}
        async for _ in self._remove(one, kept, damaged):
            yield
        for file, reason in [*damaged.items()][:1]:
            words = {"table": one.location, "file": file, "reason": reason, "damaged": len(damaged)}
            _log.warning("a purge leaves what it cannot read, and the files that only this names", **words)
        await self._end(one.key, "a purge is done", table=one.location, kept=len(kept))

    # --- look ---

    async def _found(self, key: str, entry: Entry, record: PurgeRecord) -> Doomed | None:
        """None: there is nothing to purge, and the record is gone."""
        try:
            table = await self._documents.read_table(record.location)
            location = normalize(table.location)
        except errors.MetadataFileMissing:
            await self._end(key, "a purge found its metadata file gone: it was done before", file=record.location)
            return None
        except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
            _log.warning("a purge leaves all files of its table", file=record.location, reason=str(error))
            await self._end(key, "a purge is given up: its metadata file is of no use", file=record.location)
            return None
        if not any(is_inside(location, root) for root in self._roots):
            await self._end(key, "a purge is given up: the table lies outside of the warehouse", table=location)
            return None
        if not as_flag(table.properties, GC_ENABLED, True):
            await self._end(key, "a purge is given up: the table says gc.enabled=false", table=location)
            return None
        return Doomed(key, entry, record, table, location)

    async def _end(self, key: str, said: str, **words: object) -> None:
        await self._store.delete(key)
        self._failed.discard(key)
        _log.info(said, uuid=key.removeprefix(catalog_keys.PURGES), **words)

    # --- begin, remove ---

    async def _begun(self, one: Doomed) -> bool:
        """From now on nobody registers the table: its files are going. False: somebody did."""
        if one.record.is_begun:
            return True
        begun = msgspec.structs.replace(one.record, is_begun=True)
        compare = cmd.AtRevision(one.key, one.entry.mod_revision)
        return (await self._store.txn([compare], [cmd.Put(one.key, catalog_records.encode(begun))])).held

    async def _remove(self, one: Doomed, kept: set[str], damaged: dict[str, str]) -> AsyncIterator[None]:
        """`damaged` takes what stays because nobody can read what it names."""

        def may_go(path: str) -> str | None:
            found = normalize_or_none(path)
            is_free = found is not None and found not in kept and path not in damaged
            return found if is_free and found is not None and is_inside(found, one.location) else None

        def stays(file: str, error: errors.IcestreamError) -> None:
            damaged[file] = str(error)

        manifests: list[str] = []
        async for manifest in manifests_of(one.table, self._manifests, stays):
            yield
            manifests.append(manifest)
            for path in await files_of(manifest, self._manifests, stays):
                if (found := may_go(path)) is not None:
                    await self._files.remove(found)
                    yield
        last = normalize(one.record.location)
        for path in (*manifests, *lists_of(one.table), *own_files(one.table)):
            if (found := may_go(path)) is not None and found != last:
                await self._files.remove(found)
                yield
        if may_go(last) is not None:
            await self._files.remove(last)
        await self._files.remove_empty(one.location)
