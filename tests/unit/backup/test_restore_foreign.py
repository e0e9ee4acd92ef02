"""Backups and restores of topics whose tables are in another catalog (ADR 106)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from icestream import errors, limits
from icestream.backup.backup_run import BackupEffect
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.restore_run import RestoreEffect
from icestream.processes.state_restore import RestoreScope
from icestream.readers.verify.verify_report import ShardLogState
from icestream.runtime.clock import SystemClock
from tests.support.backup_world import ORDERS, BackupWorld, Crash
from tests.support.broker_machine import quiet, subscribe
from tests.support.foreign_backup_world import (
    CuttingCatalog,
    ForeignBackupWorld,
    ForeignLake,
    ForeignRestoreWorld,
    foreign_backup_world,
)
from tests.support.restore_world import BESIDE
from tests.support.topic_lake import TABLE, TopicLake

pytestmark = pytest.mark.asyncio
EFFECTS = [effect for effect in RestoreEffect if effect not in (RestoreEffect.ACCOUNTS, RestoreEffect.SESSIONS)]


@contextlib.asynccontextmanager
async def own_world(folder: Path) -> AsyncIterator[ForeignBackupWorld]:
    """A world whose catalog is our own, used as another's: with a metadata store that the node does not have."""
    lake = TopicLake(folder / "warehouse", clock=SystemClock())
    async with foreign_backup_world(folder, EmbeddedCatalog(lake.catalog)) as world:
        yield world


def files_below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(offset, b"m%d" % offset) for offset in range(count)]


async def ack(world: BackupWorld, *offsets: int) -> None:
    reader = await subscribe(world.node.broker, "s", topic=ORDERS)
    await quiet()
    reader.ack(*offsets)
    await quiet()
    reader.leave()
    await world.node.broker.storage.flush_cursors()


def cursor_of(world: BackupWorld, name: TopicName) -> int:
    return world.node.broker.topics.get(name).subscriptions["s"].delivery(0).cursor().offset


async def check_restored(restores: ForeignRestoreWorld, name: TopicName, count: int = 10) -> None:
    """The topic has these messages in a table that readers, `verify` and the pipeline take for its own."""
    record = restores.world.node.broker.topics.get(name).record
    stream = restores.world.node.broker.storage.shard_stream(ShardKey(record.id, 0))
    end = stream.visible  # behind the gap that the restore declares
    assert end > count
    assert await restores.rows(name) == expected(count)
    mirror = await restores.mirror_of(record.id)
    assert mirror is not None
    assert (mirror.is_detached, mirror.committed, mirror.replaced_uuid) == (False, {0: end}, "")
    assert mirror.uuid == (await restores.table_of(name)).uuid
    gaps = [(gap.start, gap.end, gap.reason) for gap in stream.gaps()]
    assert await restores.verify_topic(record.id, ShardLogState(end, end, gaps)) == []
    assert await restores.next_offset(record.id, name, end) == end
    assert await restores.world.node.store.list_all("/restores/") == []


async def test_a_topic_is_restored_beside_the_live_one_in_another_catalog(tmp_path: Path) -> None:
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        await ack(world, 0, 1, 2)
        root = await world.back_up()
        source = await ForeignRestoreWorld(world).table_of(ORDERS)
        await world.publish(5)
        restored = await ForeignRestoreWorld(world).restore(root)
        await check_restored(ForeignRestoreWorld(world), BESIDE)
        assert (restored.messages, restored.table) == (10, "default.orders_restored")
        assert cursor_of(world, BESIDE) == 3
        stream = world.node.broker.storage.shard_stream(ShardKey(restored.id, 0))
        assert stream.visible == restored.next_offsets[0] > 10
        assert (await ForeignRestoreWorld(world).table_of(ORDERS)).uuid == source.uuid, "the live one is as it was"
        folder = Path((await ForeignRestoreWorld(world).table_of(BESIDE)).location.removeprefix("file:"))
        for file in files_below(folder):
            assert source.location.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("effect", EFFECTS, ids=str)
async def test_a_restore_that_ended_before_any_step_is_completed_by_a_second_one(
    tmp_path: Path, effect: RestoreEffect
) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        with pytest.raises(Crash):
            await ForeignRestoreWorld(world).restore(root, on_effect=crash)
        await world.restart()
        await ForeignRestoreWorld(world).restore(root)
        await check_restored(ForeignRestoreWorld(world), BESIDE)


