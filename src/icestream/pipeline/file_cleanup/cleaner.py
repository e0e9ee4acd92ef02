"""Removes the files of tables that are not needed any more, a few with each round (hazards 1, 11, 23).

    expired     files that only expired snapshots refer to: manifest lists, merged manifests, data files that another
                engine has replaced
    orphans     files that a commit left which was cut off, refused or overtaken: found by listing the folders of a
                table, once in the life of a driver, daily, and after a commit that needed more than one attempt; never
                those of the epoch under which the table was last committed

Both wait for the delay, so that readers of an older snapshot still find their files. Then they are compared with the
table as it is (`removal_rule.may_remove`) and removed: data files first, then manifests, the list that refers to them
last. After a crash anywhere the rest are orphans for the next driver.

Only tables in a folder of their own that our catalog created are cleaned, only files in that folder, and none if the
table's properties say gc.enabled=false. A decision stays right however late it is carried out: no snapshot comes back,
and no commit of an epoch below the table's is ever accepted. So a driver that was overtaken does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_holds, catalog_keys, catalog_records
from icestream.catalog.catalog_records import TableRecord
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import is_inside, normalize, normalize_or_none, object_identity
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.table_properties import as_flag
from icestream.metadata.store import MetadataStore
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.snapshot_builder import metadata_folder
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.file_cleanup.removal_rule import Candidate, CleanedTable, may_remove
from icestream.pipeline.file_cleanup.watched_table import PendingRemoval, WatchedTable, statistics_of
from icestream.pipeline.tables.table_policy import data_folder
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock

GC_ENABLED: Final = "gc.enabled"
_UNKNOWN_EPOCH: Final = 2**63
_log = get_logger("pipeline.clean_up")


class LiveTable(NamedTuple):
    """A table, loaded after the epoch under which it was last committed was read."""

    metadata: TableMetadata
    folder: str
    epoch: int
    lists: frozenset[str]
    statistics: frozenset[str]


class RemovableFile(NamedTuple):
    """A file that seems to be unneeded."""

    location: str
    bytes: int | None  # None: not known yet
    was_committed: bool


class RemovalPlan(NamedTuple):
    """Files by location; the lists in the order in which they are removed, last."""

    data: dict[str, RemovableFile]
    manifests: dict[str, RemovableFile]
    lists: list[RemovableFile]
    read_manifests: set[str]  # manifests whose files are in `data`


class FileCleaner:
    """Cleans the tables of a driver, in small steps."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        files: TableFiles,
        references: ReferencedFiles,
        clock: Clock,
        delay_ms: int = limits.CATALOG_FILE_GRACE_MS,
    ) -> None:
        """`delay_ms`: how long a file stays after nothing refers to it any more."""
        self._store = store
        self._catalog = catalog
        self._files = files
        self._references = references
        self._clock = clock
        self._delay_ns = delay_ms * 1_000_000
        self._check_interval_ns = min(limits.CLEAN_UP_LOOK_MS, delay_ms) * 1_000_000
        self._tables: dict[int, WatchedTable] = {}
        self._work: AsyncGenerator[None] | None = None

    def table_committed(self, table: TopicTable) -> None:
        """A commit to this table may have expired snapshots."""
        watched = self._tables.get(table.topic_id)
        if watched is None or watched.uuid != table.table.uuid or watched.identifier != table.identifier:
            self._tables[table.topic_id] = WatchedTable(table.topic_id, table.identifier, table.table.uuid or "")
        else:
            watched.add_current_snapshot(table.table)
            watched.check_by(self._clock.monotonic_ns() + self._check_interval_ns)

    def files_left_behind(self, table: TopicTable) -> None:
        """A commit to this table needed more than one attempt, or failed: its files may be in no table."""
        watched = self._tables.get(table.topic_id)
        if watched is not None:
            watched.list_folders_ns = min(watched.list_folders_ns, self._clock.monotonic_ns() + self._delay_ns)
            watched.check_by(watched.list_folders_ns)

    @property
    def is_due(self) -> bool:
        if self._work is not None:  # the last call of `work` ended in the middle
            return True
        now_ns = self._clock.monotonic_ns()
        return any(table.check_ns is not None and table.check_ns <= now_ns for table in self._tables.values())

    # --- work in small steps ---

    async def work(self, check_lease: Callable[[], object]) -> None:
        """Does some of what is due; the next call continues. `check_lease` raises LeaseLost."""
        deadline_ns = self._clock.monotonic_ns() + int(limits.CLEAN_UP_SECONDS * 1e9)
        for _ in range(limits.CLEAN_UP_STEPS):
            check_lease()
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
            if self._clock.monotonic_ns() >= deadline_ns:
                return

    async def _steps(self) -> AsyncGenerator[None]:
        """Each step reads or removes a few files."""
        for table in list(self._tables.values()):
            now_ns = self._clock.monotonic_ns()
            if table.check_ns is None or table.check_ns > now_ns:
                continue
            table.check_ns = None
            try:
                async for _ in self._clean_table(table):
                    yield
            except (errors.IcestreamError, OSError) as error:
                _log.warning("unneeded files could not be removed", table=str(table.identifier), reason=str(error))
                table.check_by(now_ns + max(self._check_interval_ns, limits.CLEAN_UP_RETRY_MS * 1_000_000))
            else:
                for due_ns in (table.next_due_ns, table.list_folders_ns):
                    if due_ns is not None:
                        table.check_by(due_ns)

    async def _clean_table(self, table: WatchedTable) -> AsyncGenerator[None]:
        """Looks at one table: what expired since the last time, orphans in its folders now and then, and files that are
        due."""
        # The epoch first, then the table: every commit under a lower epoch was accepted before, and is in the table.
        epoch = await self._committed_epoch(table)
        if epoch is None:
            self._tables.pop(table.topic_id, None)
            return
        live = _live_table(table, tables.load((await self._catalog.load(table.identifier)).metadata), epoch)
        now_ns = self._clock.monotonic_ns()
        if live is None:
            table.reset(now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000)
            return
        # A held snapshot that the table no longer has lost its tag by force: what it needs is not known here.
        held_snapshots = await catalog_holds.held_snapshots(self._store, table.uuid)
        if any(
            live.metadata.snapshots.find(number) is None for numbers in held_snapshots.values() for number in numbers
        ):
            _log.warning(
                "files are kept for a backup whose snapshot is gone", table=live.folder, holders=sorted(held_snapshots)
            )
            table.reset(now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000)
            return
        table.observe(live.metadata, now_ns + self._delay_ns)  # before the next commit, so that no snapshot is missed
        yield
        if table.list_folders_ns <= now_ns:
            table.list_folders_ns = now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000
            async for _ in self._find_orphans(table, live, now_ns + self._delay_ns):
                yield
        while due := table.due(self._clock.monotonic_ns()):
            async for _ in self._remove_due(table, live, due):
                yield
            table.drop(due)

    async def _committed_epoch(self, table: WatchedTable) -> int | None:
        """Returns the epoch of the last commit; None if it is not the topic's table any more."""
        key = catalog_keys.relation_key(table.identifier)
        entry = await self._store.get(key)
        record = None if entry is None else catalog_records.decode_relation(key, entry)
        if not isinstance(record, TableRecord) or record.uuid != table.uuid or record.binding is None:
            return None
        return record.binding.pipeline_epoch if record.binding.topic_id == table.topic_id else None

    async def _collect_manifests(
        self, live_lists: Iterable[str], pending_lists: Iterable[str], manifests: set[str]
    ) -> AsyncGenerator[None]:
        """Fills `manifests` with those of live lists, and of lists that still wait for their removal."""
        for location in live_lists:
            manifests.update(await self._references.manifests_in(location))
            yield
        for location in pending_lists:
            manifests.update(await self._references.manifests_in_unreferenced(location))
            yield

    async def _subtract_live_files(self, candidates: set[str], manifests: Iterable[str]) -> AsyncGenerator[None]:
        """Removes the data files of the manifests from `candidates`, in whatever form their locations are written."""
        by_identity = _by_identity(candidates)
        for manifest in manifests:
            if not candidates:
                return
            for file in await self._references.live_files(manifest):
                candidates.difference_update(by_identity.pop(object_identity(file.location), ()))
            yield

    # --- orphans ---

    async def _find_orphans(self, table: WatchedTable, live: LiveTable, due_ns: int) -> AsyncGenerator[None]:
        """Finds files in the folders of the table with names of ours that are not in it and cannot get into it."""
        candidates: dict[PipelineFileKind, set[str]] = {kind: set() for kind in PipelineFileKind}
        for folder in sorted({metadata_folder(live.metadata), data_folder(live.metadata)}):
            location = normalize_or_none(folder)
            if location is None or not is_inside(location, live.folder):
                continue
            for name, _ in await self._files.names(location):
                file_name = parse_pipeline_file(name)
                # Only files of lower epochs: a commit of the current epoch may be in flight, and its files are in no
                # table yet.
                if file_name is not None and file_name.epoch < live.epoch:
                    candidates[file_name.kind].add(f"{location}/{name}")
            yield
        manifests: set[str] = set()
        async for _ in self._collect_manifests(live.lists, table.pending_lists(), manifests):
            yield
        async for _ in self._subtract_live_files(candidates[PipelineFileKind.DATA], manifests):
            yield
        lists = _without(candidates[PipelineFileKind.LIST], live.lists)
        table.add(PendingRemoval(due_ns, location, is_list=True) for location in lists)
        unnamed = _without(candidates[PipelineFileKind.MANIFEST], manifests)
        table.add(PendingRemoval(due_ns, location) for location in unnamed)
        table.add(PendingRemoval(due_ns, location) for location in sorted(candidates[PipelineFileKind.DATA]))

    # --- removal ---

    async def _remove_due(
        self, table: WatchedTable, live: LiveTable, due: Sequence[PendingRemoval]
    ) -> AsyncGenerator[None]:
        """Removes the files that are due, if the table as it is now still does not need them."""
        manifests: set[str] = set()
        async for _ in self._collect_manifests(live.lists, table.pending_lists(besides=due), manifests):
            yield
        referenced = {object_identity(location) for location in live.lists | live.statistics | manifests}
        state = CleanedTable(True, live.epoch, {}, live.metadata.current_snapshot_id, referenced)
        plan = RemovalPlan({}, {}, [], set())
        for pending in due:
            file = RemovableFile(pending.location, None, pending.was_committed)
            if not _may_remove(file, state, live.folder):
                continue
            if pending.is_list:
                plan.lists.append(file)
                async for _ in self._plan_list(pending, state, live.folder, plan):
                    yield
            else:
                file_name = parse_pipeline_file(pending.location)
                is_manifest = file_name is not None and file_name.kind is PipelineFileKind.MANIFEST
                (plan.manifests if is_manifest else plan.data).setdefault(pending.location, file)
        unreferenced = set(plan.data)
        # A data file may be in several manifests: it goes only if none of those that stay has it.
        async for _ in self._subtract_live_files(unreferenced, manifests):
            yield
        data = [
            file
            for file in plan.data.values()
            if file.location in unreferenced and _may_remove(file, state, live.folder)
        ]
        # The order matters after a crash: whatever is left is still named by a manifest or list that is left, too.
        async for _ in self._remove(live, [*data, *plan.manifests.values(), *plan.lists]):
            yield

    async def _plan_list(
        self, pending: PendingRemoval, state: CleanedTable, folder: str, plan: RemovalPlan
    ) -> AsyncGenerator[None]:
        """Adds the manifests of a list that is removed; and their files, unless a later list has them all."""
        for manifest in await self._references.manifests(pending.location):
            yield
            # Manifests of other engines were in the table that the list was written for.
            was_committed = pending.was_committed or parse_pipeline_file(manifest.location) is None
            file = RemovableFile(manifest.location, manifest.bytes, was_committed)
            if not _may_remove(file, state, folder):
                continue
            plan.manifests.setdefault(manifest.location, file)
            if not pending.is_carried and manifest.location not in plan.read_manifests:
                plan.read_manifests.add(manifest.location)
                for data_file in await self._references.files(manifest.location):
                    removable = RemovableFile(data_file.location, data_file.bytes, was_committed)
                    plan.data.setdefault(data_file.location, removable)

    async def _remove(self, live: LiveTable, files: Sequence[RemovableFile]) -> AsyncGenerator[None]:
        """Removes files in this order, a few at a time."""
        total_bytes = 0
        for begin in range(0, len(files), limits.CLEAN_UP_FILES_AT_ONCE):
            batch = files[begin : begin + limits.CLEAN_UP_FILES_AT_ONCE]
            sizes = await asyncio.gather(*(self._remove_file(file) for file in batch))
            metrics.PIPELINE_REMOVED_FILES.inc(len(batch))
            metrics.PIPELINE_REMOVED_BYTES.inc(sum(sizes))
            total_bytes += sum(sizes)
            yield
        if files:
            _log.info("removed unneeded files", table=live.folder, files=len(files), bytes=total_bytes)

    async def _remove_file(self, file: RemovableFile) -> int:
        """Returns the size of the removed file."""
        size = await self._files.size(file.location) if file.bytes is None else file.bytes
        await self._files.remove(file.location)
        return size


