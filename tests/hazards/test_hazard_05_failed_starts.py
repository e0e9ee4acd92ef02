"""Hazard 5, starts that fail: whatever fails in a start, the next one opens the log with everything that was acked.

every step    a start fails at each of its disk operations, with EIO and ENOSPC, after a kill and after a power loss,
              once and twice in a row; the next start is healthy
required      a start takes the missing required file for damage (ADR 41), so neither a failed start, nor one on a full
              disk, nor a power loss after a rotation may leave a log without it
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from icestream import errors
from icestream.limits import KIB
from icestream.model import ShardKey, SyncMode
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, B, Machine, messages, publish, settle, turn

MODES = pytest.mark.parametrize("mode", list(SyncMode), ids=[mode.value for mode in SyncMode])
Acked = dict[ShardKey, dict[int, bytes]]


class NothingLands(random.Random):
    """Of what was not synced when the power fails, nothing reaches the disk."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


class Life:
    """A log that runs on a machine, with the messages that every later start must find."""

    def __init__(self, mode: SyncMode, ballast: int = 0) -> None:
        self.machine = Machine(mode=mode, ballast_bytes=ballast)
        self.acked: Acked = {A: {}, B: {}}
        self.log: WriteAheadLog | None = None

    async def start(self) -> WriteAheadLog:
        self.sink = HeldSink(held=False)
        self.log = await self.machine.start(sink=self.sink)
        return self.log

    async def append(self, *payloads: bytes) -> None:
        """Appends each payload to both shards, in records of their own, and syncs them."""
        assert self.log is not None
        for payload in payloads:
            for key in (A, B):
                self.acked[key][await publish(self.log, key, payload)] = payload
        await self.log.sync()

    async def commit(self) -> None:
        """Moves the floors to the end of the log: the messages are in tables now."""
        assert self.log is not None
        await self.log.advance_floor({key: shard.synced for key, shard in self.log.state.shards.items()})
        self.acked = {A: {}, B: {}}

    async def end(self, *, power: bool) -> None:
        await (self.machine.power_loss() if power else self.machine.kill())
        self.log = None

    async def check(self) -> None:
        """Opens the log on a healthy disk: everything acked is there, and no offset is assigned again."""
        log = await self.start()
        for key, acked in self.acked.items():
            stored = await messages(log, key)
            lost = {offset: payload for offset, payload in acked.items() if stored.get(offset) != payload}
            assert not lost, f"{key} lost {lost}"
            assert await publish(log, key, b"next") > max(acked, default=-1)


async def unused(life: Life) -> None:
    await life.start()


async def appended(life: Life) -> None:
    await life.start()
    await life.append(b"one", b"two")


async def stopped(life: Life) -> None:
    await appended(life)
    await close(life)


async def rotated(life: Life) -> None:
    """Two sealed files and a current one."""
    await life.start()
    await life.append(*(bytes(7000) for _ in range(10)))


async def committed(life: Life) -> None:
    """Every message is in a table, and both checkpoints say so: all files may be freed."""
    await appended(life)
    await life.commit()
    assert life.log is not None
    for _ in range(2):
        await life.log.checkpoint()


async def committed_after_a_rotation(life: Life) -> None:
    await rotated(life)
    await life.commit()
    assert life.log is not None
    for _ in range(2):
        await life.log.checkpoint()


async def killed_before(life: Life) -> None:
    """A file that recovery copied, and a current one."""
    await appended(life)
    await life.end(power=False)
    await life.start()
    await life.append(b"three")


async def write_failed(life: Life) -> None:
    """A file without records, whose first write failed; the header of the next one names it."""
    await life.start()
    await fail_a_write(life)


async def writes_failed(life: Life) -> None:
    """The same twice: the file that the header of the second one names is removed."""
    await write_failed(life)
    await fail_a_write(life)


async def write_failed_and_stopped(life: Life) -> None:
    await write_failed(life)
    await close(life)


async def writes_failed_and_stopped(life: Life) -> None:
    await writes_failed(life)
    await close(life)


async def fail_a_write(life: Life) -> None:
    """Fails the first write to the next file, after the file behind that is prepared."""
    assert life.log is not None
    life.sink.is_held = True
    appending = asyncio.ensure_future(publish(life.log, A, b"not written"))
    await settle()
    life.machine.disk.fail("write", errno.EIO)
    await turn(life.log, life.sink)
    with pytest.raises(errors.OutcomeUnknown):
        await appending
    life.sink.is_held = False


async def close(life: Life) -> None:
    assert life.log is not None
    await life.log.close()


LIVES = [
    unused,
    appended,
    stopped,
    rotated,
    committed,
    committed_after_a_rotation,
    killed_before,
    write_failed,
    writes_failed,
    write_failed_and_stopped,
    writes_failed_and_stopped,
]


# Error, number of failing starts, ballast. Each pair of values is in one of them.
FAULTS = [(errno.ENOSPC, 1, 0), (errno.EIO, 1, 128 * KIB), (errno.ENOSPC, 2, 128 * KIB), (errno.EIO, 2, 0)]


async def steps_of_a_start(life: Life, build: Callable[[Life], Awaitable[None]], *, power: bool) -> list[str]:
    """The disk operations of a start after that life, in order."""
    await build(life)
    await life.end(power=power)
    before = len(life.machine.disk.operations)
    await life.start()
    operations = [operation for operation, _ in life.machine.disk.operations[before:]]
    await life.end(power=False)
    return operations


