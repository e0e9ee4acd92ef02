"""Hazard 76: files that a reference backup needs are not removed, whatever becomes of their table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from icestream.backup.backup_run import release_pins
from icestream.backup.node_client import NodeClient
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_holds import BACKUP_TAG, HoldRecord, hold_key
from icestream.catalog.catalog_records import PurgeRecord
from icestream.catalog.cleanup.catalog_cleanup import CatalogCleanup
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import BackupWorld, backup_world
from tests.support.fault_world import FaultWorld, name_of

pytestmark = pytest.mark.asyncio


async def purge(world: BackupWorld, cleanup: CatalogCleanup) -> None:
    """A pass of the clean-up, an hour after each drop."""
    store = world.node.store
    for _ in range(2):  # the first hands the tables of deleted topics over
        for key, entry in await store.list_all(catalog_keys.PURGES):
            record = catalog_records.decode(PurgeRecord, key, entry)
            await store.put(key, catalog_records.encode(msgspec.structs.replace(record, time_ms=0)))
        async for _ in cleanup.work():
            pass


async def test_hazard_76_a_purge_waits_for_a_reference_backup(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(6)
        await world.commit(6, is_floor_moved=True)
        root = await world.back_up(kind="reference")
        assert world.lake is not None
        cleanup = world.lake.catalog.cleanup(ManifestReader(world.lake.files, InlineOffload()))
        await world.call("delete_topic", topic="/default/orders", table="purge")
        with capture_logs() as logs:
            await purge(world, cleanup)
        assert "purge waits for the backups of its table" in {line["event"] for line in logs}
        assert await world.verify(root.id) == []
        assert [*(tmp_path / "warehouse").rglob("*.parquet")]
        # The hold ends with the backup: then the purge goes on. The topic is not listed any more.
        await release_pins(NodeClient(world.call, root.id), world.catalog, root.id)
        assert await world.node.store.list_all(catalog_keys.HOLDS) == []
        await purge(world, cleanup)
        assert not [*(tmp_path / "warehouse").rglob("*.parquet")]
        assert await world.verify(root.id) != []


async def test_hazard_76_a_copy_does_not_need_the_table(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(6)
        await world.commit(6, is_floor_moved=True)
        root = await world.back_up()
        assert world.lake is not None
        cleanup = world.lake.catalog.cleanup(ManifestReader(world.lake.files, InlineOffload()))
        await world.call("delete_topic", topic="/default/orders", table="purge")
        await purge(world, cleanup)
        assert not [*(tmp_path / "warehouse").rglob("*.parquet")]
        assert await world.verify(root.id) == []
        assert BACKUP_TAG not in str([key for key, _ in await world.node.store.list_all("/holds/")])


async def test_hazard_76_the_clean_up_keeps_files_of_a_held_snapshot_that_is_gone(tmp_path: Path) -> None:
    """Its tag was removed by force, so it expired like any other."""
    world = await FaultWorld.open(tmp_path)
    try:
        harness = world.driver()
        for _ in range(4):
            await world.publish(1, 3)
            await world.drain(harness)
        loaded = await world.catalog.load(name_of(1))
        snapshot_id = loaded.current_snapshot_id
        assert snapshot_id is not None
        (*_, snapshot) = loaded.metadata["snapshots"]
        named = await world.paths(snapshot["manifest-list"])
        hold = hold_key(loaded.uuid or "", "backup-b")
        await world.store.put(hold, msgspec.json.encode(HoldRecord([snapshot_id], 1)))

        async def expire_and_clean() -> None:
            for _ in range(2):
                await harness.lease.release()
                world.clock.advance(25 * 3_600)
                await world.publish(1, 1)
                await world.drain(harness)
                await world.clean(harness)

        await expire_and_clean()
        assert named <= await world.present(1)
        await world.store.delete(hold)
        # Another driver finds them as orphans: their names are of a lower epoch.
        harness = world.driver()
        await expire_and_clean()
        assert named - await world.present(1)
        assert await world.present(1) == await world.needed(1)
    finally:
        await world.close()
