"""Restores of backups into the node of a world, by the run of the command and the catalog of the world."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from icestream import errors
from icestream.backup.backup_root import BackupRoot
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_backups import StoredBackups
from icestream.catalog.catalog import Catalog
from icestream.catalog.cleanup.deleted_topic_tables import DeletedTopicTables
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifests import DATA_CONTENT, decode_manifest_list, live_entries
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.restore_run import RestoredTopic, RestorePlan, RestoreRun, restorable_topics
from icestream.processes.restored_tables import RestoredTables
from icestream.processes.state_restore import RestoreScope
from icestream.runtime.clock import SystemClock
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import ORDERS, BackupWorld, LocalSource
from tests.support.node_settings import node_settings
from tests.support.topic_lake import TopicLake

BESIDE = TopicName("default", "orders_restored")


class RestoreWorld:
    """Restores of a backup into the node of a world."""

    def __init__(self, world: BackupWorld) -> None:
        self.world = world
        if world.lake is None:  # an empty broker has a catalog too
            world.lake = TopicLake(world.folder / "warehouse", world.node.store, SystemClock())

    async def adopt(self, topic: TopicName, table: Identifier, metadata_file: str) -> None:
        catalog = self.catalog
        await self.clean_up()  # as the lake process does: it drops the table of a topic that was replaced
        for depth in range(1, len(table.namespace) + 1):
            try:
                await catalog.namespaces.create(table.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        if await catalog.relations.entry(table) is None:
            await catalog.tables.register(table, metadata_file)
        record = self.world.node.broker.topics.get(topic).record
        if await catalog.topics.table_of(record.id) == table:
            return
        shards = {}
        for number in range(record.shards):
            stream = self.world.node.broker.storage.shard_stream(ShardKey(record.id, number))
            earliest = stream.log_start()
            shards[number] = ShardLog(stream.epoch, earliest, max(earliest, stream.synced))
        await catalog.topics.adopt(table, TopicLog(str(topic), record.id, shards), [Consent.GAP])

    async def clean_up(self) -> None:
        cleanup = DeletedTopicTables(self.catalog.store, self.catalog.topics, self.catalog.tables)
        async for _ in cleanup.work():
            pass

    async def restore(
        self,
        root: BackupRoot,
        name: TopicName = BESIDE,
        key: BackupKey | None = None,
        *,
        is_in_place: bool = False,
        brings_back_erased: bool = False,
        stored: StoredBackups | None = None,
        **more: Any,
    ) -> RestoredTopic:
        """Restores the topic ORDERS under a name. `stored`: where the root is of; the target of the world."""
        (cut,) = [topic for topic in root.topics if topic.name == str(ORDERS)]
        plan = RestorePlan([(cut, name)], is_in_place=is_in_place, brings_back_erased=brings_back_erased)
        run = self.run_of(plan, key, stored, **more)
        (restored,) = await run.run(root)
        return restored

    async def restore_all(
        self,
        root: BackupRoot,
        scope: RestoreScope = RestoreScope.EVERYTHING,
        *,
        has_accounts: bool = False,
        **more: Any,
    ) -> tuple[list[RestoredTopic], RestoreRun]:
        """Restores what a backup has, as the command without options."""
        topics = [(cut, TopicName.parse(cut.name)) for cut in await restorable_topics(self.world.stored(), root)]
        run = self.run_of(
            RestorePlan(topics, scope=scope, has_accounts=has_accounts, skips_existing=True), None, **more
        )
        return await run.run(root), run

    def run_of(
        self, plan: RestorePlan, key: BackupKey | None, stored: StoredBackups | None = None, **more: Any
    ) -> RestoreRun:
        world = self.world
        settings = node_settings(world.folder / "data", "iceberg")
        warehouse = f"file:{world.folder / 'warehouse'}"
        config = settings.storage.iceberg_config.model_copy(update={"warehouse": warehouse})
        storage = settings.storage.model_copy(update={"iceberg_config": config})
        tables = RestoredTables(
            settings.model_copy(update={"storage": storage}), LocalFiles(open_local, InlineOffload())
        )
        return RestoreRun(
            world.call, self.adopt, stored or world.stored(key), LocalSource().chunks, tables, SystemClock(),
            InlineOffload(), plan, **more,
        )  # fmt: skip

    async def rows(self, name: TopicName = BESIDE) -> list[tuple[int, bytes]]:
        """Offset and payload of every row that the table names, in the order of offsets."""
        table = (await self.catalog.tables.load(Identifier((name.namespace,), name.name))).table
        (snapshot,) = table.snapshots
        files = [
            entry.file_path
            for manifest in decode_manifest_list("list", content(snapshot["manifest-list"]))
            for entry in live_entries(manifest.path, content(manifest.path))
            if entry.content == DATA_CONTENT
        ]
        assert all(file.startswith(f"{table.location}/data/") for file in files)
        rows = [row for file in files for row in pq.read_table(io.BytesIO(content(file))).to_pylist()]
        return sorted((row["offset"], row["payload"]) for row in rows)

    @property
    def catalog(self) -> Catalog:
        assert self.world.lake is not None
        return self.world.lake.catalog


def content(location: str) -> bytes:
    return Path(location.removeprefix("file:")).read_bytes()
