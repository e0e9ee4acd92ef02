"""Restores in place (ADR 116): the topic keeps its name, and is at every moment the old one or the restored one."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.backup.backup_root import BackupRoot
from icestream.broker import records
from icestream.cli.backup import undelete_lines
from icestream.cli.positions import time_text
from icestream.iceberg.identifier import Identifier
from icestream.metadata.command import Operation, Put
from icestream.model.shard import ShardKey
from icestream.processes.replaced_topic import LostOffsets
from icestream.processes.restore_run import RestoreEffect, RestorePlan
from tests.support.backup_world import ORDERS, BackupWorld, Crash, backup_world
from tests.support.broker_machine import quiet, subscribe
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
EFFECTS = [effect for effect in RestoreEffect if effect not in (RestoreEffect.ACCOUNTS, RestoreEffect.SESSIONS)]
TABLE = Identifier(("default",), "orders")


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(offset, b"m%d" % offset) for offset in range(count)]


async def ack(world: BackupWorld, subscription: str, *offsets: int) -> None:
    reader = await subscribe(world.node.broker, subscription, topic=ORDERS)
    await quiet()
    reader.ack(*offsets)
    await quiet()
    reader.leave()


async def damaged_after_a_backup(world: BackupWorld) -> BackupRoot:
    """Ten messages, six of them in the table, are backed up. Then come messages, acks, a subscription, and damage."""
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await ack(world, "s", 0, 1, 2)
    await world.commit(6)
    await world.node.broker.storage.flush_cursors()
    root = await world.back_up()
    await world.publish(4)
    await ack(world, "s", 3, 4, 5)
    await ack(world, "late")
    for file in (world.folder / "warehouse").rglob("*.parquet"):
        file.write_bytes(b"damaged")
    return root


async def cursor_of(world: BackupWorld) -> int:
    return world.node.broker.topics.get(ORDERS).subscriptions["s"].delivery(0).cursor().offset


async def test_a_damaged_topic_is_replaced_under_its_name_and_consumers_resume(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        live = world.node.broker.topics.get(ORDERS)
        assert await cursor_of(world) == 6
        restored = await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        topic = world.node.broker.topics.get(ORDERS)
        assert topic.record.id == restored.id != live.record.id
        assert await RestoreWorld(world).rows(ORDERS) == expected(10)
        assert list(topic.subscriptions) == ["s"], "the later one is gone"
        assert await cursor_of(world) == 3, "that of the backup"
        # Beyond all that the live topic gave out, and what it gives out until it is closed.
        assert restored.next_offsets[0] == 14 + limits.TAKEOVER_OFFSETS
        assert await RestoreWorld(world).catalog.topics.table_of(restored.id) == TABLE


async def test_what_will_be_lost_is_said_before(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        (cut,) = [topic for topic in root.topics if topic.name == str(ORDERS)]
        plan = RestorePlan([(cut, ORDERS)], is_in_place=True)
        (replaced,) = await RestoreWorld(world).run_of(plan, None).replaced(root)
        assert (replaced.is_same, replaced.messages, replaced.subscriptions) == (True, 4, ["late"])
        assert replaced.lost == [LostOffsets(0, 10, 14, 4)]
        assert [(name, shard) for name, shard, _, _ in replaced.set_back] == [("s", 0)]
        assert any("4 messages will be lost" in line for line in replaced.lines())


async def test_a_second_restore_in_place_gives_no_offset_out_twice(tmp_path: Path) -> None:
    """Hazard 78: the first restored topic went on."""
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        first = await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await world.publish(3)
        second = await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        assert second.id != first.id
        assert second.next_offsets[0] > first.next_offsets[0] + 3
        assert await RestoreWorld(world).rows(ORDERS) == expected(10)


async def test_the_former_topic_comes_back_within_its_grace(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        former = world.node.broker.topics.get(ORDERS).record.id
        at = await cursor_of(world)
        (cut,) = [topic for topic in root.topics if topic.name == str(ORDERS)]
        plan = RestorePlan([(cut, ORDERS)], is_in_place=True)
        replaced = await RestoreWorld(world).run_of(plan, None).replaced(root)
        restored = [await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)]
        deleted = [
            {"id": tombstone.topic.id, "until_ms": tombstone.until_ms}
            for tombstone in await world.node.broker.deleted_topics()
        ]
        (line,) = undelete_lines(replaced, restored, deleted)
        assert f"until {time_text(deleted[0]['until_ms'] * 1_000)}" in line
        assert f"`icestream topic undelete {ORDERS} --id {former}`" in line
        (unlisted,) = undelete_lines(replaced, restored, None)
        assert f"(id {former}) can come back within `broker.undelete_grace_ms`" in unlisted
        assert undelete_lines(replaced, restored, []) == [], "without a grace it cannot come back"
        assert undelete_lines(replaced, [restored[0]._replace(problem="incomplete")], deleted) == []
        await world.node.broker.delete_topic(ORDERS)
        returned = await world.node.broker.undelete_topic(ORDERS, former)
        assert (returned.record.id, returned.subscriptions) == (former, 2)
        assert returned.table is not None
        assert await cursor_of(world) == at
        assert world.node.broker.storage.shard_stream(ShardKey(former, 0)).visible == 14


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same", "restarted"])
@pytest.mark.parametrize("effect", EFFECTS, ids=str)
async def test_a_crash_before_any_step_leaves_the_old_topic_or_the_new_one(
    tmp_path: Path, effect: RestoreEffect, is_restarted: bool
) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        live, at = world.node.broker.topics.get(ORDERS).record.id, await cursor_of(world)
        with pytest.raises(Crash):
            await RestoreWorld(world).restore(root, ORDERS, is_in_place=True, on_effect=crash)
        if is_restarted:
            await world.restart()
        topic = world.node.broker.topics.get(ORDERS)
        if topic.record.id == live:
            assert sorted(topic.subscriptions) == ["late", "s"]
            assert await cursor_of(world) == at
            assert world.node.broker.storage.shard_stream(ShardKey(live, 0)).visible == 14
        else:
            assert effect in (RestoreEffect.ADOPT, RestoreEffect.END)
            assert list(topic.subscriptions) == ["s"]
        await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        assert await RestoreWorld(world).rows(ORDERS) == expected(10)
        assert await world.node.store.list_all("/restores/") == []
        assert await world.node.store.list_all("/restored_names/") == []


@pytest.mark.parametrize("is_applied", [False, True], ids=["refused", "answer lost"])
async def test_the_exchange_is_one_transaction(
    tmp_path: Path, is_applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was applied or not when the broker ends there: a start finds one topic, with its own names."""
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        live = world.node.broker.topics.get(ORDERS).record.id
        store, key = world.node.store, records.topic_key(ORDERS)
        plain = type(store).txn

        async def txn(compare: object, then: list[Operation], otherwise: list[Operation] | None = None) -> object:
            if any(isinstance(operation, Put) and operation.key == key for operation in then):
                if is_applied:
                    await plain(store, compare, then, otherwise or [])  # type: ignore[arg-type]
                raise errors.NotReady("the broker ended")
            return await plain(store, compare, then, otherwise or [])  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(store, "txn", txn)
            with pytest.raises(errors.NotReady):
                await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await world.restart()
        topic = world.node.broker.topics.get(ORDERS)
        assert (topic.record.id == live) is not is_applied
        assert sorted(topic.subscriptions) == (["s"] if is_applied else ["late", "s"])
        assert await cursor_of(world) == (3 if is_applied else 6)
        await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        assert await RestoreWorld(world).rows(ORDERS) == expected(10)


async def test_without_the_flag_a_name_that_exists_is_refused(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await damaged_after_a_backup(world)
        with pytest.raises(errors.AlreadyExists, match="--in-place"):
            await RestoreWorld(world).restore(root, ORDERS)
