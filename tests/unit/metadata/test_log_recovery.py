"""The metadata log after any end: what was answered is there, and nothing is there by half.

Every step of a life as the last one, with the process killed or the power lost, and every failing operation.
"""

from __future__ import annotations

import errno

import pytest

from icestream import errors
from icestream.metadata.node_store import NodeStore
from tests.support.metadata_machine import MetadataMachine, contents, settle
from tests.support.metadata_world import MetadataWorld, live, together


async def whole_life(machine: MetadataMachine, world: MetadataWorld) -> None:
    store = await machine.open()
    await store.ready()
    await live(store, world)
    await store.close()


async def steps_of_a_life() -> int:
    machine = MetadataMachine()
    await whole_life(machine, MetadataWorld())
    return len(machine.disk.operations)


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["kill", "power loss"])
async def test_recovery_may_be_interrupted_at_any_step(end: str) -> None:
    steps = await steps_of_a_life()
    assert steps > 100
    for step in range(steps):
        machine, world = MetadataMachine(seed=step), MetadataWorld()
        machine.disk.crash_after(step)
        assert not await machine.survives(whole_life(machine, world))
        await machine.end(end)
        await check_restart(machine, world)


async def check_restart(machine: MetadataMachine, world: MetadataWorld) -> NodeStore:
    """Everything is there, it can be used, and it is still there after the next power loss."""
    store = await machine.start()
    world.check(store)
    await together(world.put(store, "/k/0"), world.put_pairs(store), world.allocate(store))
    await machine.power_loss()
    store = await machine.start()
    world.check(store)
    return store


@pytest.mark.asyncio
async def test_hazard_06_a_start_may_end_at_any_step_and_any_number_of_times() -> None:
    finished, step = False, 0
    while not finished:
        machine, world = MetadataMachine(seed=step), MetadataWorld()
        store = await machine.start()
        await live(store, world)
        await machine.power_loss()
        before_step = step
        while True:
            machine.disk.crash_after(before_step)
            finished = await machine.survives(until_ready(machine))
            if finished or before_step == 0:
                break
            await machine.end("kill" if before_step % 2 else "power loss")
            before_step //= 2
        await machine.power_loss()
        await check_restart(machine, world)
        step += 1
    assert step > 5


async def until_ready(machine: MetadataMachine) -> None:
    await (await machine.open()).ready()


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", ["sync", "write", "sync_directory", "rename", "remove", "create"])
async def test_hazard_06_any_failing_operation_loses_no_answer(operation: str) -> None:
    after = happened = 0
    while True:
        machine, world = MetadataMachine(seed=after), MetadataWorld()
        store = await machine.start()
        machine.disk.operations.clear()
        machine.disk.fail(operation, errno.EIO, after)
        try:
            await live(store, world)
        except (errors.IcestreamError, OSError):
            await settle()
        done = [name for name, _ in machine.disk.operations].count(operation)
        await machine.kill()
        store = await machine.start()
        world.check(store)
        await machine.power_loss()
        world.check(await machine.start())
        if done <= after:
            break
        happened += 1
        after += 1
    assert happened >= 2


@pytest.mark.asyncio
async def test_hazard_06_pages_cached_at_a_kill_are_on_disk_once_a_start_has_shown_them() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    world = MetadataWorld()
    await world.put(store, "/a")
    machine.disk.fail("sync", errno.EIO)
    await world.put(store, "/b")
    assert store.stopped is not None
    await store.close()
    await machine.kill()
    store = await machine.start()
    assert store.report.sync_failed_before
    state = await contents(store)
    assert "/b" in state, "the cache still shows it"
    await machine.power_loss()
    assert await contents(await machine.start()) == state


@pytest.mark.asyncio
async def test_hazard_06_nothing_is_appended_to_an_existing_file() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await store.put("/a", b"")
    await machine.kill()
    old = "log-0000000000000001.wal"
    machine.disk.operations.clear()
    store = await machine.start()
    await store.put("/b", b"")
    assert store.report.rewritten_file == old
    assert ("write", old) not in machine.disk.operations
    assert old not in machine.disk.names()
