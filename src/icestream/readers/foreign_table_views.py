"""Views of topic tables in another catalog: REST, Glue, SQL.

Such a catalog does not notify of changes, so there are two sources of news (docs/adr/0029):

    our commits       the pipeline records each in our own metadata store; a watch of it invalidates the view
    foreign commits   a cached view is used for SCAN_FOREIGN_VIEW_SECONDS; the next request after that loads the table
                      again. Without requests nothing is loaded. A compaction that is noticed late costs nothing: the
                      files of the older snapshot still exist, or the scan is planned again; rows that an engine deleted
                      are returned for that long

The committed offsets of a table are the higher of our own record and of main's snapshots: the record may lag, and main
may have been rolled back. What main lacks follows from its history (catalog/topic_rules/snapshot_progress.py).
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog.catalog_keys import FOREIGN_TABLES, foreign_table_key, retained_key
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.plans.commit_plans import first_kept
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules.binding import AdoptionBase, Binding
from icestream.catalog.topic_rules.offset_run import OffsetRun, OffsetRuns
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.catalog.topic_rules.snapshot_progress import main_progress, missing_from_main
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.mirror_anchor import anchor
from icestream.catalogs.table_catalog import LoadedTable, TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Changes
from icestream.observability.log import get_logger
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_views import BoundTopic, DetachedTopic, TableView
from icestream.runtime.clock import Clock

_log = get_logger("scan")
LONG_AGO_NS: Final = -(10**18)  # older than any age that a view may have


class _CachedView(NamedTuple):
    view: TableView
    loaded_ns: int  # when the load started; LONG_AGO_NS: outdated, kept for comparison


class ForeignTableViews:
    """Table views of another catalog. `run` must be running for views to be cached."""

    def __init__(self, store: MetadataStore, catalog: TableCatalog, snapshots: SnapshotReader, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._snapshots = snapshots
        self._marks = SnapshotMap(store)
        self._clock = clock
        self._cached: dict[int, _CachedView] = {}  # by topic id
        # By topic id, only of loads in progress: one load of a table at a time.
        self._load_locks: dict[int, asyncio.Lock] = {}
        self._changed_during_load: set[int] = set()  # topic ids
        self._is_requested = asyncio.Event()
        self._is_watched = False

    # --- requests ---

    async def bound_topics(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        page, next_page = await self._list(after, limit)
        return [topic for topic in page if isinstance(topic, BoundTopic)], next_page

    async def detached_topics(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        page, next_page = await self._list(after, limit)
        return [topic for topic in page if isinstance(topic, DetachedTopic)], next_page

    async def _list(self, after: str, limit: int) -> tuple[list[BoundTopic | DetachedTopic], str | None]:
        page = await self._store.list(FOREIGN_TABLES, FOREIGN_TABLES + after if after else "", limit)
        topics = [_decode_topic(key, entry) for key, entry in page]
        return topics, page[-1][0].removeprefix(FOREIGN_TABLES) if len(page) == limit else None

    async def detached_topic(self, topic_id: int) -> DetachedTopic | None:
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        topic = None if entry is None else _decode_topic(key, entry)
        return topic if isinstance(topic, DetachedTopic) else None

    async def view(self, topic_id: int) -> TableView | None:
        self._is_requested.set()
        return self._current(topic_id) or await self._load_coalesced(topic_id, self._clock.monotonic_ns())

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        return await self._marks.find(topic_id, snapshot_id)

    async def fresh(self, topic_id: int) -> TableView | None:
        return await self._load_coalesced(topic_id, self._clock.monotonic_ns(), is_fresh=True)

    def _current(self, topic_id: int) -> TableView | None:
        """Returns the cached view unless it is too old, or changes were not watched."""
        cached = self._cached.get(topic_id) if self._is_watched else None
        if cached is None:
            return None
        age_ns = self._clock.monotonic_ns() - cached.loaded_ns
        return cached.view if age_ns < limits.SCAN_FOREIGN_VIEW_SECONDS * 1e9 else None

    async def _load_coalesced(self, topic_id: int, requested_ns: int, *, is_fresh: bool = False) -> TableView | None:
        """Coalesces concurrent loads: a load that started after this request is reused instead of loading again."""
        lock = self._load_locks.setdefault(topic_id, asyncio.Lock())
        try:
            async with lock:
                cached = self._cached.get(topic_id)
                # The start of that load and not its end: a commit before this request is in a table that was read after
                # it.
                if cached is not None and cached.loaded_ns > requested_ns and (is_fresh or self._is_watched):
                    return cached.view
                return await self._load(topic_id)
        finally:
            if not lock.locked():
                self._load_locks.pop(topic_id, None)
                self._changed_during_load.discard(topic_id)

    # --- loading ---

    async def _load(self, topic_id: int) -> TableView | None:
        """Loads the table of a topic; None if the topic has no table, or was detached from it. Raises
        TableUnreadable."""
        started_ns = self._clock.monotonic_ns()
        # Out of the cache while it loads: a load that fails must not leave the outdated view behind.
        previous = self._cached.pop(topic_id, None)
        self._changed_during_load.discard(topic_id)
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        mirror = decode_foreign_table(key, entry)
        if mirror.is_detached:
            return None
        identifier = Identifier(tuple(mirror.namespace), mirror.name)
        table, record = await self._load_record(topic_id, mirror, identifier)
        # After the table, as in our own catalog: a retention writes them before its commit.
        first = first_kept(topic_id, await self._store.get(retained_key(topic_id)))
        if previous is not None and previous.view.record == record:
            # The same metadata file: its manifests are not read again, which is most of the cost of a load.
            is_same = previous.view.first_offsets == first
            view = (
                previous.view
                if is_same
                else TableView(identifier, record, table, previous.view.files, mirror.committed, first)
            )
        else:
            files = await self._snapshots.current_files(table)
            view = TableView(identifier, record, table, files, mirror.committed, first)
        # A change during the load may have come after the table was read: such a view serves this request only.
        loaded_ns = LONG_AGO_NS if topic_id in self._changed_during_load else started_ns
        self._cache(topic_id, _CachedView(view, loaded_ns))
        return view

    async def _load_record(
        self, topic_id: int, mirror: ForeignTableRecord, identifier: Identifier
    ) -> tuple[TableMetadata, TableRecord]:
        """Returns the table, and a record as our own catalog would have it: committed offsets as one run for each
        shard, and the removals that follow from the history of main. Raises TableUnreadable."""
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            raise _unreadable(identifier, "it does not exist") from None
        # A dropped and recreated table has the same name, and other rows under the same offsets.
        if loaded.uuid != mirror.uuid:
            raise _unreadable(identifier, "it is not the table that was written before (another UUID)")
        table = tables.load(loaded.metadata)
        base = anchor(table, topic_id, mirror)
        committed = _committed(table, topic_id, mirror, base)
        runs: dict[int, OffsetRuns] = {shard: (OffsetRun(0, 0, end),) for shard, end in committed.items()}
        binding = Binding(_topic(topic_id, mirror), topic_id, runs, base=base)
        where = _version(loaded, table)
        return table, TableRecord(mirror.uuid, where, 0, binding, missing_from_main(table, topic_id, committed, base))

    def _cache(self, topic_id: int, cached: _CachedView) -> None:
        while len(self._cached) >= limits.SCAN_VIEWS_MAX:
            del self._cached[next(iter(self._cached))]
        self._cached[topic_id] = cached

    # --- the watch ---

    async def run(self) -> None:
        await self._is_requested.wait()
        while True:
            try:
                await self._watch()
            except errors.IcestreamError as error:
                _log.warning("table watch interrupted, dropping cached table views", error=str(error))
            finally:
                self._is_watched = False
                self._cached.clear()
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    async def _watch(self) -> None:
        """Invalidates views with each commit of ours, which the pipeline records in the metadata store."""
        # The watch begins before the cache is used: a commit between a load and the watch would go unnoticed.
        changes = self._store.watch(FOREIGN_TABLES, await self._store.revision())
        self._cached.clear()
        self._is_watched = True
        async for change in changes:
            if not isinstance(change, Changes):
                self._cached.clear()
                continue
            for event in change.events:
                self._invalidate(event.key)

    def _invalidate(self, key: str) -> None:
        """Marks the cached view as outdated. It is kept, because a load that finds the same record reuses it."""
        number = key.removeprefix(FOREIGN_TABLES)
        topic_id = int(number) if number.isdigit() else -1
        if topic_id in self._load_locks:
            self._changed_during_load.add(topic_id)
        cached = self._cached.get(topic_id)
        if cached is not None:
            self._cached[topic_id] = cached._replace(loaded_ns=LONG_AGO_NS)


def _decode_topic(key: str, entry: Entry) -> BoundTopic | DetachedTopic:
    """Returns the topic of a mirror; with its problem if the mirror cannot be decoded."""
    topic_id = int(key.removeprefix(FOREIGN_TABLES))
    try:
        mirror = decode_foreign_table(key, entry)
    except errors.MetadataDamaged as error:
        return BoundTopic("?", topic_id, str(error))
    if not mirror.is_detached:
        return BoundTopic(_topic(topic_id, mirror), topic_id)
    table = Identifier(tuple(mirror.namespace), mirror.name)
    return DetachedTopic(_topic(topic_id, mirror), topic_id, str(table), mirror.committed)


def _topic(topic_id: int, mirror: ForeignTableRecord) -> str:
    return mirror.topic or f"/default/topic-{topic_id}"  # records of older versions have no name


def _committed(
    table: TableMetadata, topic_id: int, mirror: ForeignTableRecord, base: AdoptionBase | None
) -> dict[int, int]:
    main = main_progress(table, topic_id, base).last_round.committed
    return {
        shard: max(mirror.committed.get(shard, 0), main.get(shard, 0)) for shard in sorted({*mirror.committed, *main})
    }


def _version(loaded: LoadedTable, table: TableMetadata) -> str:
    """Returns a text that changes with every commit to the table."""
    return loaded.metadata_location or f"{table.current_snapshot_id}, {table.fields['last-updated-ms']}"


def _unreadable(identifier: Identifier, why: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"the table {identifier} cannot be read: {why}",
        hint="`icestream lake adopt` or `recreate` settles which table the topic has",
    )
