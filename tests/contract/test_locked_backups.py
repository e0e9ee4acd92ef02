"""Backups that the store keeps until a date, in the S3 of SeaweedFS: a bucket with object lock, and one without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors
from icestream.backup import backup_layout as layout
from icestream.backup.backup_lock import LockOptions
from icestream.backup.backup_run import BackupEffect
from icestream.backup.backup_target import BackupTarget, open_target
from icestream.catalogs.object_lock import LockMode, ObjectRetention
from icestream.processes.component_options import store_options
from icestream.processes.scheduled_backups import ScheduledBackups
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support import seaweed as seaweedfs
from tests.support.backup_history import crash_at
from tests.support.backup_world import BackupWorld, Crash, backup_world
from tests.support.catalog_servers import new_name, s3_flags, settings_of
from tests.support.command_line import icestream
from tests.support.seaweed import Seaweed

pytestmark = pytest.mark.asyncio
DAY_MS = 86_400_000
SHORT = LockOptions("governance", 1)


def target_at(location: str, server: Seaweed, folder: Path) -> BackupTarget:
    options = store_options(settings_of(*s3_flags(server)))
    folder.mkdir(exist_ok=True)
    return open_target(location, options, SystemClock(), SystemRandomness(), InlineOffload(), folder)


@pytest.fixture
def target(locked_bucket: str, seaweed_server: Seaweed, tmp_path: Path) -> BackupTarget:
    return target_at(f"{locked_bucket}/{new_name()}", seaweed_server, tmp_path / "spool")


async def fill(world: BackupWorld, target: BackupTarget) -> None:
    world.target = target
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6)


async def locks_of(target: BackupTarget) -> dict[str, ObjectRetention | None]:
    """How each object of the target is locked."""
    assert target.locks is not None
    names = [name for prefix in (layout.BACKUPS, layout.OBJECTS) for name in await target.names(prefix)]
    async with target.locks.connect() as requests:
        return {name: await requests.retention(name) for name in names}


@pytest.mark.parametrize("mode", ["governance", "compliance"])
async def test_every_object_is_locked_and_one_that_is_used_again_for_longer(
    target: BackupTarget, tmp_path: Path, mode: LockMode
) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        first = await world.back_up(lock=LockOptions(mode, 1))
        assert first.lock is not None
        assert first.lock.until_ms >= first.cut_ms + DAY_MS
        locks = await locks_of(target)
        assert {*locks.values()} == {ObjectRetention(mode, first.lock.until_ms)}
        second = await world.back_up(parent=first.id, lock=LockOptions(mode, 3))
        third = await world.back_up(parent=second.id, lock=LockOptions(mode, 1))
        assert second.lock is not None
        locks = await locks_of(target)
        shared = {row.path for row in await world.stored().rows_of(first.id) if row.role == "data"}
        assert shared
        assert {locks[name] for name in shared} == {ObjectRetention(mode, second.lock.until_ms)}
        for root in (first, second, third):
            assert await world.verify(root.id) == []
            assert await world.verify(root.id, deep=False) == []


async def test_a_backup_without_a_lock_leaves_the_locks_of_objects_that_it_has_read_again(
    target: BackupTarget, tmp_path: Path
) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        first = await world.back_up(lock=SHORT)
        locks = await locks_of(target)
        second = await world.back_up()
        assert {row.path for row in await world.stored().rows_of(second.id)} & {*locks}
        assert {name: lock for name, lock in (await locks_of(target)).items() if name in locks} == locks
        assert await world.verify(first.id) == []


async def test_a_run_that_ended_between_locks_and_root_is_no_backup_and_is_resumed(
    target: BackupTarget, tmp_path: Path
) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        for effect in (BackupEffect.LOCK, BackupEffect.ROOT, BackupEffect.RELEASE):
            run = world.run(lock=SHORT, on_effect=crash_at(effect))
            backup_id = run._plan.id
            with pytest.raises(Crash):
                await run.run()
            assert (await world.stored().root_or_none(backup_id) is None) == (effect is not BackupEffect.RELEASE)
            root = await world.run(id=backup_id).resume()
            assert root.lock is not None, "the record of the cut says how the backup is to be locked"
            assert await world.verify(backup_id) == []


async def test_a_locked_backup_is_deleted_neither_by_a_command_nor_by_retention_before_its_date(
    target: BackupTarget, seaweed_server: Seaweed, tmp_path: Path
) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        first = await world.back_up(lock=SHORT)
        assert first.lock is not None
        with pytest.raises(errors.Refused, match=rf"backup {first.id} is locked until 20\d\d-.*Z"):
            await world.stored().delete(first.id, now_ms=first.lock.until_ms - 1)
        settings = settings_of(
            *s3_flags(seaweed_server),
            f"storage.iceberg_config.warehouse={tmp_path / 'warehouse'}",
            f"backup.target={target.location('').rstrip('/')}",
            "backup.schedule.interval_ms=1ms",
            "backup.schedule.keep_count=1",
            "backup.object_lock.mode=governance",
            "backup.object_lock.days=2",
        )
        assert world.lake is not None
        clock, randomness = SystemClock(), SystemRandomness()
        schedule = ScheduledBackups(
            settings, world.call, world.catalog, world.lake.files, clock, randomness, InlineOffload()
        )
        await schedule.run_pass()
        older, newer = await world.stored().backups()
        assert older.id == first.id
        assert newer.root is not None
        assert newer.root.lock is not None
        await world.stored().delete(first.id, now_ms=first.lock.until_ms)
        assert await world.verify(newer.id) == []


async def test_commands_show_until_when_a_backup_is_locked_and_do_not_delete_it(
    target: BackupTarget, seaweed_server: Seaweed, tmp_path: Path
) -> None:
    sets = [part for flag in s3_flags(seaweed_server) for part in ("--set", flag)]
    options = ["--to", target.location("").rstrip("/"), *sets, "--output", "json"]
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        root = await world.back_up(lock=SHORT)
        assert root.lock is not None
        (entry,) = (await asyncio.to_thread(icestream, "backup", "list", *options)).document
        assert (entry["id"], entry["locked_until"]) == (root.id, root.lock.until_ms)
        shown = (await asyncio.to_thread(icestream, "backup", "show", root.id, *options)).document
        assert shown["lock"] == {"mode": "governance", "until_ms": root.lock.until_ms}
        as_text = (await asyncio.to_thread(icestream, "backup", "show", root.id, *options[:-2])).out
        assert "locked until" in as_text
        assert (await asyncio.to_thread(icestream, "backup", "verify", root.id, *options)).document == []
        deleted = await asyncio.to_thread(icestream, "backup", "delete", root.id, *options, "--yes")
        assert deleted.code != 0
        assert f"backup {root.id} is locked until " in deleted.err
        assert await world.verify(root.id) == []


async def test_a_stricter_mode_needs_a_new_target(target: BackupTarget, tmp_path: Path) -> None:
    strict = LockOptions("compliance", 1)
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        first = await world.back_up(lock=SHORT)
        with pytest.raises(errors.AccessDenied, match=r"keeps .* locked until .* \(governance\), not"):
            await world.back_up(parent=first.id, lock=strict)
        assert await world.verify(first.id) == []


async def test_verify_names_an_object_whose_lock_is_shorter_than_the_root_says(
    target: BackupTarget, tmp_path: Path
) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world, target)
        root = await world.back_up(lock=SHORT)
        name = next(row.path for row in await world.stored().rows_of(root.id) if row.role == "data")
        data = await target.get(name)
        assert data is not None
        await target.put(name, data)  # another version, which no lock belongs to
        for deep in (False, True):
            (finding,) = await world.verify(root.id, deep=deep)
            assert (finding.object, finding.severity) == (name, "error")
            assert finding.text.startswith("it is not locked, the root says locked until ")


async def test_a_store_without_object_lock_is_refused_before_anything_is_written(
    seaweed_server: Seaweed, tmp_path: Path
) -> None:
    async with backup_world(tmp_path) as world:
        directory = world.target
        bucket = target_at(f"s3://{seaweedfs.BUCKET}/{new_name()}", seaweed_server, tmp_path / "spool")
        await fill(world, directory)
        for target, text in (
            (directory, "has no object lock: only buckets"),
            (bucket, "has no object lock (status 404"),
        ):
            world.target = target
            with pytest.raises(errors.ConfigurationError, match="object lock") as raised:
                await world.back_up(lock=SHORT)
            assert text in raised.value.message
            assert "backup.object_lock.mode=off" in raised.value.hint
            assert not await target.names(layout.BACKUPS)
        with pytest.raises(errors.ConfigurationError, match="reference backup cannot be locked"):
            await world.back_up(lock=SHORT, kind="reference")
