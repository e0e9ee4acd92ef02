"""The tables of topics, as they are now: read once, then told by a watch of the metadata store.

    known       a view that the watch has not contradicted: as fresh as the store's last change that reached us
    not known   not asked for yet, or changed since, or the watch was interrupted: read from the store

The watch begins with the first table that somebody asks for. Whoever stands at the end of what a view knows asks for a
fresh one, which is read past the watch: only then is the end believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cachebox import LRUCache

from icestream import errors, limits
from icestream.catalog import keys
from icestream.catalog.catalog import Catalog
from icestream.catalog.document.values import Object
from icestream.catalog.identifier import Identifier
from icestream.lake.manifests import AvroManifests, Record
from icestream.lake.scan.data_files import DataFile, DeleteFile, SnapshotFiles, field_ids, files_of
from icestream.lake.scan.table_view import TableView
from icestream.metadata.watch import Changes
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("scan")
Files = list[DataFile | DeleteFile]
NO_FILES: Final = SnapshotFiles((), ())


class TopicTables:
    def __init__(self, catalog: Catalog, manifests: AvroManifests, clock: Clock) -> None:
        self._catalog = catalog
        self._manifests = manifests
        self._clock = clock
        self._views: dict[int, TableView] = {}  # by topic id
        self._by_key: dict[str, int] = {}
        self._read: LRUCache[str, Files] = LRUCache(limits.SCAN_MANIFESTS_MAX)
        self._changed: dict[str, int] = {}  # how often the watch told a change of each table
        self._wanted = asyncio.Event()
        self._is_watched = False

    # --- asking ---

    async def view(self, topic_id: int) -> TableView | None:
        """None: the topic has no table."""
        self._wanted.set()
        found = self._views.get(topic_id) if self._is_watched else None
        return found or await self.fresh(topic_id)

    async def fresh(self, topic_id: int) -> TableView | None:
        identifier = await self._catalog.topics.table_of(topic_id)
        if identifier is None:
            self.forget(topic_id)
            return None
        key = keys.relation_key(identifier)
        before = self._changed.get(key, 0)
        found = await self._load(topic_id, identifier)
        self.forget(topic_id)
        if found is not None and self._changed.get(key, 0) == before:  # else it may be old already
            self._keep(topic_id, key, found)
        return found

    async def _load(self, topic_id: int, identifier: Identifier) -> TableView | None:
        known = self._views.get(topic_id)
        loaded = await self._catalog.commits.load(identifier)
        binding = loaded.record.binding
        if binding is None or binding.topic_id != topic_id:
            return None
        if known is not None and known.record == loaded.record:
            return known
        table = loaded.state.table
        at = table.current_snapshot_id
        snapshot = table.snapshots.find(at) if at is not None else None
        files = await self.snapshot_files(snapshot, field_ids(table.current_schema)) if snapshot else NO_FILES
        return TableView(identifier, loaded.record, table, files)

    def _keep(self, topic_id: int, key: str, view: TableView) -> None:
        while len(self._views) >= limits.SCAN_VIEWS_MAX:
            self.forget(next(iter(self._views)))
        self._views[topic_id] = view
        self._by_key[key] = topic_id

    def forget(self, topic_id: int) -> None:
        view = self._views.pop(topic_id, None)
        if view is not None:
            self._by_key.pop(keys.relation_key(view.identifier), None)

    # --- files ---

    async def snapshot_files(self, snapshot: Object, ids: Mapping[str, int]) -> SnapshotFiles:
        found: Files = []
        for path, sequence in await self._named(snapshot):
            read: Files | None = self._read.get(path)
            if read is None:
                read = await self._manifests.decoded(path, _taker(sequence, ids))
                self._read.insert(path, read)
            found += read
        return SnapshotFiles(
            tuple(one for one in found if isinstance(one, DataFile)),
            tuple(one for one in found if isinstance(one, DeleteFile)),
        )

    async def _named(self, snapshot: Object) -> list[tuple[str, int]]:
        """The manifests, each with the sequence number that its new files have."""
        where = snapshot.get("manifest-list")
        if where is None:
            return [(str(path), 0) for path in snapshot.get("manifests") or ()]
        listed: list[Record] = await self._manifests.records(str(where))
        return [(str(one["manifest_path"]), int(one.get("sequence_number") or 0)) for one in listed]

    # --- the watch ---

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._wanted.wait()
        while True:
            try:
                await self._watch()
            except errors.IcestreamError as error:
                _log.warning("tables are read anew: the watch was interrupted", error=str(error))
            finally:
                self._is_watched = False
                self._views.clear()
                self._by_key.clear()
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    async def _watch(self) -> None:
        store = self._catalog.store
        changes = store.watch(keys.ROOT, await store.revision())
        self._views.clear()
        self._is_watched = True
        async for change in changes:
            if not isinstance(change, Changes):
                self._views.clear()
                self._by_key.clear()
                continue
            for event in change.events:
                self._told(event.key)

    def _told(self, key: str) -> None:
        if key.startswith(keys.RELATIONS):
            if len(self._changed) >= limits.SCAN_VIEWS_MAX and key not in self._changed:
                self._changed.clear()
                self._views.clear()
                self._by_key.clear()
            self._changed[key] = self._changed.get(key, 0) + 1
            if key in self._by_key:
                self.forget(self._by_key[key])
        elif key.startswith(keys.TOPICS):
            self.forget(int(key.removeprefix(keys.TOPICS)))


def _taker(sequence: int, ids: Mapping[str, int]) -> Callable[[Iterator[Record]], Files]:
    return lambda records: files_of(records, sequence, ids)