def _by_identity(locations: Iterable[str]) -> dict[str, list[str]]:
    """The locations by the object that they mean."""
    by_identity: dict[str, list[str]] = {}
    for location in locations:
        by_identity.setdefault(object_identity(location), []).append(location)
    return by_identity


def _without(candidates: Iterable[str], referenced: Iterable[str]) -> list[str]:
    """The candidates that mean none of the referenced objects, sorted."""
    identities = {object_identity(location) for location in referenced}
    return sorted(location for location in candidates if object_identity(location) not in identities)


def _live_table(table: WatchedTable, metadata: TableMetadata, epoch: int) -> LiveTable | None:
    """None if the table is not ours to clean."""
    folder = normalize(metadata.location)
    # The catalog puts the UUID of a table into its folder. Another folder was chosen by a client, and may hold files of
    # other tables.
    has_own_folder = metadata.uuid == table.uuid and folder.endswith(f"-{table.uuid}")
    if not has_own_folder or not as_flag(metadata.properties, GC_ENABLED, True):
        return None
    lists = frozenset(
        normalize(snapshot["manifest-list"]) for snapshot in metadata.snapshots if "manifest-list" in snapshot
    )
    return LiveTable(metadata, folder, epoch, lists, frozenset(statistics_of(metadata)))


def _may_remove(file: RemovableFile, state: CleanedTable, folder: str) -> bool:
    file_name = parse_pipeline_file(file.location)
    epoch = _UNKNOWN_EPOCH if file_name is None else file_name.epoch
    candidate = Candidate(object_identity(file.location), epoch, was_committed=file.was_committed)
    return is_inside(file.location, folder) and may_remove(candidate, state, is_holder=True)
