"""Hazard 21, the log's part: a table went back, so the floor does, as far as the log has it. Then nothing of it is let
go before it is in the table again."""

from __future__ import annotations

import asyncio

import pytest

from icestream import limits
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.model import ShardKey
from icestream.wal.retention import Retention
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch, messages, publish, settle

pytestmark = pytest.mark.asyncio
WARM = {"warm_ms": 600_000, "warm_bytes": 2**30}


async def committed(machine: Machine, count: int = 60) -> WriteAheadLog:
    """A log in which all of A is committed and its files are warm."""
    log = await machine.start()
    for _ in range(count):
        await log.submit([batch(log, A, bytes(3000))])
    await log.advance_floor({A: count})
    return log


def charged(log: WriteAheadLog) -> int:
    return log.state.usage[1].held_bytes


async def later(machine: Machine, seconds: float) -> None:
    await settle()
    machine.clock.advance(seconds)
    for _ in range(4):
        await settle()


async def test_hazard_21_a_lowered_floor_keeps_the_log_above_it() -> None:
    machine = Machine(**WARM)
    log = await committed(machine)
    files = [file.number for file in log.lifecycle.files]
    before = charged(log)
    assert await log.floors.reopen({A: 20}) == {A: 20}
    assert charged(log) > before, "the bytes count against the topic again"
    retained = [file.number for file in log.lifecycle.files if (extent := file.find(A)) is not None and extent.end > 20]
    await later(machine, 10_000)
    assert [file.number for file in log.lifecycle.files] == retained
    assert len(retained) < len(files), "files below the floor are freed in time"
    assert [*await messages(log, A, 20)] == [*range(20, 60)]
    (topic,) = (await log.backlog.snapshot()).topics
    assert (topic.rows, topic.shards[0].committed) == (40, 20)
    await log.advance_floor({A: 60})
    assert charged(log) == before
    await later(machine, 600)
    assert log.lifecycle.files == []


async def test_hazard_21_a_lowered_floor_survives_a_crash() -> None:
    """The floor is restored even when the newest checkpoint is lost."""
    for lost in (0, 1):
        machine = Machine(**WARM)
        log = await committed(machine)
        await log.floors.reopen({A: 20})
        names = [checkpoint.name for checkpoint in log.lifecycle.checkpoints]
        await machine.power_loss()
        for name in names[:lost]:
            machine.disk.remove(name)
        log = await machine.start()
        assert log.shard(*A).floor == 20
        assert [*await messages(log, A, 20)] == [*range(20, 60)]
        await machine.kill()


async def test_hazard_21_a_floor_is_lowered_no_further_than_the_log() -> None:
    machine = Machine(**(WARM | {"warm_bytes": 150_000}))
    log = await committed(machine, 100)
    earliest = log.reader.earliest(A)
    assert 0 < earliest < 100
    assert await log.floors.reopen({A: 0}) == {A: earliest}
    assert await log.floors.reopen({A: 100}) == {A: earliest}, "nor up"
    await later(machine, 10_000)
    assert len(await messages(log, A)) == 100 - earliest
    assert (await log.backlog.snapshot()).topics[0].rows == 100 - earliest


async def test_hazard_21_a_shard_without_records_in_the_log_keeps_its_floor() -> None:
    machine = Machine()
    log = await committed(machine)
    log.shard(*B)
    assert await log.floors.reopen({A: 0, B: 0}) == {A: log.reader.earliest(A), B: 0}


async def test_hazard_21_a_floor_is_lowered_at_most_to_the_start_of_a_spill_log() -> None:
    """What lies before the spill log is warm at best: the log need not keep it for that shard any more."""
    machine = Machine(quota_bytes=1_000_000, topic_quota_bytes=500_000, **WARM)
    log = await machine.start()
    for number in range(50):
        await log.submit([batch(log, B, b"b%d-" % number + bytes(200))])
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1, B: min(number, 9)})  # type: ignore[union-attr]
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step()
    (spill,) = log.lifecycle.spills.files
    extent = spill.find(B)
    assert extent is not None
    assert log.reader.earliest(B) < extent.first == 9
    before = charged_of(log, B)
    assert await log.floors.reopen({B: 0}) == {B: 9}
    assert charged_of(log, B) == before
    await log.advance_floor({B: 30})
    assert await log.floors.reopen({B: 0}) == {B: 9}, "the floor can be lowered as long as the file is there"
    stored = await messages(log, B, 9)
    assert [stored[at].partition(b"-")[0] for at in range(9, 50)] == [b"b%d" % at for at in range(9, 50)]
    assert charged_of(log, B) == before


