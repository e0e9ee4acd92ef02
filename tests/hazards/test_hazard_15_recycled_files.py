"""Hazard 15: a file that is recycled under a reader gives StaleRead, never the bytes of other messages.

Slow sockets, HTTP ranges and the whole path to a consumer wait for delivery and the front ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from icestream import errors, limits
from icestream.model import ShardKey
from icestream.runtime.tasks import InlineOffload, Offload, ThreadOffload
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.gated_directory import GatedDirectory
from tests.support.held_offload import HeldOffload
from tests.support.machine import A, B, Machine, messages, publish

pytestmark = pytest.mark.asyncio
FIRST = "log-0000000000000001.wal"


async def first_record(log: WriteAheadLog) -> int:
    """A follower's first step: how many records it saw."""
    async for chunk in log.reader.follow(1):
        return len(chunk.records)
    return 0


def in_the_past(machine: Machine) -> int:
    return machine.clock.wall_us() - 10_000_000_000


READS: dict[str, Callable[[Machine, WriteAheadLog], Awaitable[object]]] = {
    "read": lambda machine, log: log.reader.read(A, 0),
    "read the middle": lambda machine, log: log.reader.read(A, 4, 2000),
    "offset for time": lambda machine, log: log.reader.offset_for_time(A, in_the_past(machine)),
    "follow": lambda machine, log: first_record(log),
}


async def fill(log: WriteAheadLog, key: ShardKey, value: bytes, count: int = 30) -> None:
    for _ in range(count):
        await publish(log, key, value * 5000)


async def recycle_the_first_file(machine: Machine, log: WriteAheadLog, by: ShardKey) -> None:
    """Breaks the pin, frees the file, and writes records of the same sizes over it."""
    machine.clock.advance(limits.PIN_SECONDS_MAX + 1)
    await log.advance_floor({key: shard.synced for key, shard in log.state.shards.items()})
    await log.checkpoint()
    await log.checkpoint()
    assert FIRST not in machine.disk.names()
    await fill(log, by, b"z", 60)


@pytest.mark.parametrize("by", [A, B], ids=["the same topic", "another topic"])
@pytest.mark.parametrize("reads_before", range(4))
@pytest.mark.parametrize("what", READS)
async def test_hazard_15_a_file_recycled_in_the_middle_of_a_read_is_stale(
    what: str, reads_before: int, by: ShardKey
) -> None:
    machine = Machine()
    gate = machine.view = GatedDirectory(machine.disk)
    log = await open_threaded(machine)
    try:
        await fill(log, A, b"a")
        assert log.lifecycle.files[0].number == 1
        gate.hold(reads_before)
        reading = asyncio.ensure_future(READS[what](machine, log))
        reached = asyncio.ensure_future(gate.wait_reached())
        await asyncio.wait({reading, reached}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():  # it needs fewer reads than that
            gate.let_go()
            reached.cancel()
            assert reads_before > 0
            await reading
            return
        await recycle_the_first_file(machine, log, by)
        gate.let_go()
        with pytest.raises(errors.StaleRead):
            await reading
    finally:
        gate.let_go()
        await log.close()


async def open_threaded(machine: Machine) -> WriteAheadLog:
    machine.offload = ThreadOffload
    return await machine.start()


@pytest.mark.parametrize("what", READS)
async def test_hazard_15_a_file_recycled_before_a_read_begins_is_stale(what: str) -> None:
    machine, reads = Machine(), HeldOffload()

    def offload(name: str, count: int) -> Offload:
        return reads if name == "wal-reads" else InlineOffload()

    machine.offload = offload
    log = await machine.start()
    await fill(log, A, b"a")
    reads.hold()
    reading = asyncio.ensure_future(READS[what](machine, log))
    await reads.until_waiting()
    await recycle_the_first_file(machine, log, A)
    reads.release()
    with pytest.raises(errors.StaleRead, match="was recycled") as stale:
        await reading
    assert stale.value.retryable
    with pytest.raises(errors.PositionGone):
        await log.reader.read(A, 0)


async def test_hazard_15_a_young_pin_keeps_its_file() -> None:
    machine, reads = Machine(), HeldOffload()
    machine.offload = lambda name, count: reads if name == "wal-reads" else InlineOffload()
    log = await machine.start()
    await fill(log, A, b"a")
    reads.hold()
    reading = asyncio.ensure_future(log.reader.read(A, 0))
    await reads.until_waiting()
    machine.clock.advance(limits.PIN_SECONDS_MAX - 1)
    await log.advance_floor({A: log.shard(*A).synced})
    await log.checkpoint()
    await log.checkpoint()
    assert FIRST in machine.disk.names()
    reads.release()
    result = await reading
    assert result.sections[0].base_offset == 0
    await log.advance_floor({A: log.shard(*A).synced})
    assert FIRST not in machine.disk.names(), "the file is freed after the read"


async def test_hazard_15_a_read_returns_a_copy() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, A, b"a")
    result = await log.reader.read(A, 0)
    before = [bytes(section.body) for section in result.sections]
    await recycle_the_first_file(machine, log, B)
    assert [section.body for section in result.sections] == before
    assert all(isinstance(section.body, bytes) for section in result.sections)
    assert set((await messages(log, B)).values()) == {b"z" * 5000}
