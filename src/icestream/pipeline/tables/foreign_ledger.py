"""The tables of topics in another catalog: REST, Glue, SQL. What our own catalog would check is checked here.

    open      loads the table by its name, and creates it if it does not exist; after a crash behind that, the table is
              found again, without rows
    refresh   before each retry, and after each unknown outcome
    record    writes the mirror after the commit: it may lag behind the table, and never leads. If an operator has
              changed it since it was read (lake/foreign_operations.py), the rows do not count for the log, and the
              table is refreshed. The snapshot map (catalog/snapshot_map.py) gets the offsets of the snapshot with it,
              because other engines may expire snapshots here. A refresh that finds the mirror behind repairs it: a
              commit whose reply came late was recorded by no driver, and readers know tables by their mirrors

A commit requires that main is the snapshot that was loaded, so that every commit in between makes it fail, and the
table is refreshed. Of two drivers at once, the second finds the offsets in the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_records
from icestream.catalog.catalog_keys import consumers_key, foreign_table_key, lease_key, retained_key
from icestream.catalog.catalog_records import LeaseRecord, RetainedRecord
from icestream.catalog.plans.commit_plans import first_kept
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.catalog.topic_rules.removal import TOPIC_ID, Removals, added_summary, as_summary, as_text
from icestream.catalog.topic_rules.retention_claim import FIRST
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark, marks_of_added
from icestream.catalog.topic_rules.snapshot_progress import lineage, main_progress, missing_from_main
from icestream.catalogs import topic_table_name
from icestream.catalogs.highest_offset import highest_offset
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.mirror_anchor import anchor, rows_of
from icestream.catalogs.table_catalog import CommitDone, LoadedTable, TableCatalog, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.foreign_position import TableProgress, next_offsets_of
from icestream.pipeline.tables.topic_table import Position, TopicTable
from icestream.runtime.clock import Clock

ROUND: Final = "icestream.round"
EPOCH: Final = "icestream.pipeline-epoch"


class _MirrorState(NamedTuple):
    """The mirror as this driver knows it, and the revision of its key; 0: the key does not exist."""

    mirror: ForeignTableRecord | None = None
    revision: int = 0


class ForeignLedger:
    """The ledger of another catalog. Remembers the mirrors that it has read or written."""

    is_embedded = False

    def __init__(
        self,
        store: MetadataStore,
        catalog: TableCatalog,
        manifest_reader: ManifestReader,
        fixed_namespace: tuple[str, ...] | None,
        clock: Clock,
        lease_name: str = "",
    ) -> None:
        """`lease_name`: of the driver's lease."""
        self._lease_key = lease_key(lease_name)
        self._store = store
        self._catalog = catalog
        self._manifest_reader = manifest_reader
        self._fixed_namespace = fixed_namespace
        self._clock = clock
        self._snapshot_map = SnapshotMap(store)
        self._epochs: dict[int, dict[int, int]] = {}
        self._log_starts: dict[int, dict[int, int]] = {}
        self._checked_snapshots: dict[int, int | None] = {}  # by topic id: the snapshot whose file bounds were checked
        self._mirrors: dict[int, _MirrorState] = {}

    async def open(self, topic: TopicBacklog) -> TopicTable:
        self._epochs[topic.topic_id] = {shard.shard: shard.epoch for shard in topic.shards}
        self._log_starts[topic.topic_id] = {shard.shard: shard.committed for shard in topic.shards}
        mirror = await self._load_mirror(topic.topic_id)
        if mirror is not None:
            mirror.check_has_table(topic.name)
        identifier = (
            topic_table_name.table_for_topic(TopicName.parse(topic.name), self._fixed_namespace)
            if mirror is None
            else Identifier(tuple(mirror.namespace), mirror.name)
        )
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            if mirror is not None:
                raise _table_gone(identifier, topic.name) from None
            loaded = await self._create(identifier, topic)
        return await self._check(topic.topic_id, topic.name, identifier, tables.load(loaded.metadata), mirror)

    async def find(self, topic_id: int, topic: str) -> TopicTable | None:
        mirror = await self._load_mirror(topic_id)
        if mirror is None or mirror.is_detached:
            return None
        identifier = Identifier(tuple(mirror.namespace), mirror.name)
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            raise _table_gone(identifier, topic) from None
        return await self._check(topic_id, topic, identifier, tables.load(loaded.metadata), mirror)

    async def create_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """Returns nothing: the protocols of other catalogs create one table at a time."""
        return {}

    async def refresh(self, table: TopicTable) -> TopicTable:
        mirror = await self._load_mirror(table.topic_id)
        identifier = table.identifier
        if mirror is not None:
            mirror.check_has_table(table.topic)
            identifier = Identifier(tuple(mirror.namespace), mirror.name)  # an operator may have given it another table
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            raise _table_gone(identifier, table.topic) from None
        fresh = await self._check(table.topic_id, table.topic, identifier, tables.load(loaded.metadata), mirror)
        # In place: the driver, its jobs and commits that wait hold this very object.
        table.__dict__.update(fresh.__dict__)
        return table

    async def add_shards(self, table: TopicTable, topic: TopicBacklog) -> TopicTable:
        for shard in topic.shards:
            if shard.shard not in table.positions:
                self._epochs[topic.topic_id][shard.shard] = shard.epoch
                self._log_starts[topic.topic_id][shard.shard] = shard.committed
                table.positions[shard.shard] = Position(shard.epoch, shard.committed)
        return table

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        """Needs no change of the mirror: it is written after a commit is verified, and this one was not."""
        snapshot = table.table.snapshots.find(snapshot_id) or {}
        parent_id = snapshot.get("parent-snapshot-id")
        set_main: Object = {"action": "remove-snapshot-ref", "ref-name": MAIN}
        if parent_id is not None:
            set_main = {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": parent_id}
        remove: Object = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": table.table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": snapshot_id},
        ]
        outcome = await self._catalog.commit(table.identifier, TableChange(requirements, [set_main, remove]))
        if not isinstance(outcome, CommitDone):
            raise errors.CommitConflict(f"the catalog did not undo snapshot {snapshot_id}: {outcome.reason}")

    def requirements(self, commit: TopicCommit) -> list[Object]:
        return []

    async def check_job(self, commit: TopicCommit) -> int | None:
        """Does what our own catalog does in the transaction of a commit. A request that is sent after this check and
        arrives late is refused by its requirement as soon as the next driver has committed, which moves main; until
        then it does no harm, because nothing removes files of a table in another catalog."""
        table, round_id = commit.table, commit.round_id.hex()
        epoch = 0
        for snapshot in lineage(table.table, table.table.current_snapshot_id):
            summary = snapshot.get("summary") or {}
            if summary.get(TOPIC_ID) != str(table.topic_id):
                continue
            if summary.get(ROUND) == round_id:
                return int(snapshot["snapshot-id"])
            epoch = max(epoch, _epoch_of(summary))
        await self._held_lease(commit)
        if epoch > commit.epoch:
            raise _lease_lost(commit)
        return None

    async def _held_lease(self, commit: TopicCommit) -> Entry:
        """The entry of the lease. Raises LeaseLost if the epoch of the commit does not have it any more."""
        entry = await self._store.get(self._lease_key)
        lease = None if entry is None else catalog_records.decode(LeaseRecord, self._lease_key, entry)
        if entry is None or lease is None or lease.epoch != commit.epoch:
            raise _lease_lost(commit)
        return entry

    async def announce(self, commit: TopicCommit) -> None:
        """Raises the first kept offsets of a retention. Before the commit: rows that are there and below them are read
        by nobody, and the next look of the retention removes them; rows that are gone and not below them would be
        missing without a reason. What our own catalog compares in the transaction is compared here (hazards 86, 87)."""
        if not commit.is_retention:
            return
        topic_id, key = commit.table.topic_id, retained_key(commit.table.topic_id)
        lease, entry = await self._held_lease(commit), await self._store.get(key)
        before = first_kept(topic_id, entry)
        first = {**before, **{shard: max(end, before.get(shard, 0)) for shard, end in commit.first.items()}}
        if first == before and commit.consumers is None:
            return
        comparisons: list[cmd.Compare] = [
            cmd.HasValue(self._lease_key, lease.value),
            cmd.Absent(key) if entry is None else cmd.AtRevision(key, entry.mod_revision),
        ]
        if commit.consumers is not None:
            own_key = consumers_key(topic_id)
            comparisons.append(cmd.AtRevision(own_key, commit.consumers) if commit.consumers else cmd.Absent(own_key))
        record = RetainedRecord(dict(sorted(first.items())), self._clock.wall_us() // 1000)
        if not (await self._store.txn(comparisons, [cmd.Put(key, catalog_records.encode(record))])).held:
            await self._held_lease(commit)
            topic = commit.table.topic
            raise range_refused(None, "consumers_changed", f"a consumer of topic {topic} was created or moved")

    def summary(self, commit: TopicCommit) -> Mapping[str, str]:
        """Returns the progress of the round, by which any reader of the table knows the committed offsets."""
        table = commit.table
        # With the rows that the table lacks, because older snapshots, which say so too, expire.
        removals = self._removals(table.topic_id, table.table, table.next_offsets)
        progress = as_summary(table.topic_id, table.next_offsets | commit.ends, removals)
        pipeline = {ROUND: commit.round_id.hex(), EPOCH: str(commit.epoch)}
        if commit.is_retention:
            return progress | pipeline | {FIRST: as_text(dict(commit.first))}
        if commit.is_job:
            return progress | pipeline
        return progress | added_summary({claim.shard: (claim.start, claim.end) for claim in commit.claims}) | pipeline

    def _mirror_state(self, topic_id: int) -> _MirrorState:
        return self._mirrors.get(topic_id, _MirrorState())

    def _removals(self, topic_id: int, table: TableMetadata, committed: Mapping[int, int]) -> Removals:
        """Committed rows that the table lacks."""
        base = anchor(table, topic_id, self._mirror_state(topic_id).mirror)
        return missing_from_main(table, topic_id, committed, base)

    # --- recording commits ---

    async def record(self, commits: Sequence[TopicCommit]) -> Collection[int]:
        refused_ids: list[int] = []
        for begin in range(0, len(commits), limits.COMMIT_TABLES_MAX):
            batch = commits[begin : begin + limits.COMMIT_TABLES_MAX]
            # One changed mirror refuses the batch: one by one, only the commit of that topic is refused.
            if not await self._record_batch(batch):
                refused_ids += [commit.table.topic_id for commit in batch if not await self._record_batch([commit])]
        return refused_ids

    async def _record_batch(self, commits: Sequence[TopicCommit]) -> bool:
        """Writes the mirrors of all commits in one transaction. Returns False, and writes none, if one of them is not
        as this driver knows it: an operator has changed it."""
        mirrors = {commit.table.topic_id: self._mirror_after(commit) for commit in commits}
        comparisons = [_unchanged(topic_id, self._mirror_state(topic_id).revision) for topic_id in mirrors]
        operations: list[cmd.Operation] = [
            cmd.Put(foreign_table_key(topic_id), msgspec.json.encode(mirror)) for topic_id, mirror in mirrors.items()
        ]
        map_changes = {
            commit.table.topic_id: await self._snapshot_map.plan(commit.table.topic_id, self._new_marks(commit))
            for commit in commits
        }
        for map_change in map_changes.values():
            comparisons, operations = comparisons + map_change.comparisons, operations + map_change.operations
        # All mirrors or none: a single changed one is found by recording the commits one by one (`record`).
        reply = await self._store.txn(comparisons, operations)
        if not reply.held:
            return False
        for topic_id, map_change in map_changes.items():
            self._snapshot_map.remember(topic_id, map_change, reply.revision)
        for commit in commits:
            topic_id = commit.table.topic_id
            self._mirrors[topic_id] = _MirrorState(mirrors[topic_id], reply.revision)
            self._checked_snapshots[topic_id] = commit.table.table.current_snapshot_id
        return True

    def _new_marks(self, commit: TopicCommit) -> list[SnapshotMark]:
        """Returns the snapshots since the last record: our own, also one whose record was lost, and those of other
        engines."""
        table = commit.table
        marks = self._marks_since_mirror(table.topic_id, table.table)
        if any(mark.snapshot_id == commit.snapshot_id for mark in marks):
            return marks
        # The outcome was read back, and the table in memory is still the one before the commit.
        now_ms = int(table.table.fields["last-updated-ms"])
        return [*marks, SnapshotMark(commit.snapshot_id, now_ms, table.next_offsets)]

    def _marks_since_mirror(self, topic_id: int, table: TableMetadata) -> list[SnapshotMark]:
        mirror = self._mirror_state(topic_id).mirror
        mirrored_id = mirror.snapshot_id if mirror is not None else 0
        base = anchor(table, topic_id, mirror)
        return marks_of_added(table, mirrored_id, limits.SNAPSHOT_MARKS_PER_BLOCK, topic_id, base)

    def _mirror_after(self, commit: TopicCommit) -> ForeignTableRecord:
        """Returns the mirror with this commit. An operator's decision in it stays: the history of main may lead back to
        it."""
        table, before = commit.table, self._mirror_state(commit.table.topic_id).mirror
        identifier = table.identifier
        return ForeignTableRecord(
            [*identifier.namespace],
            identifier.name,
            table.table.uuid or "",
            table.next_offsets,
            commit.snapshot_id,
            table.topic,
            before.base if before is not None else None,
            before.rows_up_to if before is not None else -1,
            rows=rows_of(table.table.snapshots.find(commit.snapshot_id)),
            removals=self._removals(table.topic_id, table.table, table.next_offsets),
        )

    # --- loading and checking ---

    async def _load_mirror(self, topic_id: int) -> ForeignTableRecord | None:
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        mirror = None if entry is None else decode_foreign_table(key, entry)
        self._mirrors[topic_id] = _MirrorState(mirror, 0 if entry is None else entry.mod_revision)
        return mirror

    async def _check(
        self, topic_id: int, topic: str, identifier: Identifier, table: TableMetadata, mirror: ForeignTableRecord | None
    ) -> TopicTable:
        """Compares snapshots, mirror and file bounds (foreign_position.py). Raises TopicTableConflict if they
        disagree."""
        topic_schema.check_bindable(table.current_schema)
        progress = main_progress(table, topic_id, anchor(table, topic_id, mirror)).last_round
        highest_offset_in_files = await self._highest_unchecked_offset(topic_id, table)
        table_progress = TableProgress(table.uuid or "", progress.committed or None, highest_offset_in_files)
        next_offsets = next_offsets_of(topic, table_progress, mirror, self._log_starts.get(topic_id, {}))
        epochs = self._epochs.get(topic_id, {})
        positions = {shard: Position(epochs.get(shard, 0), offset) for shard, offset in next_offsets.items()}
        self._checked_snapshots[topic_id] = table.current_snapshot_id
        # No mirror yet: the table is new, or was created by an attempt that ended before it recorded a commit.
        mirror = mirror or ForeignTableRecord(
            [*identifier.namespace], identifier.name, table_progress.uuid, {}, 0, topic
        )
        await self._repair_mirror(topic_id, mirror, table, progress.committed)
        return TopicTable(topic_id, topic, identifier, table, positions)

    async def _repair_mirror(
        self, topic_id: int, mirror: ForeignTableRecord, table: TableMetadata, committed: Mapping[int, int]
    ) -> None:
        """Brings a mirror that lags behind the snapshots of main up to date, unless an operator is faster."""
        if all(end <= mirror.committed.get(shard, 0) for shard, end in committed.items()):
            return
        next_offsets, main_id = {**mirror.committed, **committed}, table.current_snapshot_id or 0
        repaired = msgspec.structs.replace(
            mirror,
            committed=next_offsets,
            snapshot_id=main_id,
            rows=rows_of(table.snapshots.find(main_id)),
            removals=self._removals(topic_id, table, next_offsets),
        )
        map_change = await self._snapshot_map.plan(topic_id, self._marks_since_mirror(topic_id, table))
        comparisons = [_unchanged(topic_id, self._mirror_state(topic_id).revision), *map_change.comparisons]
        put = cmd.Put(foreign_table_key(topic_id), msgspec.json.encode(repaired))
        reply = await self._store.txn(comparisons, [put, *map_change.operations])
        # If not, an operator has decided something about the table: the next load reads it.
        if reply.held:
            self._mirrors[topic_id] = _MirrorState(repaired, reply.revision)
            self._snapshot_map.remember(topic_id, map_change, reply.revision)

    async def _highest_unchecked_offset(self, topic_id: int, table: TableMetadata) -> int | None:
        """Returns the highest offset in the files of main; None if there are no rows, or if main was checked or written
        by this driver before."""
        snapshot_id = table.current_snapshot_id
        # Reading the bounds of all files is dear. Snapshots never change, so one look at each is enough.
        if self._checked_snapshots.get(topic_id, 0) == snapshot_id:
            return None
        return await highest_offset(self._manifest_reader, table, snapshot_id)

    # --- creating ---

    async def _create(self, identifier: Identifier, topic: TopicBacklog) -> LoadedTable:
        """Creates the table and its namespaces; loads it if it exists by now."""
        for depth in range(1, len(identifier.namespace) + 1):
            try:
                await self._catalog.create_namespace(identifier.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        request = {"schema": topic_schema.new_schema(), **table_policy.new_layout(topic.policy)}
        try:
            return await self._catalog.create(identifier, request)
        except errors.AlreadyExists:
            # Another attempt of this driver created it, or the reply was lost: `_check` decides whether it is ours.
            return await self._catalog.load(identifier)


def _epoch_of(summary: Mapping[str, str]) -> int:
    """Returns the pipeline epoch in the summary of a snapshot; 0 if it is not there."""
    text = summary.get(EPOCH, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _lease_lost(commit: TopicCommit) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"a job of pipeline epoch {commit.epoch} is not committed: another pipeline has taken over",
        hint="its files stay in no table; the next driver plans the job again",
    )


def _table_gone(identifier: Identifier, topic: str) -> errors.TopicTableConflict:
    return errors.TopicTableConflict(
        f"the table {identifier} of topic {topic} does not exist any more",
        hint="`icestream lake recreate` makes a fresh one",
    )


def _unchanged(topic_id: int, revision: int) -> cmd.Compare:
    key = foreign_table_key(topic_id)
    return cmd.AtRevision(key, revision) if revision else cmd.Absent(key)
