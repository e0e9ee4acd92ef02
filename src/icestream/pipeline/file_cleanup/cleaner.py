"""Removes the files of tables that are not needed any more, a few with each round (hazards 1, 11, 23, 76, 82, 99).

    expired     files that only expired snapshots refer to: manifest lists, merged manifests, data files that were
                replaced. They wait for the delay, so that readers of an older snapshot still find their files
    orphans     files of ours that a commit left which was cut off, refused or overtaken: found by listing the folders
                of a table, once in the life of a driver, daily, and after a commit that needed more than one attempt.
                They wait for the delay, too. Those of the epoch under which the table was last committed stay; if two
                listings see the same ones, the driver takes a new epoch, and the next listing finds them
    superseded  side files of erased offsets that the record of the topic does not name: likewise
    others      files of other writers that the listing finds in no snapshot. They are written down, and condemned if a
                second listing, at least the delay later, finds them in none either

What is not needed is condemned first, in the metadata store (catalog/condemned_files.py), and removed in a later pass:

    condemn     compared with the table as it is (`removal_rule.may_remove`); no restart forgets it
    look        the table is compared again, and all other tables that may name files of its folder. One that cannot be
                read stops all removals
    removing    a transaction that fails if a commit has taken a file off meanwhile; from here on none can add it
    remove      data files first, then manifests, the lists that refer to them last; then the record goes

Only tables in a folder of their own that our catalog created are cleaned, only files in that folder, and none if the
table's properties say gc.enabled=false. A decision stays right however late it is carried out: no snapshot comes back,
no commit of an epoch below the table's is ever accepted, and none that adds a file which is being removed. So a driver
that was overtaken does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Set
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_holds, catalog_keys, catalog_records, condemned_files
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.cleanup.files_in_use import FilesInUse, FilesInUseScan
from icestream.catalog.condemned_files import CondemnedState, StoredRecord
from icestream.catalog.plans.commit_plans import erased_record
from icestream.catalog.topic_rules.erased_record import ErasedRecord
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
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.file_cleanup.folder_survey import SUFFIXES_OF_OTHERS
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.file_cleanup.removal_rule import Candidate, CleanedTable, may_remove
from icestream.pipeline.file_cleanup.watched_table import PendingRemoval, WatchedTable, statistics_of
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock

GC_ENABLED: Final = "gc.enabled"
_UNKNOWN_EPOCH: Final = 2**63
NAME: Final = "file_cleanup"
_TO_REMOVE: Final = (CondemnedState.CONDEMNED, CondemnedState.REMOVING)
_log = get_logger("pipeline.clean_up")


class LiveTable(NamedTuple):
    """A table, loaded after the epoch under which it was last committed was read."""

    metadata: TableMetadata
    folder: str
    epoch: int
    lists: frozenset[str]
    attached: frozenset[str]  # statistics, and the side file of the topic's erased offsets


class RemovalPlan(NamedTuple):
    """Files by location: those whose absence from every manifest is still to be shown, and the others."""

    data: set[str]
    manifests: set[str]
    lists: set[str]
    read_manifests: set[str]  # manifests whose files are in `data`


class CondemnedTable(NamedTuple):
    """A table with condemned files, between two looks."""

    watched: WatchedTable
    live: LiveTable
    records: list[StoredRecord]


class FileCleaner:
    """Cleans the tables of a driver, in small steps."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        files: TableFiles,
        references: ReferencedFiles,
        files_in_use: FilesInUseScan,
        clock: Clock,
        guard: JobGuard,
        delay_ms: int = limits.CATALOG_FILE_GRACE_MS,
    ) -> None:
        """`files_in_use`: reads all tables of the catalog. `guard`: of the jobs. `delay_ms`: how long a file stays
        after nothing refers to it any more."""
        self._store = store
        self._catalog = catalog
        self._files = files
        self._references = references
        self._files_in_use = files_in_use
        self._clock = clock
        self._guard = guard
        self._delay_ms = delay_ms
        self._delay_ns = delay_ms * 1_000_000
        self.ended_epoch = 0  # files of it are left behind: it is to end
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

    def clean_now(self, table: TopicTable) -> None:
        """Has a table looked at in the next turn, with its folders."""
        self.table_committed(table)
        watched = self._tables[table.topic_id]
        watched.list_folders_ns = self._clock.monotonic_ns()
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
                break
            except BaseException:
                self._work = None
                raise
            if self._clock.monotonic_ns() >= deadline_ns:
                break
        self._count_waiting()

    def _count_waiting(self) -> None:
        metrics.PIPELINE_UNNEEDED_FILES.labels("waiting").set(
            sum(len(table.pending) for table in self._tables.values())
        )
        condemned = sum(max(0, table.condemned_files) for table in self._tables.values())
        metrics.PIPELINE_UNNEEDED_FILES.labels("condemned").set(condemned)

    async def _steps(self) -> AsyncGenerator[None]:
        """Each step reads or removes a few files."""
        now_ns = self._clock.monotonic_ns()
        due = [table for table in self._tables.values() if table.check_ns is not None and table.check_ns <= now_ns]
        due.sort(key=lambda table: table.check_ns or 0)  # the oldest debt first
        is_done = False
        try:
            condemned: list[CondemnedTable] = []
            for table in due:
                table.check_ns = None
                is_checked = False
                with self._guard.protect(NAME, table.topic_id, str(table.identifier)):
                    try:
                        async for _ in self._check_table(table, condemned):
                            yield
                    except (errors.IcestreamError, OSError) as error:
                        self._retry(table, error)
                    is_checked = True
                if is_checked:
                    self._guard.succeeded(NAME, table.topic_id)
                else:
                    self._retry_later(table)
            if condemned:
                async for _ in self._remove_condemned(condemned):
                    yield
            is_done = True
        finally:
            for table in due:
                # Cut off by a stop: the next driver, or the next turn of this one, begins again.
                times = (table.next_due_ns, table.list_folders_ns) if is_done else (now_ns,)
                for due_ns in times:
                    if due_ns is not None:
                        table.check_by(due_ns)

    def _retry(self, table: WatchedTable, error: Exception) -> None:
        _log.warning("unneeded files could not be removed", table=str(table.identifier), reason=str(error))
        self._retry_later(table)

    def _retry_later(self, table: WatchedTable) -> None:
        pause_ns = max(self._check_interval_ns, limits.CLEAN_UP_RETRY_MS * 1_000_000)
        table.check_by(self._clock.monotonic_ns() + pause_ns)

    async def _check_table(self, table: WatchedTable, condemned: list[CondemnedTable]) -> AsyncGenerator[None]:
        """Looks at one table: what expired since the last time, files in its folders now and then, and files that are
        due, which are condemned. Adds it to `condemned` if files of it were condemned before."""
        # The epoch first, then the table: every commit under a lower epoch was accepted before, and is in the table.
        epoch = await self._committed_epoch(table)
        if epoch is None:
            for stored in await condemned_files.read_records(self._store, table.uuid):
                await condemned_files.forget(self._store, stored)
            self._tables.pop(table.topic_id, None)
            return
        erased = erased_record(table.topic_id, await self._store.get(catalog_keys.erased_key(table.topic_id)))
        metadata = tables.load((await self._catalog.load(table.identifier)).metadata)
        live = _live_table(table, metadata, epoch, erased)
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
        if table.leftovers and live.epoch > table.leftovers_epoch:
            table.leftovers = frozenset()
            table.list_folders_ns = min(table.list_folders_ns, now_ns)
        table.observe(live.metadata, now_ns + self._delay_ns)  # before the next commit, so that no snapshot is missed
        yield
        records = await condemned_files.read_records(self._store, table.uuid)
        await self._forget_removed(records)
        to_remove = [stored for stored in records if stored.record.state in _TO_REMOVE]
        table.condemned_files = sum(len(stored.record.names) for stored in to_remove)
        if to_remove:
            condemned.append(CondemnedTable(table, live, to_remove))
        if table.list_folders_ns <= now_ns:
            table.list_folders_ns = now_ns + limits.CLEAN_UP_FOLDERS_MS * 1_000_000
            async for _ in self._list_folders(table, live, records, now_ns + self._delay_ns):
                yield
        while due := table.due(self._clock.monotonic_ns()):
            async for _ in self._condemn_due(table, live, due):
                yield
            table.drop(due)
            table.check_by(now_ns)  # in the next pass what was condemned goes

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

    # --- files in the folders ---

    async def _list_folders(
        self, table: WatchedTable, live: LiveTable, records: Sequence[StoredRecord], due_ns: int
    ) -> AsyncGenerator[None]:
        """Finds files below the folder of the table that are not in it: of ours those that cannot get into it any more,
        and those of other writers."""
        recorded = {
            location
            for stored in records
            if stored.record.state in _TO_REMOVE
            for location in stored.record.locations()
        }
        orphans: dict[PipelineFileKind, set[str]] = {kind: set() for kind in PipelineFileKind}
        current: set[str] = set()
        others: set[str] = set()
        for name in await self._files.files_below(live.folder):
            location = normalize_or_none(f"{live.folder}/{name}")
            if location is None or location in recorded:
                continue
            file_name = parse_pipeline_file(name)
            if file_name is None:
                if name.endswith(SUFFIXES_OF_OTHERS):
                    others.add(location)
            # Only files of lower epochs: a commit of the current epoch may be in flight, and its files are in no table
            # yet.
            elif file_name.epoch < live.epoch:
                orphans[file_name.kind].add(location)
            elif file_name.epoch == live.epoch:
                current.add(location)
        yield
        manifests: set[str] = set()
        async for _ in self._collect_manifests(live.lists, table.pending_lists(), manifests):
            yield
        named = live.lists | live.attached | manifests
        current, others = set(_without(current, named)), set(_without(others, named))
        unnamed = orphans[PipelineFileKind.DATA] | current | others
        async for _ in self._subtract_live_files(unnamed, manifests):
            yield
        lists = _without(orphans[PipelineFileKind.LIST], live.lists)
        table.add(PendingRemoval(due_ns, location, is_list=True) for location in lists)
        for location in _without(
            orphans[PipelineFileKind.MANIFEST] | orphans[PipelineFileKind.ERASED], manifests | live.attached
        ):
            table.add([PendingRemoval(due_ns, location)])
        table.add(PendingRemoval(due_ns, location) for location in sorted(orphans[PipelineFileKind.DATA] & unnamed))
        self._see_leftovers(table, live.epoch, frozenset(current & unnamed))
        await self._see_files_of_others(table, live, records, others & unnamed)

    def _see_leftovers(self, table: WatchedTable, epoch: int, leftovers: frozenset[str]) -> None:
        """Files of the present epoch in no snapshot: of a commit that is under way, or of one that will never come. If
        two listings see the same one, an epoch that ends tells which."""
        if leftovers & table.leftovers:
            self.ended_epoch = max(self.ended_epoch, epoch)
        table.leftovers, table.leftovers_epoch = leftovers, epoch

    async def _see_files_of_others(
        self, table: WatchedTable, live: LiveTable, records: Sequence[StoredRecord], unnamed: Set[str]
    ) -> None:
        """Files of other writers that this listing found in no snapshot. Those of an earlier listing are condemned,
        what a snapshot has by now is forgotten."""
        now_ms = self._clock.wall_us() // 1000
        waiting = [stored for stored in records if stored.record.state is CondemnedState.UNNAMED]
        known: set[str] = set()
        for stored in waiting:
            still_unnamed = [
                name
                for name, location in zip(stored.record.names, stored.record.locations(), strict=True)
                if location in unnamed
            ]
            known.update(f"{stored.record.folder}/{name}" for name in still_unnamed)
            # The clock may have stepped back: the record waits longer then.
            if now_ms - stored.record.since_ms >= self._delay_ms:
                if still_unnamed:
                    _log.info("files of other writers condemned", table=live.folder, files=len(still_unnamed))
                await condemned_files.change_record(
                    self._store, stored, CondemnedState.CONDEMNED, still_unnamed, now_ms
                )
                table.condemned_files += len(still_unnamed)
                table.check_by(self._clock.monotonic_ns() + self._check_interval_ns)
        new = {location.removeprefix(f"{live.folder}/") for location in unnamed - known}
        if new:
            await condemned_files.add_records(self._store, table.uuid, live.folder, new, CondemnedState.UNNAMED, now_ms)

    # --- condemn ---

    async def _condemn_due(
        self, table: WatchedTable, live: LiveTable, due: Sequence[PendingRemoval]
    ) -> AsyncGenerator[None]:
        """Condemns the files that are due, if the table as it is now still does not need them. Raises StorageExhausted
        if its records are full."""
        manifests: set[str] = set()
        async for _ in self._collect_manifests(live.lists, table.pending_lists(besides=due), manifests):
            yield
        state = _cleaned_table(live, manifests)
        plan = RemovalPlan(set(), set(), set(), set())
        for pending in due:
            if not _may_remove(pending.location, pending.was_committed, state, live.folder):
                continue
            if pending.is_list:
                plan.lists.add(pending.location)
                async for _ in self._plan_list(pending, state, live.folder, plan):
                    yield
            else:
                file_name = parse_pipeline_file(pending.location)
                is_manifest = file_name is not None and file_name.kind is PipelineFileKind.MANIFEST
                (plan.manifests if is_manifest else plan.data).add(pending.location)
        # A data file may be in several manifests: it goes only if none of those that stay has it.
        async for _ in self._subtract_live_files(plan.data, manifests):
            yield
        locations = plan.data | plan.manifests | plan.lists
        names = {location.removeprefix(f"{live.folder}/") for location in locations}
        now_ms = self._clock.wall_us() // 1000
        recorded = await condemned_files.add_records(
            self._store, table.uuid, live.folder, names, CondemnedState.CONDEMNED, now_ms
        )
        table.condemned_files += len(recorded)
        if recorded < names:
            raise errors.Refused(
                f"{len(names - recorded)} files of {live.folder} wait: its records of condemned files are full",
                hint="they are removed in the next passes of the clean-up",
            )

    async def _plan_list(
        self, pending: PendingRemoval, state: CleanedTable, folder: str, plan: RemovalPlan
    ) -> AsyncGenerator[None]:
        """Adds the manifests of a list that is removed; and their files, unless a later list has them all."""
        for manifest in await self._references.manifests(pending.location):
            yield
            # Manifests of other engines were in the table that the list was written for.
            was_committed = pending.was_committed or parse_pipeline_file(manifest.location) is None
            if not _may_remove(manifest.location, was_committed, state, folder):
                continue
            plan.manifests.add(manifest.location)
            if not pending.is_carried and manifest.location not in plan.read_manifests:
                plan.read_manifests.add(manifest.location)
                for file in await self._references.files(manifest.location):
                    if _may_remove(file.location, was_committed, state, folder):
                        plan.data.add(file.location)

    # --- removal ---

    async def _remove_condemned(self, condemned: Sequence[CondemnedTable]) -> AsyncGenerator[None]:
        """Removes what was condemned before this pass, as far as no table names it now."""
        in_use = FilesInUse([table.live.folder for table in condemned])
        own_locations = {table.watched.uuid: table.live.folder for table in condemned}
        failure: Exception | None = None
        try:
            async for _ in self._files_in_use.run(in_use, own_locations):
                yield
        except (errors.IcestreamError, OSError) as error:
            failure = error
        failure = failure or next(iter(in_use.unreadable.values()), None)
        if failure is not None:
            for table in condemned:
                self._retry(table.watched, failure)
            return
        for table in condemned:
            try:
                async for _ in self._remove_of_table(table, in_use.files):
                    yield
            except (errors.IcestreamError, OSError) as error:
                self._retry(table.watched, error)

    async def _remove_of_table(self, table: CondemnedTable, in_use: Set[str]) -> AsyncGenerator[None]:
        """Removes the condemned files of one table. `in_use`: what other tables name."""
        watched, live = table.watched, table.live
        manifests: set[str] = set()
        async for _ in self._collect_manifests(live.lists, watched.pending_lists(), manifests):
            yield
        named = {object_identity(location) for location in live.lists | live.attached | manifests} | in_use
        condemned = {
            location
            for stored in table.records
            if stored.record.state is CondemnedState.CONDEMNED
            for location in stored.record.locations()
            if object_identity(location) not in named
        }
        data = {location for location in condemned if not _is_metadata_of_ours(location)}
        kept = set(data)
        async for _ in self._subtract_live_files(data, manifests):
            yield
        condemned -= kept - data
        for stored in table.records:
            removing = (
                stored if stored.record.state is CondemnedState.REMOVING else await self._begin(stored, condemned)
            )
            if removing is None:
                pause_ns = max(self._check_interval_ns, limits.CLEAN_UP_RETRY_MS * 1_000_000)
                watched.check_by(self._clock.monotonic_ns() + pause_ns)
                continue
            async for _ in self._remove(live, removing.record.locations()):
                yield
            # A commit cannot add a file of ours; one of another writer may come however late.
            names = [name for name in removing.record.names if parse_pipeline_file(name) is None]
            now_ms = self._clock.wall_us() // 1000
            await condemned_files.change_record(self._store, removing, CondemnedState.REMOVED, names, now_ms)
            watched.condemned_files -= len(stored.record.names)

    async def _forget_removed(self, records: Sequence[StoredRecord]) -> None:
        now_ms = self._clock.wall_us() // 1000
        for stored in records:
            age_ms = now_ms - stored.record.since_ms
            if stored.record.state is CondemnedState.REMOVED and age_ms >= limits.CONDEMNED_REMEMBERED_MS:
                await condemned_files.forget(self._store, stored)

    async def _begin(self, stored: StoredRecord, condemned: Set[str]) -> StoredRecord | None:
        """From here on no commit can add these files. None if none of them goes, or if a commit has taken some off
        since the table was read."""
        names = [
            name
            for name, location in zip(stored.record.names, stored.record.locations(), strict=True)
            if location in condemned
        ]
        now_ms = self._clock.wall_us() // 1000
        return await condemned_files.change_record(self._store, stored, CondemnedState.REMOVING, names, now_ms)

    async def _remove(self, live: LiveTable, locations: Sequence[str]) -> AsyncGenerator[None]:
        """Removes files in the order of their names, a few at a time: data, manifests, lists."""
        total_bytes = 0
        for begin in range(0, len(locations), limits.CLEAN_UP_FILES_AT_ONCE):
            batch = locations[begin : begin + limits.CLEAN_UP_FILES_AT_ONCE]
            sizes = await asyncio.gather(*(self._remove_file(location) for location in batch))
            metrics.PIPELINE_REMOVED_FILES.inc(len(batch))
            metrics.PIPELINE_REMOVED_BYTES.inc(sum(sizes))
            total_bytes += sum(sizes)
            yield
        if locations:
            _log.info("removed unneeded files", table=live.folder, files=len(locations), bytes=total_bytes)

    async def _remove_file(self, location: str) -> int:
        """Returns the size of the removed file."""
        size = await self._files.size(location)
        await self._files.remove(location)
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


def _live_table(
    table: WatchedTable, metadata: TableMetadata, epoch: int, erased: ErasedRecord | None
) -> LiveTable | None:
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
    side_files = [] if erased is None else [normalize(erased.offsets)]
    return LiveTable(metadata, folder, epoch, lists, frozenset([*statistics_of(metadata), *side_files]))


def _cleaned_table(live: LiveTable, manifests: Set[str]) -> CleanedTable:
    referenced = {object_identity(location) for location in live.lists | live.attached | manifests}
    return CleanedTable(True, live.epoch, {}, live.metadata.current_snapshot_id, referenced)


def _is_metadata_of_ours(location: str) -> bool:
    """Whether a file is a manifest or list by its name. One of another writer may be anything."""
    file_name = parse_pipeline_file(location)
    return file_name is not None and file_name.kind is not PipelineFileKind.DATA


def _may_remove(location: str, was_committed: bool, state: CleanedTable, folder: str) -> bool:
    file_name = parse_pipeline_file(location)
    epoch = _UNKNOWN_EPOCH if file_name is None else file_name.epoch
    candidate = Candidate(object_identity(location), epoch, was_committed=was_committed)
    return is_inside(location, folder) and may_remove(candidate, state, is_holder=True)
