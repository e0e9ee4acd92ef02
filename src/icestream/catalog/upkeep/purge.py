"""Purges: the files of a dropped table go, an hour after the drop or later (hazard 23).

    1  look      the table's last metadata file names all the others. Its name is taken again, by a registration: no
                 purge any more. It says gc.enabled=false: others use its files, none goes
    2  others    every other table of the catalog is read for files in the purged table's location: those stay
    3  begin     the record says so from now on, and nobody registers the table any more
    4  remove    data files, manifest by manifest; then manifests, lists, statistics, old metadata files; last the
                 metadata file that names them all
    5  end       the record goes

Only what the table's own metadata names goes, and of that only what lies in its location and in the warehouse. A crash
anywhere leaves a record that begins again with 1: as long as anything is left, what names it is left too.

The work is cut into small steps, one file each, so that whoever does it can pause between any two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from icestream import errors, limits
from icestream.catalog import keys, records
from icestream.catalog.documents import Documents
from icestream.catalog.files import TableFiles
from icestream.catalog.location import is_inside, normal, normal_or_none
from icestream.catalog.records import PurgeRecord, TableRecord
from icestream.catalog.table.properties import as_flag
from icestream.catalog.table.table import Table
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

GC_ENABLED: Final = "gc.enabled"
_log = get_logger("catalog.purge")


class Manifests(Protocol):
    """Reads what lists and manifests name. Raises MetadataFileMissing and MetadataFileDamaged."""

    async def manifests(self, manifest_list: str) -> list[str]: ...

    async def files(self, manifest: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Doomed:
    key: str
    entry: Entry
    record: PurgeRecord
    table: Table
    location: str

    @property
    def uuid(self) -> str:
        return self.key.removeprefix(keys.PURGES)


class Purges:
    def __init__(
        self, store: MetadataStore, documents: Documents, files: TableFiles, manifests: Manifests, roots: Sequence[str]
    ) -> None:
        self._store = store
        self._documents = documents
        self._files = files
        self._manifests = manifests
        self._roots = roots
        self._harmless: set[str] = set()  # manifests that name nothing outside of their own table's location

    async def next_due_ms(self) -> int | None:
        found = [record.time_ms for _, _, record in await self._records()]
        return min(found) + limits.CATALOG_FILE_GRACE_MS if found else None

    async def _records(self) -> list[tuple[str, Entry, PurgeRecord]]:
        found = await self._store.list_all(keys.PURGES)
        return [(key, entry, records.decode(PurgeRecord, key, entry)) for key, entry in found]

    async def work(self, now_ms: int) -> AsyncIterator[None]:
        """All that is due, in steps."""
        due = [one for one in await self._records() if one[2].time_ms + limits.CATALOG_FILE_GRACE_MS <= now_ms]
        doomed: dict[str, Doomed] = {}
        for key, entry, record in due[: limits.CATALOG_PURGES_AT_ONCE]:
            if (found := await self._found(key, entry, record)) is not None:
                doomed[found.uuid] = found
            yield
        if not doomed:
            return
        kept: set[str] = set()
        async for _ in self._look_at_others(doomed, kept):
            yield
        for one in doomed.values():
            if await self._begun(one):
                async for _ in self._remove(one, kept):
                    yield
                await self._end(one.key, "a purge is done", table=one.location, kept=len(kept))

    # --- look ---

    async def _found(self, key: str, entry: Entry, record: PurgeRecord) -> Doomed | None:
        """None: there is nothing to purge, and the record is gone."""
        try:
            table = await self._documents.read_table(record.location)
        except errors.MetadataFileMissing:
            await self._end(key, "a purge found its metadata file gone: it was done before", file=record.location)
            return None
        location = normal(table.location)
        if not any(is_inside(location, root) for root in self._roots):
            await self._end(key, "a purge is given up: the table lies outside of the warehouse", table=location)
            return None
        if not as_flag(table.properties, GC_ENABLED, True):
            await self._end(key, "a purge is given up: the table says gc.enabled=false", table=location)
            return None
        return Doomed(key, entry, record, table, location)

    async def _end(self, key: str, said: str, **words: object) -> None:
        await self._store.delete(key)
        _log.info(said, uuid=key.removeprefix(keys.PURGES), **words)

    # --- others ---

    async def _look_at_others(self, doomed: dict[str, Doomed], kept: set[str]) -> AsyncIterator[None]:
        """Finds what other tables name, and those that have a name again. One that cannot be read stops it all."""
        after = ""
        while page := await self._store.list(keys.RELATIONS, after):
            after = page[-1][0]
            for key, entry in page:
                record = records.decode_relation(key, entry)
                if not isinstance(record, TableRecord):
                    continue
                if (again := doomed.pop(record.uuid.lower(), None)) is not None:
                    await self._end(again.key, "a purge is given up: the table has a name again", table=again.location)
                async for _ in self._named_by(await self._documents.read_table(record.location), doomed, kept):
                    yield

    async def _named_by(self, other: Table, doomed: dict[str, Doomed], kept: set[str]) -> AsyncIterator[None]:
        home = normal(other.location)
        places = [one.location for one in doomed.values()]
        is_near = any(is_inside(home, place) or is_inside(place, home) for place in places)

        def note(paths: Sequence[str]) -> None:
            found = [
                path for path in map(normal_or_none, paths) if path and any(is_inside(path, place) for place in places)
            ]
            kept.update(found)

        note([*_own_files(other), *_lists(other)])
        async for manifest in self._manifests_of(other):
            yield
            note([manifest])
            if manifest in self._harmless and not is_near:
                continue
            try:
                paths = await self._manifests.files(manifest)
            except errors.MetadataFileMissing:
                continue  # nobody reads through it either
            note(paths)
            if all(is_inside(normal_or_none(path) or "", home) for path in paths):
                if len(self._harmless) >= limits.CATALOG_MANIFESTS_REMEMBERED:
                    self._harmless.clear()
                self._harmless.add(manifest)

    async def _manifests_of(self, table: Table) -> AsyncIterator[str]:
        """Each once."""
        seen: set[str] = set()
        for snapshot in table.snapshots:
            named: list[str] = list(snapshot.get("manifests") or ())
            if (where := snapshot.get("manifest-list")) is not None:
                try:
                    named += await self._manifests.manifests(where)
                except errors.MetadataFileMissing:
                    continue
            for manifest in named:
                if manifest not in seen:
                    seen.add(manifest)
                    yield manifest

    # --- begin, remove ---

    async def _begun(self, one: Doomed) -> bool:
        """From now on nobody registers the table: its files are going. False: somebody did."""
        if one.record.is_begun:
            return True
        begun = msgspec.structs.replace(one.record, is_begun=True)
        compare = cmd.AtRevision(one.key, one.entry.mod_revision)
        return (await self._store.txn([compare], [cmd.Put(one.key, records.encode(begun))])).held

    async def _remove(self, one: Doomed, kept: set[str]) -> AsyncIterator[None]:
        def may_go(path: str) -> str | None:
            found = normal_or_none(path)
            return found if found and found not in kept and is_inside(found, one.location) else None

        manifests: list[str] = []
        async for manifest in self._manifests_of(one.table):
            yield
            manifests.append(manifest)
            try:
                paths = await self._manifests.files(manifest)
            except errors.MetadataFileMissing:
                continue
            for path in paths:
                if (found := may_go(path)) is not None:
                    await self._files.remove(found)
                    yield
        last = normal(one.record.location)
        for path in (*manifests, *_lists(one.table), *_own_files(one.table)):
            if (found := may_go(path)) is not None and found != last:
                await self._files.remove(found)
                yield
        if may_go(last) is not None:
            await self._files.remove(last)
        await self._files.remove_empty(one.location)


def _own_files(table: Table) -> Iterator[str]:
    """What the document itself names, apart from snapshots."""
    for entry in table.metadata_log:
        yield entry["metadata-file"]
    for name in ("statistics", "partition-statistics"):
        for entry in table.fields.get(name) or ():
            yield entry["statistics-path"]


def _lists(table: Table) -> Iterator[str]:
    for snapshot in table.snapshots:
        if (found := snapshot.get("manifest-list")) is not None:
            yield found
