"""Hazard 32: a clock that steps neither hides messages from a start by time nor poisons the log.

The lake's bounds, retention by time and leases wait for the pipeline and the cluster.
"""

from __future__ import annotations

import itertools
import random

import pytest

from icestream import errors, limits
from icestream.model import ShardKey
from icestream.observability import metrics
from icestream.wal.format import ENTRY_BYTES, HEADER_BYTES, RECORDS_START
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, Machine, batch, publish

pytestmark = pytest.mark.asyncio
HOUR, YEAR = 3600.0, 365 * 86_400.0
STEPS = [-HOUR, +YEAR, -YEAR, -3.0]


async def stamps(log: WriteAheadLog) -> list[int]:
    """The append time of each message, by a linear read."""
    times: list[int] = []
    at = 0
    while at < log.shard(*A).written:
        result = await log.reader.read(A, at, 200_000)
        times += [section.append_time_us for section in result.sections for _ in range(section.rows)]
        at = result.next_offset
    return times


async def check_times(log: WriteAheadLog, chance: random.Random) -> None:
    """Compares lookups by time with a linear scan."""
    times = await stamps(log)
    probes = {time + aside for time in chance.sample(times, min(len(times), 40)) for aside in (-1, 0, 1)}
    probes |= {min(times) - 1, max(times), max(times) + 1, 0, 2**62, -(2**62)}
    for time_us in probes:
        oracle = next((offset for offset, stamp in enumerate(times) if stamp >= time_us), len(times))
        assert await log.reader.offset_for_time(A, time_us) == oracle, f"start at {time_us}"


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS))[::5], ids=str)
async def test_hazard_32_a_start_by_time_is_right_whatever_the_clock_did(order: tuple[float, ...]) -> None:
    chance = random.Random(repr(order))
    machine = Machine(file_bytes=256 * limits.KIB, message_bytes_max=20_000)
    log = await machine.start()
    for step in (*order, 0.0):
        for _ in range(30):
            await publish(log, A, *[bytes(chance.randrange(4000))] * chance.randrange(1, 3))
            machine.clock.advance(chance.choice((0.0, 0.001, 0.7)))
        machine.clock.step(step)
    assert len(log.lifecycle.files) >= 1
    await check_times(log, chance)
    await machine.kill()
    log = await machine.start()
    await check_times(log, chance)
    await publish(log, A, b"after the restart")
    await log.close()
    log = await machine.start()
    await check_times(log, chance)


async def test_hazard_32_small_steps_back_are_clamped_large_ones_are_stored_and_counted() -> None:
    machine = Machine()
    log = await machine.start()
    counted = metrics.CLOCK_STEPS_BACK._value.get()
    start = machine.clock.wall_us()
    expected = []
    for step, stamp, large in (
        (0.0, 0, False),
        (-3.0, 0, False),  # clamped to the last value
        (-1.0, 0, False),
        (+10.0, 6_000_000, False),
        (-HOUR, 6_000_000 - 3_600_000_000, True),  # stored as it is
        (+YEAR, 6_000_000 - 3_600_000_000 + int(YEAR * 1e6), False),
        (-YEAR, 6_000_000 - 3_600_000_000, True),  # a jump forward and back does not stay for ever
        (+1.0, 7_000_000 - 3_600_000_000, False),
    ):
        machine.clock.step(step)
        await publish(log, A, b"x")
        expected.append(start + stamp)
        if large:
            counted += 1
        assert metrics.CLOCK_STEPS_BACK._value.get() == counted, f"after a step of {step} s"
    assert await stamps(log) == expected
    assert log.shard(*A).clock_steps == 2


async def test_hazard_32_the_clamp_holds_over_a_restart() -> None:
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"before")
    await machine.kill()
    machine.clock.step(-3.0)
    log = await machine.start()
    await publish(log, A, b"after")
    first, second = await stamps(log)
    assert first == second
    await log.checkpoint()
    await machine.kill()
    machine.clock.step(-1.0)
    log = await machine.start()
    await publish(log, A, b"after the checkpoint")
    assert await stamps(log) == [first] * 3


async def test_hazard_32_one_tick_has_one_time() -> None:
    machine = Machine()
    log = await machine.start()
    answers = [log.submit([batch(log, ShardKey(1, shard), b"x")]) for shard in range(3)]
    for answer in answers:
        await answer
    times = {log.shard(1, shard).append_time_us for shard in range(3)}
    assert times == {machine.clock.wall_us()}


async def test_hazard_32_pins_and_retries_do_not_use_the_wall_clock() -> None:
    machine = Machine()
    log = await machine.start()
    pin = log.lifecycle.pins.pin(1)
    machine.clock.step(+YEAR)
    for _ in range(30):
        await publish(log, A, bytes(6000))
    await log.advance_floor({A: log.shard(*A).synced})
    await log.checkpoint()
    await log.checkpoint()
    assert not pin.broken, "a wall clock that jumps a year ahead breaks no pin"
    machine.clock.advance(limits.PIN_SECONDS_MAX + 1)
    await log.checkpoint()
    assert pin.broken


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_hazard_32_a_flipped_timestamp_is_damage_and_not_a_start_position(is_sealed: bool) -> None:
    machine = Machine()
    log = await machine.start()
    for _ in range(3):
        await publish(log, A, b"x")
        machine.clock.advance(1.0)
    number, _ = log.appender.open_files()[0]
    if is_sealed:
        while not log.lifecycle.files:
            await publish(log, A, bytes(6000))
    first = (await stamps(log))[0]
    file = machine.disk.open(log_name(number))
    # the first record's directory: the topic's name, then the section; its append time is at byte 32
    place = RECORDS_START + HEADER_BYTES + ENTRY_BYTES + 32
    assert file.read_at(place, 8) == first.to_bytes(8, "little")
    file.write_at(place, (first + 60_000_000).to_bytes(8, "little"))
    with pytest.raises(errors.LogDamaged, match="offsets 0 to 0"):
        await log.reader.offset_for_time(A, first + 1)
