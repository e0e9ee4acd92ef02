"""The tables of topics in another catalog: REST, Glue, SQL.

Such a catalog tells nobody of a change, so there are two sources of news (docs/adr/0029):

    our commits      the pipeline notes each in our own metadata store (catalogs/mirror.py); a watch of it tells us
    those of others  a view is believed for SCAN_FOREIGN_VIEW_SECONDS, then whoever asks next loads the table again.
                     Nobody asks: nothing is loaded. A compaction that is seen late costs nothing: the files of the
                     older snapshot are still there, or the table is planned again; rows that an engine deleted are
                     handed out for as long

How far a table has come is the further of what the mirror says and what main's own snapshots say: the mirror may lag,
and main may have been rolled back. What main lacks follows from its history (catalog/topic_rules/snapshot_progress.py).
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog.catalog_keys import FOREIGN_TABLES, foreign_table_key
from icestream.catalog.catalog_records import TableRecord
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
from icestream.readers.table_view import TableView
from icestream.readers.table_views import BoundTopic, DetachedTopic
from icestream.runtime.clock import Clock

_log = get_logger("scan")
LONG_AGO_NS: Final = -(10**18)


class _Known(NamedTuple):
    view: TableView
    read_ns: int


class ForeignTableViews:
    def __init__(self, store: MetadataStore, catalog: TableCatalog, snapshots: SnapshotReader, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._snapshots = snapshots
        self._marks = SnapshotMap(store)
        self._clock = clock
        self._known: dict[int, _Known] = {}  # by topic id
        self._turns: dict[int, asyncio.Lock] = {}  # one load of a table at a time; only while somebody loads
        self._moved: set[int] = set()  # told of by the watch while somebody loads them
        self._wanted = asyncio.Event()
        self._is_watched = False

    # --- asking ---

    async def bound(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        found = await self._store.list(FOREIGN_TABLES, FOREIGN_TABLES + after if after else "", limit)
        items = [one for key, entry in found if isinstance(one := _listed(key, entry), BoundTopic)]
        return items, found[-1][0].removeprefix(FOREIGN_TABLES) if len(found) == limit else None

    async def parted(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        found = await self._store.list(FOREIGN_TABLES, FOREIGN_TABLES + after if after else "", limit)
        items = [one for key, entry in found if isinstance(one := _listed(key, entry), DetachedTopic)]
        return items, found[-1][0].removeprefix(FOREIGN_TABLES) if len(found) == limit else None

    async def parted_of(self, topic_id: int) -> DetachedTopic | None:
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        found = None if entry is None else _listed(key, entry)
        return found if isinstance(found, DetachedTopic) else None

    async def view(self, topic_id: int) -> TableView | None:
        self._wanted.set()
        return self._believed(topic_id) or await self._in_turn(topic_id, self._clock.monotonic_ns())

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        return await self._marks.find(topic_id, snapshot_id)

    async def fresh(self, topic_id: int) -> TableView | None:
        return await self._in_turn(topic_id, self._clock.monotonic_ns(), is_fresh=True)

    def _believed(self, topic_id: int) -> TableView | None:
        known = self._known.get(topic_id) if self._is_watched else None
        if known is None:
            return None
        age_ns = self._clock.monotonic_ns() - known.read_ns
        return known.view if age_ns < limits.SCAN_FOREIGN_VIEW_SECONDS * 1e9 else None

    async def _in_turn(self, topic_id: int, asked_ns: int, *, is_fresh: bool = False) -> TableView | None:
        """Who waited for somebody else's load that began after he asked takes what that one found."""
        turn = self._turns.setdefault(topic_id, asyncio.Lock())
        try:
            async with turn:
                known = self._known.get(topic_id)
                if known is not None and known.read_ns > asked_ns and (is_fresh or self._is_watched):
                    return known.view
                return await self._load(topic_id)
        finally:
            if not turn.locked():
                self._turns.pop(topic_id, None)
                self._moved.discard(topic_id)

    # --- loading ---

    async def _load(self, topic_id: int) -> TableView | None:
        began_ns = self._clock.monotonic_ns()
        before = self._known.pop(topic_id, None)
        self._moved.discard(topic_id)
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        mirror = decode_foreign_table(key, entry)
        if mirror.is_parted:
            return None
        identifier = Identifier(tuple(mirror.namespace), mirror.name)
        table, record = await self._recorded(topic_id, mirror, identifier)
        if before is not None and before.view.record == record:
            view = before.view
        else:
            view = TableView(identifier, record, table, await self._snapshots.current_files(table), mirror.committed)
        self._keep(topic_id, _Known(view, LONG_AGO_NS if topic_id in self._moved else began_ns))
        return view

    async def _recorded(
        self, topic_id: int, mirror: ForeignTableRecord, identifier: Identifier
    ) -> tuple[TableMetadata, TableRecord]:
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            raise _unreadable(identifier, "it is gone") from None
        if loaded.uuid != mirror.uuid:
            raise _unreadable(identifier, "it is another table than the one that was written before")
        table = tables.load(loaded.metadata)
        base = anchor(table, topic_id, mirror)
        committed = _committed(table, topic_id, mirror, base)
        runs: dict[int, OffsetRuns] = {shard: (OffsetRun(0, 0, end),) for shard, end in committed.items()}
        binding = Binding(_topic(topic_id, mirror), topic_id, runs, base=base)
        where = _version(loaded, table)
        return table, TableRecord(mirror.uuid, where, 0, binding, missing_from_main(table, topic_id, committed, base))

    def _keep(self, topic_id: int, known: _Known) -> None:
        while len(self._known) >= limits.SCAN_VIEWS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic_id] = known

    # --- the watch ---

    async def run(self) -> None:
        await self._wanted.wait()
        while True:
            try:
                await self._watch()
            except errors.IcestreamError as error:
                _log.warning("tables are read anew: the watch was interrupted", error=str(error))
            finally:
                self._is_watched = False
                self._known.clear()
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    async def _watch(self) -> None:
        changes = self._store.watch(FOREIGN_TABLES, await self._store.revision())
        self._known.clear()
        self._is_watched = True
        async for change in changes:
            if not isinstance(change, Changes):
                self._known.clear()
                continue
            for event in change.events:
                self._outdated(event.key)

    def _outdated(self, key: str) -> None:
        """The view stays for comparison: most of what it holds is still so."""
        number = key.removeprefix(FOREIGN_TABLES)
        topic_id = int(number) if number.isdigit() else -1
        if topic_id in self._turns:
            self._moved.add(topic_id)
        known = self._known.get(topic_id)
        if known is not None:
            self._known[topic_id] = known._replace(read_ns=LONG_AGO_NS)


