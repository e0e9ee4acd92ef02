"""Hazard 16: a full disk can always drain. What was kept for that is given up, used for draining, and taken back."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from icestream import errors, limits
from icestream.limits import KIB
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal.appender import Placed
from icestream.wal.ballast import ballast_bytes
from icestream.wal.log_file import BALLAST_NAME
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, Machine, batch, messages, settle

pytestmark = pytest.mark.asyncio
CAPACITY = 2048 * KIB
BALLAST = 384 * KIB
# As long as a prepared file waits, a disk has one more than what its records take.
FREE: dict[str, Any] = {"quota_bytes": 2**40, "topic_quota_bytes": 2**40}


def machine_with(ballast: int | None = BALLAST, **options: Any) -> Machine:
    machine = Machine(**(FREE | {"ballast_bytes": ballast} | options))
    machine.disk.capacity = CAPACITY
    return machine


async def fill(machine: Machine, log: WriteAheadLog) -> int:
    """Appends until the log refuses; returns how many messages are stored."""
    try:
        while True:
            await log.submit([batch(log, A, bytes(7000))])
    except errors.DiskFull:
        return log.shard(*A).assigned


def is_ballast_released(log: WriteAheadLog) -> bool:
    return log.lifecycle.ballast.is_released


def write(disk: SimulatedDisk, name: str, size: int) -> None:
    """Writes a file on the same disk, as a round of the pipeline does."""
    file = disk.create(name)
    try:
        file.allocate(size)
        file.sync()
    finally:
        file.close()


async def again(machine: Machine) -> None:
    """The next append may try to make a file."""
    machine.clock.advance(limits.PREPARE_RETRY_NS / 1e9)
    await settle()


async def test_hazard_16_a_full_disk_drains_by_the_ballast_which_is_restored() -> None:
    machine = machine_with()
    log = await machine.start()
    assert not is_ballast_released(log)
    assert BALLAST_NAME in machine.disk.names()
    stored = await fill(machine, log)
    assert is_ballast_released(log)
    assert machine.disk.free_bytes() >= BALLAST

    for _ in range(3):
        await again(machine)
        with pytest.raises(errors.DiskFull, match="only the emergency reserve is left"):
            await log.submit([batch(log, A, bytes(7000))])
    assert machine.disk.free_bytes() >= BALLAST, "the log does not use the ballast itself"
    write(machine.disk, "round.parquet", BALLAST * 3 // 4)
    await log.advance_floor({A: stored * 3 // 4})
    assert not is_ballast_released(log)
    assert log.lifecycle.ballast.held_bytes == BALLAST
    await again(machine)
    for _ in range(20):
        await log.submit([batch(log, A, bytes(7000))])
    stored_tail = await messages(log, A, stored * 3 // 4)
    assert sorted(stored_tail) == list(range(stored * 3 // 4, stored + 20))


async def test_hazard_16_without_a_ballast_no_space_is_left_for_draining() -> None:
    machine = machine_with(0)
    log = await machine.start()
    await fill(machine, log)
    assert BALLAST_NAME not in machine.disk.names()
    with pytest.raises(OSError, match="No space left"):
        write(machine.disk, "round.parquet", BALLAST * 3 // 4)


async def test_hazard_16_the_ballast_is_restored_only_with_space_to_spare() -> None:
    """Otherwise the log and the pipeline would take the space from each other once a second."""
    machine = machine_with()
    log = await machine.start()
    stored = await fill(machine, log)
    free = machine.disk.free_bytes()
    write(machine.disk, "round.parquet", free - BALLAST)
    await log.lifecycle.update_ballast()
    assert is_ballast_released(log)
    machine.disk.remove("round.parquet")
    await log.advance_floor({A: stored})
    assert not is_ballast_released(log)


async def test_hazard_16_a_disk_filled_by_others_uses_the_ballast() -> None:
    machine = machine_with()
    log = await machine.start()
    await log.submit([batch(log, A, b"x")])
    write(machine.disk, "others", machine.disk.free_bytes() - 10 * KIB)
    assert not is_ballast_released(log)
    await log.lifecycle.update_ballast()
    assert is_ballast_released(log)
    assert machine.disk.free_bytes() > BALLAST
    machine.disk.remove("others")
    await log.lifecycle.update_ballast()
    assert not is_ballast_released(log)


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("end", ["kill", "power_loss"])
async def test_hazard_16_a_full_disk_can_start_and_drain(end: str, is_used: bool) -> None:
    machine = machine_with()
    log = await machine.start()
    stored = await fill(machine, log)
    if is_used:
        write(machine.disk, "round.parquet", machine.disk.free_bytes() - 70 * KIB)
        machine.disk.sync()
    await getattr(machine, end)()
    log = await machine.start()
    assert is_ballast_released(log)
    await log.advance_floor({A: stored})
    assert not is_ballast_released(log)
    await again(machine)
    (placed,) = await log.submit([batch(log, A, b"next")])
    assert placed == Placed(stored, log.state.lsn)


@pytest.mark.parametrize("ballast", [0, BALLAST])
async def test_hazard_16_a_start_without_room_for_its_own_work_uses_the_ballast(ballast: int) -> None:
    machine = machine_with(ballast)
    log = await machine.start()
    for _ in range(8):
        await log.submit([batch(log, A, bytes(7000))])
    await machine.kill()
    machine.disk.fail("write", errno.ENOSPC)  # the copy of what was not sealed
    started = await machine.try_start()
    if ballast:
        assert isinstance(started, WriteAheadLog), started
        assert len(await messages(started, A)) == 8
        assert ("remove", BALLAST_NAME) in machine.disk.operations
    else:
        assert isinstance(started, errors.DiskFull)


@pytest.mark.parametrize("damage", ["short", "long", "off"])
async def test_hazard_16_a_start_corrects_the_ballast_it_finds(damage: str) -> None:
    machine = machine_with()
    log = await machine.start()
    await log.close()
    if damage == "off":
        machine.options = replace(machine.options, ballast_bytes=0)
    else:
        machine.disk.replace(BALLAST_NAME, bytes(100 if damage == "short" else BALLAST + 100))
    log = await machine.start()
    sizes = {name: len(machine.disk.content(name)) for name in machine.disk.names() if name == BALLAST_NAME}
    assert sizes == ({} if damage == "off" else {BALLAST_NAME: BALLAST})
    assert not is_ballast_released(log)


@pytest.mark.parametrize("operation", ["create", "allocate"])
async def test_hazard_16_a_failed_ballast_is_retried(operation: str) -> None:
    machine = machine_with()
    log = await machine.start()
    write(machine.disk, "others", machine.disk.free_bytes() - 10 * KIB)
    await log.lifecycle.update_ballast()
    machine.disk.remove("others")
    machine.disk.fail(operation, errno.EIO)
    await log.lifecycle.update_ballast()
    assert is_ballast_released(log)
    assert BALLAST_NAME not in machine.disk.names()
    await log.lifecycle.update_ballast()
    assert not is_ballast_released(log)


async def test_hazard_16_spare_files_give_way_to_the_ballast() -> None:
    machine = machine_with()
    log = await machine.start()
    stored = await fill(machine, log)
    write(machine.disk, "round.parquet", BALLAST * 3 // 4)
    await log.advance_floor({A: stored})
    assert not is_ballast_released(log)
    spares = [name for name in machine.disk.names() if name.startswith("spare-")]
    assert len(spares) >= 1


@pytest.mark.parametrize(
    ("configured", "quota", "free", "size"),
    [
        (None, 100 * limits.GIB, 200 * limits.GIB, limits.BALLAST_BYTES_MAX_DEFAULT),
        (None, 400 * limits.MIB, 200 * limits.GIB, 100 * limits.MIB),
        (5 * limits.GIB, 100 * limits.GIB, 200 * limits.GIB, 5 * limits.GIB),
        (5 * limits.GIB, 100 * limits.GIB, 4 * limits.GIB, limits.GIB),
        (0, 100 * limits.GIB, 200 * limits.GIB, 0),
    ],
)
async def test_hazard_16_its_size_follows_the_quota(configured: int | None, quota: int, free: int, size: int) -> None:
    assert ballast_bytes(configured, quota, free, 0) == size
