"""Operations on the tables of topics in another catalog: REST, Glue, SQL (hazard 21).

The pipeline keeps a record of each topic's table in our metadata store (the mirror): which table, and the offsets up to
which it is committed. The rules are those of the embedded catalog (catalog/topic_rules). The result of an operation is
written to the mirror together with the snapshot it was based on (`base`); later snapshots are judged from there.

    1 preview     by table, mirror and log; refused until every consequence is accepted
    2 the table   is changed by two operations: `rewind --snapshot` sets main, `recreate` creates it. This comes first:
                  after a crash, the topic stops with an error that names the command, or there is an empty table that
                  `bind` accepts
    3 the mirror  is replaced if it has not changed since it was read. If a commit of the pipeline replaced it, the
                  operation fails with a conflict; if the operation was first, the pipeline's update fails, so its
                  messages stay in the log and it reads the table again

Unlike the embedded catalog, nothing here can keep other engines from changing such a table.
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
from icestream.iceberg import metadata_file as metadata_files
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier, Namespace, join_levels
from icestream.iceberg.location import normalize
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.lake.operations import ReadLog, TableOwner, TopicTableState
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock

CONFLICT_HINT: Final = "nothing was changed; retry"
_ALL: Final = tuple(Consent)


class TopicState(NamedTuple):
    """The state of a topic: its range in the log, and its mirror with the entry it was read from."""

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
        entry = await self._find_owner(table)
        if entry is None:
            await self._load(table)  # one that is not there is another matter
            return None
        return TableOwner(entry[1].topic, entry[0])

    # --- a table that is there ---

    async def topic_table(self, topic_id: int) -> TopicTableState:
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return TopicTableState(None, None, {})
        mirror = decode_foreign_table(key, entry)
        table = _identifier(mirror)
        if mirror.is_detached:
            return TopicTableState(None, table, mirror.committed)
        return TopicTableState(table, None, mirror.committed)

    async def register(self, table: Identifier, metadata_file: str, topic_id: int) -> None:
        """As of any catalog. The table of a topic that a restore replaced gives up its name: it becomes
        NAME__replaced_ID, with the id of the topic that has the name now (ADR 106)."""
        location = normalize(metadata_file)
        document = tables.decode(metadata_files.decompress(location, await self._manifests.table_files.read(location)))
        await self._create_namespaces(table.namespace)
        if await self._is_registered(table, location, document):
            return
        taken = (await self._load(table)).uuid
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        mirror = None if entry is None else decode_foreign_table(key, entry)
        if mirror is None or not mirror.is_detached or not _is_same_uuid(mirror.replaced_uuid, taken):
            raise errors.AlreadyExists(
                f"another table has the name {table}, with the UUID {taken}",
                hint="give it another name, or drop it, with the tools of its catalog, then try again",
            )
        # The name leads to nothing until the other one is registered: no catalog exchanges two tables.
        await self._catalog.rename(table, Identifier(table.namespace, f"{table.name}__replaced_{topic_id}"))
        if not await self._is_registered(table, location, document):
            raise errors.CommitConflict(f"another client created {table} meanwhile", hint="try again")

    async def _is_registered(self, table: Identifier, location: str, document: TableMetadata) -> bool:
        """Registers a table unless its name is taken. Returns whether it is there."""
        try:
            await self._catalog.register(table, location)
        except errors.AlreadyExists:
            return _is_same_uuid((await self._load(table)).uuid, document.uuid)
        return True

    async def bind(
        self, table: Identifier, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> OperationPreview:
        state = await self._read_state(read_log)
        metadata = await self._load_bindable(table, state)
        rebound = bind.begin(
            TableState(metadata, "", None, ()),
            state.log,
            state.former,
            _effective_consents(consents, is_dry),
            self._now(),
        )
        if not is_dry:
            await self._record(table, state, metadata.uuid, rebound, None)
        return rebound.preview

    async def adopt(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        positions: Mapping[int, int] | None,
        is_dry: bool,
    ) -> OperationPreview:
        state = await self._read_state(read_log)
        metadata = await self._load_bindable(table, state)
        accepted, table_state = _effective_consents(consents, is_dry), TableState(metadata, "", None, ())
        rebound = adopt.adopt(table_state, state.log, state.former, accepted, self._now(), positions)
        return await self._apply(table, state, metadata, rebound, metadata.current_snapshot_id, accepted, is_dry)

    async def rewind(
        self,
        table: Identifier,
        read_log: ReadLog,
        consents: Collection[Consent],
        snapshot_id: int | None,
        is_dry: bool,
    ) -> OperationPreview:
        state = await self._read_state(read_log)
        if state.mirror is None or state.mirror.is_detached or _identifier(state.mirror) != table:
            raise errors.TopicTableConflict(f"{table} belongs to no topic", hint="`icestream lake adopt` binds it")
        metadata = await self._load(table)
        if metadata.uuid != state.mirror.uuid:
            raise errors.TopicTableConflict(
                f"{table} is another table than the one that was written before",
                hint="`icestream lake adopt` binds it, `icestream lake recreate` creates a new one",
            )
        table_state = TableState(
            metadata, "", _binding(state), state.mirror.base.progress.removals if state.mirror.base else ()
        )
        accepted = _effective_consents(consents, is_dry)
        rebound = rewind.rewind(table_state, state.log, accepted, self._now(), snapshot_id)
        if rebound.decision.binding is table_state.binding:
            return rebound.preview  # it stands there already
        target = rebound.decision.table.current_snapshot_id
        return await self._apply(table, state, metadata, rebound, target, accepted, is_dry)

    async def _apply(
        self,
        table: Identifier,
        state: TopicState,
        metadata: TableMetadata,
        rebound: Rebinding,
        target: int | None,
        accepted: Collection[Consent],
        is_dry: bool,
    ) -> OperationPreview:
        """`target`: the snapshot at which main stands then. Rows behind what its history says may be any."""
        highest = await highest_offset(self._manifests, metadata, target)
        preview = _with_doubts(rebound.preview, highest)
        preview.check(accepted)
        if not is_dry:
            if target is not None and target != metadata.current_snapshot_id:
                await self._move_main(table, metadata, target)
            await self._record(table, state, metadata.uuid, rebound, target, -1 if highest is None else highest)
        return preview

    async def detach(self, table: Identifier) -> None:
        owner = await self._find_owner(table)
        if owner is None:
            raise errors.TopicTableConflict(
                f"{table} belongs to no topic", hint="`icestream topic list` lists the topics"
            )
        topic_id, mirror, entry = owner
        await self._write(topic_id, entry, msgspec.structs.replace(mirror, is_detached=True))

    # --- a fresh one ---

    async def recreate(
        self, table: Identifier | None, read_log: ReadLog, consents: Collection[Consent], is_dry: bool
    ) -> tuple[Identifier, OperationPreview]:
        state = await self._read_state(read_log)
        log, former = state.log, state.mirror
        if former is not None and await self._exists(former):
            raise errors.AlreadyExists(
                f"topic {log.topic} has its table, and it is readable: {_identifier(former)}",
                hint=f"`icestream lake rewind {join_levels((*former.namespace, former.name))}` resumes with it",
            )
        if table is None:
            table = (
                topic_table_name.table_for_topic(TopicName.parse(log.topic), self._fixed)
                if former is None
                else _identifier(former)
            )
        rebound = recreate.recreate(log, state.former, _effective_consents(consents, is_dry), "file:/", "", self._now())
        if not is_dry:
            await self._record(table, state, await self._create_table(table), rebound, None)
        return table, rebound.preview

    async def _create_table(self, table: Identifier) -> str | None:
        await self._create_namespaces(table.namespace)
        request = {"schema": topic_schema.new_schema(), "properties": {"format-version": "2"}}
        try:
            return (await self._catalog.create(table, request)).uuid
        except errors.AlreadyExists:
            raise errors.AlreadyExists(
                f"there is a table {table} already",
                hint="--table gives another name; `icestream lake bind` takes a table without rows, `adopt` one with",
            ) from None

    async def _create_namespaces(self, namespace: Namespace) -> None:
        for depth in range(1, len(namespace) + 1):
            try:
                await self._catalog.create_namespace(namespace[:depth], {})
            except errors.AlreadyExists:
                continue

    # --- what is there ---

    async def _read_state(self, read_log: ReadLog) -> TopicState:
        """The mirror first, then the log: what is committed behind that changes the mirror."""
        key = foreign_table_key((await read_log()).topic_id)
        entry = await self._store.get(key)
        return TopicState(await read_log(), entry, None if entry is None else decode_foreign_table(key, entry))

    async def _find_owner(self, table: Identifier) -> tuple[int, ForeignTableRecord, Entry] | None:
        for key, entry in await self._store.list_all(FOREIGN_TABLES):
            mirror = decode_foreign_table(key, entry)
            if _identifier(mirror) == table and not mirror.is_detached:
                return int(key.removeprefix(FOREIGN_TABLES)), mirror, entry
        return None

    async def _load(self, table: Identifier) -> TableMetadata:
        try:
            return tables.load((await self._catalog.load(table)).metadata)
        except errors.UnknownTable as error:
            hint = f"`icestream lake tables {join_levels(table.namespace)}` lists those that there are"
            raise errors.UnknownTable(error.message, hint=hint) from None

    async def _exists(self, mirror: ForeignTableRecord) -> bool:
        """The table that a topic has, by what it noted; another one under its name is not it."""
        if mirror.is_detached:
            return False
        try:
            return (await self._catalog.load(_identifier(mirror))).uuid == mirror.uuid
        except (errors.UnknownTable, errors.UnknownNamespace, errors.MetadataFileMissing, errors.MetadataFileDamaged):
            return False

    async def _load_bindable(self, table: Identifier, state: TopicState) -> TableMetadata:
        """A table that this topic may take: no other's, and it has none but this one."""
        metadata, holder = await self._load(table), await self._find_owner(table)
        if holder is not None and holder[0] != state.log.topic_id:
            raise errors.AlreadyExists(
                f"the table belongs to topic {holder[1].topic} (id {holder[0]})",
                hint=f"`icestream lake detach {join_levels((*table.namespace, table.name))}` detaches it",
            )
        former = state.mirror
        if former is not None and _identifier(former) != table and await self._exists(former):
            raise errors.AlreadyExists(
                f"topic {state.log.topic} has the table {_identifier(former)}",
                hint=f"`icestream lake detach {join_levels((*former.namespace, former.name))}` detaches it",
            )
        return metadata

    # --- changing ---

    async def _move_main(self, table: Identifier, metadata: TableMetadata, target: int) -> None:
        current = metadata.current_snapshot_id
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": metadata.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": current},
        ]
        ref_options = {
            name: value for name, value in (metadata.references.get(MAIN) or {}).items() if name != "snapshot-id"
        }
        point: Object = {
            "type": "branch",
            **ref_options,
            "action": "set-snapshot-ref",
            "ref-name": MAIN,
            "snapshot-id": target,
        }
        outcome = await self._catalog.commit(table, TableChange(requirements, [point]))
        if isinstance(outcome, CommitUnknown):
            raise errors.OutcomeUnknown(f"main may have been moved to {target}: {outcome.reason}", hint=RELOAD_HINT)
        if isinstance(outcome, CommitRefused):
            raise errors.CommitConflict(f"{table} was changed meanwhile: {outcome.reason}", hint="try again")

    async def _record(
        self,
        table: Identifier,
        state: TopicState,
        uuid: str | None,
        rebound: Rebinding,
        snapshot_id: int | None,
        rows_up_to: int = -1,
    ) -> None:
        binding = rebound.decision.binding
        assert binding is not None
        base = AdoptionBase(snapshot_id or 0, TopicProgress(binding.committed(), rebound.decision.removals))
        mirror = ForeignTableRecord(
            [*table.namespace],
            table.name,
            uuid or "",
            binding.committed(),
            snapshot_id or 0,
            state.log.topic,
            base,
            rows_up_to,
            removals=rebound.decision.removals,
        )
        await self._write(state.log.topic_id, state.entry, mirror)

    async def _write(self, topic_id: int, entry: Entry | None, mirror: ForeignTableRecord) -> None:
        key = foreign_table_key(topic_id)
        before: cmd.Compare = cmd.Absent(key) if entry is None else cmd.AtRevision(key, entry.mod_revision)
        if not (await self._store.txn([before], [cmd.Put(key, msgspec.json.encode(mirror))])).held:
            raise errors.CommitConflict(
                "conflict: the pipeline or another request changed the topic's table", hint=CONFLICT_HINT
            )

    def _now(self) -> int:
        return self._clock.wall_us() // 1000


