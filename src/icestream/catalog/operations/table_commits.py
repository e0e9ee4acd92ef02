"""Commits to one table, and to several in one transaction.

Order of a commit (hazard 11): judge it; write the new metadata files; make them durable, with the files of other
writers that the commit names for the first time; swap all pointers in one transaction. A crash anywhere leaves every
table in its old or its new state, and at most files that no pointer leads to.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_holds, catalog_keys
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.condemned_files import RecordChanges
from icestream.catalog.idempotency import RELOAD_HINT, IdempotentRequest, RequestResult
from icestream.catalog.operations.condemned_check import CondemnedCheck
from icestream.catalog.operations.file_changes import FileChangesReader
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.plans import commit_plans, namespace_plans, relation_plans
from icestream.catalog.plans.commit_plans import ErasedRecordChange, PlannedChange, RetainedChange
from icestream.catalog.plans.planned_transaction import PLACES_CHANGED, PlannedTransaction
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules import commit_rules, snapshot_mark, topic_properties
from icestream.catalog.topic_rules.claim import lease_of
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from icestream.catalog.transactions import Attempt, TransactionGuard, TransactionRunner
from icestream.iceberg import metadata_file, table_commit, values
from icestream.iceberg import updates as update
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import check_inside
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry

# Updates that name files, and the member that does.
_REFERENCES: Final = {
    "add-snapshot": "snapshot",
    "set-statistics": "statistics",
    "set-partition-statistics": "partition-statistics",
}


class CommittedTable(NamedTuple):
    """A table as it is in force."""

    location: str  # of its metadata file
    table: TableMetadata
    repeated: int | None = None  # the snapshot of a round or rewrite that was committed before
    committed: Mapping[int, int] | None = None  # what a topic's table has, by shard; None: not asked, or of no topic


class LoadedState(NamedTuple):
    """A table as it was read: its entry, its record, and what commits are judged by."""

    entry: Entry
    record: TableRecord
    state: TableState
    retained_entry: Entry | None = None  # of the topic's first kept offsets; read for a retention alone
    erased_entry: Entry | None = None  # of the topic's erased offsets; read for an erasure alone


class JudgedChange(NamedTuple):
    """The decision about one table of a commit, before its metadata file is written."""

    identifier: Identifier
    loaded: LoadedState | None  # None: the table is created
    namespace: Entry | None
    decision: CommitDecision

    @property
    def is_changed(self) -> bool:
        """Whether the table or its record changes: rebinding a table may leave its metadata as it is."""
        if self.loaded is None:
            return True
        before, after = self.loaded.state, self.decision
        return after.table is not before.table or (after.binding, after.removals) != (before.binding, before.removals)

    @property
    def foreign_snapshots(self) -> list[Object]:
        """The snapshots that the commit adds, if another writer than the pipeline made them."""
        if self.decision.is_round:
            return []
        before, after = self.loaded.state.table if self.loaded is not None else None, self.decision.table
        if before is not None and after.snapshots is before.snapshots:
            return []
        return [
            snapshot
            for snapshot in after.snapshots
            if before is None or before.snapshots.find(snapshot["snapshot-id"]) is None
        ]

    @property
    def places_files(self) -> bool:
        """Whether the commit chooses where the table lies. The location of a table that is created comes from the
        client, which may have got it from us."""
        if self.loaded is None:
            return True
        before, after = self.loaded.state.table, self.decision.table
        return after.location != before.location or (
            after.properties is not before.properties
            and metadata_file.places_elsewhere(after.location, after.properties) != self.loaded.record.places_elsewhere
        )

    @property
    def version(self) -> int:
        return self.loaded.record.version + 1 if self.loaded else 0

    def change(self, location: str) -> PlannedChange:
        """Returns the change to plan once the metadata file at `location` is written."""
        loaded, decision = self.loaded, self.decision
        uuid, former = decision.table.uuid or "", loaded.record if loaded is not None else None
        record = commit_plans.record_of(
            decision, uuid, location, self.version, former, adds_foreign_files=bool(self.foreign_snapshots)
        )
        entry, old_binding = (loaded.entry, loaded.record.binding) if loaded else (None, None)
        return PlannedChange(
            self.identifier,
            entry,
            record,
            old_binding,
            decision.is_round,
            self.namespace,
            self._retained_change,
            self._erased_change,
        )

    @property
    def _retained_change(self) -> RetainedChange | None:
        """The change of the topic's first kept offsets; None unless a retention commits."""
        loaded, decision = self.loaded, self.decision
        if loaded is None or decision.first is None or decision.binding is None:
            return None
        return RetainedChange(decision.binding.topic_id, decision.first, loaded.retained_entry, decision.consumers)

    @property
    def _erased_change(self) -> ErasedRecordChange | None:
        """The change of the topic's erased offsets; None unless an erasure commits."""
        loaded, decision = self.loaded, self.decision
        if loaded is None or decision.erased is None or decision.binding is None:
            return None
        return ErasedRecordChange(decision.binding.topic_id, decision.erased, loaded.erased_entry)


