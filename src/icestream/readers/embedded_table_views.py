"""Views of the topic tables in the embedded catalog: loaded once, then invalidated by a watch of the metadata store.

    cached       no change of the table was watched since it was loaded
    not cached   not requested yet, changed since, or the watch was interrupted: loaded from the store

The watch starts with the first request. A reader at the end of a cached view requests a fresh one, which bypasses the
watch: only then is the end of the table certain.
"""

from __future__ import annotations

import asyncio
import hashlib

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import BoundRecord, DetachedRecord
from icestream.catalog.plans.commit_plans import erased_record, first_kept
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.entry import Entry
from icestream.metadata.watch import Changes
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased
from icestream.observability.log import get_logger
from icestream.readers.snapshot_reader import CheckPaths, SnapshotReader
from icestream.readers.table_views import BoundTopic, DetachedTopic, TableView
from icestream.runtime.clock import Clock

_log = get_logger("scan")


class EmbeddedTableViews:
    """Table views of the embedded catalog. `run` must be running for views to be cached."""

    def __init__(
        self, catalog: Catalog, manifests: ManifestReader, clock: Clock, check: CheckPaths | None = None
    ) -> None:
        """`check`: of the paths that tables name (snapshot_reader.py)."""
        self._catalog = catalog
        self._snapshots = SnapshotReader(manifests, check)
        self._files = manifests.table_files
        self._erased_offsets: dict[int, tuple[str, ErasedOffsets]] = {}  # by topic id, with the checksum of the file
        self._marks = SnapshotMap(catalog.store)
        self._clock = clock
        self._views: dict[int, TableView] = {}  # by topic id
        self._topic_ids: dict[str, int] = {}  # of cached views, by the key of the table
        self._change_counts: dict[str, int] = {}  # watched changes of each table, by its key
        self._is_requested = asyncio.Event()
        self._is_watched = False

    # --- requests ---

    async def bound_topics(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        prefix = catalog_keys.BOUND
        page = await self._catalog.store.list(prefix, prefix + after if after else "", limit)
        topics = [_bound_topic(key, entry) for key, entry in page]
        return topics, page[-1][0].removeprefix(prefix) if len(page) == limit else None

    async def detached_topics(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        prefix = catalog_keys.DETACHED
        page = await self._catalog.store.list(prefix, prefix + after if after else "", limit)
        topics = [_detached_topic(key, entry) for key, entry in page]
        return topics, page[-1][0].removeprefix(prefix) if len(page) == limit else None

    async def detached_topic(self, topic_id: int) -> DetachedTopic | None:
        key = catalog_keys.detached_key(topic_id)
        entry = await self._catalog.store.get(key)
        return None if entry is None else _detached_topic(key, entry)

    async def view(self, topic_id: int) -> TableView | None:
        self._is_requested.set()
        view = self._views.get(topic_id) if self._is_watched else None
        return view or await self.fresh(topic_id)

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        return await self._marks.find(topic_id, snapshot_id)

    async def fresh(self, topic_id: int) -> TableView | None:
        identifier = await self._catalog.topics.table_of(topic_id)
        if identifier is None:
            self.forget(topic_id)
            return None
        key = catalog_keys.relation_key(identifier)
        changes_before = self._change_counts.get(key, 0)
        view = await self._load(topic_id, identifier)
        # The topic may have another table now: the entry of the old one goes in any case.
        self.forget(topic_id)
        # A change during the load may have made the view stale already: it is returned, but not cached.
        if view is not None and self._change_counts.get(key, 0) == changes_before:
            self._cache(topic_id, key, view)
        return view

    async def _load(self, topic_id: int, identifier: Identifier) -> TableView | None:
        """Loads a view from the catalog; None if the table is not bound to the topic any more."""
        cached = self._views.get(topic_id)
        loaded = await self._catalog.commits.load(identifier)
        binding = loaded.record.binding
        if binding is None or binding.topic_id != topic_id:
            return None
        # After the table: a retention in between hides rows that the table still has. The other way round its rows
        # would be missing without a reason.
        first = first_kept(topic_id, await self._catalog.store.get(catalog_keys.retained_key(topic_id)))
        erased = await self._erased(topic_id)
        is_same = cached is not None and cached.first_offsets == first and cached.erased is erased
        if cached is not None and is_same and cached.record == loaded.record:
            return cached  # same metadata file, so the same snapshot: its manifests need not be read again
        table = loaded.state.table
        files = await self._snapshots.current_files(table)
        return TableView(identifier, loaded.record, table, files, first=first, erased=erased)

    async def _erased(self, topic_id: int) -> ErasedOffsets:
        """The erased offsets of a topic, read again when an erasure has recorded others. Raises TableUnreadable for a
        side file that is not the recorded one: without it a reader could not tell what is missing and why."""
        record = erased_record(topic_id, await self._catalog.store.get(catalog_keys.erased_key(topic_id)))
        if record is None:
            self._erased_offsets.pop(topic_id, None)
            return NOTHING_ERASED
        cached = self._erased_offsets.get(topic_id)
        if cached is not None and cached[0] == record.sha256:
            return cached[1]
        try:
            data = await self._files.read(record.offsets)
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise errors.DecodeError("its checksum is not the recorded one")
            erased = decode_erased(data)
        except (errors.DecodeError, errors.MetadataFileMissing) as error:
            raise errors.TableUnreadable(
                f"the erased offsets of topic {topic_id} cannot be read from {record.offsets}: {error.message}",
                hint="restore the file from a backup of the table's folder",
            ) from None
        while len(self._erased_offsets) >= limits.SCAN_VIEWS_MAX:
            self._erased_offsets.pop(next(iter(self._erased_offsets)))
        self._erased_offsets[topic_id] = record.sha256, erased
        return erased

    def _cache(self, topic_id: int, key: str, view: TableView) -> None:
        while len(self._views) >= limits.SCAN_VIEWS_MAX:
            self.forget(next(iter(self._views)))
        self._views[topic_id] = view
        self._topic_ids[key] = topic_id

    def forget(self, topic_id: int) -> None:
        view = self._views.pop(topic_id, None)
        if view is not None:
            self._topic_ids.pop(catalog_keys.relation_key(view.identifier), None)

    # --- the watch ---

    async def run(self) -> None:
        """Watches for changes until it is cancelled; starts with the first request."""
        await self._is_requested.wait()
        while True:
            try:
                await self._watch()
            except errors.IcestreamError as error:
                _log.warning("table watch interrupted, dropping cached table views", error=str(error))
            finally:
                self._is_watched = False
                self._views.clear()
                self._topic_ids.clear()
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    async def _watch(self) -> None:
        """Invalidates views with each change of the catalog. After a resync, where changes may have been missed, all
        views."""
        store = self._catalog.store
        # The watch begins before views count as watched: a change between the two would be missed otherwise.
        changes = store.watch(catalog_keys.ROOT, await store.revision())
        self._views.clear()
        self._is_watched = True
        async for change in changes:
            if not isinstance(change, Changes):
                self._views.clear()
                self._topic_ids.clear()
                continue
            for event in change.events:
                self._invalidate(event.key)

    def _invalidate(self, key: str) -> None:
        """Drops the cached view of the table or topic with this key."""
        if key.startswith(catalog_keys.RELATIONS):
            if len(self._change_counts) >= limits.SCAN_VIEWS_MAX and key not in self._change_counts:
                # Forgetting counts could hide a change from a load in progress, so all views go with them.
                self._change_counts.clear()
                self._views.clear()
                self._topic_ids.clear()
            self._change_counts[key] = self._change_counts.get(key, 0) + 1
            if key in self._topic_ids:
                self.forget(self._topic_ids[key])
        elif key.startswith(catalog_keys.TOPICS):
            self.forget(int(key.removeprefix(catalog_keys.TOPICS)))
        elif key.startswith(catalog_keys.RETAINED):
            self.forget(int(key.removeprefix(catalog_keys.RETAINED)))
        elif key.startswith(catalog_keys.ERASED):
            self.forget(int(key.removeprefix(catalog_keys.ERASED)))


def _bound_topic(key: str, entry: Entry) -> BoundTopic:
    try:
        record = catalog_records.decode(BoundRecord, key, entry)
    except errors.MetadataDamaged as error:
        return BoundTopic("?", 0, str(error))
    return BoundTopic(record.topic, record.topic_id)


def _detached_topic(key: str, entry: Entry) -> DetachedTopic:
    topic_id = int(key.removeprefix(catalog_keys.DETACHED))
    try:
        record = catalog_records.decode(DetachedRecord, key, entry)
    except errors.MetadataDamaged as error:
        return DetachedTopic("?", topic_id, "?", {}, str(error))
    table = Identifier(tuple(record.namespace), record.name)
    return DetachedTopic(record.topic, topic_id, str(table), record.committed)
