"""Hazard 6: what a start finds in the page cache may never have been on disk; after a failed sync it was not."""

from __future__ import annotations

import errno

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.wal.log_file import SYNC_FAILED_NAME
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, Machine, batch, messages, publish, settle, turn, undeclared

pytestmark = pytest.mark.asyncio


async def store(log: WriteAheadLog, stored: dict[int, bytes], count: int, size: int = 3000) -> None:
    for _ in range(count):
        value = b"%d." % log.shard(*A).assigned + bytes(size)
        stored[await publish(log, A, value)] = value


async def test_hazard_06_a_failed_sync_stops_the_node_and_the_next_start_reports_it() -> None:
    machine, sink, stored = Machine(), HeldSink(), dict[int, bytes]()
    log = await machine.start(sink=sink)
    reported: list[errors.LogStopped] = []
    log.on_stop = reported.append
    answer = log.submit([batch(log, A, b"acked before")])
    await turn(log, sink)
    answer.result()
    stored[0] = b"acked before"

    in_flight = log.submit([batch(log, A, b"never confirmed")])
    await turn(log, sink, 1)
    machine.disk.fail("sync", errno.EIO)
    await turn(log, sink)
    assert isinstance(in_flight.exception(), errors.OutcomeUnknown)
    assert reported == [log.stopped]
    assert SYNC_FAILED_NAME in machine.disk.names()
    with pytest.raises(errors.LogStopped, match="a sync of the log failed"):
        await log.append([batch(log, A, b"too late")])
    with pytest.raises(errors.LogStopped):
        await log.sync()
    await log.close()
    await machine.kill()

    log = await machine.start()
    assert log.report.sync_failed_before
    assert not log.report.clean
    assert SYNC_FAILED_NAME not in machine.disk.names()
    visible = await messages(log, A)
    assert visible == {0: b"acked before", 1: b"never confirmed"}, "the cache still shows it"
    stored.update(visible)  # readers, and producers that resend it, are told that it is stored
    await store(log, stored, 3)
    await machine.power_loss()

    log = await machine.start()
    assert not log.report.sync_failed_before
    assert await messages(log, A) == stored


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_hazard_06_a_sync_that_fails_anywhere_loses_no_ack(number: int) -> None:
    stops = places = 0
    after = -1
    while places == after + 1:
        after += 1
        machine, stored = Machine(seed=after), dict[int, bytes]()
        log = await machine.start()
        machine.disk.operations.clear()
        machine.disk.fail("sync", number, after)
        try:
            await store(log, stored, 30)
        except (errors.LogStopped, errors.OutcomeUnknown, errors.DiskFull):
            await settle()
        syncs = [name for operation, name in machine.disk.operations if operation == "sync"]
        places = min(len(syncs), after + 1)
        stops += log.stopped is not None
        await machine.kill()
        log = await machine.start()
        assert stored.items() <= (await messages(log, A)).items()
        stored = await messages(log, A)
        await store(log, stored, 3)
        await machine.power_loss()
        log = await machine.start()
        assert await messages(log, A) == stored
        assert undeclared(log, A, stored) == []
    assert after > 30
    assert stops >= 30, "every sync of records, footer or seal stops the node"


@pytest.mark.parametrize("mode", list(SyncMode))
async def test_hazard_06_pages_cached_at_a_kill_are_on_disk_once_a_start_has_shown_them(mode: SyncMode) -> None:
    machine, sink = Machine(mode=mode), HeldSink()
    log = await machine.start(sink=sink)
    log.submit([batch(log, A, b"synced")])
    await turn(log, sink)
    for value in (b"written, not synced", b"this neither"):
        log.submit([batch(log, A, value)])
        await turn(log, sink, 1 if value.startswith(b"written") else 0)
        sink.step()
    assert log.shard(*A).synced < 3
    await machine.kill()

    log = await machine.start()
    visible = await messages(log, A)
    assert visible[1] == b"written, not synced"
    await machine.power_loss()
    log = await machine.start()
    assert await messages(log, A) == visible, "a reader saw them, so they must not vanish"


async def test_hazard_06_a_start_writes_into_a_file_of_its_own_and_syncs_it_before_the_log_opens() -> None:
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"one")
    await machine.kill()
    old = "log-0000000000000001.wal"
    machine.disk.operations.clear()
    log = await machine.start()
    operations = machine.disk.operations
    assert log.report.rewritten_file == old
    assert ("write", old) not in operations, "nothing is appended to a recovered file"
    copy = next(what.split()[0] for operation, what in operations if operation == "rename")
    renamed = next(at for at, (operation, what) in enumerate(operations) if operation == "rename")
    done = [operation for operation, what in operations[:renamed] if what == copy]
    assert done == ["create", "write", "write", "sync", "write", "sync"], "records, sync; then the header that counts"
    removed = operations.index(("remove", old))
    assert ("sync_directory", "") in operations[renamed:removed], "the copy has its name before the original goes"
