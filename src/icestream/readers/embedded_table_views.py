"""The tables of topics in our own catalog, as they are now: read once, then told by a watch of the metadata store.

    known       a view that the watch has not contradicted: as fresh as the store's last change that reached us
    not known   not asked for yet, or changed since, or the watch was interrupted: read from the store

The watch begins with the first table that somebody asks for. Whoever stands at the end of what a view knows asks for a
fresh one, which is read past the watch: only then is the end believed.
"""

from __future__ import annotations

import asyncio

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import BoundRecord, DetachedRecord
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.entry import Entry
from icestream.metadata.watch import Changes
from icestream.observability.log import get_logger
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_view import TableView
from icestream.readers.table_views import BoundTopic, DetachedTopic
from icestream.runtime.clock import Clock

_log = get_logger("scan")


class EmbeddedTableViews:
    def __init__(self, catalog: Catalog, manifests: ManifestReader, clock: Clock) -> None:
        self._catalog = catalog
        self._snapshots = SnapshotReader(manifests)
        self._marks = SnapshotMap(catalog.store)
        self._clock = clock
        self._views: dict[int, TableView] = {}  # by topic id
        self._by_key: dict[str, int] = {}
        self._changed: dict[str, int] = {}  # how often the watch told a change of each table
        self._wanted = asyncio.Event()
        self._is_watched = False

    # --- asking ---

    async def bound(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        found = await self._catalog.store.list(catalog_keys.BOUND, catalog_keys.BOUND + after if after else "", limit)
        items = [_bound(key, entry) for key, entry in found]
        return items, found[-1][0].removeprefix(catalog_keys.BOUND) if len(found) == limit else None

    async def parted(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        found = await self._catalog.store.list(
            catalog_keys.DETACHED, catalog_keys.DETACHED + after if after else "", limit
        )
        items = [_parted(key, entry) for key, entry in found]
        return items, found[-1][0].removeprefix(catalog_keys.DETACHED) if len(found) == limit else None

    async def parted_of(self, topic_id: int) -> DetachedTopic | None:
        key = catalog_keys.detached_key(topic_id)
        entry = await self._catalog.store.get(key)
        return None if entry is None else _parted(key, entry)

    async def view(self, topic_id: int) -> TableView | None:
        """None: the topic has no table."""
        self._wanted.set()
        found = self._views.get(topic_id) if self._is_watched else None
        return found or await self.fresh(topic_id)

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        return await self._marks.find(topic_id, snapshot_id)

    async def fresh(self, topic_id: int) -> TableView | None:
        identifier = await self._catalog.topics.table_of(topic_id)
        if identifier is None:
            self.forget(topic_id)
            return None
        key = catalog_keys.relation_key(identifier)
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
        return TableView(identifier, loaded.record, table, await self._snapshots.current_files(table))

    def _keep(self, topic_id: int, key: str, view: TableView) -> None:
        while len(self._views) >= limits.SCAN_VIEWS_MAX:
            self.forget(next(iter(self._views)))
        self._views[topic_id] = view
        self._by_key[key] = topic_id

    def forget(self, topic_id: int) -> None:
        view = self._views.pop(topic_id, None)
        if view is not None:
            self._by_key.pop(catalog_keys.relation_key(view.identifier), None)

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
        changes = store.watch(catalog_keys.ROOT, await store.revision())
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
        if key.startswith(catalog_keys.RELATIONS):
            if len(self._changed) >= limits.SCAN_VIEWS_MAX and key not in self._changed:
                self._changed.clear()
                self._views.clear()
                self._by_key.clear()
            self._changed[key] = self._changed.get(key, 0) + 1
            if key in self._by_key:
                self.forget(self._by_key[key])
        elif key.startswith(catalog_keys.TOPICS):
            self.forget(int(key.removeprefix(catalog_keys.TOPICS)))


def _bound(key: str, entry: Entry) -> BoundTopic:
    try:
        found = catalog_records.decode(BoundRecord, key, entry)
    except errors.MetadataDamaged as error:
        return BoundTopic("?", 0, str(error))
    return BoundTopic(found.topic, found.topic_id)


def _parted(key: str, entry: Entry) -> DetachedTopic:
    topic_id = int(key.removeprefix(catalog_keys.DETACHED))
    try:
        found = catalog_records.decode(DetachedRecord, key, entry)
    except errors.MetadataDamaged as error:
        return DetachedTopic("?", topic_id, "?", {}, str(error))
    table = Identifier(tuple(found.namespace), found.name)
    return DetachedTopic(found.topic, topic_id, str(table), found.committed)
