"""Commits: to one table, and to several at once.

Order of a commit (hazard 11): judge; write the new metadata files; make them durable, with what others wrote and the
commit newly names; move all pointers in one transaction. A crash anywhere leaves every table as it was, or as it is to
be, and at most files that nothing points to.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.plans import commit_plans, namespace_plans, relation_plans
from icestream.catalog.plans.commit_plans import PlannedChange
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules import commit_rules as topic_commit
from icestream.catalog.topic_rules import snapshot_mark, topic_properties
from icestream.catalog.topic_rules.claim import CLAIM_TYPE, lease_of
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState
from icestream.catalog.transactions import Step, Steps
from icestream.iceberg import metadata_file, requirements, table_commit, values
from icestream.iceberg import updates as update
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import check_inside
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry

# Updates that name files, and where.
_REFERENCES: Final = {
    "add-snapshot": "snapshot",
    "set-statistics": "statistics",
    "set-partition-statistics": "partition-statistics",
}


class CommittedTable(NamedTuple):
    """A table as it is in force."""

    location: str
    table: TableMetadata
    repeated: int | None = None  # the snapshot of a round that was committed before


class LoadedState(NamedTuple):
    entry: Entry
    record: TableRecord
    state: TableState


class JudgedChange(NamedTuple):
    """One table of a commit, before its file is written."""

    identifier: Identifier
    loaded: LoadedState | None  # None: it is created
    namespace: Entry | None
    outcome: CommitDecision

    @property
    def is_changed(self) -> bool:
        """The table, or what lies beside it: a table that is bound again may say already what it is to say."""
        if self.loaded is None:
            return True
        before, after = self.loaded.state, self.outcome
        return after.table is not before.table or (after.binding, after.removals) != (before.binding, before.removals)

    @property
    def version(self) -> int:
        return self.loaded.record.version + 1 if self.loaded else 0

    def change(self, location: str) -> PlannedChange:
        """With its new file."""
        loaded, outcome = self.loaded, self.outcome
        uuid, is_registered = outcome.table.uuid or "", loaded is not None and loaded.record.is_registered
        record = commit_plans.record_of(outcome, uuid, location, self.version, is_registered=is_registered)
        entry, was_bound = (loaded.entry, loaded.record.binding) if loaded else (None, None)
        return PlannedChange(self.identifier, entry, record, was_bound, outcome.is_round, self.namespace)


class TableCommits:
    def __init__(self, steps: Steps, found: RelationLookup, roots: Sequence[str]) -> None:
        self._steps = steps
        self._relations = found
        self._roots = roots
        self._writing = asyncio.Semaphore(limits.CATALOG_WRITES_AT_ONCE)
        self._snapshots = SnapshotMap(steps.store)
        self._left: OrderedDict[Identifier, Entry] = OrderedDict()  # as our last commit to each left it

    # --- reading ---

    async def load(
        self,
        identifier: Identifier,
        read: Callable[[str], Awaitable[TableMetadata]] | None = None,
        known: Entry | None = None,
    ) -> LoadedState:
        """`read`: another way to its document than that of commits. `known`: its entry, for who may use an old one."""
        entry, record = relation_plans.table_of(identifier, known or await self._relations.entry(identifier))

        async def location_now() -> str:
            nonlocal entry, record
            entry, record = relation_plans.table_of(identifier, await self._relations.entry(identifier))
            return record.location

        read = read or self._steps.documents.table
        location, table = await self._relations.document(record.location, location_now, read)
        return LoadedState(entry, record, TableState(table, location, record.binding, record.removals))

    # --- commits ---

    async def commit(
        self, identifier: Identifier, asked: CommitRequest, request: IdempotentRequest | None = None
    ) -> CommittedTable:
        return (await self.commit_all({identifier: asked}, request))[identifier]

    async def commit_all(
        self, asked: Mapping[Identifier, CommitRequest], request: IdempotentRequest | None = None
    ) -> dict[Identifier, CommittedTable]:
        """Each table is judged by itself; a conflict refuses all of them (hazards 14, 47)."""
        if not 0 < len(asked) <= limits.CATALOG_TRANSACTION_TABLES_MAX:
            raise errors.InvalidInput(
                f"a commit to {len(asked)} tables", hint=f"1 to {limits.CATALOG_TRANSACTION_TABLES_MAX} are possible"
            )
        placed = {identifier: self._placed(one) for identifier, one in asked.items()}
        claims = [need for one in asked.values() for need in one.requirements if requirements.kind(need) == CLAIM_TYPE]
        key = catalog_keys.lease_key(lease_of(claims))
        is_first = True

        async def plan() -> Step[dict[Identifier, CommittedTable]]:
            nonlocal is_first
            found = await self._steps.store.get(key) if claims else None
            lease = commit_plans.DriverLeaseEntry(key, found) if found is not None else None
            judged = await self._judged_from_memory(placed, commit_plans.lease_epoch(lease)) if is_first else None
            is_first = False
            if judged is None:
                judged = await self._judged(placed, commit_plans.lease_epoch(lease))
            return await self._written(judged, placed, lease)

        async def again(noted: RequestResult) -> dict[Identifier, CommittedTable]:
            found = {identifier: await self.load(identifier) for identifier in asked}
            noted.check([found[one].record.uuid for one in sorted(found)])
            return {
                identifier: CommittedTable(one.state.location, one.state.table) for identifier, one in found.items()
            }

        return await self._steps.make([catalog_keys.relation_key(one) for one in asked], plan, request, again)

    def _placed(self, asked: CommitRequest) -> CommitRequest:
        """Nobody moves a table, or what will be written to it, out of the warehouse."""
        table_commit.check_size(asked.requirements, asked.updates)
        updates = [self._placed_update(one) for one in asked.updates]
        return asked._replace(updates=updates)

    def _placed_update(self, one: Object) -> Object:
        match update.action(one):
            case "set-location" if isinstance(one.get("location"), str):
                return {**one, "location": check_inside(one["location"], self._roots)}
            case "set-properties":
                name = values.present_name(one, "updates", "updated")
                metadata_file.check_places(values.optional_text_map(one, name), self._roots)
        return one

    async def _judged_from_memory(
        self, asked: Mapping[Identifier, CommitRequest], lease_epoch: int | None
    ) -> list[JudgedChange] | None:
        """By what we remember, without asking the store: the transaction compares revisions, and fails when others went
        on. None: it tells nothing; what is to be refused, or changes nothing, is judged by what is in force."""
        known = {one: self._left[one] for one in asked if one in self._left}
        if len(known) < len(asked):
            return None
        try:
            judged = await self._judged(asked, lease_epoch, known)
        except errors.IcestreamError:
            return None
        return judged if all(one.is_changed for one in judged) else None

    async def _judged(
        self,
        asked: Mapping[Identifier, CommitRequest],
        lease_epoch: int | None,
        known: Mapping[Identifier, Entry] | None = None,
    ) -> list[JudgedChange]:
        now_ms, known = self._steps.now_ms(), known or {}
        creating = [one for one, request in asked.items() if table_commit.is_create(request.requirements)]
        changing = [one for one in asked if one not in creating]
        if len(changing) == 1:
            loaded = {one: await self.load(one, known=known.get(one)) for one in changing}
        else:
            loaded = await self._load_all(changing, known)
        commits_to = {one: (found.state, asked[one]) for one, found in loaded.items()}
        if len(asked) == 1 and commits_to:  # in the words of a single table
            ((one, (state, request)),) = commits_to.items()
            outcomes = {one: topic_commit.judge_commit(state, request, lease_epoch, now_ms)}
        else:
            outcomes = topic_commit.judge_transaction(commits_to, lease_epoch, now_ms)
        judged = [JudgedChange(one, loaded[one], None, outcome) for one, outcome in outcomes.items()]
        return judged + [await self._created(one, asked[one], now_ms) for one in creating]

    async def _load_all(
        self, identifiers: Sequence[Identifier], known: Mapping[Identifier, Entry]
    ) -> dict[Identifier, LoadedState]:
        found = await asyncio.gather(*(self.load(one, known=known.get(one)) for one in identifiers))
        return dict(zip(identifiers, found, strict=True))

    async def _created(self, identifier: Identifier, asked: CommitRequest, now_ms: int) -> JudgedChange:
        """The end of a create transaction: the table comes with all its updates."""
        namespace = await self._relations.namespace(identifier.namespace)
        namespace_plans.existing(identifier.namespace, namespace)
        there = relation_plans.decode_relation_entry(identifier, await self._relations.entry(identifier))
        if there is not None and not isinstance(there.record, TableRecord):
            relation_plans.check_free(identifier, there.entry, relation_plans.TABLE)
        if there is not None:
            raise errors.CommitConflict("Requirement failed: table already exists")
        table_commit.check_requirements(None, asked.requirements)
        topic_properties.check_untouched(asked.updates, {}, is_bound=False)
        table = table_commit.apply_updates(None, None, asked.updates, now_ms)
        return JudgedChange(identifier, None, namespace, CommitDecision(table, None, ()))

    async def _written(
        self,
        judged: Sequence[JudgedChange],
        asked: Mapping[Identifier, CommitRequest],
        lease: commit_plans.DriverLeaseEntry | None,
    ) -> Step[dict[Identifier, CommittedTable]]:
        changed = [one for one in judged if one.is_changed]
        foreign = [one for one in changed if not one.outcome.is_round]
        named = [place for one in foreign for place in _references(one, asked[one.identifier].updates)]
        # One sync of the disk serves what others wrote and our own files.
        files = await self.write_all([(one.outcome.table, one.version) for one in changed], is_synced=not named)
        locations = {one.identifier: location for one, location in zip(changed, files, strict=True)}
        try:
            if named:
                await self._steps.documents.make_durable([*named, *files])
            return self._step(judged, locations, lease, await self._marked(changed, asked))
        except errors.IcestreamError:
            await self._steps.take_back(files)
            raise

    async def _marked(
        self, changed: Sequence[JudgedChange], asked: Mapping[Identifier, CommitRequest]
    ) -> dict[int, MarkWrites]:
        """What is written down, by topic, of snapshots that go with this commit."""
        found: dict[int, MarkWrites] = {}
        for one in changed:
            bound = one.loaded.record.binding if one.loaded and one.outcome.binding else None
            if one.loaded is None or bound is None:
                continue
            updates = asked[one.identifier].updates
            marks = snapshot_mark.marks_of_removed(one.loaded.state.table, updates, bound.topic_id, bound.base)
            if marks:
                found[bound.topic_id] = await self._snapshots.adding(bound.topic_id, marks)
        return found

    async def write_all(self, wanted: Sequence[tuple[TableMetadata, int]], *, is_synced: bool = True) -> list[str]:
        """Documents with their versions to files, several at a time: all of them, or none is left."""

        async def write(table: TableMetadata, version: int) -> str:
            async with self._writing:
                return await self._steps.documents.write(table, table.properties, version, is_synced=is_synced)

        if len(wanted) == 1:
            return [await write(*wanted[0])]
        found = await asyncio.gather(*(write(*one) for one in wanted), return_exceptions=True)
        made = [one for one in found if isinstance(one, str)]
        for one in found:
            if isinstance(one, BaseException):
                await self._steps.take_back(made)
                raise one
        return made

    def _step(
        self,
        judged: Sequence[JudgedChange],
        locations: Mapping[Identifier, str],
        lease: commit_plans.DriverLeaseEntry | None,
        marked: Mapping[int, MarkWrites],
    ) -> Step[dict[Identifier, CommittedTable]]:
        answer = {}
        for one in judged:
            location = locations.get(one.identifier) or (one.loaded.state.location if one.loaded else "")
            answer[one.identifier] = CommittedTable(location, one.outcome.table, one.outcome.repeated)
        changes = [one.change(locations[one.identifier]) for one in judged if one.identifier in locations]
        noted = RequestResult([answer[one].table.uuid or "" for one in sorted(answer)])
        if not changes:
            read = [(one.identifier, one.loaded.entry) for one in judged if one.loaded]
            unchanged = [cmd.AtRevision(catalog_keys.relation_key(name), entry.mod_revision) for name, entry in read]
            return Step(None, answer, noted=noted, unchanged=unchanged)
        dropped = [
            name
            for one in judged
            if one.loaded
            for name in table_commit.dropped_metadata_files(one.loaded.state.table, one.outcome.table)
        ]
        planned = commit_plans.commit(changes, lease, marked.values())
        written = [*locations.values()]
        was_done, told = self._was_done(changes[0]), self._remembering(planned, changes, marked)
        return Step(planned, answer, written, dropped, was_done, told, noted=noted)

    def _remembering(
        self, planned: PlannedTransaction, changes: Sequence[PlannedChange], marked: Mapping[int, MarkWrites]
    ) -> Callable[[int], None]:
        """What the next commit to these tables is judged by, as long as nobody else commits."""

        def remember(revision: int) -> None:
            values = {one.key: one.value for one in planned.then if isinstance(one, cmd.Put)}
            for change in changes:
                before, value = change.before, values[catalog_keys.relation_key(change.identifier)]
                created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
                self._left[change.identifier] = Entry(value, created, revision, version, 0)
                self._left.move_to_end(change.identifier)
            while len(self._left) > limits.CATALOG_REMEMBERED_MAX:
                self._left.popitem(last=False)
            for topic_id, one in marked.items():
                self._snapshots.done(topic_id, one, revision)

        return remember

    def _was_done(self, change: PlannedChange) -> Callable[[], Awaitable[bool]]:
        """Whether the pointer had our file before others went on: their files name it. Where the name leads to another
        table now, ours may be elsewhere, with this commit."""

        async def look() -> bool:
            loaded = await self.load(change.identifier)
            log = loaded.state.table.metadata_log
            if any(entry["metadata-file"] == change.record.location for entry in log):
                return True
            before = change.before
            if before is None or loaded.entry.create_revision != before.create_revision:
                raise errors.OutcomeUnknown(f"{change.identifier} is another table by now", hint=LOOK_FIRST)
            if not 0 <= loaded.record.version - change.record.version <= len(log):
                raise errors.OutcomeUnknown("too much was committed since to tell whether this was", hint=LOOK_FIRST)
            return False

        return look

    # --- topics ---

    async def rebind(
        self, identifier: Identifier, decide: Callable[[TableState], Awaitable[CommitDecision]]
    ) -> CommittedTable:
        """Whatever changes which topic a table belongs to, and where that goes on (calls/topics.py)."""

        async def plan() -> Step[dict[Identifier, CommittedTable]]:
            loaded = await self.load(identifier)
            judged = JudgedChange(identifier, loaded, None, await decide(loaded.state))
            return await self._written([judged], {identifier: CommitRequest((), ())}, None)

        return (await self._steps.make([catalog_keys.relation_key(identifier)], plan))[identifier]


def _references(judged: JudgedChange, updates: Sequence[Object]) -> list[str]:
    """Where files lie that others wrote and these updates name for the first time."""
    found = []
    for one in updates:
        named = one.get(_REFERENCES.get(update.action(one), ""))
        if isinstance(named, dict):
            places = (named.get("manifest-list"), *(named.get("manifests") or ()), named.get("statistics-path"))
            found += [place for place in places if isinstance(place, str)]
    if not found:
        return []
    tables = (judged.outcome.table, *([judged.loaded.state.table] if judged.loaded else ()))
    return [*found, *(place for one in tables for place in metadata_file.data_places(one.location, one.properties))]
