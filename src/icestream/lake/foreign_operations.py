"""The tables of topics in another catalog: REST, Glue, SQL. What an operator decides about them (hazard 21).

Which table a topic has, and where it goes on, stands there in the mirror that the pipeline keeps of it in our metadata
store (catalogs/mirror.py). The decisions are those of our own catalog (catalog/topic); what they come to is written
into the mirror, with the snapshot that it was said of (`base`), so that the history of main is judged from there on.

    decide       by the table as it is, the mirror and the log; refused until every consequence is agreed to
    the table    is changed by two: `rewind --snapshot` moves main, `recreate` makes it. That comes first: a crash
                 behind it leaves a topic that stops and names the command, or a table without rows that `bind` takes
    the mirror   if it is as it was read. A round of the pipeline that lands meanwhile is not noted then, so its
                 messages stay in the log, and the pipeline looks at the table again; or the operator hears of it

Nobody keeps other engines from such a table: nothing here forbids them anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from icestream import errors
from icestream.catalog.catalog_keys import FOREIGN_TABLES, foreign_table_key
from icestream.catalog.idempotency import RELOAD_HINT
from icestream.catalog.topic_rules import adopt, bind, recreate, rewind, topic_schema
from icestream.catalog.topic_rules.binding import AdoptionBase, Binding
from icestream.catalog.topic_rules.commit_rules import TableState
from icestream.catalog.topic_rules.offset_run import OffsetRun, OffsetRuns
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable, Rebinding
from icestream.catalog.topic_rules.removal import TopicProgress
from icestream.catalogs import topic_table_name
from icestream.catalogs.highest_offset import highest_offset
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.table_catalog import CommitRefused, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier, join_levels
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.lake.operations import ReadLog, TableOwner
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock

CONFLICT_HINT: Final = "others were at work meanwhile; nothing was decided: try again"
_ALL: Final = tuple(Consent)


class TopicState(NamedTuple):
    """A topic as it was read: its log, its mirror, and what that says about the table that it had."""

    log: TopicLog
    entry: Entry | None
    mirror: ForeignTableRecord | None

    @property
    def former(self) -> FormerTable:
        return NO_FORMER_TABLE if self.mirror is None else FormerTable(self.mirror.committed, 0)


class ForeignOperations:
    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        manifests: ManifestReader,
        clock: Clock,
        fixed: tuple[str, ...] | None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._manifests = manifests
        self._clock = clock
        self._fixed = fixed

    async def owner(self, table: Identifier) -> TableOwner | None:
        found = await self._holder(table)
        if found is None:
            await self._loaded(table)  # one that is not there is another matter
            return None
        return TableOwner(found[1].topic, found[0])

    # --- a table that is there ---

    async def bind(
        self, table: Identifier, ask_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview:
        known = await self._known(ask_log)
        found = await self._free(table, known)
        made = bind.begin(
            TableState(found, "", None, ()), known.log, known.former, _effective_consents(consents, is_dry), self._now()
        )
        if not is_dry:
            await self._decide(table, known, found.uuid, made, None)
        return made.preview

    async def adopt(
        self,
        table: Identifier,
        ask_log: ReadLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview:
        known = await self._known(ask_log)
        found = await self._free(table, known)
        given, state = _effective_consents(consents, is_dry), TableState(found, "", None, ())
        made = adopt.adopt(state, known.log, known.former, given, self._now(), positions)
        return await self._settled(table, known, found, made, found.current_snapshot_id, given, is_dry)

    async def rewind(
        self,
        table: Identifier,
        ask_log: ReadLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview:
        known = await self._known(ask_log)
        if known.mirror is None or known.mirror.is_parted or _identifier(known.mirror) != table:
            raise errors.TopicTableConflict(f"{table} belongs to no topic", hint="`icestream lake adopt` takes it over")
        found = await self._loaded(table)
        if found.uuid != known.mirror.uuid:
            raise errors.TopicTableConflict(
                f"{table} is another table than the one that was written before",
                hint="`icestream lake adopt` takes it over, `icestream lake recreate` makes a fresh one",
            )
        state = TableState(found, "", _binding(known), known.mirror.base.progress.removals if known.mirror.base else ())
        given = _effective_consents(consents, is_dry)
        made = rewind.rewind(state, known.log, given, self._now(), snapshot_id)
        if made.decision.binding is state.binding:
            return made.preview  # it stands there already
        target = made.decision.table.current_snapshot_id
        return await self._settled(table, known, found, made, target, given, is_dry)

    async def _settled(
        self,
        table: Identifier,
        known: TopicState,
        found: TableMetadata,
        made: Rebinding,
        target: int | None,
        given: Collection[Consent],
        is_dry: bool,
    ) -> OperationPreview:
        """`target`: the snapshot at which main stands then. Rows behind what its history says may be any."""
        highest = await highest_offset(self._manifests, found, target)
        told = _with_doubts(made.preview, highest)
        told.check(given)
        if not is_dry:
            if target is not None and target != found.current_snapshot_id:
                await self._move_main(table, found, target)
            await self._decide(table, known, found.uuid, made, target, -1 if highest is None else highest)
        return told

    async def detach(self, table: Identifier) -> None:
        found = await self._holder(table)
        if found is None:
            raise errors.TopicTableConflict(
                f"{table} belongs to no topic", hint="there is nothing to part: `icestream topic list` shows the topics"
            )
        topic_id, mirror, entry = found
        await self._write(topic_id, entry, msgspec.structs.replace(mirror, is_parted=True))

    # --- a fresh one ---

    async def recreate(
        self, table: Identifier | None, ask_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        known = await self._known(ask_log)
        log, had = known.log, known.mirror
        if had is not None and await self._is_there(had):
            raise errors.AlreadyExists(
                f"topic {log.topic} has its table, and it is readable: {_identifier(had)}",
                hint=f"`icestream lake rewind {join_levels((*had.namespace, had.name))}` goes on with it",
            )
        if table is None:
            table = (
                topic_table_name.table_for_topic(TopicName.parse(log.topic), self._fixed)
                if had is None
                else _identifier(had)
            )
        made = recreate.recreate(log, known.former, _effective_consents(consents, is_dry), "file:/", "", self._now())
        if not is_dry:
            await self._decide(table, known, await self._made(table), made, None)
        return table, made.preview

    async def _made(self, table: Identifier) -> str | None:
        for depth in range(1, len(table.namespace) + 1):
            try:
                await self._catalog.create_namespace(table.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        asked = {"schema": topic_schema.new_schema(), "properties": {"format-version": "2"}}
        try:
            return (await self._catalog.create(table, asked)).uuid
        except errors.AlreadyExists:
            raise errors.AlreadyExists(
                f"there is a table {table} already",
                hint="--table gives another name; `icestream lake bind` takes a table without rows, `adopt` one with",
            ) from None

    # --- what is there ---

    async def _known(self, ask_log: ReadLog) -> TopicState:
        """The mirror first, then the log: what is committed behind that changes the mirror."""
        key = foreign_table_key((await ask_log()).topic_id)
        entry = await self._store.get(key)
        return TopicState(await ask_log(), entry, None if entry is None else decode_foreign_table(key, entry))

    async def _holder(self, table: Identifier) -> tuple[int, ForeignTableRecord, Entry] | None:
        for key, entry in await self._store.list_all(FOREIGN_TABLES):
            mirror = decode_foreign_table(key, entry)
            if _identifier(mirror) == table and not mirror.is_parted:
                return int(key.removeprefix(FOREIGN_TABLES)), mirror, entry
        return None

    async def _loaded(self, table: Identifier) -> TableMetadata:
        try:
            return tables.load((await self._catalog.load(table)).metadata)
        except errors.UnknownTable as error:
            hint = f"`icestream lake tables {join_levels(table.namespace)}` lists those that there are"
            raise errors.UnknownTable(error.message, hint=hint) from None

    async def _is_there(self, mirror: ForeignTableRecord) -> bool:
        """The table that a topic has, by what it noted; another one under its name is not it."""
        if mirror.is_parted:
            return False
        try:
            return (await self._catalog.load(_identifier(mirror))).uuid == mirror.uuid
        except (errors.UnknownTable, errors.UnknownNamespace, errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return False

    async def _free(self, table: Identifier, known: TopicState) -> TableMetadata:
        """A table that this topic may take: no other's, and it has none but this one."""
        found, holder = await self._loaded(table), await self._holder(table)
        if holder is not None and holder[0] != known.log.topic_id:
            raise errors.AlreadyExists(
                f"the table belongs to topic {holder[1].topic} (id {holder[0]})",
                hint=f"`icestream lake detach {join_levels((*table.namespace, table.name))}` parts them",
            )
        had = known.mirror
        if had is not None and _identifier(had) != table and await self._is_there(had):
            raise errors.AlreadyExists(
                f"topic {known.log.topic} has the table {_identifier(had)}",
                hint=f"`icestream lake detach {join_levels((*had.namespace, had.name))}` parts them",
            )
        return found

    # --- changing ---

    async def _move_main(self, table: Identifier, found: TableMetadata, target: int) -> None:
        current = found.current_snapshot_id
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": found.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": current},
        ]
        kept = {name: value for name, value in (found.references.get(MAIN) or {}).items() if name != "snapshot-id"}
        point: Object = {
            "type": "branch",
            **kept,
            "action": "set-snapshot-ref",
            "ref-name": MAIN,
            "snapshot-id": target,
        }
        outcome = await self._catalog.commit(table, TableChange(requirements, [point]))
        if isinstance(outcome, CommitUnknown):
            raise errors.OutcomeUnknown(f"main may have been moved to {target}: {outcome.reason}", hint=RELOAD_HINT)
        if isinstance(outcome, CommitRefused):
            raise errors.CommitConflict(f"{table} was changed meanwhile: {outcome.reason}", hint="try again")

    async def _decide(
        self,
        table: Identifier,
        known: TopicState,
        uuid: str | None,
        made: Rebinding,
        snapshot_id: int | None,
        rows_up_to: int = -1,
    ) -> None:
        binding = made.decision.binding
        assert binding is not None
        said = AdoptionBase(snapshot_id or 0, TopicProgress(binding.committed(), made.decision.removals))
        mirror = ForeignTableRecord(
            [*table.namespace],
            table.name,
            uuid or "",
            binding.committed(),
            snapshot_id or 0,
            known.log.topic,
            said,
            rows_up_to,
            removals=made.decision.removals,
        )
        await self._write(known.log.topic_id, known.entry, mirror)

    async def _write(self, topic_id: int, entry: Entry | None, mirror: ForeignTableRecord) -> None:
        key = foreign_table_key(topic_id)
        before: cmd.Compare = cmd.Absent(key) if entry is None else cmd.AtRevision(key, entry.mod_revision)
        if not (await self._store.txn([before], [cmd.Put(key, msgspec.json.encode(mirror))])).held:
            raise errors.CommitConflict(
                "the pipeline or somebody else decided about the topic's table", hint=CONFLICT_HINT
            )

    def _now(self) -> int:
        return self._clock.wall_us() // 1000


def _effective_consents(consents: Collection[Consent], is_dry: bool) -> Collection[Consent]:
    """A dry run tells all of it."""
    return _ALL if is_dry else consents


def _identifier(mirror: ForeignTableRecord) -> Identifier:
    return Identifier(tuple(mirror.namespace), mirror.name)


def _binding(known: TopicState) -> Binding:
    """The mirror in the words of our own catalog. A base without a snapshot says nothing about those since."""
    mirror, log = known.mirror, known.log
    assert mirror is not None
    runs: dict[int, OffsetRuns] = {
        shard: (OffsetRun(log.shards[shard].epoch if shard in log.shards else 0, 0, end),)
        for shard, end in mirror.committed.items()
    }
    base = mirror.base if mirror.base is not None and mirror.base.snapshot_id else None
    return Binding(log.topic, log.topic_id, runs, base=base, is_rewound=True)


def _with_doubts(told: OperationPreview, highest: int | None) -> OperationPreview:
    """Rows behind what the history says: the pipeline would write these offsets again."""
    held = max((fate.held for fate in told.shards), default=0)
    if highest is None or highest < held or told.doubts:
        return told
    return told._replace(doubts=(f"main has a row of offset {highest}, and its history knows those below {held}",))
