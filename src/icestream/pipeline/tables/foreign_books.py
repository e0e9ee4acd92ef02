"""The tables of topics in another catalog: REST, Glue, SQL. What our own catalog would compare is compared here.

    open    the table by its name, made where there is none; a crash behind that finds it again, without rows
    look    before each attempt that is not the first, and after each answer that says too little
    note    the mirror, behind the commit: it may lag, never lead

A commit requires the main that was looked at, so whatever lands in between makes it fail, and the table is looked at
again. Two drivers at once: the one that comes second finds the offsets in the table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.catalog.document.values import Object
from icestream.catalog.identifier import Identifier
from icestream.catalog.table import table as tables
from icestream.catalog.table.table import Table
from icestream.catalog.topic import envelope
from icestream.catalog.topic.removal import as_summary, progress_of
from icestream.catalog.topic.standing import lacking, lineage
from icestream.lake.manifests import AvroManifests
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.model.backlog import TopicBacklog
from icestream.model.topic_name import TopicName
from icestream.pipeline.commit.bookkeeping import TopicRound
from icestream.pipeline.manifests.layout import DELETED
from icestream.pipeline.tables import table_name, table_policy
from icestream.pipeline.tables.foreign_standing import Standing, goes_on_at
from icestream.pipeline.tables.topic_table import Position, TopicTable
from icestream.warehouse.catalog import TableCatalog
from icestream.warehouse.mirror import Mirror, decode_mirror, mirror_key

ROUND: Final = "icestream.round"
EPOCH: Final = "icestream.pipeline-epoch"


class ForeignBooks:
    is_own = False

    def __init__(
        self, store: MetadataStore, catalog: TableCatalog, avro: AvroManifests, fixed: tuple[str, ...] | None
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._avro = avro
        self._fixed = fixed
        self._epochs: dict[int, dict[int, int]] = {}
        self._starts: dict[int, dict[int, int]] = {}
        self._seen: dict[int, int | None] = {}  # per topic the main whose files were looked at

    async def open(self, topic: TopicBacklog) -> TopicTable:
        self._epochs[topic.topic_id] = {one.shard: one.epoch for one in topic.shards}
        self._starts[topic.topic_id] = {one.shard: one.committed for one in topic.shards}
        mirror = await self._mirror(topic.topic_id)
        name = (
            table_name.table_of(TopicName.parse(topic.name), self._fixed)
            if mirror is None
            else Identifier(tuple(mirror.namespace), mirror.name)
        )
        try:
            loaded = await self._catalog.load(name)
        except (errors.UnknownTable, errors.UnknownNamespace):
            if mirror is not None:
                raise errors.TopicTable(
                    f"the table {name} of topic {topic.name} is gone",
                    hint="`icestream lake recreate` makes a fresh one",
                ) from None
            loaded = await self._made(name, topic)
        return await self._standing(topic.topic_id, topic.name, name, tables.load(loaded.metadata), mirror)

    async def look(self, known: TopicTable) -> TopicTable:
        loaded = await self._catalog.load(known.identifier)
        mirror = await self._mirror(known.topic_id)
        table = tables.load(loaded.metadata)
        found = await self._standing(known.topic_id, known.topic, known.identifier, table, mirror)
        known.__dict__.update(found.__dict__)
        return known

    async def widen(self, known: TopicTable, topic: TopicBacklog) -> TopicTable:
        for one in topic.shards:
            if one.shard not in known.positions:
                self._epochs[topic.topic_id][one.shard] = one.epoch
                self._starts[topic.topic_id][one.shard] = one.committed
                known.positions[one.shard] = Position(one.epoch, one.committed)
        return known

    def requirements(self, brought: TopicRound) -> list[Object]:
        return []

    def summary(self, brought: TopicRound) -> Mapping[str, str]:
        table = brought.table
        removals = lacking(table.table, table.topic_id, table.next_offsets)  # later snapshots must say it, too
        found = as_summary(table.topic_id, table.next_offsets | brought.ends, removals)
        return found | {ROUND: brought.round_id.hex(), EPOCH: str(brought.epoch)}

    async def note(self, done: Sequence[TopicRound]) -> None:
        noted = [cmd.Put(mirror_key(one.table.topic_id), msgspec.json.encode(_mirror_of(one))) for one in done]
        for one in done:
            self._seen[one.table.topic_id] = one.table.table.current_snapshot_id
        for begin in range(0, len(noted), limits.COMMIT_TABLES_MAX):
            await self._store.txn([], noted[begin : begin + limits.COMMIT_TABLES_MAX])

    # --- looking ---

    async def _mirror(self, topic_id: int) -> Mirror | None:
        key = mirror_key(topic_id)
        entry = await self._store.get(key)
        return None if entry is None else decode_mirror(key, entry)

    async def _standing(
        self, topic_id: int, topic: str, name: Identifier, table: Table, mirror: Mirror | None
    ) -> TopicTable:
        envelope.check_bindable(table.current_schema)
        progress = next(
            (found for one in lineage(table, table.current_snapshot_id) if (found := progress_of(one, topic_id))), None
        )
        committed = None if progress is None else progress.committed
        standing = Standing(table.uuid or "", committed, await self._highest(topic_id, table))
        ends = goes_on_at(topic, standing, mirror, self._starts.get(topic_id, {}))
        epochs = self._epochs.get(topic_id, {})
        positions = {shard: Position(epochs.get(shard, 0), end) for shard, end in ends.items()}
        self._seen[topic_id] = table.current_snapshot_id
        return TopicTable(topic_id, topic, name, table, positions)

    async def _highest(self, topic_id: int, table: Table) -> int | None:
        """The highest offset in the files of main. Files that we looked at, or wrote ourselves, are not read again."""
        current = table.current_snapshot_id
        snapshot = None if current is None else table.snapshots.find(current)
        if snapshot is None or self._seen.get(topic_id, 0) == current:
            return None
        number = next(one["id"] for one in table.current_schema["fields"] if one["name"] == "offset")
        highest: int | None = None
        for manifest in await self._avro.manifests(snapshot["manifest-list"]):
            for entry in await self._avro.records(manifest):
                if entry["status"] != DELETED and not entry["data_file"].get("content"):
                    found = _upper(entry["data_file"], number)
                    highest = found if highest is None else max(highest, found)
        return highest

    # --- making ---

    async def _made(self, name: Identifier, topic: TopicBacklog) -> Any:
        for depth in range(1, len(name.namespace) + 1):
            try:
                await self._catalog.create_namespace(name.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        asked = {"schema": envelope.new_schema(), **table_policy.new_layout(topic.policy)}
        try:
            return await self._catalog.create(name, asked)
        except errors.AlreadyExists:
            return await self._catalog.load(name)


def _mirror_of(done: TopicRound) -> Mirror:
    table = done.table
    name = table.identifier
    uuid = table.table.uuid or ""
    return Mirror([*name.namespace], name.name, uuid, table.next_offsets, done.snapshot_id, table.topic)


def _upper(file: Mapping[str, Any], field_id: int) -> int:
    """A file without bounds may hold anything."""
    for one in file.get("upper_bounds") or ():
        if one["key"] == field_id:
            return int(struct.unpack("<q", one["value"])[0])
    return 2**63 - 1