async def fail_at(life: Life, operations: list[str], step: int, number: int) -> None:
    """Starts the log while the disk fails at operation `step`; it starts, or raises an error of its own."""
    life.machine.disk.fail(operations[step], number, after=Counter(operations[:step])[operations[step]])
    await life.machine.try_start()
    await settle()


@pytest.mark.parametrize("mode", [SyncMode.ALWAYS, SyncMode.PERIODIC], ids=["always", "periodic"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("build", LIVES)
@pytest.mark.asyncio
async def test_hazard_05_a_start_that_fails_anywhere_does_not_harm_the_next(
    mode: SyncMode, power: bool, build: Callable[[Life], Awaitable[None]]
) -> None:
    for number, failures, ballast in FAULTS:
        operations = await steps_of_a_start(Life(mode, ballast), build, power=power)
        for step in range(len(operations)):
            life = Life(mode, ballast)
            await build(life)
            await life.end(power=power)
            for failure in range(failures):
                await fail_at(life, operations, step, number)
                await life.end(power=power and failure > 0)
            await life.check()
            await life.end(power=False)


@pytest.mark.asyncio
async def test_hazard_05_a_start_that_fails_leaves_the_directory_alone_without_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No room for the first file: warm files are to be freed for it, by a task that ends with the start."""
    life = Life(SyncMode.ALWAYS)
    await committed(life)
    await life.end(power=False)
    disk = life.machine.disk
    unlock = disk.unlock
    done_before: list[int] = []

    def note_unlock(name: str) -> None:
        unlock(name)
        if name == LOCK_NAME:
            done_before.append(len(disk.operations))

    monkeypatch.setattr(disk, "unlock", note_unlock)
    disk.fail("allocate", errno.ENOSPC)
    with pytest.raises(errors.DiskFull):
        await life.start()
    await settle()
    assert done_before == [len(disk.operations)]


async def append_until_full(
    log: WriteAheadLog, sink: HeldSink, between: Callable[[], Awaitable[None]] = settle
) -> asyncio.Task[int]:
    """Appends until the log goes on in its next file; the append whose record is the first there, not written yet."""
    full = log.appender.current_number
    while True:
        appending = asyncio.ensure_future(publish(log, A, bytes(7000)))
        await settle()
        if log.appender.current_number != full:
            return appending
        await turn(log, sink)
        await appending
        await between()


# --- the required file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("build", [committed, committed_after_a_rotation])
@pytest.mark.asyncio
async def test_hazard_05_a_log_that_drained_on_a_full_disk_starts_again(
    power: bool, build: Callable[[Life], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """It starts without a file for appends and frees what it can, also the copy of the file that a start requires."""
    life = Life(SyncMode.ALWAYS, ballast=128 * KIB)  # the other modes write gaps at such a start, which needs a file
    await build(life)
    await life.end(power=power)
    life.machine.disk.fail("allocate", errno.ENOSPC)
    log = await life.start()
    assert not log.appender.current_number, "there is no file for appends"
    await settle()
    assert not log.lifecycle.files, "on a full disk the space of files that nothing needs goes first"
    assert "a background task of the log failed" not in caplog.text
    await life.end(power=power)
    await life.check()


@pytest.mark.asyncio
async def test_hazard_05_a_file_without_records_outlives_the_file_that_its_header_names() -> None:
    """The seal of a full file names an empty file, whose header names the full one, which is freed on a full disk."""
    life = Life(SyncMode.ALWAYS, ballast=128 * KIB)
    sink = HeldSink()
    log = life.log = await life.machine.start(sink=sink)
    full = log.appender.current_number
    appending = await append_until_full(log, sink)
    while full in log.lifecycle.handles:
        assert await turn(log, sink, steps=1), "the full file is sealed"
    positions = {A: log.shard(*A).synced}
    life.machine.disk.chance = NothingLands()
    await life.end(power=True)
    assert appending.cancelled(), "the first record of the next file is not on disk"

    life.machine.disk.fail("allocate", errno.ENOSPC, after=1)  # the first one is for the ballast
    log = await life.start()
    assert not log.appender.current_number, "there is no file for appends"
    await log.advance_floor(positions)
    assert not log.lifecycle.files, "the full file is freed"
    await life.end(power=False)
    await life.check()


@MODES
@pytest.mark.asyncio
async def test_hazard_05_a_file_is_freed_only_when_checkpoints_name_the_next(mode: SyncMode) -> None:
    """Both checkpoints cover a full file and name it as the current one; the disk is full, and the power fails.

    The first record of the next file never reaches the disk, and no further file is prepared. So only a checkpoint can
    tell that the log went on in the next file.
    """
    life = Life(mode)
    sink = HeldSink()
    log = life.log = await life.machine.start(sink=sink)
    full = log.appender.current_number

    async def commit_and_fill_the_disk() -> None:
        log._sink.request_sync(log.lifecycle.handles[full])
        log._on_progress()
        await log.advance_floor({A: log.shard(*A).synced})
        for _ in range(2):
            await log.checkpoint()
        life.machine.disk.heal()
        life.machine.disk.fail("allocate", errno.ENOSPC)

    await append_until_full(log, sink, commit_and_fill_the_disk)
    while full in log.lifecycle.handles:
        assert await turn(log, sink, steps=1), "the full file is sealed"
    await settle()
    assert log.lifecycle.prepare_error is not None
    assert not log.lifecycle.files, "the full file is freed, because the disk is full"
    life.machine.disk.chance = NothingLands()
    await life.end(power=True)
    await life.check()