@pytest.mark.parametrize("effect", EFFECTS, ids=str)
async def test_a_crash_in_place_leaves_the_old_topic_or_the_new_one(tmp_path: Path, effect: RestoreEffect) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        await world.publish(4)
        live = world.node.broker.topics.get(ORDERS).record.id
        with pytest.raises(Crash):
            await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True, on_effect=crash)
        await world.restart()
        topic = world.node.broker.topics.get(ORDERS)
        if topic.record.id == live:
            assert world.node.broker.storage.shard_stream(ShardKey(live, 0)).visible == 14
            mirror = await ForeignRestoreWorld(world).mirror_of(live)
            assert mirror is not None
            assert mirror.uuid == (await ForeignRestoreWorld(world).table_of(ORDERS)).uuid
        else:
            assert effect in (RestoreEffect.ADOPT, RestoreEffect.END)
        await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await check_restored(ForeignRestoreWorld(world), ORDERS)


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_crash_before_any_change_of_the_catalog_is_completed(tmp_path: Path, number: int) -> None:
    """In place, where the table is exchanged by several: namespace, register, rename, register."""
    changes: list[str] = []

    def crash(name: str) -> None:
        changes.append(name)
        if len(changes) == number:
            raise Crash

    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        former = await ForeignRestoreWorld(world).table_of(ORDERS)
        tables: Any = CuttingCatalog(world.tables, crash)
        with contextlib.suppress(Crash):
            await ForeignRestoreWorld(world, tables).restore(root, ORDERS, is_in_place=True)
        await world.restart()
        restored = await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await check_restored(ForeignRestoreWorld(world), ORDERS)
        if number > 5:
            assert changes == ["create_namespace", "create_namespace", "register", "rename", "register"]
        names = await world.tables.list_tables(TABLE.namespace)
        replaced = [name for name in names if name != TABLE]
        uuids = [(await world.tables.load(name)).uuid for name in replaced]
        assert former.uuid in uuids, "nothing of the former table is dropped"
        assert all(name.name.startswith("orders__replaced_") for name in replaced)
        assert restored.id


async def test_offsets_go_on_beyond_all_that_the_replaced_topic_gave_out(tmp_path: Path) -> None:
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        await ack(world, 0, 1, 2)
        await world.publish(4)
        restored = await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        assert restored.next_offsets[0] == 14 + limits.TAKEOVER_OFFSETS
        assert list(world.node.broker.topics.get(ORDERS).subscriptions) == []


async def test_the_former_topic_comes_back_with_its_table(tmp_path: Path) -> None:
    """As the command says it: delete, drop and rename in the catalog, undelete."""
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        former = world.node.broker.topics.get(ORDERS).record.id
        restored = await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await world.call("delete_topic", topic=str(ORDERS))
        await world.tables.drop(TABLE)
        await world.tables.rename(Identifier(TABLE.namespace, f"orders__replaced_{restored.id}"), TABLE)
        await world.call("undelete_topic", topic=str(ORDERS), id=former)
        restores = ForeignRestoreWorld(world)
        assert await restores.next_offset(former, ORDERS, 6) == 6
        mirror = await restores.mirror_of(former)
        assert mirror is not None, "the pipeline knows its table again"
        assert await restores.verify_topic(former, ShardLogState(6, 6)) == []


async def test_an_empty_topic_takes_the_name_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    """Without a table of its own the pipeline would find that of the replaced topic, and stop."""
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders(published=0, committed=0)
        assert world.lake is not None
        await world.lake.bind()
        await world.publish(3)
        await world.commit(3)
        restored = await ForeignRestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        assert await ForeignRestoreWorld(world).rows(ORDERS) == []
        end = restored.next_offsets[0]
        assert await ForeignRestoreWorld(world).next_offset(restored.id, ORDERS, end) == end


async def test_a_name_that_another_table_has_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    reached: list[RestoreEffect] = []
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        taken = Identifier(("default",), BESIDE.name)
        await world.tables.create(taken, {"schema": (await world.tables.load(TABLE)).metadata["schemas"][0]})
        with pytest.raises(errors.AlreadyExists, match=r"has a table default\.orders_restored already"):
            await ForeignRestoreWorld(world).restore(root, on_effect=reached.append)
        assert RestoreEffect.COPY not in reached
        assert world.node.broker.topics.find(BESIDE) is None


async def test_a_table_that_appears_under_the_name_is_never_taken(tmp_path: Path) -> None:
    """Another client makes it behind the check; only the table of the replaced topic gives up its name."""
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        schema = (await world.tables.load(TABLE)).metadata["schemas"][0]
        taken = Identifier(("default",), BESIDE.name)

        class LateClient(CuttingCatalog):
            async def register(self, table: Identifier, location: str) -> Any:
                await world.tables.create(taken, {"schema": schema})
                return await world.tables.register(table, location)

        tables: Any = LateClient(world.tables, lambda _: None)
        with pytest.raises(errors.AlreadyExists, match="another table has the name"):
            await ForeignRestoreWorld(world, tables).restore(root)
        await world.tables.drop(taken)
        await ForeignRestoreWorld(world).restore(root)
        await check_restored(ForeignRestoreWorld(world), BESIDE)