def _effective_consents(consents: Collection[Consent], is_dry: bool) -> Collection[Consent]:
    """The consents that apply: a dry run shows every effect, so it needs none of them."""
    return _ALL if is_dry else consents


def _is_same_uuid(one: str | None, other: str | None) -> bool:
    return (one or "").lower() == (other or "").lower() != ""


def _identifier(mirror: ForeignTableRecord) -> Identifier:
    return Identifier(tuple(mirror.namespace), mirror.name)


def _binding(state: TopicState) -> Binding:
    """The mirror in the words of our own catalog. A base without a snapshot says nothing about those since."""
    mirror, log = state.mirror, state.log
    assert mirror is not None
    runs: dict[int, OffsetRuns] = {
        shard: (OffsetRun(log.shards[shard].epoch if shard in log.shards else 0, 0, end),)
        for shard, end in mirror.committed.items()
    }
    base = mirror.base if mirror.base is not None and mirror.base.snapshot_id else None
    return Binding(log.topic, log.topic_id, runs, base=base, is_rewound=True)


def _with_doubts(preview: OperationPreview, highest: int | None) -> OperationPreview:
    """Rows behind what the history says: the pipeline would write these offsets again."""
    committed_end = max((fate.held for fate in preview.shards), default=0)
    if highest is None or highest < committed_end or preview.doubts:
        return preview
    return preview._replace(
        doubts=(f"main has a row of offset {highest}, and its history knows those below {committed_end}",)
    )
