"""A node whose tables are in another catalog, with backups and restores: `ForeignBackupWorld`.

The catalog is any TableCatalog. The node never connects to it: commits are those of the pipeline, played here, and
tables are adopted by the operations of the lake process.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.backup.backup_root import BackupRoot
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.catalog.topic_rules.removal import added_summary, as_summary
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.table_catalog import CommitDone, TableCatalog, TableChange
from icestream.iceberg import table_metadata
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_metadata import TableMetadata
from icestream.lake.foreign_operations import ForeignOperations
from icestream.model.backlog_messages import ShardBacklog, TopicBacklog
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.processes.broker_process import BrokerNode
from icestream.processes.restore_run import RestorePlan, RestoreRun
from icestream.processes.restored_tables import RestoredTables
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.verify.verify_report import ShardLogState, Weight
from icestream.rpc.link import Link, open_link
from icestream.runtime.clock import SystemClock
from icestream.runtime.tasks import InlineOffload
from icestream.settings import Settings
from tests.support.backup_world import ORDERS, BackupWorld, LocalSource
from tests.support.node_settings import node_settings
from tests.support.restore_world import BESIDE, RestoreWorld
from tests.support.topic_lake import TABLE, TopicLake

# Of a node whose tables are elsewhere; nothing listens there.
ELSEWHERE = {"catalog": {"type": "rest", "uri": "http://127.0.0.1:1"}}


class ForeignLake(TopicLake):
    """The table of a topic in another catalog, committed as the pipeline does: a summary with the offsets, and the
    mirror behind it."""

    def __init__(self, folder: Path, tables: TableCatalog, topic_id: int) -> None:
        super().__init__(folder, clock=SystemClock(), topic=str(ORDERS), topic_id=topic_id)
        self.tables_elsewhere = tables
        self.committed: dict[int, int] = {}

    async def bind(self, shards: int = 1, start: int = 0) -> None:
        with contextlib.suppress(errors.AlreadyExists):
            await self.tables_elsewhere.create_namespace(TABLE.namespace, {})
        await self.tables_elsewhere.create(TABLE, {"schema": topic_schema.new_schema()})

    async def table(self) -> TableMetadata:
        return table_metadata.load((await self.tables_elsewhere.load(TABLE)).metadata)

    async def round(self, *ranges: tuple[int, int, int], entries: Any = (), epoch: int = 0) -> int:
        self.committed |= {shard: end for shard, _, end in ranges}
        summary = as_summary(self.topic_id, self.committed, ())
        summary |= added_summary({shard: (start, end) for shard, start, end in ranges})
        return await self._commit(next(self._numbers), [], [*self.live, *entries], "append", **summary)

    async def _apply(self, claims: list[Any], updates: list[Any]) -> None:
        outcome = await self.tables_elsewhere.commit(TABLE, TableChange([], updates))
        assert isinstance(outcome, CommitDone), outcome


class ForeignBackupWorld(BackupWorld):
    def __init__(self, node: BrokerNode, link: Link, folder: Path, tables: TableCatalog) -> None:
        super().__init__(node, link, folder)
        self.tables = tables
        self.is_foreign = True

    @property
    def catalog(self) -> Any:
        return self.tables

    async def create_topic(self, shards: int = 1) -> int:
        await self.call("create_topic", topic=str(ORDERS), shards=shards)
        topic_id = await self._topic_id()
        self.lake = ForeignLake(self.folder / "warehouse", self.tables, topic_id)
        return topic_id

    async def commit(self, end: int, *, is_floor_moved: bool = False, **values: Any) -> None:
        await super().commit(end, is_floor_moved=is_floor_moved, **values)
        assert isinstance(self.lake, ForeignLake)
        table = await self.lake.table()
        mirror = ForeignTableRecord(
            [*TABLE.namespace], TABLE.name, table.uuid or "", self.lake.committed, table.current_snapshot_id or 0,
            str(ORDERS),
        )  # fmt: skip
        await self.node.store.put(foreign_table_key(self.lake.topic_id), msgspec.json.encode(mirror))

    async def restart(self) -> None:
        lake, self.lake = self.lake, None
        await super().restart()
        self.lake = lake

    async def back_up_orders(self, published: int = 10, committed: int = 6, **plan: Any) -> BackupRoot:
        """Publishes, commits a part of it, and makes a backup."""
        await self.create_topic()
        if committed:
            assert self.lake is not None
            await self.lake.bind()
        await self.publish(published)
        if committed:
            await self.commit(committed, is_floor_moved=True)
        return await self.back_up(**plan)


class ForeignRestoreWorld(RestoreWorld):
    """Restores into such a node, as the command does it with the routes of the lake process."""

    def __init__(
        self, world: ForeignBackupWorld, tables: TableCatalog | None = None, settings: Settings | None = None
    ) -> None:
        """`tables`: what stands before the catalog of the world. `settings`: those of its catalog."""
        self.foreign = world
        self.settings = settings or _settings_of(world.folder)
        self.tables = tables or world.tables
        self.manifests = ManifestReader(LocalFiles(open_local, InlineOffload()), InlineOffload())
        if world.lake is None:
            world.lake = ForeignLake(world.folder / "warehouse", world.tables, 0)
        super().__init__(world)

    @property
    def operations(self) -> ForeignOperations:
        return ForeignOperations(self.world.node.store, self.tables, self.manifests, SystemClock(), None)

    async def adopt(self, topic: TopicName, table: Identifier, metadata_file: str) -> None:
        record = self.world.node.broker.topics.get(topic).record
        if (await self.operations.topic_table(record.id)).table is not None:
            return
        await self.operations.register(table, metadata_file, record.id)

        async def read_log() -> TopicLog:
            shards = {}
            for number in range(record.shards):
                stream = self.world.node.broker.storage.shard_stream(ShardKey(record.id, number))
                earliest = stream.log_start()
                shards[number] = ShardLog(stream.epoch, earliest, max(earliest, stream.synced))
            return TopicLog(str(topic), record.id, shards)

        await self.operations.adopt(table, read_log, [Consent.GAP], None, False)

    def run_of(self, plan: RestorePlan, key: Any, stored: Any = None, **more: Any) -> RestoreRun:
        tables = RestoredTables(self.settings, LocalFiles(open_local, InlineOffload()), self.tables)
        world = self.world
        return RestoreRun(
            world.call, self.adopt, stored or world.stored(key), LocalSource().chunks, tables, SystemClock(),
            InlineOffload(), plan, **more,
        )  # fmt: skip

    async def rows(self, name: TopicName = BESIDE) -> list[tuple[int, bytes]]:
        """Offset and payload of every row of the table, as PyIceberg reads it."""
        loaded = await self.foreign.tables.load(Identifier((name.namespace,), name.name))
        table = StaticTable.from_metadata(loaded.metadata_location or "").scan().to_arrow()
        return sorted(zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True))

    async def table_of(self, name: TopicName) -> TableMetadata:
        return table_metadata.load((await self.foreign.tables.load(Identifier((name.namespace,), name.name))).metadata)

    async def mirror_of(self, topic_id: int) -> ForeignTableRecord | None:
        key = foreign_table_key(topic_id)
        entry = await self.world.node.store.get(key)
        return None if entry is None else decode_foreign_table(key, entry)

    async def verify_topic(self, topic_id: int, log: ShardLogState) -> list[str]:
        """What `verify --deep` finds wrong with the table of a topic, as readers find it by its mirror."""
        files = LocalFiles(open_local, InlineOffload())
        views = ForeignTableViews(
            self.world.node.store, self.foreign.tables, SnapshotReader(self.manifests), SystemClock()
        )
        scans = LazyScanner(lambda: views, files, RowGroupCacheOptions())
        try:
            view = await scans.tables.fresh(topic_id)
            assert view is not None
            report = scans.verifier(view, {0: log}).verify(deep=True)
            return [str(finding) for finding in report.findings if finding.weight is not Weight.KNOWN]
        finally:
            scans.close()

    async def next_offset(self, topic_id: int, name: TopicName, floor: int) -> int:
        """Where the pipeline goes on with the topic."""
        ledger = ForeignLedger(self.world.node.store, self.foreign.tables, self.manifests, None, SystemClock())
        shards = [ShardBacklog(0, 0, floor, floor)]
        return (await ledger.open(TopicBacklog(topic_id, str(name), 0, shards, 0, 0, 0))).next_offsets[0]


def _settings_of(folder: Path) -> Settings:
    config = {"warehouse": f"file:{folder / 'warehouse'}", **ELSEWHERE}
    return node_settings(folder / "data", "iceberg", iceberg=config)


class CuttingCatalog:
    """Runs `on_change` before each change that a restore makes in a catalog."""

    def __init__(self, inner: TableCatalog, on_change: Callable[[str], None]) -> None:
        self.inner = inner
        self._on_change = on_change

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in ("create_namespace", "register", "rename"):
            return method

        async def change(*arguments: Any) -> Any:
            self._on_change(name)
            result: Awaitable[Any] = method(*arguments)
            return await result

        return change


@contextlib.asynccontextmanager
async def foreign_backup_world(folder: Path, tables: TableCatalog) -> AsyncIterator[ForeignBackupWorld]:
    node = await BrokerNode.start(node_settings(folder / "data", "iceberg", iceberg=ELSEWHERE))
    world: ForeignBackupWorld | None = None
    try:
        world = ForeignBackupWorld(node, await open_link(node.settings.local_socket, "test"), folder, tables)
        try:
            yield world
        finally:
            world.link.close()
    finally:
        await (world.node if world is not None else node).stop()