async def test_everything_is_restored_into_an_empty_broker_with_another_catalog(tmp_path: Path) -> None:
    async with own_world(tmp_path / "source") as source:
        await source.back_up_orders()
        await ack(source, 0, 1, 2)
        root = await source.back_up()
        async with own_world(tmp_path / "empty") as world:
            world.target = source.target
            restores = ForeignRestoreWorld(world)
            restored, _ = await restores.restore_all(root, RestoreScope.EVERYTHING)
            assert [(topic.topic, topic.problem) for topic in restored] == [(str(ORDERS), "")]
            await check_restored(restores, ORDERS)
            assert cursor_of(world, ORDERS) == 3


class NoRegister(CuttingCatalog):
    """A server without that endpoint."""

    async def check_registers(self, *, is_renaming: bool = False) -> None:
        raise errors.InvalidInput("the catalog does not register tables")


async def test_a_catalog_that_registers_no_tables_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    async with own_world(tmp_path) as world:
        root = await world.back_up_orders()
        tables: Any = NoRegister(world.tables, lambda _: None)
        with pytest.raises(errors.InvalidInput, match="does not register"):
            await ForeignRestoreWorld(world, tables).restore(root)
        assert world.node.broker.topics.find(BESIDE) is None
        assert await world.tables.list_tables(TABLE.namespace) == [TABLE]


async def test_rows_that_an_engine_had_deleted_have_their_reason_in_the_restored_table(tmp_path: Path) -> None:
    async with own_world(tmp_path) as world:
        await world.back_up_orders()
        assert isinstance(world.lake, ForeignLake)
        (entry,) = world.lake.live
        await world.lake.replace(
            [entry, await world.lake.write_deletes(entry, [2])], "delete", added_position_deletes="1"
        )
        root = await world.back_up()
        restored = await ForeignRestoreWorld(world).restore(root)
        stream = world.node.broker.storage.shard_stream(ShardKey(restored.id, 0))
        gaps = [(gap.start, gap.end, gap.reason) for gap in stream.gaps()]
        log = ShardLogState(stream.visible, stream.visible, gaps)
        assert await ForeignRestoreWorld(world).verify_topic(restored.id, log) == []
        mirror = await ForeignRestoreWorld(world).mirror_of(restored.id)
        assert mirror is not None
        assert "delete" in [removal.operation for removal in mirror.removals]


async def drop_tag(world: ForeignBackupWorld) -> None:
    loaded = await world.tables.load(TABLE)
    tags = [name for name in loaded.metadata["refs"] if name.startswith("icestream-backup-")]
    updates = [{"action": "remove-snapshot-ref", "ref-name": name} for name in tags]
    assert isinstance(await world.tables.commit(TABLE, TableChange([], updates)), CommitDone)


async def drop_table(world: ForeignBackupWorld) -> None:
    await world.tables.drop(TABLE)


@pytest.mark.parametrize("act", [drop_tag, drop_table])
@pytest.mark.parametrize("kind", ["copy", "reference"])
@pytest.mark.parametrize("loads", [3, 4, 5, 6, 7])
async def test_hazard_89_pins_that_others_take_away_end_a_backup_or_come_too_late(
    tmp_path: Path, act: Callable[[ForeignBackupWorld], Awaitable[None]], kind: str, loads: int
) -> None:
    """Nothing in another catalog keeps a tag or a table. Before each look of the run at the table."""

    class Meddler(CuttingCatalog):
        done = 0

        async def load(self, table: Identifier) -> Any:
            self.done += 1
            if self.done == loads:
                await act(world)
            return await self.inner.load(table)

    async with own_world(tmp_path) as world:
        await world.back_up_orders()
        plain = world.tables
        run = world.run(kind=kind)
        run._catalog = meddler = Meddler(plain, lambda _: None)  # type: ignore[assignment]
        try:
            root = await run.run()
        except (errors.BackupDamaged, errors.UnknownTable, errors.StorageUnavailable):
            assert await world.stored().root_or_none(run._plan.id) is None, "no root, no backup"
            return
        # The run did not look any more, or all that it needs was copied before.
        assert meddler.done < loads or kind == "copy"
        assert await world.verify(root.id) == []


async def test_hazard_89_a_pin_that_goes_behind_the_copy_leaves_no_reference_backup(tmp_path: Path) -> None:
    """All tables are looked at again before the root: the first of many may have lost its pin meanwhile."""
    reached: list[BackupEffect] = []

    class Meddler(CuttingCatalog):
        async def load(self, table: Identifier) -> Any:
            if BackupEffect.VIEW in reached:
                await drop_tag(world)
            return await self.inner.load(table)

    async with own_world(tmp_path) as world:
        await world.back_up_orders()
        run = world.run(kind="reference", on_effect=reached.append)
        run._catalog = Meddler(world.tables, lambda _: None)  # type: ignore[assignment]
        with pytest.raises(errors.BackupDamaged, match=r"tag icestream-backup-.* is gone"):
            await run.run()
        assert await world.stored().root_or_none(run._plan.id) is None
