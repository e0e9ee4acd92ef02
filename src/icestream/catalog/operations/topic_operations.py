"""Operations of operators and the pipeline on the tables of topics: bind, detach, adopt, rewind, recreate. The rules
are in catalog/topic_rules.

Each is one transaction. A dry run changes nothing and returns a preview of the effects, computed as if every consent
were given, with the consents that the operation needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import DetachedRecord, TableRecord, TopicTableRecord
from icestream.catalog.operations.namespace_operations import table_base
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.operations.table_commits import CommittedTable, TableCommits
from icestream.catalog.plans import commit_plans, namespace_plans, relation_plans
from icestream.catalog.plans.commit_plans import FirstTable
from icestream.catalog.topic_bindings import TopicBindings, table_identifier
from icestream.catalog.topic_rules import adopt, bind, recreate, rewind
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable, Rebinding
from icestream.catalog.transactions import Attempt, Plan, TransactionRunner
from icestream.iceberg.identifier import Identifier, Namespace, join_levels
from icestream.iceberg.location import new_location
from icestream.iceberg.values import Object
from icestream.metadata.entry import Entry

Decide = Callable[[TableState, Collection[Consent]], Awaitable[Rebinding]]
_UNREADABLE = (errors.MetadataFileMissing, errors.MetadataFileDamaged)


class NewTopicTable(NamedTuple):
    """A table to be created for a topic."""

    log: TopicLog
    name: Identifier
    layout: Object


class WrittenTable(NamedTuple):
    """A new table whose first metadata file is on disk."""

    table: NewTopicTable
    decision: CommitDecision
    location: str  # of the metadata file


class LostTable(NamedTuple):
    """The table of a topic whose metadata file is missing or damaged."""

    identifier: Identifier
    former: FormerTable
    entry: Entry
    record: TableRecord
    topic_entry: Entry


class TopicOperationResult(NamedTuple):
    """The effects of an operation, and the table after it."""

    preview: OperationPreview
    committed: CommittedTable | None  # None: it was a dry run


CreatedTables = dict[int, tuple[CommittedTable, Binding]]  # by topic id


class TopicOperations:
    """The operations on tables of topics."""

    def __init__(
        self, runner: TransactionRunner, relations: RelationLookup, commits: TableCommits, warehouse: str
    ) -> None:
        self._runner = runner
        self._relations = relations
        self._commits = commits
        self._warehouse = warehouse
        self._bindings = TopicBindings(runner.store)

    # --- lookups ---

    async def table_of(self, topic_id: int) -> Identifier | None:
        return await self._bindings.find_table(topic_id)

    async def is_deleted(self, topic_id: int) -> bool:
        """True for a deleted topic that still has a table: the clean-up detaches it in a moment."""
        return await self._bindings.is_released(topic_id)

    async def find_detached(self, topic_id: int) -> DetachedRecord | None:
        """Returns the table that a topic without a table had before."""
        return await self._bindings.find_detached(topic_id)

    # --- a table and its topic ---

    async def bind(
        self, table: Identifier, topic: str, topic_id: int, shards: Mapping[int, tuple[int, int]]
    ) -> CommittedTable:
        """Binds an empty table to a topic. `shards`: the epoch of each shard, and the offset at which the table begins.
        For callers that know these; operators use `bind_empty`."""

        async def decide(state: TableState) -> CommitDecision:
            await self._former_table(topic, topic_id)
            return bind.bind(state, topic, topic_id, shards, self._runner.now_ms())

        return await self._commits.rebind(table, decide)

    async def widen(self, table: Identifier, topic_id: int, shards: Mapping[int, tuple[int, int]]) -> CommittedTable:
        """Adds new shards of the topic to its binding, with their epochs and first offsets."""

        async def decide(state: TableState) -> CommitDecision:
            return bind.widen(state, topic_id, shards, self._runner.now_ms())

        return await self._commits.rebind(table, decide)

    async def bind_empty(
        self, table: Identifier, log: TopicLog, consents: Collection[Consent] = (), is_dry: bool = False
    ) -> TopicOperationResult:
        """`icestream lake bind`: binds a table without rows to a topic without a table."""

        async def decide(state: TableState, consents: Collection[Consent]) -> Rebinding:
            former = await self._former_table(log.topic, log.topic_id)
            return bind.begin(state, log, former, consents, self._runner.now_ms())

        return await self._rebind(table, decide, consents, is_dry)

    async def detach(self, table: Identifier, must_belong: bool = False) -> CommittedTable:
        """Detaches a table from its topic; it becomes an ordinary table. `must_belong`: raises TopicTableConflict if it
        belongs to none."""

        async def decide(state: TableState) -> CommitDecision:
            if must_belong and state.binding is None:
                raise errors.TopicTableConflict(
                    f"{table} does not belong to a topic", hint=f"nothing to detach: `icestream lake describe {table}`"
                )
            return bind.detach(state, self._runner.now_ms())

        return await self._commits.rebind(table, decide)

    async def adopt(
        self,
        table: Identifier,
        log: TopicLog,
        consents: Collection[Consent] = (),
        positions: Mapping[int, int] | None = None,
        is_dry: bool = False,
    ) -> TopicOperationResult:
        """`icestream lake adopt`: a table with rows becomes the table of a topic without one (topic_rules/adopt.py)."""

        async def decide(state: TableState, consents: Collection[Consent]) -> Rebinding:
            former = await self._former_table(log.topic, log.topic_id)
            return adopt.adopt(state, log, former, consents, self._runner.now_ms(), positions)

        return await self._rebind(table, decide, consents, is_dry)

    async def rewind(
        self,
        table: Identifier,
        log: TopicLog,
        consents: Collection[Consent] = (),
        snapshot_id: int | None = None,
        is_dry: bool = False,
    ) -> TopicOperationResult:
        """`icestream lake rewind`: sets main and the committed offsets back to a snapshot (topic_rules/rewind.py)."""

        async def decide(state: TableState, consents: Collection[Consent]) -> Rebinding:
            return rewind.rewind(state, log, consents, self._runner.now_ms(), snapshot_id)

        return await self._rebind(table, decide, consents, is_dry)

    async def undo_round(self, table: Identifier, log: TopicLog, snapshot_id: int) -> TopicOperationResult:
        """Undoes the round that made `snapshot_id`, which must be main (topic_rules/rewind.py)."""

        async def decide(state: TableState, _consents: Collection[Consent]) -> Rebinding:
            return rewind.undo_round(state, log, snapshot_id, self._runner.now_ms())

        return await self._rebind(table, decide, (), is_dry=False)

    async def _former_table(self, topic: str, topic_id: int) -> FormerTable:
        """Returns what the topic had before. Raises AlreadyExists for a topic that has a table."""
        store = self._runner.store
        commit_plans.check_unbound(topic, topic_id, await store.get(catalog_keys.topic_key(topic_id)))
        return commit_plans.former_table(topic_id, await store.get(catalog_keys.detached_key(topic_id)))

    async def _rebind(
        self, table: Identifier, decide: Decide, consents: Collection[Consent], is_dry: bool
    ) -> TopicOperationResult:
        """Runs a decision about the binding of a table, or previews it as if every consent were given."""
        if is_dry:
            loaded = await self._commits.load(table)
            return TopicOperationResult((await decide(loaded.state, [*Consent])).preview, None)
        previews: list[OperationPreview] = []  # of the last attempt

        async def decide_attempt(state: TableState) -> CommitDecision:
            rebinding = await decide(state, consents)
            previews[:] = [rebinding.preview]
            return rebinding.decision

        committed = await self._commits.rebind(table, decide_attempt)
        return TopicOperationResult(previews[0], committed)

    # --- a fresh table ---

    async def recreate(
        self,
        log: TopicLog,
        table: Identifier,
        consents: Collection[Consent] = (),
        is_dry: bool = False,
        layout: Object | None = None,
    ) -> TopicOperationResult:
        """Creates an empty table `table` for a topic without one, bound in the same transaction.

        Also replaces a table whose metadata file is missing or damaged; `table` must then be its name. The pipeline
        creates the first table of a topic with it, with a `layout`.
        """
        uuid = self._runner.documents.new_uuid()
        location = new_location(await self._base(table.namespace), table.name, uuid)

        async def decide(consents: Collection[Consent]) -> tuple[Rebinding, LostTable | None]:
            lost = await self._find_lost(log)
            if lost is not None and lost.identifier != table:
                raise errors.InvalidInput(
                    f"the lost table of topic {log.topic} is {lost.identifier}, not {table}",
                    hint=f"recreate it as {lost.identifier}",
                )
            former = lost.former if lost else await self._former_table(log.topic, log.topic_id)
            if lost is None:
                commit_plans.check_name(log.topic, table, await self._relations.entry(table))
            rebinding = recreate.recreate(log, former, consents, location, uuid, self._runner.now_ms(), layout)
            return rebinding, lost

        if is_dry:
            return TopicOperationResult((await decide([*Consent]))[0].preview, None)

        async def plan() -> Attempt[TopicOperationResult]:
            rebinding, lost = await decide(consents)
            namespace = await self._relations.namespace(table.namespace)
            entry = await self._relations.entry(table)
            decision = rebinding.decision
            if lost is None:  # refused before its file is written
                commit_plans.recreate(table, commit_plans.record_of(decision, uuid, "", 0), namespace, entry)
            (file,) = await self._commits.write_all([(decision.table, 0)])
            record = commit_plans.record_of(decision, uuid, file, 0)
            transaction = (
                commit_plans.recreate(table, record, namespace, entry)
                if lost is None
                else commit_plans.replace_lost(table, record, lost.entry, lost.record, lost.topic_entry)
            )
            result = TopicOperationResult(rebinding.preview, CommittedTable(file, decision.table))
            return Attempt(transaction.checked(), result, [file], is_create=True)

        return await self._runner.run_until_applied([catalog_keys.relation_key(table)], plan)

    async def create_first(self, new_tables: Sequence[NewTopicTable]) -> CreatedTables:
        """Creates the first tables of topics, each bound to its topic; returns those that were created, by topic id.

        Their files share one sync; a transaction creates NEW_TABLES_MAX of them (hazard 10). A transaction fails as a
        whole if one of its topics has or had a table, a name is taken, or a namespace does not exist: its tables are
        left out of the result, and `recreate` tells which one and why.
        """
        bases = {namespace: await self._base(namespace) for namespace in {table.name.namespace for table in new_tables}}
        decisions = [self._decide_first(table, bases[table.name.namespace]) for table in new_tables]
        locations = await self._runner.documents.write_new([decision.table for decision in decisions])
        written = [
            WrittenTable(table, decision, location)
            for table, decision, location in zip(new_tables, decisions, locations, strict=True)
        ]
        created: CreatedTables = {}
        # The files of all batches were made durable together, before the first transaction.
        for begin in range(0, len(written), limits.NEW_TABLES_MAX):
            batch = written[begin : begin + limits.NEW_TABLES_MAX]
            lock_keys = [catalog_keys.relation_key(entry.table.name) for entry in batch]
            try:
                batch_tables: CreatedTables = await self._runner.run_until_applied(lock_keys, self._plan_first(batch))
                created |= batch_tables
            except (errors.CommitConflict, errors.InvalidInput, errors.UnknownNamespace):
                continue
            except errors.IcestreamError:
                # No transaction names the files of the batches behind this one.
                await self._runner.remove_files([entry.location for entry in written[begin + len(batch) :]])
                raise
        return created

    async def _base(self, namespace: Namespace) -> str:
        """Returns the location below which tables of the namespace lie: its own if that is inside the warehouse,
        because the pipeline writes nowhere else. A namespace that does not exist is refused by the transaction."""
        entry = await self._relations.namespace(namespace)
        properties = namespace_plans.existing(namespace, entry).properties if entry is not None else {}
        return table_base(namespace, properties, self._warehouse, [self._warehouse])

    def _decide_first(self, new_table: NewTopicTable, base: str) -> CommitDecision:
        """Returns the decision for the first table of a topic, under a fresh UUID and location."""
        uuid = self._runner.documents.new_uuid()
        location = new_location(base, new_table.name.name, uuid)
        # What a retention dropped before there was a table is a declared gap of the log already.
        consents = [Consent.GAP]
        now_ms = self._runner.now_ms()
        return recreate.recreate(
            new_table.log, NO_FORMER_TABLE, consents, location, uuid, now_ms, new_table.layout
        ).decision

    def _plan_first(self, batch: Sequence[WrittenTable]) -> Plan[CreatedTables]:
        """Plans a transaction of new tables, expecting that nothing stands in its way. Planned again it raises
        CommitConflict: the expectation was wrong, or the transaction was applied and its reply lost."""
        is_again = False

        async def plan() -> Attempt[CreatedTables]:
            nonlocal is_again
            if is_again:
                raise errors.CommitConflict("one of the topics has a table, or one of the table names is taken")
            is_again = True
            locations = [entry.location for entry in batch]
            tables, created = [], {}
            for new_table, decision, location in batch:
                record = commit_plans.record_of(decision, decision.table.uuid or "", location, 0)
                tables.append(FirstTable(new_table.name, record))
                assert decision.binding is not None
                created[new_table.log.topic_id] = CommittedTable(location, decision.table), decision.binding
            try:
                namespaces = {entry.table.name.namespace for entry in batch}
                entries = {namespace: await self._relations.namespace(namespace) for namespace in namespaces}
                transaction = commit_plans.create_first(tables, entries)
            except errors.IcestreamError:  # no transaction was sent: no pointer leads to the files
                await self._runner.remove_files(locations)
                raise
            return Attempt(transaction, created, locations, is_create=True)

        return plan

    async def _find_lost(self, log: TopicLog) -> LostTable | None:
        """Returns the topic's table if its record exists and its metadata file is missing or damaged; None if it has no
        table. Raises AlreadyExists for a table that can be read."""
        key = catalog_keys.topic_key(log.topic_id)
        topic_entry = await self._runner.store.get(key)
        if topic_entry is None:
            return None
        table = table_identifier(catalog_records.decode(TopicTableRecord, key, topic_entry))
        try:
            await self._commits.load(table)
        except _UNREADABLE:
            entry, record = relation_plans.table_of(table, await self._relations.entry(table))
        else:
            raise errors.AlreadyExists(
                f"topic {log.topic} has a readable table: {table}",
                hint=f"`icestream lake rewind {join_levels((*table.namespace, table.name))}` resumes with it",
            )
        binding = record.binding
        if binding is None or binding.topic_id != log.topic_id:
            raise errors.MetadataDamaged(
                f"{key} names {table}, which is not bound to topic {log.topic}", hint="restore it from a backup"
            )
        former = FormerTable(binding.committed(), binding.pipeline_epoch)
        return LostTable(table, former, entry, record, topic_entry)
