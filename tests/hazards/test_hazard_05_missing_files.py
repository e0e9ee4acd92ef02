"""Hazard 5, log files that were deleted: no hole in the LSNs tells of the newest one.

real order    a prepared file gets its header before the first record of the current file is synced, so `synced_through`
              proves nothing: `current` of its header, `next_number` of a seal and the checkpoint of the start do
every set     of deleted log files either costs nothing or is reported, after a kill and after a clean stop
repair        lists and declares what is gone, and no offset is given out twice
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from icestream import errors
from icestream.model import ShardKey, SyncMode
from icestream.model.shard import GapState
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.damage import plan_repair
from icestream.wal.format import RECORDS_START
from icestream.wal.inspect import view_log
from icestream.wal.log_file import (
    SEAL_POSITION,
    SECTOR,
    checkpoint_parts,
    decode_header,
    decode_seal,
    encode_header,
    encode_seal,
    log_number,
)
from icestream.wal.log_repair import apply_repair
from icestream.wal.survey import survey
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, B, Machine, batch, messages, publish, settle, turn
from tests.support.sample_logs import LOGS, picture
from tests.support.small_log import LogImage, contents, open_small, read_shard

MODES = pytest.mark.parametrize("mode", list(SyncMode), ids=[mode.value for mode in SyncMode])


async def append_slowly(log: WriteAheadLog, sink: HeldSink, key: ShardKey, *payloads: bytes) -> None:
    """Appends as the native thread works: the next file is prepared before the record of this call is synced."""
    appended = asyncio.ensure_future(log.append([batch(log, key, *payloads)]))
    await settle()
    await turn(log, sink)
    await appended


async def killed_machine(mode: SyncMode, lives: int = 1, records: int = 3, size: int = 10) -> Machine:
    machine = Machine(mode=mode)
    for life in range(lives):
        sink = HeldSink()
        log = await machine.start(sink=sink)
        for record in range(records):
            await append_slowly(log, sink, A, f"{life}.{record}".encode().ljust(size, b"x"))
            await append_slowly(log, sink, B, f"{life}.{record}".encode())
        await turn(log, sink)
        await machine.kill()
    return machine


def log_names(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if log_number(name) is not None]


def delete(disk: SimulatedDisk, *names: str) -> None:
    for name in names:
        disk.remove(name)
    disk.sync()


def holds_records(disk: SimulatedDisk, name: str) -> bool:
    return disk.content(name)[RECORDS_START : RECORDS_START + 4] == b"ISWR"


@MODES
@pytest.mark.asyncio
async def test_hazard_05_deleting_the_current_file_before_a_prepared_one_is_damage(mode: SyncMode) -> None:
    machine = await killed_machine(mode)
    current = next(name for name in log_names(machine.disk) if holds_records(machine.disk, name))
    prepared = next(name for name in log_names(machine.disk) if name > current)
    delete(machine.disk, current)
    before = contents(machine.disk)
    with pytest.raises(errors.LogDamaged, match=rf"{current} is missing: {prepared} was prepared") as raised:
        await machine.start()
    assert "icestream wal repair" in raised.value.hint
    assert contents(machine.disk) == before
    assert view_log(machine.disk).damage is not None


@pytest.mark.parametrize(
    ("mode", "lives"), [(SyncMode.ALWAYS, 1), (SyncMode.ALWAYS, 2), (SyncMode.PERIODIC, 1), (SyncMode.NONE, 1)]
)
@pytest.mark.asyncio
async def test_hazard_05_all_log_files_deleted_are_damage(mode: SyncMode, lives: int) -> None:
    """The checkpoint of the start names the file that was to get the first record."""
    machine = await killed_machine(mode, lives)
    delete(machine.disk, *log_names(machine.disk))
    with pytest.raises(errors.LogDamaged):
        await machine.start()


@MODES
@pytest.mark.asyncio
async def test_hazard_05_the_current_and_the_prepared_file_deleted_are_damage(mode: SyncMode) -> None:
    """The seal of the file before them says where the log goes on."""
    machine = await killed_machine(mode, records=20, size=6000)
    sealed = [
        name for name in log_names(machine.disk) if decode_seal(machine.disk.content(name)[512:], log_number(name) or 0)
    ]
    newer = [name for name in log_names(machine.disk) if name > sealed[-1]]
    assert len(newer) == 2
    delete(machine.disk, *newer)
    with pytest.raises(errors.LogDamaged, match=rf"{newer[0]} is missing: the seal of {sealed[-1]} says"):
        await machine.start()


# Of this one the checkpoints are lost already: nothing is left that knows of the files of its last life.
NAMES = pytest.mark.parametrize("name", [name for name in LOGS if name != "killed often"])


def sets_of_files(drawn: LogImage, newest: int) -> list[tuple[str, ...]]:
    """Every combination of the newest log files."""
    logs = drawn.logs()[-newest:]
    return [some for size in range(1, len(logs) + 1) for some in itertools.combinations(logs, size)]


@NAMES
def test_hazard_05_every_set_of_deleted_log_files_is_reported_or_harmless(name: str) -> None:
    drawn = picture(name)
    sets = sets_of_files(drawn, 5)

    async def check(gone: tuple[str, ...]) -> None:
        disk = drawn.disk()
        delete(disk, *gone)
        try:
            log = await open_small(disk, drawn.mode)
        except errors.LogDamaged:
            return
        for key, acked in drawn.acked.items():
            stored = await read_shard(log, key)
            lost = [offset for offset, payload in acked.items() if stored.get(offset) != payload]
            assert not lost, f"{gone} deleted: {lost} of {key} are gone, and the start did not report it"

    for gone in sets:
        asyncio.run(check(gone))


@NAMES
def test_hazard_05_a_repair_declares_the_messages_of_deleted_files_and_reuses_no_offset(name: str) -> None:
    drawn = picture(name)
    sets = sets_of_files(drawn, 4)
    positions = dict.fromkeys(drawn.acked, 0)  # the metadata store knows the shards

    async def check(gone: tuple[str, ...]) -> None:
        disk = drawn.disk()
        delete(disk, *gone)
        if view_log(disk).damage is None:
            return
        apply_repair(disk, Machine().clock, plan_repair(disk))
        assert not plan_repair(disk).is_needed
        log = await open_small(disk, drawn.mode, positions)
        for key, acked in drawn.acked.items():
            stored = await read_shard(log, key)
            gaps = [gap for gap in log.gaps(key) if gap.state is GapState.LOST]
            for offset in acked.keys() - stored.keys():
                declared = any(gap.start <= offset < gap.end for gap in gaps)
                assert declared, f"{gone} deleted: offset {offset} of {key} is gone and not declared"
            assert log.state.shards[key].assigned > max(acked), f"{gone} deleted: {key} gives offsets out again"

    for gone in sets:
        asyncio.run(check(gone))


# --- no false damage --------------------------------------------------------------------------------------------------


async def unused(machine: Machine) -> None:
    await machine.start()
    await machine.kill()


async def stopped(machine: Machine) -> None:
    log = await machine.start()
    await publish(log, A, b"one")
    await log.close()


async def stopped_unused(machine: Machine) -> None:
    await (await machine.start()).close()


async def begun(machine: Machine) -> None:
    log = await machine.start()
    await publish(log, A, b"one")
    await machine.kill()


async def first_write_failed(machine: Machine) -> None:
    log = await machine.start()
    machine.disk.fail("write", errno.EIO)
    with pytest.raises(errors.OutcomeUnknown):
        await publish(log, A, b"one")
    await machine.kill()


async def freed(machine: Machine) -> None:
    """A log whose messages are all committed, and whose files are freed as far as possible."""
    log = await machine.start()
    await publish(log, A, b"one")
    await log.close()
    log = await machine.start()
    await log.advance_floor({A: 1})
    await machine.kill()


@MODES
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("life", [unused, stopped, stopped_unused, begun, first_write_failed, freed])
@pytest.mark.asyncio
async def test_hazard_05_a_start_killed_anywhere_leaves_no_false_damage(
    mode: SyncMode, power: bool, life: Callable[[Machine], Awaitable[None]]
) -> None:
    for operation in itertools.count():
        machine = Machine(mode=mode, seed=operation)
        await life(machine)
        machine.disk.crash_after(operation)
        with contextlib.suppress(Crash):
            await machine.start()
            assert operation > 5
            return
        await (machine.power_loss() if power else machine.kill())
        log = await machine.start()
        assert (await publish(log, B, b"next")) >= 0
        await machine.kill()


@pytest.mark.asyncio
async def test_hazard_36_files_without_records_do_not_pile_up() -> None:
    machine = Machine()
    for _ in range(5):
        await unused(machine)
        await stopped_unused(machine)
        await first_write_failed(machine)
    log = await machine.start()
    await settle()
    assert len(log_names(machine.disk)) == 1
    await log.close()


@pytest.mark.asyncio
async def test_a_log_of_the_version_before_opens() -> None:
    """Without `current`, `next_number` and the CURRENT section: nothing is required."""
    machine = await killed_machine(SyncMode.ALWAYS, lives=2)
    disk = machine.disk
    for name in disk.names():
        content = disk.content(name)
        if log_number(name) is not None:
            header = replace(decode_header(content), current=0)
            seal = decode_seal(content[SEAL_POSITION:], header.number)
            content = encode_header(header) + content[SECTOR:]
            if seal is not None:
                sealed = encode_seal(replace(seal, next_number=0))
                content = content[:SEAL_POSITION] + sealed + content[SEAL_POSITION + SECTOR :]
            disk.replace(name, content)
        elif checkpoint_parts(name) is not None:
            disk.replace(name, without_current(content))
    assert survey(disk).required is None
    log = await machine.start()
    assert len(await messages(log, A)) == len(await messages(log, B)) == 6


def without_current(content: bytes) -> bytes:
    header = wire.decode_header(content, 0, 0)
    sections = [
        wire.RecordSection(0, 0, entry.kind, 0, 0, 0, 0, 0, 0, content[entry.body_position :][: entry.body_bytes])
        for entry in wire.decode_entries(content, 0, header)
        if entry.kind != wire.SectionKind.CURRENT
    ]
    return wire.encode_record(header.kind, header.lsn, 0, header.lsn, 0, 0, wire.ALIGN, sections)
