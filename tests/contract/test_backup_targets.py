"""What a backup target promises, in a directory and in the S3 of SeaweedFS; and whole backups in both."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from icestream import errors
from icestream.backup.backup_target import BackupTarget, DirectoryTarget, open_target
from icestream.backup.encryption import BackupKey
from icestream.backup.inventory_table import update_inventory
from icestream.backup.seed_manifest import SeedOptions
from icestream.processes.component_options import store_options
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import ORDERS, backup_world
from tests.support.catalog_servers import new_name, s3_flags, settings_of
from tests.support.restore_world import RestoreWorld
from tests.support.seaweed import BUCKET

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["directory", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    if request.param == "directory":
        return DirectoryTarget(tmp_path / "target", InlineOffload())
    options = store_options(settings_of(*s3_flags(request.getfixturevalue("seaweed_server"))))
    spool = tmp_path / "spool"
    spool.mkdir()
    location = f"s3://{BUCKET}/{new_name()}"
    return open_target(location, options, SystemClock(), SystemRandomness(), InlineOffload(), spool)


def spooled(target: BackupTarget, data: bytes) -> Path:
    with tempfile.NamedTemporaryFile(dir=target.spool, delete=False) as file:
        file.write(data)
    return Path(file.name)


async def test_a_name_is_given_once(target: BackupTarget) -> None:
    await target.put_new("backups/a/begin.json", b"one")
    await target.put_new("backups/a/begin.json", b"one")
    with pytest.raises(errors.AlreadyExists):
        await target.put_new("backups/a/begin.json", b"two")
    assert await target.get("backups/a/begin.json") == b"one"
    await target.put("hint", b"1")
    await target.put("hint", b"22")
    assert (await target.get("hint"), await target.size("hint"), await target.get("absent")) == (b"22", 2, None)


@pytest.mark.parametrize("damage", [b"0123456x89", b"01234", b""], ids=["changed", "cut", "empty"])
async def test_an_adopted_file_replaces_a_damaged_object(target: BackupTarget, damage: bytes) -> None:
    await target.put("objects/ab/x.parquet", damage)
    assert not await target.adopt(spooled(target, b"0123456789"), "objects/ab/x.parquet")
    assert b"".join(target.chunks("objects/ab/x.parquet")) == b"0123456789"
    assert not [*target.spool.iterdir()]


async def test_an_object_is_adopted_once_and_read_in_pieces(target: BackupTarget) -> None:
    data = bytes(range(256)) * 10_000
    assert await target.adopt(spooled(target, data), "objects/ab/x.parquet")
    assert not await target.adopt(spooled(target, data), "objects/ab/x.parquet")
    assert b"".join(target.chunks("objects/ab/x.parquet")) == data
    assert [*await target.names("objects/")] == ["objects/ab/x.parquet"]
    assert not [*target.spool.iterdir()]
    await target.remove("objects/ab/x.parquet")
    await target.remove("objects/ab/x.parquet")
    assert await target.size("objects/ab/x.parquet") is None
    with pytest.raises(errors.BackupDamaged):
        b"".join(target.chunks("objects/ab/x.parquet"))


async def test_an_object_has_durable_bytes_before_its_name_and_folders_are_synced_for_many_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "target"
    target = DirectoryTarget(root, InlineOffload())
    effects: list[str] = []
    sync, replace = os.fsync, os.replace

    def record_sync(number: int) -> None:
        effects.append(str(Path(f"/proc/self/fd/{number}").readlink().relative_to(root)))
        sync(number)

    def record_replace(source: Path, path: Path) -> None:
        replace(source, path)
        effects.append("name")

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    names = ["objects/ab/x.parquet", "objects/ab/y.parquet", "objects/cd/z.parquet"]
    paths = [spooled(target, name.encode()) for name in names]
    for path, name in zip(paths, names, strict=True):
        await target.adopt(path, name)
    assert effects == [effect for path in paths for effect in (f".partial/{path.name}", "name")], (
        "the bytes of an object are synced before it has a name, and no folder for each object"
    )
    effects.clear()
    await target.keep_names(names)
    assert sorted(effects) == [".", "objects", "objects/ab", "objects/cd"]


@pytest.mark.parametrize("key", [None, BackupKey(bytes(range(32)))], ids=["plain", "encrypted"])
async def test_a_topic_comes_back_beside_the_live_one_and_in_an_empty_broker(
    target: BackupTarget, tmp_path: Path, key: BackupKey | None
) -> None:
    rows = [(offset, b"m%d" % offset) for offset in range(10)]
    async with backup_world(tmp_path / "source") as world:
        world.target = target
        await world.create_topic()
        await world.bind()
        await world.publish(10)
        await world.commit(6)
        parent = await world.back_up(key=key)
        root = await world.back_up(key=key, parent=parent.id)
        assert await world.verify(root.id, key=key) == []
        await RestoreWorld(world).restore(root, key=key)
        assert await RestoreWorld(world).rows() == rows
    async with backup_world(tmp_path / "empty") as empty:
        empty.target = target
        await RestoreWorld(empty).restore(root, ORDERS, key=key)
        assert await RestoreWorld(empty).rows(ORDERS) == rows


async def test_a_backup_is_made_verified_and_deleted(target: BackupTarget, tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        world.target = target
        await world.create_topic()
        await world.bind()
        await world.publish(10)
        await world.commit(6)
        first = await world.back_up(seed=SeedOptions(enable=True))
        second = await world.back_up(parent=first.id)
        assert first.manifests.written == 2, "of the cut, and of the table"
        for root in (first, second):
            assert await world.verify(root.id) == []
        await world.stored().delete(first.id, now_ms=0)
        assert await world.verify(second.id) == []
        await update_inventory(target, world.stored(), 1)
        await world.stored().delete(second.id, now_ms=0)
    assert not await target.names("objects/")
