"""Hazard 79: a cluster that was restored, and the old one that lives on, with one warehouse and one backup target."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from icestream.backup.backup_run import BackupEffect
from icestream.backup.seed_manifest import SeedOptions
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import PurgeRecord
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.processes.scheduled_backups import ScheduledBackups
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.settings import load
from tests.support.backup_history import crash_at
from tests.support.backup_world import ORDERS, BackupWorld, Crash, backup_world
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
MANIFESTS = SeedOptions(enable=True)


async def prepare(world: BackupWorld) -> None:
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6, is_floor_moved=True)


def share(old: BackupWorld, new: BackupWorld) -> None:
    """The new cluster has the warehouse and the target of the old one, under the same name of its node."""
    new.folder, new.target = old.folder, old.target


async def clean_up_entirely(world: BackupWorld) -> None:
    """The old cluster purges its table at once."""
    assert world.lake is not None
    cleanup = world.lake.catalog.cleanup(ManifestReader(world.lake.files, InlineOffload()))
    await world.call("delete_topic", topic=str(ORDERS), table="purge", rest="discard")
    for _ in range(2):
        for key, entry in await world.node.store.list_all(catalog_keys.PURGES):
            record = catalog_records.decode(PurgeRecord, key, entry)
            await world.node.store.put(key, catalog_records.encode(msgspec.structs.replace(record, time_ms=0)))
        async for _ in cleanup.work():
            pass


async def test_hazard_79_the_old_cluster_removes_no_file_of_the_restored_one(tmp_path: Path) -> None:
    async with backup_world(tmp_path / "old") as old, backup_world(tmp_path / "new") as new:
        await prepare(old)
        root = await old.back_up()
        share(old, new)
        restored = RestoreWorld(new)
        revision = await new.node.store.revision()
        await restored.restore_all(root)
        await old.publish(5)  # the old one lives
        before = {*(old.folder / "warehouse").rglob("*.parquet")}
        await clean_up_entirely(old)
        assert {*(old.folder / "warehouse").rglob("*.parquet")} < before, "the old one has removed its own files"
        assert await restored.rows(ORDERS) == [(offset, b"m%d" % offset) for offset in range(10)]
        assert await new.node.store.revision() > revision


async def test_hazard_79_manifests_of_both_lives_have_names_of_their_own(tmp_path: Path) -> None:
    async with backup_world(tmp_path / "old") as old, backup_world(tmp_path / "new") as new:
        await prepare(old)
        first = await old.back_up(seed=MANIFESTS)
        assert first.manifests.written == 2
        share(old, new)
        await RestoreWorld(new).restore_all(first)
        second = [await world.back_up(seed=MANIFESTS) for world in (new, old)]
        assert [(root.manifests.written, root.manifests.missing) for root in second] == [(2, []), (2, [])]
        names = await old.target.names("warehouse/")
        assert len(names) == 6, "their numbers may be equal: the cut is in the name, and none is replaced"
        for name in names:
            assert (await old.target.get(name) or b"").startswith(b"{")


async def test_hazard_79_a_manifest_whose_name_is_taken_gets_the_next_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clusters count for themselves: within one millisecond they would choose one name."""
    monkeypatch.setattr(
        "icestream.backup.seed_manifest.manifest_name", lambda options, cut_ms, seq: f"warehouse/m_{seq}.json"
    )
    async with backup_world(tmp_path) as world:
        await prepare(world)
        for number in range(1, 4):
            await world.target.put(f"warehouse/m_{number}.json", b"of another cluster")
        root = await world.back_up(seed=MANIFESTS)
        assert (root.manifests.written, root.manifests.missing) == (2, [])
        assert await world.target.get("warehouse/m_1.json") == b"of another cluster"
        assert (await world.target.get("warehouse/m_4.json") or b"").startswith(b"{")


async def test_hazard_79_a_backup_finishes_no_interrupted_one_of_another_single_node(tmp_path: Path) -> None:
    """The other one's progress is how its own next backup finds the pins that it has to give back."""
    async with backup_world(tmp_path / "one") as one, backup_world(tmp_path / "two") as two:
        await prepare(one)
        await prepare(two)
        two.target = one.target
        interrupted = one.run(on_effect=crash_at(BackupEffect.RELEASE))
        with pytest.raises(Crash):
            await interrupted.run()
        await two.back_up()
        assert await one.stored().half_finished() == [interrupted._plan.id]
        await one.back_up()
        assert await one.stored().half_finished() == []
        assert await one.node.store.list_all(catalog_keys.HOLDS) == []


async def test_hazard_79_retention_of_one_cluster_keeps_the_backups_of_the_other(tmp_path: Path) -> None:
    """Their nodes have the same name, which is the default."""
    async with backup_world(tmp_path / "old") as old, backup_world(tmp_path / "new") as new:
        await prepare(old)
        kept = [(await old.back_up()).id for _ in range(3)]
        share(old, new)
        await RestoreWorld(new).restore_all(await old.stored().root(kept[-1]))
        assert new.node.settings.node.name == old.node.settings.node.name
        sets = [f"backup.target={old.folder}/backups", "backup.schedule.interval_ms=1h", "backup.schedule.keep_count=1"]
        for _ in range(2):
            settings = load(None, {}, sets).settings
            assert new.lake is not None
            schedule = ScheduledBackups(
                settings, new.call, new.catalog, new.lake.files, SystemClock(), SystemRandomness(), InlineOffload()
            )
            await schedule.run_pass()
        backups = [backup.id for backup in await old.stored().backups()]
        assert {*kept} < {*backups}
        assert len(backups) == 4, "the new cluster made one of its own, although those of the other are young"
