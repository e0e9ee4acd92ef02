"""Restores that end at any of their calls: of the broker, of the catalog, of the backup, of the warehouse.

A restore is made once without an end; from the list of its calls come the cases. Wherever it ends, what is there is the
former state or the restored one, never a half; and the same command completes it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from icestream.backup.backup_root import BackupRoot
from icestream.backup.stored_backups import StoredBackups
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.restore_run import RestoredTopic, RestorePlan, RestoreRun, restorable_topics
from icestream.processes.state_restore import RestoreScope
from tests.support.backup_world import ORDERS, BackupWorld, Crash, backup_world
from tests.support.broker_machine import quiet, subscribe
from tests.support.cut_off_calls import TARGET_CALLS, WRITER_CALLS, CutOffCalls, CutOffPoint
from tests.support.mqtt_world import connected
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
WITH_MQTT = {"mqtt": {"enable": True}}
FOREVER = 2**32 - 1
ROWS = [(offset, b"m%d" % offset) for offset in range(10)]


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine does not lose power here, and there are thousands of files."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


async def backed_up(world: BackupWorld) -> BackupRoot:
    """Ten messages, six of them in two files of a table, a subscription that acked three, an MQTT session."""
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(3)
    await world.commit(6, is_floor_moved=True)
    reader = await subscribe(world.node.broker, "s", topic=ORDERS)
    await quiet()
    reader.ack(0, 1, 2)
    await quiet()
    reader.leave()
    await world.node.broker.storage.flush_cursors()
    client = await connected(world.node.broker, "device", expiry_s=FOREVER)
    await client.subscribe("plant/#")
    await client.publish("plant/heat", b"21", is_retained=True)
    assert (await client.message()).payload == b"21"
    await quiet()
    client.lose()
    await quiet()
    return await world.back_up()


class InterruptedRestores:
    """Restores of one backup into one broker."""

    def __init__(self, world: BackupWorld, root: BackupRoot) -> None:
        self.world = world
        self.root = root

    async def run(
        self, calls: CutOffCalls, name: TopicName | None, *, is_in_place: bool = False
    ) -> list[RestoredTopic]:
        """Restores the topic under a name, or everything, with calls that are counted."""
        world = RestoreWorld(self.world)
        topics = await restorable_topics(self.world.stored(), self.root)
        if name is None:
            renamed = [(cut, TopicName.parse(cut.name)) for cut in topics]
            plan = RestorePlan(renamed, scope=RestoreScope.EMPTY, skips_existing=True)
        else:
            plan = RestorePlan([(cut, name) for cut in topics if cut.name == str(ORDERS)], is_in_place=is_in_place)
        run: RestoreRun = world.run_of(plan, None, StoredBackups(calls.of(self.world.target, *TARGET_CALLS)))
        run._call = calls.function("call", run._call)
        run._adopt = calls.function("adopt", run._adopt)
        run._writer = calls.of(run._writer, *WRITER_CALLS)
        return await run.run(self.root)

    async def strike(self, point: CutOffPoint, name: TopicName | None, *, is_in_place: bool = False) -> None:
        with pytest.raises(Crash):
            await self.run(CutOffCalls(point), name, is_in_place=is_in_place)

    def cursor(self, name: TopicName) -> int:
        topic = self.world.node.broker.topics.get(name)
        return topic.subscriptions["s"].delivery(0).cursor().offset

    async def check(self, name: TopicName, place: str) -> None:
        """The topic is whole, and no restore of it is open."""
        assert await RestoreWorld(self.world).rows(name) == ROWS, place
        assert list(self.world.node.broker.topics.get(name).subscriptions) == ["s"], place
        assert self.cursor(name) == 3, place
        assert await self.world.node.store.list_all("/restores/") == [], place
        assert await self.world.node.store.list_all("/restored_names/") == [], place

    def is_there(self, name: TopicName) -> bool:
        return self.world.node.broker.topics.find(name) is not None


def place_of(counted: CutOffCalls, point: CutOffPoint) -> str:
    return f"{'before' if point.is_before else 'after'} {point.number} {counted.names[point.number]}"


async def test_a_restore_beside_the_live_topic_ends_at_any_call_and_is_completed(tmp_path: Path) -> None:
    async with backup_world(tmp_path, **WITH_MQTT) as world:
        restores = InterruptedRestores(world, await backed_up(world))
        counted = CutOffCalls()
        await restores.run(counted, TopicName("default", "whole"))
        await restores.check(TopicName("default", "whole"), "uninterrupted")
        for number, point in enumerate(counted.points()):
            name, place = TopicName("default", f"again{number}"), place_of(counted, point)
            await restores.strike(point, name)
            if restores.is_there(name):
                assert list(world.node.broker.topics.get(name).subscriptions) == ["s"], place
                assert restores.cursor(name) == 3, place
            if await world.node.store.list_all("/restores/") or not restores.is_there(name):
                await restores.run(CutOffCalls(), name)
            await restores.check(name, place)
        assert len(counted.names) > 20


async def test_a_restore_in_place_ends_at_any_call_and_leaves_the_old_topic_or_the_new_one(tmp_path: Path) -> None:
    async with backup_world(tmp_path, **WITH_MQTT) as world:
        restores = InterruptedRestores(world, await backed_up(world))
        counted = CutOffCalls()
        await restores.run(counted, ORDERS, is_in_place=True)
        await restores.check(ORDERS, "uninterrupted")
        for point in counted.points():
            place = place_of(counted, point)
            await world.publish(2)  # to be lost
            live = world.node.broker.topics.get(ORDERS).record.id
            end = world.node.broker.storage.shard_stream(ShardKey(live, 0)).visible
            await restores.strike(point, ORDERS, is_in_place=True)
            topic = world.node.broker.topics.get(ORDERS)
            assert list(topic.subscriptions) == ["s"], place
            assert restores.cursor(ORDERS) == 3, place
            if topic.record.id == live:
                assert world.node.broker.storage.shard_stream(ShardKey(live, 0)).visible == end, place
                await restores.run(CutOffCalls(), ORDERS, is_in_place=True)
                assert world.node.broker.topics.get(ORDERS).record.id != live
            elif await world.node.store.list_all("/restores/"):
                await restores.run(CutOffCalls(), ORDERS, is_in_place=True)
                assert world.node.broker.topics.get(ORDERS).record.id == topic.record.id, "no second exchange"
            await restores.check(ORDERS, place)
        assert len(counted.names) > 20


async def restore_everything(
    source: BackupWorld, root: BackupRoot, folder: Path, point: CutOffPoint | None
) -> list[str]:
    """Restores everything into an empty broker of its own, interrupted at a point; returns the names of its calls."""
    async with backup_world(folder, **WITH_MQTT) as empty:
        empty.target = source.target
        restores = InterruptedRestores(empty, root)
        counted, place = CutOffCalls(), str(point)
        if point is None:
            await restores.run(counted, None)
        else:
            await restores.strike(point, None)
            await restores.run(counted, None)
        await restores.check(ORDERS, place)
        client = await connected(empty.node.broker, "device", clean=False, expiry_s=FOREVER)
        assert client.session is not None, place
        assert client.session.is_present, place
        panel = await connected(empty.node.broker, "panel")
        await panel.subscribe("plant/heat")
        assert (await panel.message()).payload == b"21", place
        return counted.names


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.timeout(900)
async def test_a_restore_of_everything_ends_at_any_call_and_is_completed(tmp_path: Path, stride: int) -> None:
    async with backup_world(tmp_path / "source", **WITH_MQTT) as source:
        root = await backed_up(source)
        counted = CutOffCalls()
        counted.names = await restore_everything(source, root, tmp_path / "whole", None)
        for number, point in enumerate(counted.points()[::stride]):
            await restore_everything(source, root, tmp_path / f"empty{number}", point)
            await asyncio.sleep(0)
        assert len(counted.names) > 20
