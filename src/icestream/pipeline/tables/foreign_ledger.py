"""The tables of topics in another catalog: REST, Glue, SQL. What our own catalog would compare is compared here.

    open    the table by its name, made where there is none; a crash behind that finds it again, without rows
    look    before each attempt that is not the first, and after each answer that says too little
    note    the mirror, behind the commit: it may lag, never lead. Where an operator has changed it since it was read
            (lake/foreign_operations.py), the rows do not count for the log, and the table is looked at again.
            With it goes what the snapshot holds, into the map (catalog/snapshot_map.py): anybody may expire it here.
            A look that finds it behind mends it: a commit whose answer came late was noted by nobody, and readers
            know tables by their mirrors

A commit requires the main that was looked at, so whatever lands in between makes it fail, and the table is looked at
again. Two drivers at once: the one that comes second finds the offsets in the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalog.snapshot_map import SnapshotMap
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.catalog.topic_rules.removal import Removals, added_summary, as_summary
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark, marks_of_added
from icestream.catalog.topic_rules.snapshot_progress import main_progress, missing_from_main
from icestream.catalogs import topic_table_name
from icestream.catalogs.highest_offset import highest_offset
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.mirror_anchor import anchor, rows_of
from icestream.catalogs.table_catalog import CommitDone, TableCatalog, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.foreign_position import TableProgress, next_offsets_of
from icestream.pipeline.tables.topic_table import Position, TopicTable

ROUND: Final = "icestream.round"
EPOCH: Final = "icestream.pipeline-epoch"


class ForeignLedger:
    is_own = False

    def __init__(
        self, store: MetadataStore, catalog: TableCatalog, avro: ManifestReader, fixed: tuple[str, ...] | None
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._avro = avro
        self._fixed = fixed
        self._snapshots = SnapshotMap(store)
        self._epochs: dict[int, dict[int, int]] = {}
        self._starts: dict[int, dict[int, int]] = {}
        self._seen: dict[int, int | None] = {}  # per topic the main whose files were looked at
        self._noted: dict[
            int, tuple[ForeignTableRecord | None, int]
        ] = {}  # per topic the mirror that we know, and its revision

    async def open(self, topic: TopicBacklog) -> TopicTable:
        self._epochs[topic.topic_id] = {one.shard: one.epoch for one in topic.shards}
        self._starts[topic.topic_id] = {one.shard: one.committed for one in topic.shards}
        mirror = await self._mirror(topic.topic_id)
        if mirror is not None:
            mirror.check_has_table(topic.name)
        name = (
            topic_table_name.table_for_topic(TopicName.parse(topic.name), self._fixed)
            if mirror is None
            else Identifier(tuple(mirror.namespace), mirror.name)
        )
        try:
            loaded = await self._catalog.load(name)
        except (errors.UnknownTable, errors.UnknownNamespace):
            if mirror is not None:
                raise _gone(name, topic.name) from None
            loaded = await self._made(name, topic)
        return await self._standing(topic.topic_id, topic.name, name, tables.load(loaded.metadata), mirror)

    async def make_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """No protocol of other catalogs makes several tables at once."""
        return {}

    async def look(self, known: TopicTable) -> TopicTable:
        """An operator may have given the topic another table."""
        mirror = await self._mirror(known.topic_id)
        name = known.identifier
        if mirror is not None:
            mirror.check_has_table(known.topic)
            name = Identifier(tuple(mirror.namespace), mirror.name)
        try:
            loaded = await self._catalog.load(name)
        except (errors.UnknownTable, errors.UnknownNamespace):
            raise _gone(name, known.topic) from None
        found = await self._standing(known.topic_id, known.topic, name, tables.load(loaded.metadata), mirror)
        known.__dict__.update(found.__dict__)
        return known

    async def widen(self, known: TopicTable, topic: TopicBacklog) -> TopicTable:
        for one in topic.shards:
            if one.shard not in known.positions:
                self._epochs[topic.topic_id][one.shard] = one.epoch
                self._starts[topic.topic_id][one.shard] = one.committed
                known.positions[one.shard] = Position(one.epoch, one.committed)
        return known

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        """Behind this the table is as its mirror says: that is written after a commit, and this one was not noted."""
        snapshot = table.table.snapshots.find(snapshot_id) or {}
        parent = snapshot.get("parent-snapshot-id")
        update: Object = {"action": "remove-snapshot-ref", "ref-name": MAIN}
        if parent is not None:
            update = {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": parent}
        gone: Object = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
        required: list[Object] = [
            {"type": "assert-table-uuid", "uuid": table.table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": snapshot_id},
        ]
        outcome = await self._catalog.commit(table.identifier, TableChange(required, [update, gone]))
        if not isinstance(outcome, CommitDone):
            raise errors.CommitConflict(f"the catalog did not take snapshot {snapshot_id} back: {outcome.reason}")

    def requirements(self, brought: TopicCommit) -> list[Object]:
        return []

    def summary(self, brought: TopicCommit) -> Mapping[str, str]:
        table = brought.table
        removals = self._lacking(table.topic_id, table.table, table.next_offsets)  # later snapshots must say it, too
        progress = as_summary(table.topic_id, table.next_offsets | brought.ends, removals)
        added = added_summary({one.shard: (one.start, one.end) for one in brought.claims})
        return progress | added | {ROUND: brought.round_id.hex(), EPOCH: str(brought.epoch)}

    def _lacking(self, topic_id: int, table: TableMetadata, committed: Mapping[int, int]) -> Removals:
        base = anchor(table, topic_id, self._noted.get(topic_id, (None, 0))[0])
        return missing_from_main(table, topic_id, committed, base)

    async def note(self, done: Sequence[TopicCommit]) -> Collection[int]:
        refused: list[int] = []
        for begin in range(0, len(done), limits.COMMIT_TABLES_MAX):
            part = done[begin : begin + limits.COMMIT_TABLES_MAX]
            if not await self._noted_all(part):
                refused += [one.table.topic_id for one in part if not await self._noted_all([one])]
        return refused

    async def _noted_all(self, done: Sequence[TopicCommit]) -> bool:
        """In one transaction, or none: a mirror that is not as we know it was written by an operator."""
        made = {one.table.topic_id: self._mirror_of(one) for one in done}
        compare = [_unchanged(topic_id, self._noted.get(topic_id, (None, 0))[1]) for topic_id in made]
        then: list[cmd.Operation] = [
            cmd.Put(foreign_table_key(each), msgspec.json.encode(one)) for each, one in made.items()
        ]
        marked = {one.table.topic_id: await self._snapshots.plan(one.table.topic_id, self._marks(one)) for one in done}
        for added in marked.values():
            compare, then = compare + added.comparisons, then + added.operations
        answer = await self._store.txn(compare, then)
        if not answer.held:
            return False
        for topic_id, added in marked.items():
            self._snapshots.remember(topic_id, added, answer.revision)
        for one in done:
            topic_id = one.table.topic_id
            self._noted[topic_id] = made[topic_id], answer.revision
            self._seen[topic_id] = one.table.table.current_snapshot_id
        return True

    def _marks(self, done: TopicCommit) -> list[SnapshotMark]:
        """Of what was made since the last note: our own, also one whose note was lost, and those of others."""
        table = done.table
        found = self._made_since(table.topic_id, table.table)
        if any(one.snapshot_id == done.snapshot_id for one in found):
            return found
        now_ms = int(table.table.fields["last-updated-ms"])  # it was read back: the table is as it was before
        return [*found, SnapshotMark(done.snapshot_id, now_ms, table.next_offsets)]

    def _made_since(self, topic_id: int, table: TableMetadata) -> list[SnapshotMark]:
        mirror = self._noted.get(topic_id, (None, 0))[0]
        known = mirror.snapshot_id if mirror is not None else 0
        base = anchor(table, topic_id, mirror)
        return marks_of_added(table, known, limits.SNAPSHOT_MARKS_PER_BLOCK, topic_id, base)

    def _mirror_of(self, done: TopicCommit) -> ForeignTableRecord:
        """What an operator said stays: the history of main may lead back to it."""
        table, before = done.table, self._noted.get(done.table.topic_id, (None, 0))[0]
        name = table.identifier
        return ForeignTableRecord(
            [*name.namespace],
            name.name,
            table.table.uuid or "",
            table.next_offsets,
            done.snapshot_id,
            table.topic,
            before.base if before is not None else None,
            before.rows_up_to if before is not None else -1,
            rows=rows_of(table.table.snapshots.find(done.snapshot_id)),
            removals=self._lacking(table.topic_id, table.table, table.next_offsets),
        )

    # --- looking ---

    async def _mirror(self, topic_id: int) -> ForeignTableRecord | None:
        key = foreign_table_key(topic_id)
        entry = await self._store.get(key)
        found = None if entry is None else decode_foreign_table(key, entry)
        self._noted[topic_id] = found, 0 if entry is None else entry.mod_revision
        return found

    async def _standing(
        self, topic_id: int, topic: str, name: Identifier, table: TableMetadata, mirror: ForeignTableRecord | None
    ) -> TopicTable:
        topic_schema.check_bindable(table.current_schema)
        progress = main_progress(table, topic_id, anchor(table, topic_id, mirror)).progress
        standing = TableProgress(table.uuid or "", progress.committed or None, await self._highest(topic_id, table))
        ends = next_offsets_of(topic, standing, mirror, self._starts.get(topic_id, {}))
        epochs = self._epochs.get(topic_id, {})
        positions = {shard: Position(epochs.get(shard, 0), end) for shard, end in ends.items()}
        self._seen[topic_id] = table.current_snapshot_id
        mirror = mirror or ForeignTableRecord([*name.namespace], name.name, standing.uuid, {}, 0, topic)
        await self._mend(topic_id, mirror, table, progress.committed)
        return TopicTable(topic_id, topic, name, table, positions)

    async def _mend(
        self, topic_id: int, mirror: ForeignTableRecord, table: TableMetadata, committed: Mapping[int, int]
    ) -> None:
        """What the snapshots of main say, and the mirror does not yet. Unless an operator was faster."""
        if all(end <= mirror.committed.get(shard, 0) for shard, end in committed.items()):
            return
        ends, main = {**mirror.committed, **committed}, table.current_snapshot_id or 0
        noted = msgspec.structs.replace(
            mirror,
            committed=ends,
            snapshot_id=main,
            rows=rows_of(table.snapshots.find(main)),
            removals=self._lacking(topic_id, table, ends),
        )
        added = await self._snapshots.plan(topic_id, self._made_since(topic_id, table))
        compare = [_unchanged(topic_id, self._noted.get(topic_id, (None, 0))[1]), *added.comparisons]
        put = cmd.Put(foreign_table_key(topic_id), msgspec.json.encode(noted))
        answer = await self._store.txn(compare, [put, *added.operations])
        if answer.held:
            self._noted[topic_id] = noted, answer.revision
            self._snapshots.remember(topic_id, added, answer.revision)

    async def _highest(self, topic_id: int, table: TableMetadata) -> int | None:
        """The highest offset in the files of main. Files that we looked at, or wrote ourselves, are not read again."""
        current = table.current_snapshot_id
        if self._seen.get(topic_id, 0) == current:
            return None
        return await highest_offset(self._avro, table, current)

    # --- making ---

    async def _made(self, name: Identifier, topic: TopicBacklog) -> Any:
        for depth in range(1, len(name.namespace) + 1):
            try:
                await self._catalog.create_namespace(name.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        asked = {"schema": topic_schema.new_schema(), **table_policy.new_layout(topic.policy)}
        try:
            return await self._catalog.create(name, asked)
        except errors.AlreadyExists:
            return await self._catalog.load(name)


def _gone(name: Identifier, topic: str) -> errors.TopicTableConflict:
    return errors.TopicTableConflict(
        f"the table {name} of topic {topic} is gone", hint="`icestream lake recreate` makes a fresh one"
    )


def _unchanged(topic_id: int, revision: int) -> cmd.Compare:
    key = foreign_table_key(topic_id)
    return cmd.AtRevision(key, revision) if revision else cmd.Absent(key)
