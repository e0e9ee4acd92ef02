"""Hazard 21, the log's part: committed files stay for a while, take no space from appends, and are freed first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icestream import errors
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch, messages, publish, settle

pytestmark = pytest.mark.asyncio
WARM = {"warm_ms": 600_000, "warm_bytes": 2**30}


async def fill(log: WriteAheadLog, count: int = 60) -> None:
    """Without waiting near a quota."""
    for _ in range(count):
        await log.submit([batch(log, A, bytes(3000))])


async def later(machine: Machine, seconds: float) -> None:
    await settle()
    machine.clock.advance(seconds)
    for _ in range(4):
        await settle()


async def test_hazard_21_a_committed_file_stays_readable_for_the_warm_window() -> None:
    machine = Machine(**WARM)
    log = await machine.start()
    await fill(log)
    files = [file.number for file in log.lifecycle.files]
    await log.advance_floor({A: 60})
    assert log.shard(*A).floor == 60
    assert log.state.usage[1].held_bytes < machine.options.file_bytes, "the floor moved at once"
    assert [file.number for file in log.lifecycle.files] == files
    assert log.lifecycle.warm.bytes == sum(file.size for file in log.lifecycle.files) > 0
    assert len(await messages(log, A)) == 60
    await later(machine, 599)
    assert len(await messages(log, A)) == 60
    await later(machine, 1)
    assert log.lifecycle.files == []
    assert log.lifecycle.warm.bytes == 0
    assert log.reader.earliest(A) > 0


async def test_hazard_21_each_file_has_its_own_window_and_held_files_stay() -> None:
    machine = Machine(**WARM)
    log = await machine.start()
    await fill(log, 30)
    await publish(log, B, b"held")
    await fill(log, 60)
    count = len(log.lifecycle.files)
    first = log.lifecycle.files[0].find(A)
    assert first is not None
    await log.advance_floor({A: first.end})
    await settle()
    machine.clock.advance(300)
    await log.advance_floor({A: 90})
    await later(machine, 300)
    assert len(log.lifecycle.files) == count - 1
    await later(machine, 10_000)
    extent = log.lifecycle.files[0].find(B)
    assert extent is not None, "later files wait for this one"
    await log.advance_floor({B: 1})
    await later(machine, 600)
    assert log.lifecycle.files == []


async def test_hazard_21_warm_files_are_bounded_in_bytes() -> None:
    machine = Machine(**(WARM | {"warm_bytes": 150_000}))
    log = await machine.start()
    await fill(log, 100)
    assert log.lifecycle.sealed_bytes > 200_000
    await log.advance_floor({A: 100})
    assert 80_000 < log.lifecycle.warm.bytes <= 150_000
    newest = log.lifecycle.files[-1].number
    assert [file.number for file in log.lifecycle.files] == [newest - 1, newest]


async def test_hazard_21_warm_files_count_as_free_space() -> None:
    """Ten times the quota passes through and is committed: no append is slowed or refused, and disk use is bounded."""
    machine = Machine(**WARM, quota_bytes=10 * 65536, topic_quota_bytes=10 * 65536)
    log = await machine.start()
    most = 0
    for number in range(2_000):
        receipt = log.submit([batch(log, A, bytes(3000))])
        assert receipt.pause_ms == 0
        await receipt
        await log.advance_floor({A: number + 1})
        most = max(most, log.lifecycle.used_bytes)
    assert log.lifecycle.warm.bytes > 5 * 65536, "warm files use the free space"
    assert most <= 10 * 65536


async def test_hazard_21_held_warm_files_do_not_slow_producers() -> None:
    machine = Machine(**WARM, quota_bytes=10 * 65536, topic_quota_bytes=20 * 65536)
    log = await machine.start()
    await fill(log, 180)
    assert log.submit([batch(log, A, b"x")]).pause_ms > 0, "the quota is near"
    log.lifecycle.leases.hold("round", 1, [log.lifecycle.files[0].number], 60_000)
    await log.advance_floor({A: 180})
    assert log.lifecycle.used_bytes > log.quota.slow_node_bytes
    assert log.submit([batch(log, A, b"x")]).pause_ms == 0


async def test_hazard_21_held_files_are_refused_at_the_quota() -> None:
    machine = Machine(**WARM, quota_bytes=10 * 65536, topic_quota_bytes=20 * 65536)
    log = await machine.start()
    await fill(log, 50)
    await log.advance_floor({A: 50})
    warm = log.lifecycle.warm.bytes
    with pytest.raises(errors.NodeQuotaReached):
        await fill(log, 1000)
    assert log.shard(*A).assigned > 200, "nine tenths of the quota, warm files or not"
    assert log.lifecycle.warm.bytes < warm
    assert log.lifecycle.used_bytes <= 10 * 65536 + machine.options.file_bytes


async def test_hazard_21_a_start_keeps_warm_files_and_restarts_their_window() -> None:
    machine = Machine(**WARM)
    log = await machine.start()
    await fill(log)
    await log.advance_floor({A: 60})
    await log.checkpoint()
    machine.clock.advance(500)
    await log.close()
    log = await machine.start()
    assert len(await messages(log, A)) == 60
    assert log.lifecycle.warm.bytes > 0
    await later(machine, 599)
    assert len(await messages(log, A)) == 60
    await later(machine, 1)
    assert log.lifecycle.files == []
    await machine.kill()
    log = await machine.start()
    assert log.shard(*A).floor == 60


async def test_hazard_21_a_full_disk_frees_warm_files_first() -> None:
    machine = Machine(**WARM)
    log = await machine.start()
    await fill(log)
    await log.advance_floor({A: 60})
    machine.disk.capacity = machine.disk.used_bytes() + 70_000
    for _ in range(200):
        await publish(log, A, bytes(3000))
        await log.advance_floor({A: log.shard(*A).synced})
        machine.clock.advance(1.1)
    assert log.shard(*A).synced == 260
    assert log.lifecycle.prepare_error is None


async def test_hazard_21_a_shorter_window_applies_immediately() -> None:
    machine = Machine(**WARM)
    log = await machine.start()
    await fill(log)
    await log.advance_floor({A: 60})
    log.change_options(replace(machine.options, warm_bytes=0))
    await settle()
    assert log.lifecycle.files == []
