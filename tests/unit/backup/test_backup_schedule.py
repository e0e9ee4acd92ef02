"""Scheduled backups: which is due, which end, and passes over a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.backup.backup_run import BackupEffect
from icestream.backup.backup_schedule import KeptBackups, ScheduledBackup, due_in_ms, expired
from icestream.catalog.catalog_holds import holds_prefix
from icestream.catalog.catalog_keys import HOLDS
from icestream.processes.scheduled_backups import ScheduledBackups
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.settings import Settings, load
from tests.support.backup_history import crash_at
from tests.support.backup_world import ORDERS, BackupWorld, Crash, backup_world

HOUR = 3_600_000


def backup(begun_ms: int, *, is_complete: bool = True, parent: str | None = None) -> ScheduledBackup:
    return ScheduledBackup(f"b{begun_ms}", begun_ms, is_complete, parent)


@pytest.mark.parametrize(
    ("backups", "wait_ms"),
    [
        ([], 0),
        ([backup(0)], 0),
        ([backup(9 * HOUR)], HOUR),
        ([backup(0), backup(10 * HOUR, is_complete=False)], 2 * HOUR // 10),
        ([backup(9 * HOUR), backup(8 * HOUR, is_complete=False)], HOUR),
        ([backup(500 * HOUR)], 2 * HOUR),
    ],
)
def test_a_backup_is_due_by_the_newest_one(backups: list[ScheduledBackup], wait_ms: int) -> None:
    assert due_in_ms(backups, 2 * HOUR, 10 * HOUR) == wait_ms


@pytest.mark.parametrize(
    ("kept", "ids"),
    [
        (KeptBackups(), []),
        (KeptBackups(backups_max=2), ["b1", "b2"]),
        (KeptBackups(age_ms=5), ["b1", "b2", "b3"]),
        (KeptBackups(backups_max=1, age_ms=1), ["b1", "b2", "b3"]),
    ],
)
def test_the_newest_backup_is_never_deleted(kept: KeptBackups, ids: list[str]) -> None:
    backups = [backup(number) for number in (3, 1, 4, 2)]
    assert expired(backups, kept, 1_000) == ids


def test_the_parent_of_a_running_backup_is_kept() -> None:
    backups = [backup(1), backup(2), backup(3, is_complete=False, parent="b1")]
    assert expired(backups, KeptBackups(backups_max=1), 1_000) == []


def test_an_abandoned_run_is_deleted_and_holds_no_parent() -> None:
    day = limits.BACKUP_ABANDONED_MS
    backups = [
        backup(1),
        backup(2),
        backup(3, is_complete=False, parent="b1")._replace(active_ms=10),
        backup(4, is_complete=False, parent="b2")._replace(active_ms=20),
        backup(5),
    ]
    assert expired(backups, KeptBackups(), day + 15) == ["b3"]
    assert expired(backups, KeptBackups(backups_max=1), day + 15) == ["b3", "b1"]


def settings_of(world: BackupWorld, **schedule: object) -> Settings:
    sets = [f"backup.schedule.{name}={str(value).lower()}" for name, value in schedule.items()]
    sets += [f"backup.target={world.folder}/backups", f"node.name={world.node.settings.node.name}"]
    return load(None, {}, sets).settings


def schedule_of(world: BackupWorld, **options: object) -> ScheduledBackups:
    assert world.lake is not None
    return ScheduledBackups(
        settings_of(world, **options), world.call, world.catalog, world.lake.files, SystemClock(), SystemRandomness(),
        InlineOffload(),
    )  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("reference", [False, True])
async def test_passes_make_incremental_backups_and_keep_some(tmp_path: Path, reference: bool) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(4)
        await world.commit(2)
        hourly = schedule_of(world, interval_ms="1h", reference=reference)
        assert HOUR - 60_000 < await hourly.run_pass() <= HOUR
        assert HOUR - 60_000 < await hourly.run_pass() <= HOUR, "the next one is not due"
        (first,) = await world.stored().backups()
        assert first.root is not None
        always = schedule_of(world, interval_ms="1ms", reference=reference, keep_count=1)
        await always.run_pass()
        (second,) = await world.stored().backups()
        assert second.root is not None
        assert second.root.parent == first.id != second.id
        assert await world.verify(second.id) == []
        assert world.lake is not None
        uuid = (await world.lake.table()).uuid or ""
        held = [key for key, _ in await world.node.store.list_all(holds_prefix(uuid))]
        assert held == ([f"{holds_prefix(uuid)}backup-{second.id}"] if reference else [])


@pytest.mark.asyncio
@pytest.mark.parametrize("effect", [BackupEffect.CUT, BackupEffect.LIST])
async def test_a_pass_deletes_a_run_that_was_killed_a_day_ago_with_its_pins(
    tmp_path: Path, effect: BackupEffect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(4)
        await world.commit(2)
        killed = world.run(on_effect=crash_at(effect))
        with pytest.raises(Crash):
            await killed.run()
        schedule = schedule_of(world, interval_ms="1h")
        await schedule.run_pass()
        assert len(await world.stored().backups()) == 1, "a failed run puts the next one off for six minutes"
        assert await world.node.store.list_all("/holds/"), "somebody may resume it"
        monkeypatch.setattr("icestream.limits.BACKUP_ABANDONED_MS", -1)
        await schedule.run_pass()
        assert not await world.node.store.list_all("/holds/")
        assert await world.stored().backups() == []


@pytest.mark.asyncio
async def test_a_pass_ends_the_hold_of_a_topic_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(4)
        await world.commit(2)
        await schedule_of(world, interval_ms="1ms", reference=True).run_pass()
        (first,) = await world.stored().backups()
        await world.call("delete_topic", topic=str(ORDERS), table="purge")
        await schedule_of(world, interval_ms="1ms", keep_count=1).run_pass()
        assert first.id not in [backup.id for backup in await world.stored().backups()]
        assert await world.node.store.list_all(HOLDS) == []


def test_a_schedule_needs_a_target() -> None:
    with pytest.raises(errors.ConfigurationError, match="scheduled backups need a target"):
        load(None, {}, ["backup.schedule.interval_ms=1h"])
