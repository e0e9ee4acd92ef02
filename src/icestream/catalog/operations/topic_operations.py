"""What operators ask about the tables of topics: bind, detach, adopt, rewind, recreate. The rules: catalog/topic.

Each is one transaction, or, as a dry run, only says what it would come to: with every consent given, so that all of it
can be told, and with those that it needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import DetachedRecord, TableRecord, TopicRecord
from icestream.catalog.operations.namespace_operations import table_base
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.operations.table_commits import CommittedTable, TableCommits
from icestream.catalog.plans import commit_plans, namespace_plans, relation_plans
from icestream.catalog.plans.commit_plans import FirstTable
from icestream.catalog.topic_rules import adopt, bind, recreate, rewind, undo
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable, Rebinding
from icestream.catalog.transactions import Step, Steps
from icestream.iceberg.identifier import Identifier, Namespace, check_namespace, identifier, join_levels
from icestream.iceberg.location import new_location
from icestream.iceberg.values import Object
from icestream.metadata.entry import Entry

Decide = Callable[[TableState, Collection[Consent]], Awaitable[Rebinding]]
_GONE = (errors.MetadataFileMissing, errors.MetadataFileDamaged)


class NewTopicTable(NamedTuple):
    """A table that is to be made for a topic, by its name."""

    log: TopicLog
    name: Identifier
    layout: Object


Written = tuple[NewTopicTable, CommitDecision, str]  # with the location of its first metadata file


class OperationResult(NamedTuple):
    preview: OperationPreview
    committed: CommittedTable | None  # None: it was a dry run


class TopicOperations:
    def __init__(self, steps: Steps, found: RelationLookup, made: TableCommits, warehouse: str) -> None:
        self._steps = steps
        self._relations = found
        self._commits = made
        self._warehouse = warehouse

    # --- looking ---

    async def table_of(self, topic_id: int) -> Identifier | None:
        entry = await self._steps.store.get(catalog_keys.topic_key(topic_id))
        return (
            None
            if entry is None
            else _named(catalog_records.decode(TopicRecord, catalog_keys.topic_key(topic_id), entry))
        )

    async def is_deleted(self, topic_id: int) -> bool:
        """A topic that has a table still: they are parted in a moment (upkeep/partings.py)."""
        return await self._steps.store.get(catalog_keys.deleted_topic_key(topic_id)) is not None

    async def parted(self, topic_id: int) -> DetachedRecord | None:
        """What a topic without a table had."""
        key = catalog_keys.parted_key(topic_id)
        entry = await self._steps.store.get(key)
        return None if entry is None else catalog_records.decode(DetachedRecord, key, entry)

    # --- a table and its topic ---

    async def bind(
        self, table: Identifier, topic: str, topic_id: int, shards: Mapping[int, tuple[int, int]]
    ) -> CommittedTable:
        """`shards`: the epoch of each, and the offset from which the table gets its messages. For callers that know
        it; operators begin."""

        async def decide(state: TableState) -> CommitDecision:
            await self._former(topic, topic_id)
            return bind.bind(state, topic, topic_id, shards, self._steps.now_ms())

        return await self._commits.rebind(table, decide)

    async def widen(self, table: Identifier, topic_id: int, shards: Mapping[int, tuple[int, int]]) -> CommittedTable:
        """The topic has grown: shards that its table does not know yet, with their epochs and first offsets."""

        async def decide(state: TableState) -> CommitDecision:
            return bind.widen(state, topic_id, shards, self._steps.now_ms())

        return await self._commits.rebind(table, decide)

    async def begin(
        self, table: Identifier, log: TopicLog, consents: Collection[Consent] = (), is_dry: bool = False
    ) -> OperationResult:
        """`icestream lake bind`: a table without rows."""

        async def decide(state: TableState, given: Collection[Consent]) -> Rebinding:
            former = await self._former(log.topic, log.topic_id)
            return bind.begin(state, log, former, given, self._steps.now_ms())

        return await self._rebound(table, decide, consents, is_dry)

    async def detach(self, table: Identifier, must_belong: bool = False) -> CommittedTable:
        """`must_belong`: raises TopicTableConflict where there is nothing to part, for operators."""

        async def decide(state: TableState) -> CommitDecision:
            if must_belong and state.binding is None:
                raise errors.TopicTableConflict(
                    f"{table} belongs to no topic", hint=f"there is nothing to part: `icestream lake describe {table}`"
                )
            return bind.detach(state, self._steps.now_ms())

        return await self._commits.rebind(table, decide)

    async def adopt(
        self,
        table: Identifier,
        log: TopicLog,
        consents: Collection[Consent] = (),
        positions: Mapping[int, int] | None = None,
        is_dry: bool = False,
    ) -> OperationResult:
        async def decide(state: TableState, given: Collection[Consent]) -> Rebinding:
            former = await self._former(log.topic, log.topic_id)
            return adopt.adopt(state, log, former, given, self._steps.now_ms(), positions)

        return await self._rebound(table, decide, consents, is_dry)

    async def rewind(
        self,
        table: Identifier,
        log: TopicLog,
        consents: Collection[Consent] = (),
        snapshot_id: int | None = None,
        is_dry: bool = False,
    ) -> OperationResult:
        async def decide(state: TableState, given: Collection[Consent]) -> Rebinding:
            return rewind.rewind(state, log, given, self._steps.now_ms(), snapshot_id)

        return await self._rebound(table, decide, consents, is_dry)

    async def undo_round(self, table: Identifier, log: TopicLog, snapshot_id: int) -> OperationResult:
        """Takes back the round that made `snapshot_id`, which must be main (catalog/topic_rules/undo.py)."""

        async def decide(state: TableState, given: Collection[Consent]) -> Rebinding:
            return undo.undo_round(state, log, snapshot_id, self._steps.now_ms())

        return await self._rebound(table, decide, (), is_dry=False)

    async def _former(self, topic: str, topic_id: int) -> FormerTable:
        """Raises AlreadyExists for a topic that has a table."""
        store = self._steps.store
        commit_plans.check_unbound(topic, topic_id, await store.get(catalog_keys.topic_key(topic_id)))
        return commit_plans.former(topic_id, await store.get(catalog_keys.parted_key(topic_id)))

    async def _rebound(
        self, table: Identifier, decide: Decide, consents: Collection[Consent], is_dry: bool
    ) -> OperationResult:
        if is_dry:
            loaded = await self._commits.load(table)
            return OperationResult((await decide(loaded.state, [*Consent])).preview, None)
        last: list[OperationPreview] = []

        async def decide_once(state: TableState) -> CommitDecision:
            found = await decide(state, consents)
            last[:] = [found.preview]
            return found.decision

        committed = await self._commits.rebind(table, decide_once)
        return OperationResult(last[0], committed)

    # --- a fresh table ---

    async def recreate(
        self,
        log: TopicLog,
        table: Identifier,
        consents: Collection[Consent] = (),
        is_dry: bool = False,
        layout: Object | None = None,
    ) -> OperationResult:
        """`table`: its name. In place of a table whose metadata file is gone it must be that one's. The pipeline makes
        the first table of a topic with it, too: with its `layout`, and bound in the same step."""
        uuid = self._steps.documents.new_uuid()
        location = new_location(await self._base(table.namespace), table.name, uuid)

        async def decide(given: Collection[Consent]) -> tuple[Rebinding, tuple[Entry, TableRecord, Entry] | None]:
            lost = await self._lost(log)
            if lost is not None and lost[0] != table:
                raise errors.InvalidInput(f"the table that is gone is {lost[0]}", hint=f"recreate it as {lost[0]}")
            former = lost[1] if lost else await self._former(log.topic, log.topic_id)
            if lost is None:
                commit_plans.check_name(log.topic, table, await self._relations.entry(table))
            found = recreate.recreate(log, former, given, location, uuid, self._steps.now_ms(), layout)
            return found, lost[2] if lost else None

        if is_dry:
            return OperationResult((await decide([*Consent]))[0].preview, None)

        async def plan() -> Step[OperationResult]:
            found, lost = await decide(consents)
            namespace = await self._relations.namespace(table.namespace)
            entry = await self._relations.entry(table)
            outcome = found.decision
            if lost is None:
                commit_plans.recreate(
                    table, commit_plans.record_of(outcome, uuid, "", 0), namespace, entry
                )  # refused unwritten
            (place,) = await self._commits.write_all([(outcome.table, 0)])
            record = commit_plans.record_of(outcome, uuid, place, 0)
            planned = (
                commit_plans.recreate(table, record, namespace, entry)
                if lost is None
                else commit_plans.replace_lost(table, record, *lost)
            )
            done = OperationResult(found.preview, CommittedTable(place, outcome.table))
            return Step(planned.checked(), done, [place], is_once=True)

        return await self._steps.make([catalog_keys.relation_key(table)], plan)

    async def create_first(self, wanted: Sequence[NewTopicTable]) -> dict[int, tuple[CommittedTable, Binding]]:
        """The first tables of topics, each bound to its topic, by topic id: their files with one sync, then
        NEW_TABLES_MAX of them in a transaction (hazard 10). Left out are those of a transaction in which one of the
        topics has or had a table, one of the names is taken, or a namespace is not there: `recreate` says which and
        why."""
        bases = {name: await self._base(name) for name in {one.name.namespace for one in wanted}}
        outcomes = [(one, self._first(one, bases[one.name.namespace])) for one in wanted]
        places = await self._steps.documents.write_new([outcome.table for _, outcome in outcomes])
        written = [(*one, place) for one, place in zip(outcomes, places, strict=True)]
        made: dict[int, tuple[CommittedTable, Binding]] = {}
        for begin in range(0, len(written), limits.NEW_TABLES_MAX):
            some = written[begin : begin + limits.NEW_TABLES_MAX]
            turns = [catalog_keys.relation_key(one.name) for one, _, _ in some]
            try:
                together: dict[int, tuple[CommittedTable, Binding]] = await self._steps.make(turns, self._once(some))
                made |= together
            except (errors.CommitConflict, errors.InvalidInput, errors.UnknownNamespace):
                continue
            except errors.IcestreamError:  # no transaction names the files of the others
                await self._steps.take_back([place for _, _, place in written[begin + len(some) :]])
                raise
        return made

    async def _base(self, namespace: Namespace) -> str:
        """The location of a namespace, below which its tables lie: its own where that is inside of the warehouse, for
        the pipeline writes nowhere else. Of one that is not there, too: what makes a table in it says that."""
        entry = await self._relations.namespace(namespace)
        properties = namespace_plans.existing(namespace, entry).properties if entry is not None else {}
        return table_base(namespace, properties, self._warehouse, [self._warehouse])

    def _first(self, new: NewTopicTable, base: str) -> CommitDecision:
        uuid = self._steps.documents.new_uuid()
        location = new_location(base, new.name.name, uuid)
        # What a retention dropped before there was a table is a declared gap of the log already.
        consents = [Consent.GAP]
        return recreate.recreate(
            new.log, NO_FORMER_TABLE, consents, location, uuid, self._steps.now_ms(), new.layout
        ).decision

    def _once(
        self, written: Sequence[Written]
    ) -> Callable[[], Awaitable[Step[dict[int, tuple[CommittedTable, Binding]]]]]:
        """Plans a transaction of new tables by what is expected; planned again, it raises CommitConflict: something is
        there that was not expected, or the transaction was done before others went on."""
        is_again = False

        async def plan() -> Step[dict[int, tuple[CommittedTable, Binding]]]:
            nonlocal is_again
            if is_again:
                raise errors.CommitConflict("one of the topics has a table, or one of the names is taken")
            is_again = True
            places = [place for _, _, place in written]
            tables, answer = [], {}
            for one, outcome, place in written:
                record = commit_plans.record_of(outcome, outcome.table.uuid or "", place, 0)
                tables.append(FirstTable(one.name, record))
                assert outcome.binding is not None
                answer[one.log.topic_id] = CommittedTable(place, outcome.table), outcome.binding
            try:
                names = {one.name.namespace for one, _, _ in written}
                entries = {name: await self._relations.namespace(name) for name in names}
                planned = commit_plans.create_first(tables, entries)
            except errors.IcestreamError:  # nothing was sent: nothing can point to them
                await self._steps.take_back(places)
                raise
            return Step(planned, answer, places, is_once=True)

        return plan

    async def _lost(self, log: TopicLog) -> tuple[Identifier, FormerTable, tuple[Entry, TableRecord, Entry]] | None:
        """The topic's table, if it has one on paper and its metadata file is gone. One that is there is refused."""
        key = catalog_keys.topic_key(log.topic_id)
        topic = await self._steps.store.get(key)
        if topic is None:
            return None
        named = _named(catalog_records.decode(TopicRecord, key, topic))
        try:
            await self._commits.load(named)
        except _GONE:
            entry, record = relation_plans.table_of(named, await self._relations.entry(named))
        else:
            raise errors.AlreadyExists(
                f"topic {log.topic} has its table, and it is readable: {named}",
                hint=f"`icestream lake rewind {join_levels((*named.namespace, named.name))}` goes on with it",
            )
        binding = record.binding
        if binding is None or binding.topic_id != log.topic_id:
            raise errors.MetadataDamaged(
                f"{key} names {named}, which is not bound to topic {log.topic}", hint="restore it from a backup"
            )
        return named, FormerTable(binding.committed(), binding.pipeline_epoch), (entry, record, topic)


def _named(record: TopicRecord) -> Identifier:
    return identifier(check_namespace(record.namespace), record.name)