Commits = Mapping[Identifier, CommitRequest]
CommitResults = dict[Identifier, CommittedTable]


class TableCommits:
    """Loads tables, and commits to them."""

    def __init__(
        self,
        runner: TransactionRunner,
        relations: RelationLookup,
        file_changes: FileChangesReader,
        condemned: CondemnedCheck,
        roots: Sequence[str],
    ) -> None:
        """`file_changes`: of rewrites, whose files are compared with those of the table. `condemned`: of commits by
        other writers, whose files may be about to be removed."""
        self._runner = runner
        self._relations = relations
        self._file_changes = file_changes
        self._condemned = condemned
        self._roots = roots
        self._write_slots = asyncio.Semaphore(limits.CATALOG_WRITES_AT_ONCE)
        self._snapshots = SnapshotMap(runner.store)
        self._last_entries: OrderedDict[Identifier, Entry] = OrderedDict()  # as our last commit to each table left it

    # --- reading ---

    async def load(
        self,
        identifier: Identifier,
        read: Callable[[str], Awaitable[TableMetadata]] | None = None,
        cached_entry: Entry | None = None,
    ) -> LoadedState:
        """Loads a table. `read` reads its document, by default through the cache. `cached_entry`: its entry, for a
        caller whose transaction compares revisions anyway. Raises UnknownTable."""
        entry, record = relation_plans.table_of(identifier, cached_entry or await self._relations.entry(identifier))

        async def current_location() -> str:
            nonlocal entry, record
            entry, record = relation_plans.table_of(identifier, await self._relations.entry(identifier))
            return record.location

        read = read or self._runner.documents.table
        location, table = await self._relations.document(record.location, current_location, read)
        return LoadedState(entry, record, TableState(table, location, record.binding, record.removals))

    # --- commits ---

    async def commit(
        self,
        identifier: Identifier,
        commit: CommitRequest,
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> CommittedTable:
        return (await self.commit_all({identifier: commit}, request, guard))[identifier]

    async def commit_all(
        self, commits: Commits, request: IdempotentRequest | None = None, guard: TransactionGuard | None = None
    ) -> CommitResults:
        """Commits to all tables or none. Each table is judged by itself; a conflict of one refuses all of them
        (hazards 14, 47).

        Raises CommitConflict, whose `details` name the tables in conflict; RangeRefused for a round or rewrite;
        OutcomeUnknown if the reply was lost and the outcome could not be determined.
        """
        if not 0 < len(commits) <= limits.CATALOG_TRANSACTION_TABLES_MAX:
            raise errors.InvalidInput(
                f"commit to {len(commits)} tables", hint=f"1 to {limits.CATALOG_TRANSACTION_TABLES_MAX} are possible"
            )
        commits = {identifier: self._check_locations(commit) for identifier, commit in commits.items()}
        claims = [claim for commit in commits.values() for claim in commit_rules.pipeline_claims(commit.requirements)]
        lease_key = catalog_keys.lease_key(lease_of(claims))
        is_first = True

        async def plan() -> Attempt[CommitResults]:
            nonlocal is_first
            # Read anew for each attempt: after a conflict another driver may have it.
            lease_entry = await self._runner.store.get(lease_key) if claims else None
            lease = commit_plans.DriverLeaseEntry(lease_key, lease_entry) if lease_entry is not None else None
            lease_epoch = commit_plans.lease_epoch(lease)
            # From memory in the first attempt only: a conflict proves that the memory is outdated.
            judged = await self._judge_from_memory(commits, lease_epoch) if is_first else None
            is_first = False
            if judged is None:
                judged = await self._judge(commits, lease_epoch)
            return await self._write(judged, commits, lease)

        async def answer_repeat(request_result: RequestResult) -> CommitResults:
            tables = {identifier: await self.load(identifier) for identifier in commits}
            request_result.check([tables[identifier].record.uuid for identifier in sorted(tables)])
            return {
                identifier: CommittedTable(loaded.state.location, loaded.state.table)
                for identifier, loaded in tables.items()
            }

        lock_keys = [catalog_keys.relation_key(identifier) for identifier in commits]
        return await self._runner.run_until_applied(lock_keys, plan, request, answer_repeat, guard)

    def _check_locations(self, commit: CommitRequest) -> CommitRequest:
        """Returns the commit with normalized locations. Raises InvalidInput if it moves the table, or what will be
        written to it, out of the warehouse."""
        table_commit.check_size(commit.requirements, commit.updates)
        return commit._replace(updates=[self._check_update(table_update) for table_update in commit.updates])

    def _check_update(self, table_update: Object) -> Object:
        match update.action(table_update):
            case "set-location" if isinstance(table_update.get("location"), str):
                return {**table_update, "location": check_inside(table_update["location"], self._roots)}
            case "set-properties":
                name = values.present_name(table_update, "updates", "updated")
                metadata_file.check_places(values.optional_text_map(table_update, name), self._roots)
        return table_update

    async def _judge_from_memory(self, commits: Commits, lease_epoch: int | None) -> list[JudgedChange] | None:
        """Judges by the entries that our last commits left, without reading the store: the transaction compares
        revisions and fails if another process has committed since.

        None if the entries are not in memory, or if the commit would be refused or change nothing: that must be judged
        by what is in force.
        """
        entries = {
            identifier: self._last_entries[identifier] for identifier in commits if identifier in self._last_entries
        }
        if len(entries) < len(commits):
            return None
        try:
            judged = await self._judge(commits, lease_epoch, entries)
        except errors.IcestreamError:
            return None
        return judged if all(change.is_changed for change in judged) else None

    async def _judge(
        self, commits: Commits, lease_epoch: int | None, entries: Mapping[Identifier, Entry] | None = None
    ) -> list[JudgedChange]:
        """Decides about each table. `entries`: cached entries of tables that need not be read again."""
        now_ms, entries = self._runner.now_ms(), entries or {}
        created = [identifier for identifier, commit in commits.items() if table_commit.is_create(commit.requirements)]
        changed = [identifier for identifier in commits if identifier not in created]
        if len(changed) == 1:
            loaded = {changed[0]: await self.load(changed[0], cached_entry=entries.get(changed[0]))}
        else:
            loaded = await self._load_all(changed, entries)
        for identifier, table in loaded.items():
            loaded[identifier] = await self._with_erased(
                await self._with_retained(table, commits[identifier]), commits[identifier]
            )
        pairs = {
            identifier: (table.state, await self._with_file_changes(table.state, commits[identifier], lease_epoch))
            for identifier, table in loaded.items()
        }
        if len(commits) == 1 and pairs:  # the error of a single table does not list tables
            ((identifier, (state, commit)),) = pairs.items()
            decisions = {identifier: commit_rules.judge_commit(state, commit, lease_epoch, now_ms)}
        else:
            decisions = commit_rules.judge_transaction(pairs, lease_epoch, now_ms)
        judged = [
            JudgedChange(identifier, loaded[identifier], None, decision) for identifier, decision in decisions.items()
        ]
        return judged + [await self._judge_create(identifier, commits[identifier], now_ms) for identifier in created]

    async def _with_retained(self, table: LoadedState, commit: CommitRequest) -> LoadedState:
        """Returns the table with the first kept offsets and the consumer generation of its topic, if the decision
        depends on them."""
        topic_id = commit_rules.retained_topic(commit.requirements)
        if topic_id is None:
            return table
        entry = await self._runner.store.get(catalog_keys.retained_key(topic_id))
        consumers = await self._runner.store.get(catalog_keys.consumers_key(topic_id))
        state = table.state._replace(
            first=commit_plans.first_kept(topic_id, entry),
            consumers=0 if consumers is None else consumers.mod_revision,
        )
        return table._replace(state=state, retained_entry=entry)

    async def _with_erased(self, table: LoadedState, commit: CommitRequest) -> LoadedState:
        """Returns the table with the erased offsets of its topic, if the decision depends on them."""
        topic_id = commit_rules.erased_topic(commit.requirements)
        if topic_id is None:
            return table
        entry = await self._runner.store.get(catalog_keys.erased_key(topic_id))
        state = table.state._replace(erased=commit_plans.erased_record(topic_id, entry))
        return table._replace(state=state, erased_entry=entry)

    async def _with_file_changes(
        self, state: TableState, commit: CommitRequest, lease_epoch: int | None
    ) -> CommitRequest:
        """Returns the commit with what it changes in the files of the table, if the decision depends on that."""
        if not commit_rules.reads_files(state, commit, lease_epoch):
            return commit
        rewritten = commit_rules.rewritten_snapshots(commit.requirements)
        if rewritten is not None:
            return commit._replace(history_changes=await self._history_changes(state.table, rewritten))
        file_changes = await self._file_changes.read(state.table, commit_rules.added_snapshot(commit.updates))
        return commit._replace(file_changes=file_changes)

    async def _history_changes(
        self, table: TableMetadata, rewritten: Sequence[Object]
    ) -> dict[int, FileChanges] | None:
        """What the new manifest lists of snapshots change, by snapshot; None if one has no list. Snapshots that are not
        in the table any more are left out: the decision refuses them."""
        changes: dict[int, FileChanges] = {}
        for snapshot in rewritten:
            former = table.snapshots.find(snapshot["snapshot-id"])
            if former is None:
                continue
            if "manifest-list" not in former:
                return None
            lists = former["manifest-list"], snapshot["manifest-list"]
            changes[snapshot["snapshot-id"]] = await self._file_changes.between(table, *lists)
        return changes

    async def _load_all(
        self, identifiers: Sequence[Identifier], entries: Mapping[Identifier, Entry]
    ) -> dict[Identifier, LoadedState]:
        loaded = await asyncio.gather(
            *(self.load(identifier, cached_entry=entries.get(identifier)) for identifier in identifiers)
        )
        return dict(zip(identifiers, loaded, strict=True))

    async def _judge_create(self, identifier: Identifier, commit: CommitRequest, now_ms: int) -> JudgedChange:
        """Decides the end of a create transaction: a staged table that is created with all its updates."""
        namespace = await self._relations.namespace(identifier.namespace)
        namespace_plans.existing(identifier.namespace, namespace)
        existing = relation_plans.decode_relation_entry(identifier, await self._relations.entry(identifier))
        if existing is not None and not isinstance(existing.record, TableRecord):
            relation_plans.check_free(identifier, existing.entry, relation_plans.TABLE)
        # A conflict and not AlreadyExists: the client of a staged creation reloads and retries, as for any commit.
        if existing is not None:
            raise errors.CommitConflict("Requirement failed: table already exists")
        table_commit.check_requirements(None, commit.requirements)
        topic_properties.check_untouched(commit.updates, {}, is_bound=False)
        table = table_commit.apply_updates(None, None, commit.updates, now_ms)
        return JudgedChange(identifier, None, namespace, CommitDecision(table, None, ()))

    async def _write(
        self, judged: Sequence[JudgedChange], commits: Commits, lease: commit_plans.DriverLeaseEntry | None
    ) -> Attempt[CommitResults]:
        """Writes the new metadata files, durably, and plans the transaction that points to them."""
        changed = [change for change in judged if change.is_changed]
        await self._check_backup_tags(changed)
        await self._check_held(changed, commits)
        # Files of a round were synced by the pipeline; those of other engines were not.
        foreign = [change for change in changed if not change.decision.is_round]
        referenced = [
            location for change in foreign for location in _references(change, commits[change.identifier].updates)
        ]
        condemned = await self._check_condemned(foreign, commits)
        # One sync of the disk serves the files of other engines and our own.
        files = await self.write_all(
            [(change.decision.table, change.version) for change in changed], is_synced=not referenced
        )
        locations = {change.identifier: location for change, location in zip(changed, files, strict=True)}
        try:
            if referenced:
                await self._runner.documents.make_durable([*referenced, *files])
            attempt = self._attempt(judged, locations, lease, await self._plan_marks(changed, commits))
        except errors.IcestreamError:
            # No transaction was sent: no pointer can lead to these files.
            await self._runner.remove_files(files)
            raise
        if attempt.transaction is None or condemned is None:
            return attempt
        return replace(attempt, transaction=attempt.transaction.with_more(*condemned))

    async def _check_condemned(self, foreign: Sequence[JudgedChange], commits: Commits) -> RecordChanges | None:
        """What the transaction compares and changes of condemned files; None if no other writer adds files. Raises
        CommitConflict for a file that is being removed."""
        added = [
            (change.loaded.state.table if change.loaded is not None else None, snapshots)
            for change in foreign
            if (snapshots := change.foreign_snapshots)
        ]
        statistics = [path for change in foreign for path in _statistics_of(commits[change.identifier].updates)]
        return await self._condemned.plan(added, statistics) if added or statistics else None

    async def _check_backup_tags(self, changed: Sequence[JudgedChange]) -> None:
        """Raises TopicTableConflict for a commit that takes away the tag of a backup which holds the snapshot."""
        for change in changed:
            before = change.loaded.state.table if change.loaded is not None else None
            if before is not None and (lost := catalog_holds.lost_tags(before, change.decision.table)):
                holders = await catalog_holds.held_snapshots(self._runner.store, before.uuid or "")
                catalog_holds.check_tags(lost, holders)

    async def _check_held(self, changed: Sequence[JudgedChange], commits: Commits) -> None:
        """Raises CommitConflict for a rewrite of history that changes a snapshot which a backup holds: its documents
        name the files of before. The backup may have begun after the rewrite was planned."""
        for change in changed:
            rewritten = commit_rules.rewritten_snapshots(commits[change.identifier].requirements)
            if rewritten is None:
                continue
            holders = await catalog_holds.held_snapshots(self._runner.store, change.decision.table.uuid or "")
            held_ids = set().union(*holders.values()) & {snapshot["snapshot-id"] for snapshot in rewritten}
            if held_ids:
                raise errors.CommitConflict(f"a backup holds snapshot {min(held_ids)}", hint="leave it as it is")

    async def _plan_marks(self, changed: Sequence[JudgedChange], commits: Commits) -> dict[int, MarkWrites]:
        """Returns the marks, by topic id, of the snapshots that this commit removes from topic tables."""
        writes: dict[int, MarkWrites] = {}
        for change in changed:
            binding = change.loaded.record.binding if change.loaded and change.decision.binding else None
            if change.loaded is None or binding is None:
                continue
            updates = commits[change.identifier].updates
            marks = snapshot_mark.marks_of_removed(change.loaded.state.table, updates, binding.topic_id, binding.base)
            snapshots = change.decision.table.snapshots  # such as one that got a tag since its expiry was planned
            marks = [mark for mark in marks if snapshots.find(mark.snapshot_id) is None]
            if marks:
                writes[binding.topic_id] = await self._snapshots.plan(binding.topic_id, marks)
        return writes

    async def write_all(self, documents: Sequence[tuple[TableMetadata, int]], *, is_synced: bool = True) -> list[str]:
        """Writes documents with their versions concurrently; returns their locations. After an error none is left."""

        async def write(table: TableMetadata, version: int) -> str:
            async with self._write_slots:
                return await self._runner.documents.write(table, table.properties, version, is_synced=is_synced)

        if len(documents) == 1:
            return [await write(*documents[0])]
        # All are awaited, also after the first error: a file that is written later would never be removed.
        results = await asyncio.gather(*(write(table, version) for table, version in documents), return_exceptions=True)
        written = [location for location in results if isinstance(location, str)]
        for result in results:
            if isinstance(result, BaseException):
                await self._runner.remove_files(written)
                raise result
        return written

    def _attempt(
        self,
        judged: Sequence[JudgedChange],
        locations: Mapping[Identifier, str],
        lease: commit_plans.DriverLeaseEntry | None,
        marks: Mapping[int, MarkWrites],
    ) -> Attempt[CommitResults]:
        """`locations`: of the metadata files that were written. `marks`: by topic id."""
        results = {}
        for change in judged:
            location = locations.get(change.identifier) or (change.loaded.state.location if change.loaded else "")
            results[change.identifier] = CommittedTable(location, change.decision.table, change.decision.repeated)
        changes = [change.change(locations[change.identifier]) for change in judged if change.identifier in locations]
        request_result = RequestResult([results[identifier].table.uuid or "" for identifier in sorted(results)])
        if not changes:
            # A repeat or an empty commit writes nothing, but its answer holds only as long as the tables are what was
            # judged.
            unchanged = [
                cmd.AtRevision(catalog_keys.relation_key(change.identifier), change.loaded.entry.mod_revision)
                for change in judged
                if change.loaded
            ]
            return Attempt(None, results, request_result=request_result, unchanged=unchanged)
        retired = [
            location
            for change in judged
            if change.loaded
            for location in table_commit.dropped_metadata_files(change.loaded.state.table, change.decision.table)
        ]
        transaction = commit_plans.commit(changes, lease, marks.values(), retired, self._runner.now_ms())
        if any(change.places_files for change in judged):
            transaction = transaction.with_more([], [PLACES_CHANGED])
        return Attempt(
            transaction,
            results,
            [*locations.values()],
            was_applied=self._was_applied(changes[0]),
            on_committed=self._remember(transaction, changes, marks),
            request_result=request_result,
        )

    def _remember(
        self, transaction: PlannedTransaction, changes: Sequence[PlannedChange], marks: Mapping[int, MarkWrites]
    ) -> Callable[[int], None]:
        """Returns a callback that caches the entries this transaction wrote: the next commit to these tables is judged
        by them without a read."""

        def remember(revision: int) -> None:
            puts = {
                operation.key: operation.value for operation in transaction.operations if isinstance(operation, cmd.Put)
            }
            for change in changes:
                before, value = change.before, puts[catalog_keys.relation_key(change.identifier)]
                # The entry as the store keeps it now, computed instead of read: revisions and versions follow from the
                # transaction.
                created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
                self._last_entries[change.identifier] = Entry(value, created, revision, version, 0)
                self._last_entries.move_to_end(change.identifier)
            while len(self._last_entries) > limits.CATALOG_REMEMBERED_MAX:
                self._last_entries.popitem(last=False)
            for topic_id, writes in marks.items():
                self._snapshots.remember(topic_id, writes, revision)

        return remember

    def _was_applied(self, change: PlannedChange) -> Callable[[], Awaitable[bool]]:
        """Returns a check whether the pointer had our metadata file before other commits: their metadata logs name
        it."""

        async def check() -> bool:
            loaded = await self.load(change.identifier)
            log = loaded.state.table.metadata_log
            if any(entry["metadata-file"] == change.record.location for entry in log):
                return True
            before = change.before
            # The table that was committed to may live on under another name, with this commit.
            if before is None or loaded.entry.create_revision != before.create_revision:
                raise errors.OutcomeUnknown(
                    f"commit outcome unknown: {change.identifier} is another table now", hint=RELOAD_HINT
                )
            # The log is cut at a length. Only if it reaches back to our version, its silence proves that our file was
            # never current.
            if not 0 <= loaded.record.version - change.record.version <= len(log):
                raise errors.OutcomeUnknown(
                    f"commit outcome unknown: the metadata log of {change.identifier} does not reach back to it",
                    hint=RELOAD_HINT,
                )
            return False

        return check

    # --- topics ---

    async def rebind(
        self, identifier: Identifier, decide: Callable[[TableState], Awaitable[CommitDecision]]
    ) -> CommittedTable:
        """Commits a decision about which topic a table belongs to, or where that topic resumes."""

        async def plan() -> Attempt[CommitResults]:
            loaded = await self.load(identifier)
            judged = JudgedChange(identifier, loaded, None, await decide(loaded.state))
            return await self._write([judged], {identifier: CommitRequest((), ())}, None)

        lock_keys = [catalog_keys.relation_key(identifier)]
        return (await self._runner.run_until_applied(lock_keys, plan))[identifier]


def _statistics_of(updates: Sequence[Object]) -> list[str]:
    """Locations of statistics files that these updates name."""
    holders = [entry.get(_REFERENCES.get(update.action(entry), "")) for entry in updates]
    paths = [holder.get("statistics-path") for holder in holders if isinstance(holder, dict)]
    return [path for path in paths if isinstance(path, str)]


def _references(change: JudgedChange, updates: Sequence[Object]) -> list[str]:
    """Locations of files of other writers that these updates name for the first time, and of the directories where the
    table's files may lie."""
    files = []
    for table_update in updates:
        holder = table_update.get(_REFERENCES.get(update.action(table_update), ""))
        if isinstance(holder, dict):
            paths = (holder.get("manifest-list"), *(holder.get("manifests") or ()), holder.get("statistics-path"))
            files += [path for path in paths if isinstance(path, str)]
    if not files:
        return []
    tables = (change.decision.table, *([change.loaded.state.table] if change.loaded else ()))
    places = (place for table in tables for place in metadata_file.data_places(table.location, table.properties))
    return [*files, *places]
