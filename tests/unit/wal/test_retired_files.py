"""Retirement of log files for an erasure: no byte of before stays on the disk, and no message of after is lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from icestream import limits
from icestream.model import ShardKey, TopicIdentity, envelope
from icestream.model.block import encode_block
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal.appender import Placed
from icestream.wal.log_file import spill_number
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch

pytestmark = pytest.mark.asyncio
ERASED, OTHER = ShardKey(1, 0), ShardKey(2, 0)
CANARY = b"canary-of-alice"
# Nothing is kept warm: files become spares as soon as they may.
OPTIONS = LogOptions(file_bytes=64 * 1024, warm_ms=0, spare_files=0)


async def open_log(disk: SimulatedDisk) -> WriteAheadLog:
    log = await open_log_on(disk, OPTIONS, {}, SimulatedClock(), SeededRandomness(1), InlineSink())
    log.declare_topic(TopicIdentity(1, "/default/a"))
    log.declare_topic(TopicIdentity(2, "/default/b"))
    return log


async def publish(log: WriteAheadLog, key: ShardKey, payload: bytes, rows: int = 1) -> None:
    block = encode_block(rows, {envelope.PAYLOAD: [payload + b"x" * 900] * rows})
    await log.append([log.batch(log.shard(*key), block)])


def places(disk: SimulatedDisk, text: bytes) -> list[str]:
    """The files that have the text, as a raw reader of the disk sees them."""
    found = []
    for name in disk.names():
        file = disk.open(name)
        if text in file.read_at(0, file.size()):
            found.append(name)
        file.close()
    return found


async def test_no_old_byte_stays_on_the_disk() -> None:
    disk = SimulatedDisk(1)
    log = await open_log(disk)
    # Several files, of which some become spares, and the present and the prepared one are made of spares.
    for _ in range(40):
        await publish(log, ERASED, CANARY, 10)
        await log.advance_floor({ERASED: log.shard(*ERASED).written})
    assert places(disk, CANARY)
    await log.sync()
    await log.advance_floor({ERASED: log.shard(*ERASED).synced})
    await log.retire_files()
    assert not log.lifecycle.files_below({ERASED: log.shard(*ERASED).synced})
    assert places(disk, CANARY) == []
    await log.close()


async def test_files_that_another_topic_needs_are_named() -> None:
    disk = SimulatedDisk(1)
    log = await open_log(disk)
    await publish(log, ERASED, CANARY)
    await publish(log, OTHER, b"waits")
    await log.advance_floor({ERASED: 1})
    await log.retire_files()
    assert len(log.lifecycle.files_below({ERASED: 1})) == 1
    assert places(disk, CANARY)
    await log.advance_floor({OTHER: 1})
    await log.retire_files(log.lifecycle.retired_below)
    assert log.lifecycle.files_below({ERASED: 1}) == []
    assert places(disk, CANARY) == []
    await log.close()


async def test_spill_files_of_the_topic_go_with_its_floor() -> None:
    """What a topic without progress had was copied to its spill log, and log files of before became free."""
    machine = Machine(quota_bytes=1_000_000, topic_quota_bytes=500_000)
    log = await machine.start()
    for _ in range(40):
        await log.submit([batch(log, B, CANARY + bytes(200))])
        (placed,) = await log.submit([batch(log, A, bytes(7_000))])
        assert isinstance(placed, Placed)
        await log.advance_floor({A: placed.base_offset + 1})
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step()
    (spill,) = (name for name in machine.disk.names() if spill_number(name) is not None)
    assert spill in places(machine.disk, CANARY)
    end = log.shard(*B).synced
    await log.retire_files()
    assert log.lifecycle.files_below({B: end}), "as long as its messages are in no table"
    assert places(machine.disk, CANARY)
    await log.advance_floor({B: end})
    await log.retire_files(log.lifecycle.retired_below)
    assert log.lifecycle.files_below({B: end}) == []
    assert places(machine.disk, CANARY) == []


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_the_log_goes_on_after_a_retirement(ending: str) -> None:
    disk = SimulatedDisk(1)
    log = await open_log(disk)
    await publish(log, ERASED, CANARY, 3)
    await log.advance_floor({ERASED: 3})
    for _ in range(3):  # again, also while no record came in between
        await log.retire_files()
    if ending == "crash":
        await log.abort()
        log = await open_log(disk)
        assert places(disk, CANARY) == []
    await publish(log, ERASED, b"after", 2)
    await publish(log, OTHER, b"after")
    await log.retire_files()
    await publish(log, OTHER, b"again")
    if ending == "close":
        await log.close()
    else:
        await log.abort()
    log = await open_log(disk)
    assert (log.shard(*ERASED).written, log.shard(*OTHER).written) == (5, 2)
    assert [(await log.reader.read(OTHER, offset)).next_offset for offset in (0, 1)] == [1, 2]
    assert places(disk, CANARY) == []
    await log.close()


async def test_appends_go_on_during_a_retirement() -> None:
    disk = SimulatedDisk(1)
    log = await open_log(disk)
    await publish(log, ERASED, CANARY)

    async def append_some() -> None:
        for _ in range(50):
            await publish(log, OTHER, b"beside", 5)

    await asyncio.gather(append_some(), log.retire_files(), append_some())
    assert log.shard(*OTHER).written == 500
    await log.close()
    log = await open_log(disk)
    assert log.shard(*OTHER).written == 500
    await log.close()


@pytest.mark.parametrize("is_needed", [True, False], ids=["needed", "free"])
@pytest.mark.parametrize("seed", range(3))
async def test_power_may_fail_at_any_operation_of_a_retirement(seed: int, is_needed: bool) -> None:
    """What was acked and is not below a floor is there afterwards, and the retirement, repeated, leaves no old byte."""
    operations, is_complete = 0, False
    while not is_complete:
        operations += 1
        disk = SimulatedDisk(seed)
        log = await open_log(disk)
        for _ in range(12):
            await publish(log, ERASED, CANARY, 10)
            await log.advance_floor({ERASED: log.shard(*ERASED).synced})
        await publish(log, OTHER, b"kept", 3)
        await log.checkpoint()
        if not is_needed:
            log.state.shards[OTHER].floor = 3  # the files may go with the next checkpoints
        disk.crash_after(operations)
        try:
            await log.retire_files()
            is_complete = True
        except Crash:
            pass
        with contextlib.suppress(Crash):
            await log.abort()
        disk.power_loss()
        log = await open_log(disk)
        assert (log.shard(*ERASED).written, log.shard(*OTHER).written) == (120, 3)
        if is_needed:
            assert (await log.reader.read(OTHER, 0)).next_offset == 3
        await log.advance_floor({ERASED: 120, OTHER: 3})
        await log.retire_files()
        assert places(disk, CANARY) == []
        await log.close()
    assert operations >= (8 if is_needed else 20)
