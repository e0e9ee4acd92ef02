"""Removes the files of tables that nobody needs any more, a few with each round (hazards 1, 11, 23).

    gone          what snapshots named that expired: lists, merged manifests, data files that others have replaced
    strays        what rounds left that were cut off, refused or overtaken: found in the folders of a table, once for
                  each life of a driver, a day later again, and after a round that did not end plainly; but none of the
                  epoch that the table has committed under last

Both wait for the delay, so that whoever reads by an older look finds its files; then they are compared with the table
as it is (`clean_up.may_go`), and go: data first, then manifests, the list that names them last. A crash anywhere leaves
strays for the next driver.

Only tables in a place of their own that our catalog made, only what lies in it, and none where the table says
gc.enabled=false. What is decided here stays right however late it is carried out: no snapshot comes back, and no commit
of an epoch below the table's is ever taken. So a driver that was overtaken does no harm either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import TableRecord
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize, normalize_or_none
from icestream.iceberg.properties import as_flag
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MetadataStore
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.snapshot_builder import metadata_folder
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.file_cleanup.removal_rule import Candidate, TableState, may_remove
from icestream.pipeline.file_cleanup.watched_table import PendingRemoval, WatchedTable, statistics_of
from icestream.pipeline.tables.table_policy import data_folder
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock

GC_ENABLED: Final = "gc.enabled"
_UNKNOWN_EPOCH: Final = 2**63
_log = get_logger("pipeline.clean_up")


class LiveTable(NamedTuple):
    """A table, loaded after what it has committed under was read."""

    table: TableMetadata
    home: str
    epoch: int
    lists: frozenset[str]
    statistics: frozenset[str]


class RemovableFile(NamedTuple):
    location: str
    bytes: int | None  # None: nobody has said
    has_landed: bool


class RemovalPlan(NamedTuple):
    """By location; the lists in the order in which they go, last."""

    data: dict[str, RemovableFile]
    manifests: dict[str, RemovableFile]
    lists: list[RemovableFile]
    read: set[str]  # manifests whose files are in `data`


class FileCleaner:
    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        files: TableFiles,
        named: ReferencedFiles,
        clock: Clock,
        delay_ms: int = limits.CATALOG_FILE_GRACE_MS,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._files = files
        self._named = named
        self._clock = clock
        self._delay_ns = delay_ms * 1_000_000
        self._look_ns = min(limits.CLEAN_UP_LOOK_MS, delay_ms) * 1_000_000
        self._tables: dict[int, WatchedTable] = {}
        self._work: AsyncGenerator[None] | None = None

    # --- what it is told ---

    def committed(self, table: TopicTable) -> None:
        """Something came into it, and something may have expired."""
        watched = self._tables.get(table.topic_id)
        if watched is None or watched.uuid != table.table.uuid or watched.identifier != table.identifier:
            self._tables[table.topic_id] = WatchedTable(table.topic_id, table.identifier, table.table.uuid or "")
        else:
            watched.learn(table.table)
            watched.look_before(self._clock.monotonic_ns() + self._look_ns)

    def left_something(self, table: TopicTable) -> None:
        """A round of it did not end plainly: its files may be in no table."""
        watched = self._tables.get(table.topic_id)
        if watched is not None:
            watched.folders_ns = min(watched.folders_ns, self._clock.monotonic_ns() + self._delay_ns)
            watched.look_before(watched.folders_ns)

    @property
    def is_due(self) -> bool:
        if self._work is not None:  # in the middle of it
            return True
        now_ns = self._clock.monotonic_ns()
        return any(one.look_ns is not None and one.look_ns <= now_ns for one in self._tables.values())

    # --- work ---

    async def work(self, check: Callable[[], object]) -> None:
        """Some of what is due; the rest with the next round. `check` raises when the lease is not ours any more."""
        until_ns = self._clock.monotonic_ns() + int(limits.CLEAN_UP_SECONDS * 1e9)
        for _ in range(limits.CLEAN_UP_STEPS):
            check()
            if self._work is None:
                self._work = self._steps()
            try:
                await anext(self._work)
            except StopAsyncIteration:
                self._work = None
                return
            except BaseException:
                self._work = None
                raise
            if self._clock.monotonic_ns() >= until_ns:
                return

    async def _steps(self) -> AsyncGenerator[None]:
        """Each of them reads or removes a few files."""
        for one in list(self._tables.values()):
            now_ns = self._clock.monotonic_ns()
            if one.look_ns is None or one.look_ns > now_ns:
                continue
            one.look_ns = None
            try:
                async for _ in self._look(one):
                    yield
            except (errors.IcestreamError, OSError) as error:
                _log.warning(
                    "files that nobody needs could not be removed", table=str(one.identifier), reason=str(error)
                )
                one.look_before(now_ns + max(self._look_ns, limits.CLEAN_UP_RETRY_MS * 1_000_000))
            else:
                for due_ns in (one.next_due_ns, one.folders_ns):
                    if due_ns is not None:
                        one.look_before(due_ns)

    async def _look(self, one: WatchedTable) -> AsyncGenerator[None]:
        """First what the table has committed under, then the table: whatever came under a lower epoch came before, and
        is in it."""
        epoch = await self._epoch(one)
        if epoch is None:
            self._tables.pop(one.topic_id, None)
            return
        live = _live(one, tables.load((await self._catalog.load(one.identifier)).metadata), epoch)
        now_ns = self._clock.monotonic_ns()
        if live is None:
            one.forget(now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000)
            return
        one.observe(live.table, now_ns + self._delay_ns)  # before anything else is committed
        yield
        if one.folders_ns <= now_ns:
            one.folders_ns = now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000
            async for _ in self._strays(one, live, now_ns + self._delay_ns):
                yield
        while due := one.due(self._clock.monotonic_ns()):
            async for _ in self._remove_due(one, live, due):
                yield
            one.done(due)

    async def _epoch(self, one: WatchedTable) -> int | None:
        """None: it is not the topic's table any more."""
        key = catalog_keys.relation_key(one.identifier)
        entry = await self._store.get(key)
        record = None if entry is None else catalog_records.decode_relation(key, entry)
        if not isinstance(record, TableRecord) or record.uuid != one.uuid or record.binding is None:
            return None
        return record.binding.pipeline_epoch if record.binding.topic_id == one.topic_id else None

    async def _manifests(self, lists: Iterable[str], left: Iterable[str], found: set[str]) -> AsyncGenerator[None]:
        """What live lists name, and lists that wait."""
        for one in lists:
            found.update(await self._named.manifests_in(one))
            yield
        for one in left:
            found.update(await self._named.manifests_left_in(one))
            yield

    async def _without_named(self, candidates: set[str], manifests: Iterable[str]) -> AsyncGenerator[None]:
        """Takes those data files out that the manifests name."""
        for manifest in manifests:
            if not candidates:
                return
            candidates.difference_update(one.location for one in await self._named.live_files(manifest))
            yield

    # --- strays ---

    async def _strays(self, one: WatchedTable, live: LiveTable, due_ns: int) -> AsyncGenerator[None]:
        """What lies in the folders of a table under names of ours, cannot come into it any more, and is not in it."""
        found: dict[PipelineFileKind, set[str]] = {kind: set() for kind in PipelineFileKind}
        for folder in sorted({metadata_folder(live.table), data_folder(live.table)}):
            where = normalize_or_none(folder)
            if where is None or not is_inside(where, live.home):
                continue
            for name, _ in await self._files.names(where):
                ours = parse_pipeline_file(name)
                if ours is not None and ours.epoch < live.epoch:
                    found[ours.kind].add(f"{where}/{name}")
            yield
        manifests: set[str] = set()
        async for _ in self._manifests(live.lists, one.lists_waiting(), manifests):
            yield
        async for _ in self._without_named(found[PipelineFileKind.DATA], manifests):
            yield
        one.add(
            PendingRemoval(due_ns, location, is_list=True)
            for location in sorted(found[PipelineFileKind.LIST] - live.lists)
        )
        one.add(PendingRemoval(due_ns, location) for location in sorted(found[PipelineFileKind.MANIFEST] - manifests))
        one.add(PendingRemoval(due_ns, location) for location in sorted(found[PipelineFileKind.DATA]))

    # --- removal ---

    async def _remove_due(
        self, table: WatchedTable, live: LiveTable, due: Sequence[PendingRemoval]
    ) -> AsyncGenerator[None]:
        manifests: set[str] = set()
        async for _ in self._manifests(live.lists, table.lists_waiting(besides=due), manifests):
            yield
        named = live.lists | live.statistics | manifests
        seen = TableState(True, live.epoch, {}, live.table.current_snapshot_id, named)
        going = RemovalPlan({}, {}, [], set())
        for one in due:
            doomed = RemovableFile(one.location, None, one.has_landed)
            if not _goes(doomed, seen, live.home):
                continue
            if one.is_list:
                going.lists.append(doomed)
                async for _ in self._named_by(one, seen, live.home, going):
                    yield
            else:
                found = parse_pipeline_file(one.location)
                is_manifest = found is not None and found.kind is PipelineFileKind.MANIFEST
                (going.manifests if is_manifest else going.data).setdefault(one.location, doomed)
        left = set(going.data)
        async for _ in self._without_named(left, manifests):
            yield
        data = [one for one in going.data.values() if one.location in left and _goes(one, seen, live.home)]
        async for _ in self._remove(live, [*data, *going.manifests.values(), *going.lists]):
            yield

    async def _named_by(
        self, one: PendingRemoval, seen: TableState, home: str, going: RemovalPlan
    ) -> AsyncGenerator[None]:
        """The manifests of a list that goes, and unless a later one has them, their files."""
        for manifest in await self._named.manifests(one.location):
            yield
            # What others wrote was in the table that the list was made for.
            has_landed = one.has_landed or parse_pipeline_file(manifest.location) is None
            doomed = RemovableFile(manifest.location, manifest.bytes, has_landed)
            if not _goes(doomed, seen, home):
                continue
            going.manifests.setdefault(manifest.location, doomed)
            if not one.is_carried and manifest.location not in going.read:
                going.read.add(manifest.location)
                for file in await self._named.files(manifest.location):
                    going.data.setdefault(file.location, RemovableFile(file.location, file.bytes, has_landed))

    async def _remove(self, live: LiveTable, doomed: Sequence[RemovableFile]) -> AsyncGenerator[None]:
        total = 0
        for begin in range(0, len(doomed), limits.CLEAN_UP_FILES_AT_ONCE):
            some = doomed[begin : begin + limits.CLEAN_UP_FILES_AT_ONCE]
            sizes = await asyncio.gather(*(self._removed(one) for one in some))
            metrics.PIPELINE_REMOVED_FILES.inc(len(some))
            metrics.PIPELINE_REMOVED_BYTES.inc(sum(sizes))
            total += sum(sizes)
            yield
        if doomed:
            _log.info("files that nobody needs are removed", table=live.home, files=len(doomed), bytes=total)

    async def _removed(self, one: RemovableFile) -> int:
        size = await self._files.size(one.location) if one.bytes is None else one.bytes
        await self._files.remove(one.location)
        return size


def _live(one: WatchedTable, table: TableMetadata, epoch: int) -> LiveTable | None:
    """None: it is not ours to clean."""
    home = normalize(table.location)
    is_at_home = table.uuid == one.uuid and home.endswith(f"-{one.uuid}")
    if not is_at_home or not as_flag(table.properties, GC_ENABLED, True):
        return None
    paths = [normalize_or_none(snapshot.get("manifest-list") or "") for snapshot in table.snapshots]
    lists = frozenset(path for path in paths if path is not None)
    return LiveTable(table, home, epoch, lists, frozenset(statistics_of(table)))


def _goes(one: RemovableFile, seen: TableState, home: str) -> bool:
    ours = parse_pipeline_file(one.location)
    epoch = _UNKNOWN_EPOCH if ours is None else ours.epoch
    candidate = Candidate(one.location, epoch, has_landed=one.has_landed)
    return is_inside(one.location, home) and may_remove(candidate, seen, is_holder=True)