def _listed(key: str, entry: Entry) -> BoundTopic | DetachedTopic:
    topic_id = int(key.removeprefix(FOREIGN_TABLES))
    try:
        mirror = decode_foreign_table(key, entry)
    except errors.MetadataDamaged as error:
        return BoundTopic("?", topic_id, str(error))
    if not mirror.is_parted:
        return BoundTopic(_topic(topic_id, mirror), topic_id)
    table = Identifier(tuple(mirror.namespace), mirror.name)
    return DetachedTopic(_topic(topic_id, mirror), topic_id, str(table), mirror.committed)


def _topic(topic_id: int, mirror: ForeignTableRecord) -> str:
    return mirror.topic or f"/default/topic-{topic_id}"  # a note of a time when it had no name


def _committed(
    table: TableMetadata, topic_id: int, mirror: ForeignTableRecord, base: AdoptionBase | None
) -> dict[int, int]:
    main = main_progress(table, topic_id, base).last_round.committed
    return {
        shard: max(mirror.committed.get(shard, 0), main.get(shard, 0)) for shard in sorted({*mirror.committed, *main})
    }


def _version(loaded: LoadedTable, table: TableMetadata) -> str:
    """What differs when the table does."""
    return loaded.metadata_location or f"{table.current_snapshot_id}, {table.fields['last-updated-ms']}"


def _unreadable(identifier: Identifier, why: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"the table {identifier} cannot be read: {why}",
        hint="`icestream lake adopt` or `recreate` settles which table the topic has",
    )
