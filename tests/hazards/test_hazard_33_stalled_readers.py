"""Hazard 33: a reader that stalls holds a file for 30 seconds, never the log. The next tier waits for the pipeline."""

from __future__ import annotations

import asyncio
import errno

import pytest

from icestream import errors, limits
from icestream.model import ShardKey
from icestream.runtime.tasks import InlineOffload
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_offload import HeldOffload
from tests.support.machine import A, Machine, batch, messages, publish, settle

pytestmark = pytest.mark.asyncio


async def opened(machine: Machine) -> tuple[WriteAheadLog, HeldOffload]:
    reads = HeldOffload()
    machine.offload = lambda name, count: reads if name == "wal-reads" else InlineOffload()
    return await machine.start(), reads


async def commit(log: WriteAheadLog) -> None:
    """The floor moves behind everything, as a pipeline that keeps up would move it."""
    await log.advance_floor({A: log.shard(*A).synced})
    await log.checkpoint()
    await log.checkpoint()


async def fill(log: WriteAheadLog, count: int, key: ShardKey = A) -> None:
    for _ in range(count):
        await log.submit([batch(log, key, bytes(6000))])


async def pass_time(machine: Machine, seconds: float) -> None:
    """Advances the clock and lets every sleeping task finish its work."""
    await settle()
    machine.clock.advance(seconds)
    for _ in range(5):
        await settle()


async def test_hazard_33_a_pin_older_than_30_seconds_is_broken_and_its_file_freed() -> None:
    machine = Machine()
    log, reads = await opened(machine)
    for _ in range(30):
        await publish(log, A, bytes(6000))
    reads.hold()
    reading = asyncio.ensure_future(log.reader.read(A, 0))
    await reads.until_waiting()
    files = [file.number for file in log.lifecycle.files]

    machine.clock.advance(limits.PIN_SECONDS_MAX - 0.1)
    await commit(log)
    assert [file.number for file in log.lifecycle.files] == files, (
        "a read under way keeps its file, and those behind it"
    )
    machine.clock.advance(0.2)
    await commit(log)
    assert log.lifecycle.files == []

    reads.release()
    with pytest.raises(errors.StaleRead):
        await reading


async def test_hazard_33_a_thousand_stalled_readers_do_not_block_the_log() -> None:
    machine = Machine(quota_bytes=600_000, topic_quota_bytes=600_000)
    log, reads = await opened(machine)
    for _ in range(30):
        await log.submit([batch(log, A, bytes(6000))])
    reads.hold()
    stalled = [asyncio.ensure_future(log.reader.read(A, number % 30)) for number in range(1000)]
    await reads.until_waiting(1000)

    for number in range(300):  # three times the quota passes through
        await log.submit([batch(log, A, bytes(6000))])
        machine.clock.advance(1.0)
        if number % 10 == 0:
            await commit(log)
    assert log.lifecycle.used_bytes < 400_000
    assert log.shard(*A).assigned == 330

    reads.release()
    answers = await asyncio.gather(*stalled, return_exceptions=True)
    assert all(isinstance(answer, errors.StaleRead | errors.PositionGone) for answer in answers)
    assert len(await messages(log, A)) > 0, "a reader that restarts at the beginning of the log continues"


async def test_hazard_33_a_read_releases_its_pin() -> None:
    machine = Machine()
    log, _ = await opened(machine)
    for _ in range(30):
        await publish(log, A, bytes(6000))
    await messages(log, A)
    await log.reader.offset_for_time(A, 0)
    async for _ in log.reader.follow(1):
        break
    with pytest.raises(errors.PositionGone):
        await log.reader.read(A, -5)
    await commit(log)
    assert log.lifecycle.files == [], "without any time having passed"


async def test_hazard_33_a_follower_that_is_cancelled_or_too_slow_frees_its_file() -> None:
    machine = Machine()
    log, reads = await opened(machine)
    for _ in range(30):
        await publish(log, A, bytes(6000))
    reads.hold()
    reading = asyncio.ensure_future(log.reader.read(A, 0))
    await reads.until_waiting()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await commit(log)
    assert log.lifecycle.files == []


async def test_hazard_33_consecutive_readers_hold_a_file_no_longer_than_one() -> None:
    machine = Machine()
    log, _ = await opened(machine)
    for _ in range(30):
        await publish(log, A, bytes(6000))
    oldest = log.lifecycle.files[0].number
    pins = [log.lifecycle.pins.pin(oldest)]
    for _ in range(int(limits.PIN_SECONDS_MAX)):
        await commit(log)
        assert oldest in [file.number for file in log.lifecycle.files], "the newest pin of the file is young"
        machine.clock.advance(1.0)
        pins.append(log.lifecycle.pins.pin(oldest))
        log.lifecycle.pins.release(pins[-2])
    await commit(log)
    assert log.lifecycle.files == []
    assert pins[-1].broken


@pytest.mark.parametrize("trouble", ["a pin", "the disk"])
async def test_hazard_33_files_that_cannot_be_freed_first_are_freed_later_automatically(trouble: str) -> None:
    """At the quota no file is sealed and no floor moves: nothing else would try again, and every append is refused."""
    machine = Machine(quota_bytes=200_000, topic_quota_bytes=200_000)
    log, _ = await opened(machine)
    with pytest.raises(errors.Refused):
        await fill(log, 1000)
    if trouble == "a pin":
        log.lifecycle.pins.pin(log.lifecycle.files[0].number)
    else:
        for number in range(4):
            machine.disk.fail("create", errno.EIO, number)
    await log.advance_floor({A: log.shard(*A).synced})
    assert log.lifecycle.files != []
    machine.disk.heal()
    with pytest.raises(errors.Refused):
        await log.submit([batch(log, A, bytes(6000))])
    await pass_time(machine, limits.PIN_SECONDS_MAX + 1)
    assert log.lifecycle.files == []
    await publish(log, A, bytes(6000))


async def test_hazard_33_a_follower_is_notified_when_the_log_closes() -> None:
    machine = Machine()
    log, _ = await opened(machine)
    await publish(log, A, b"first")
    lsns: list[int] = []

    async def follow() -> None:
        async for chunk in log.reader.follow(1):
            lsns.extend(record[1] for record in chunk.records)

    following = asyncio.ensure_future(follow())
    await settle()
    assert (lsns, following.done()) == ([1], False), "the follower waits for more"
    await log.close()
    with pytest.raises(errors.LogClosed):
        await asyncio.wait_for(following, 2.0)
    with pytest.raises(errors.LogClosed):  # and so is one that comes later
        await asyncio.wait_for(log.wait_released(2), 2.0)
