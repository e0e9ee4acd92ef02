"""Hazard 42: with `align_bytes` every record starts on a sector of its own, so a torn rewrite hits nothing acked."""

from __future__ import annotations

import random

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.wal import format as wire
from icestream.wal.damage import plan_repair
from icestream.wal.log_file import SEAL_POSITION, SECTOR, log_name, log_number
from icestream.wal.log_repair import apply_repair
from tests.support.held_sink import HeldSink
from tests.support.machine import A, B, Machine, batch, messages, publish, turn

pytestmark = pytest.mark.asyncio
SECTORS = pytest.mark.parametrize("sector", [512, 4096])


def record_places(content: bytes, number: int) -> list[tuple[int, int]]:
    """Start and end of each record of a file, footer included."""
    places, at = [], wire.RECORDS_START
    while at + wire.HEADER_BYTES <= len(content) and content[at : at + 4] == wire.MAGIC_BYTES:
        header = wire.decode_header(content, at, at)
        if header.generation != number:
            break
        places.append((at, at + header.record_bytes))
        at += header.record_bytes
    return places


@SECTORS
@pytest.mark.parametrize("mode", list(SyncMode))
async def test_hazard_42_every_record_starts_on_a_sector_of_its_own(sector: int, mode: SyncMode) -> None:
    chance = random.Random(sector)
    machine = Machine(align_bytes=sector, mode=mode)
    log = await machine.start()
    stored = {}
    for number in range(60):
        value = b"%d." % number + bytes(chance.randrange(5000))
        stored[await publish(log, A, value)] = value
        if number % 5 == 0:
            await log.append([batch(log, A, b""), batch(log, B, bytes(chance.randrange(300)))])
    count = 0
    for name in machine.disk.names():
        if number := log_number(name) or 0:
            places = record_places(machine.disk.content(name), number)
            assert all(start % sector == 0 for start, _ in places), name
            count += len(places)
    assert count > 70
    await machine.kill()
    log = await machine.start()
    assert stored.items() <= (await messages(log, A)).items()


@SECTORS
@pytest.mark.parametrize("seed", range(6))
async def test_hazard_42_a_sector_torn_during_a_rewrite_holds_no_acked_record(sector: int, seed: int) -> None:
    """The disk promises less than format.py assumes without alignment: of a sector in flight nothing is left."""
    chance = random.Random(seed)
    machine, sink = Machine(align_bytes=sector), HeldSink()
    log = await machine.start(sink=sink)
    acked = {}
    for number in range(3):
        value = b"%d." % number + bytes(chance.randrange(700))
        log.submit([batch(log, A, value)])
        await turn(log, sink)
        acked[number] = value
    log.submit([batch(log, A, b"in flight" + bytes(chance.randrange(700)))])
    await turn(log, sink, 1)
    await machine.kill()

    name = log_name(1)
    content = machine.disk.content(name)
    start, end = record_places(content, 1)[-1]
    first, last = start // sector * sector, -(-end // sector) * sector
    machine.disk.replace(name, content[:first] + chance.randbytes(last - first) + content[last:])
    log = await machine.start()
    assert await messages(log, A) == acked
    assert await publish(log, A, b"next") == 3


@SECTORS
async def test_hazard_42_a_sector_torn_during_sealing_holds_nothing_a_start_needs(
    sector: int,
) -> None:
    machine, sink = Machine(align_bytes=sector), HeldSink()
    log = await machine.start(sink=sink)
    for number in range(7):
        log.submit([batch(log, A, b"%d" % number + bytes(7000))])
        await turn(log, sink)
    acked = await messages(log, A)
    name = log_name(1)
    log.submit([batch(log, A, bytes(7900))])  # does not fit: the file is sealed
    while not machine.disk.content(name)[SEAL_POSITION : SEAL_POSITION + SECTOR].strip(b"\0"):
        assert await turn(log, sink, 1)
    await machine.kill()

    content = machine.disk.content(name)
    first = SEAL_POSITION // sector * sector
    torn = random.Random(sector).randbytes(sector)
    machine.disk.replace(name, content[:first] + torn + content[first + sector :])
    if first == 0:  # the header went with it: reported, and made anew from the records (format.py, SECTORS)
        with pytest.raises(errors.LogDamaged, match="icestream wal repair"):
            await machine.start()
        await machine.kill()
        plan = plan_repair(machine.disk)
        assert not plan.gaps
        apply_repair(machine.disk, machine.clock, plan)
    log = await machine.start()
    assert acked.items() <= (await messages(log, A)).items()


async def test_hazard_42_without_alignment_records_share_sectors() -> None:
    """Why the setting exists; and that the tests above would notice if it did nothing."""
    machine = Machine(align_bytes=8)
    log = await machine.start()
    for _ in range(10):
        await publish(log, A, b"small")
    places = record_places(machine.disk.content(log_name(1)), 1)
    assert any(start % 512 for start, _ in places)