async def test_hazard_21_a_floor_is_lowered_no_further_than_a_hole_after_a_spill_log() -> None:
    """Another shard keeps the spill file, while the log went on without what came behind it."""
    machine = Machine(quota_bytes=1_000_000, topic_quota_bytes=500_000)
    log = await machine.start()
    stuck = ShardKey(2, 1)
    await publish(log, stuck, b"stuck")
    for number in range(40):
        await log.submit([batch(log, B, b"b%d-" % number + bytes(200))])
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step()
    (spill,) = log.lifecycle.spills.files
    copied = spill.find(B)
    assert copied is not None
    for number in range(40, 80):
        await log.submit([batch(log, B, b"b%d-" % number + bytes(200))])
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1, B: number + 1})  # type: ignore[union-attr]
    assert log.lifecycle.spills.files == [spill]
    earliest = log.reader.earliest(B)
    assert copied.first == 0 < copied.end < earliest <= 80, "no offset between is readable or promised"
    assert await log.floors.reopen({B: 0, stuck: 0}) == {B: earliest, stuck: 0}
    await machine.kill()
    log = await machine.start()
    assert [*await messages(log, B)] == [*range(earliest, 80)]


def charged_of(log: WriteAheadLog, key: ShardKey) -> int:
    return log.state.usage[key.topic_id].held_bytes


async def test_hazard_21_messages_dropped_by_retention_stay_dropped() -> None:
    """A floor that a retention moved is not ahead of the table: what lies between is a declared gap."""
    machine = Machine(**WARM)
    log = await machine.start()
    for _ in range(60):
        await log.submit([batch(log, A, bytes(3000))])
    log.retention_job.set_retention(1, 1, Retention(bytes_max=100_000))
    await later(machine, 60)
    floor = log.shard(*A).floor
    assert floor > 0
    assert await log.floors.reopen({A: 0}) == {A: floor}


# --- moving the floor up again ----------------------------------------------------------------------------------------


async def test_hazard_21_a_commit_report_from_before_a_lowered_floor_is_ignored() -> None:
    """A driver that committed before the table was moved tells it afterwards."""
    machine = Machine(**WARM)
    log = await committed(machine)
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    await publish(log, A, b"more")
    await publish(log, B, b"other")
    before = await ingest.backlog()
    assert await ingest.reopen([(1, 0, 20), (99, 0, 0)]) == [(1, 0, 20)]
    await ingest.committed([(1, 0, 61), (2, 0, 1)], before.reopenings)
    assert (log.shard(*A).floor, log.shard(*B).floor) == (20, 1), "floors of other shards move on"
    after = await ingest.backlog()
    await ingest.committed([(1, 0, 61)], after.reopenings)
    assert log.shard(*A).floor == 61


@pytest.mark.parametrize("seconds", [1, -1])
async def test_hazard_21_a_commit_report_from_before_a_restart_is_ignored(seconds: int) -> None:
    """The driver planned, an operator moved the table, the broker was started again. Also when the clock went back."""
    machine = Machine(**WARM)
    log = await committed(machine)
    await publish(log, A, b"more")
    earlier = await PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {}).backlog()
    await log.floors.reopen({A: 20})
    machine.clock.step(seconds)
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    await ingest.committed([(1, 0, 61)], earlier.reopenings)
    assert log.shard(*A).floor == 20
    await ingest.committed([(1, 0, 61)], (await ingest.backlog()).reopenings)
    assert log.shard(*A).floor == 61


async def test_hazard_21_one_floor_is_lowered_while_many_advance() -> None:
    machine = Machine(**WARM)
    log = await committed(machine)
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    others = [ShardKey(2, number) for number in range(limits.FLOORS_SLICE)]
    await log.append([batch(log, key, b"other") for key in others])
    await publish(log, A, b"more")
    before = await ingest.backlog()
    going_up = asyncio.create_task(ingest.committed([*((*key, 1) for key in others), (1, 0, 61)], before.reopenings))
    await asyncio.sleep(0)
    assert log.shard(*others[-1]).floor == 1
    assert log.shard(*A).floor == 60, "the floor is not lowered yet"
    await ingest.reopen([(1, 0, 20)])
    await going_up
    assert log.shard(*A).floor == 20


async def test_hazard_21_a_waiting_driver_is_notified() -> None:
    machine = Machine(**WARM)
    log = await committed(machine)
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    waiting = asyncio.create_task(ingest.backlog(60_000))
    await settle()
    assert not waiting.done()
    await ingest.reopen([(1, 0, 20)])
    async with asyncio.timeout(5):
        (topic,) = (await waiting).topics
    assert topic.rows == 40
