"""Hazard 8: what a topic without progress has in the log is copied to its spill log, and the log's files are let go."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icestream import errors, limits
from icestream.frontends.http.gauges import log_families
from icestream.model import ShardKey, SyncMode, envelope
from icestream.model.block import encode_block
from icestream.observability import metrics
from icestream.pipeline.log_bytes.log_sources import LogOwner
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_plan import RoundBudget
from icestream.pipeline.task.task_run import read_range
from icestream.runtime.simulated_disk import SimulatedDisk, SimulatedFile
from icestream.wal.damage import plan_repair
from icestream.wal.inspect import SPILL, view_log
from icestream.wal.log_file import log_number, spill_name, spill_number
from icestream.wal.log_repair import apply_repair
from icestream.wal.retention import Retention
from icestream.wal.spill_file import SpillFileWriter
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch, messages, publish, settle
from tests.support.pipeline_round import NOW_US, target_in
from tests.unit.internal_api.test_admin_calls import operated
from tests.unit.internal_api.test_pipeline_calls import backlog_of
from tests.unit.wal.test_backlog_reader import check, reported_offsets

pytestmark = pytest.mark.asyncio
B1 = ShardKey(2, 1)
QUOTA = 1_000_000
SMALL = {"quota_bytes": QUOTA, "topic_quota_bytes": QUOTA // 2}


async def stuck_log(machine: Machine, rounds: int = 40, size: int = 200) -> WriteAheadLog:
    """A is in its table, B is not; both are in every file, and that has been so for a while."""
    log = await machine.start()
    log.shard(*B1)
    for number in range(rounds):
        await log.submit([batch(log, B, b"b%d-" % number + bytes(size))])
        if number % 7 == 0:
            await log.submit([batch(log, B1, b"c%d" % number)])
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    return log


def spills(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if spill_number(name) is not None]


def logs(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if log_number(name) is not None]


async def all_of(log: WriteAheadLog) -> dict[ShardKey, dict[int, bytes]]:
    return {key: await messages(log, key, log.shard(*key).floor) for key in (B, B1)}


def charged(log: WriteAheadLog) -> dict[int, int]:
    return {topic: usage.held_bytes for topic, usage in log.state.usage.items()}


async def test_hazard_08_files_of_a_stuck_topic_are_freed_and_it_loses_nothing() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    before, files = await all_of(log), len(log.lifecycle.files)
    assert files > 3
    assert await log.spill_job.step()
    assert len(log.lifecycle.files) == 0
    assert len(logs(machine.disk)) < files, "freed, not only forgotten"
    assert len(spills(machine.disk)) == 1
    assert await all_of(log) == before
    backlog = await check(machine, log)
    assert [(file.spill, {stretch.topic_id for stretch in file.stretches}) for file in backlog.files] == [
        (True, {2}),
        (False, {2}),
    ]
    assert not await log.spill_job.step(), "nothing is copied twice"
    for end in (machine.kill, machine.power_loss):
        await end()
        log = await machine.start()
        assert await all_of(log) == before
        await check(machine, log)
    assert await publish(log, B, b"next") == len(before[B])


async def test_hazard_08_no_floor_is_lowered_while_messages_above_it_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine, 60)
    before = await messages(log, B, 0)
    await log.advance_floor({B: 20})
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    may_write, write = asyncio.Event(), log.spill_job._write

    async def held(*arguments: Any) -> Any:
        await may_write.wait()
        return await write(*arguments)

    monkeypatch.setattr(log.spill_job, "_write", held)
    copying = asyncio.ensure_future(log.spill_job.step())
    await settle()
    reopening = asyncio.ensure_future(log.floors.reopen({B: 10}))
    await settle()
    assert not reopening.done()
    may_write.set()
    assert await copying
    low = (await reopening)[B]
    assert 10 <= low <= 20
    assert await messages(log, B, low) == {offset: body for offset, body in before.items() if offset >= low}
    await machine.kill()
    log = await machine.start()
    assert log.shard(*B).floor == low


async def test_hazard_08_only_one_topic_is_refused_while_three_times_the_quota_passes() -> None:
    machine = Machine(**SMALL)
    log = await machine.start()
    total = stored = refused = 0
    while total < 3 * QUOTA:
        for _ in range(4):
            (placed,) = await log.submit([batch(log, A, bytes(7000))])
            await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]
            total += 7000
        try:
            await log.submit([batch(log, B, b"%d-" % stored + bytes(6000))])
            stored += 1
        except errors.TopicQuotaReached:
            refused += 1
        machine.clock.advance(5)
        for _ in range(10):
            await settle()
    assert refused > 0
    assert stored > 70
    assert log.lifecycle.used_bytes < QUOTA
    payloads = await messages(log, B)
    assert [payloads[offset].partition(b"-")[0] for offset in range(stored)] == [
        b"%d" % number for number in range(stored)
    ]
    assert len(log.lifecycle.spills.files) <= 2 * QUOTA // 2 // machine.options.file_bytes + 1, "small ones are merged"

    backlog = await check(machine, log)
    assert [file.spill for file in backlog.files][:2] == [True, True]
    await log.advance_floor({B: stored})
    assert spills(machine.disk) == []
    assert charged(log)[2] < machine.options.file_bytes
    assert await publish(log, B, b"next") == stored


async def looked(log: WriteAheadLog) -> bool:
    """True if the log spills by itself now."""
    log.spill_job.start_under_pressure()
    for _ in range(20):
        await settle()
    return bool(log.lifecycle.spills)


async def test_hazard_08_nothing_is_copied_while_there_is_free_space() -> None:
    assert not await looked(await stuck_log(Machine(quota_bytes=2**30)))
    assert await looked(await stuck_log(Machine(quota_bytes=500_000)))


async def test_hazard_08_more_files_than_a_round_looks_through_are_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPILL_HELD_FILES_MAX", 3)
    assert await looked(await stuck_log(Machine(quota_bytes=2**30)))


async def test_hazard_08_a_topic_that_moves_is_not_stuck() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    await log.advance_floor({B: 1, B1: 1})
    assert not await log.spill_job.step()
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step()


async def test_hazard_08_nothing_is_copied_while_every_topic_is_stuck() -> None:
    """The catalog is away: copying would free nothing."""
    machine = Machine(**SMALL)
    log = await machine.start()
    for _ in range(100):
        await log.submit([batch(log, A, bytes(3000)), batch(log, B, bytes(3000))])
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert not await log.spill_job.step()
    await log.advance_floor({A: 100})
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step(), "one of the topics makes progress again"


@pytest.mark.parametrize("end", ["kill", "power_loss"])
async def test_hazard_08_a_crash_at_any_step_of_the_disk_loses_and_duplicates_nothing(end: str) -> None:
    steps = 0
    while True:
        machine = Machine(seed=steps, **SMALL)
        log = await stuck_log(machine, 24)
        before = await all_of(log)
        machine.disk.crash_after(steps)
        if await machine.survives(_step(log)):
            break
        steps += 1
        await getattr(machine, end)()
        log = await machine.start()
        assert await all_of(log) == before, steps
        await check(machine, log)
        machine.clock.advance(limits.SPILL_STUCK_SECONDS)
        log.spill_job.start_under_pressure()
        while await log.spill_job.step():
            pass
        assert await all_of(log) == before, steps
        await check(machine, log)
        await log.advance_floor({key: log.shard(*key).synced for key in (B, B1)})
        assert (spills(machine.disk), [name for name in machine.disk.names() if name.endswith(".tmp")]) == ([], [])
    assert steps > 15


async def _spill_and_go_on(log: WriteAheadLog) -> None:
    assert await log.spill_job.step()
    for number in range(24):
        await log.submit([batch(log, B, b"later%d" % number)])
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]


async def test_hazard_08_a_small_spill_file_is_replaced_by_the_next_at_any_step() -> None:
    steps = 0
    while True:
        machine = Machine(seed=steps, **SMALL)
        log = await stuck_log(machine, 24)
        await _spill_and_go_on(log)
        machine.clock.advance(limits.SPILL_STUCK_SECONDS)
        before = await all_of(log)
        (first,) = spills(machine.disk)
        machine.disk.crash_after(steps)
        if await machine.survives(_step(log)):
            break
        steps += 1
        await machine.power_loss()
        log = await machine.start()
        assert len(spills(machine.disk)) == 1
        assert await all_of(log) == before, steps
        await check(machine, log)
    assert await all_of(log) == before
    (second,) = spills(machine.disk)
    assert second != first
    assert steps > 8


async def _step(log: WriteAheadLog) -> None:
    assert await log.spill_job.step()


async def test_hazard_08_the_copy_is_durable_before_any_log_file_is_freed() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    done = len(machine.disk.operations)
    assert await log.spill_job.step()
    after = machine.disk.operations[done:]
    (spill,) = spills(machine.disk)
    temporary = spill.replace(".wal", ".tmp")
    named = after.index(("rename", f"{temporary} {spill}"))
    last_write = max(at for at, call in enumerate(after) if call == ("write", temporary))
    synced = [at for at, call in enumerate(after) if call == ("sync", temporary) and at < named]
    assert synced[-1] > last_write
    directory_synced = next(at for at, call in enumerate(after) if at > named and call[0] == "sync_directory")
    gone = [at for at, (what, name) in enumerate(after) if what in ("rename", "remove") and log_number(name.split()[0])]
    assert gone
    assert directory_synced < min(gone)


async def test_hazard_08_an_unsynced_copy_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power losses of the tests above would show a missing sync."""
    publish_file = SpillFileWriter.publish

    def careless(self: SpillFileWriter) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(SimulatedFile, "sync", lambda _: None)
            return publish_file(self)

    monkeypatch.setattr(SpillFileWriter, "publish", careless)
    losses = set()
    for seed in range(20):
        machine = Machine(seed=seed, **SMALL)
        log = await stuck_log(machine, 24)
        before = await all_of(log)
        await log.spill_job.step()
        await machine.power_loss()
        started = await machine.try_start()
        losses.add(not isinstance(started, WriteAheadLog) or await lost(started, before))
    assert True in losses


async def lost(log: WriteAheadLog, before: dict[ShardKey, dict[int, bytes]]) -> bool:
    try:
        return await all_of(log) != before
    except errors.LogDamaged:
        return True


@pytest.mark.parametrize("mode", SyncMode)
async def test_hazard_08_any_history_of_a_log_with_stuck_topics_is_consistent(mode: SyncMode) -> None:
    chance = random.Random(8)
    machine = Machine(mode=mode, **SMALL)
    log = await machine.start()
    sent: dict[ShardKey, dict[int, bytes]] = {A: {}, B: {}, B1: {}}
    log.shard(*B1)
    for turn in range(250):
        key = chance.choice([A, A, A, B, B1])
        try:
            payload = b"%d-" % turn + bytes(chance.randrange(7000))
            (placed,) = await log.submit([batch(log, key, payload)])
            sent[key][placed.base_offset] = payload  # type: ignore[union-attr]
        except errors.Refused:
            pass
        await log.sync()
        match chance.randrange(12):
            case 0 | 1 | 2:
                await log.advance_floor({A: log.shard(*A).synced})
            case 3:
                machine.clock.advance(limits.SPILL_STUCK_SECONDS)
                await log.spill_job.step()
            case 4 if turn % 3 == 0:
                await log.advance_floor({B: chance.randint(log.shard(*B).floor, log.shard(*B).synced)})
            case 5 if turn % 3 == 0:
                await log.advance_floor({B1: chance.randint(log.shard(*B1).floor, log.shard(*B1).synced)})
            case 6 if turn % 4 == 0:
                await (machine.kill if chance.random() < 0.5 else machine.power_loss)()
                log = await machine.start()
                log.shard(*B1)
                log.spill_job.start_under_pressure()
        for shard, payloads in sent.items():
            floor = log.shard(*shard).floor
            stored = await messages(log, shard, floor)
            expected = {offset: payload for offset, payload in payloads.items() if offset >= floor}
            assert {offset: stored.get(offset) for offset in expected} == expected
            stretches = [stretch for file in (await log.backlog.snapshot()).files for stretch in file.stretches]
            of_shard = [stretch for stretch in stretches if (stretch.topic_id, stretch.shard) == shard]
            assert all(sum(part.start <= offset < part.end for part in of_shard) == 1 for offset in expected)
        assert charged(log) == counted(log)


def counted(log: WriteAheadLog) -> dict[int, int]:
    """The bytes that are charged to each topic, computed from the files alone."""
    sizes = dict.fromkeys(log.state.usage, 0)
    for file in log.lifecycle.files:
        for key, extent in file.ranges():
            sizes[key.topic_id] += extent.own_bytes if extent.end > log.lifecycle.log_floor(key) else 0
    for file in log.lifecycle.spills.files:
        for key, extent in file.ranges():
            sizes[key.topic_id] += extent.own_bytes if extent.end > log.shard(*key).floor else 0
    for _, index in log.appender.open_files():
        for topic, size in index.live_bytes().items():
            sizes[topic] += size
    return sizes


# --- readers of the spill log -----------------------------------------------------------------------------------------


async def test_hazard_08_offsets_and_times_are_found_in_the_spill_log() -> None:
    machine = Machine(**SMALL)
    log = await machine.start()
    times = []
    for number in range(40):
        machine.clock.advance(1)
        times.append(machine.clock.wall_us())
        await publish(log, B, b"%d" % number)
        (placed,) = await log.submit([batch(log, A, bytes(7000))])
        await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]
    machine.clock.advance(limits.SPILL_STUCK_SECONDS)
    assert await log.spill_job.step()
    assert log.reader.earliest(B) == 0
    for number in (0, 7, 23, 39):
        assert await log.reader.offset_for_time(B, times[number]) == number
        (section, *_) = (await log.reader.read(B, number)).sections
        assert (section.base_offset, section.append_time_us) == (number, times[number])


async def test_hazard_08_a_round_that_reads_a_spill_file_keeps_it() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    await log.spill_job.step()
    (file,) = log.lifecycle.spills.files
    log.lifecycle.leases.hold("r1", 1, [file.number], 60_000)
    await log.advance_floor({key: log.shard(*key).synced for key in (B, B1)})
    assert spills(machine.disk) == [spill_name(file.number)]
    assert len(await log.reader.copy(file.number, 4096, file.seal.end_position)) == file.seal.end_position - 4096
    log.lifecycle.leases.hold("r1", 1, [], 0)
    await log.lifecycle.free_due_files()
    assert spills(machine.disk) == []
    with pytest.raises(errors.PositionGone):
        await log.reader.copy(file.number, 4096, 4104)


async def test_hazard_08_many_spill_files_leave_space_for_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPILL_STEP_BYTES", 1)
    machine = Machine(**SMALL)
    log = await stuck_log(machine, 60, 5000)
    while await log.spill_job.step():
        pass
    assert len(log.lifecycle.spills.files) > 2
    await publish(log, A, b"new")
    backlog = await log.backlog.snapshot(2, {B.topic_id})
    assert (set(reported_offsets(backlog)), backlog.is_cut) == ({A}, False), "a topic that is passed over takes no room"
    seen: set[int] = set()
    backlog = await log.backlog.snapshot(files_max=2)
    assert [file.spill for file in backlog.files] == [True, False]
    assert backlog.is_cut
    assert A in reported_offsets(backlog)
    ends = {key: max(offsets) + 1 for key, offsets in reported_offsets(backlog).items()}
    assert ends[B] == log.lifecycle.spills.files[0].find(B).end, "the backlog ends at a hole"  # type: ignore[union-attr]
    while B in reported_offsets(backlog):
        assert not seen & set(reported_offsets(backlog)[B])
        seen |= set(reported_offsets(backlog)[B])
        await log.advance_floor({key: max(offsets) + 1 for key, offsets in reported_offsets(backlog).items()})
        backlog = await log.backlog.snapshot(files_max=2)
    assert seen == set(range(60))


async def test_hazard_08_a_retention_drops_from_the_spill_log_first() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine, 60, 5000)
    await log.spill_job.step()
    before = charged(log)[2]
    log.retention_job.set_retention(2, 2, Retention(bytes_max=before // 2))
    await log.retention_job.step()
    assert charged(log)[2] < before
    assert log.shard(*B).floor > 0
    assert charged(log) == counted(log)
    assert min(await messages(log, B, log.shard(*B).floor)) >= log.shard(*B).floor


async def test_hazard_08_pipeline_tasks_read_a_spill_file_locally_and_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPILL_STUCK_SECONDS", 0.0)
    async with operated(tmp_path / "data") as ask:
        await ask("create_topic", topic="/default/orders")
        await ask("create_topic", topic="/default/others")
        log = ask.node.log
        assert log is not None
        for _ in range(60):
            await ask.publish(1)
            await log.append([log.batch(log.shard(2), encode_block(1, {envelope.PAYLOAD: [bytes(5000)]}))])
        await log.advance_floor({ShardKey(2, 0): 60})
        assert await log.spill_job.step()
        backlog = await backlog_of(ask)
        assert backlog.files[0].spill
        plan = plan_round(backlog, {1: {0: 0}}, {1: target_in(tmp_path)}, RoundBudget(age_due_ms=0), NOW_US)
        leased = await ask("pipeline_lease", lease="r1", epoch=1, files=plan.files, ttl_ms=60_000)
        for source in (
            msgspec.structs.replace(plan.source, address=""),
            msgspec.structs.replace(plan.source, directory="", lease="r1", token=leased["token"]),
        ):
            owner = LogOwner(source)
            read = [await asyncio.to_thread(read_range, source, source_range, owner) for source_range in plan.ranges]
            owner.close()
            assert [failed for _, failed in read] == [{}] * len(read)
            assert sorted(offset for block, _ in read for offset in block.base.tolist()) == list(range(60))


async def test_hazard_08_inspect_and_metrics_show_the_spill_log() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    before = metrics.WAL_SPILLED_BYTES._value.get()
    await log.spill_job.step()
    (file,) = log.lifecycle.spills.files
    assert metrics.WAL_SPILLED_BYTES._value.get() - before == file.size == log.lifecycle.spills.bytes
    shown = {family.name: family for family in (await log_families(log, machine.clock.wall_us()))}
    assert shown["icestream_wal_spill_bytes"].samples[0].value == file.size
    assert shown["icestream_wal_spill_topics"].samples[0].value == 1
    (view,) = [file for file in view_log(machine.disk).files if file.state == SPILL]
    assert (view.name, view.size, view.shards) == (spill_name(file.number), file.size, 2)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "create"])
async def test_hazard_08_a_failed_copy_loses_nothing(operation: str) -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    before = await all_of(log)
    machine.disk.fail(operation, errno.ENOSPC)
    assert not await log.spill_job.step()
    assert await all_of(log) == before
    assert [name for name in machine.disk.names() if "spill" in name] == []
    assert await log.spill_job.step()
    assert await all_of(log) == before


@pytest.mark.parametrize("damage", ["gone", "header", "seal"])
async def test_hazard_08_a_missing_spill_file_stops_the_start_and_a_repair_reports_the_loss(damage: str) -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    await log.spill_job.step()
    before = await all_of(log)
    await log.close()
    (name,) = spills(machine.disk)
    if damage == "gone":
        machine.disk.remove(name)
    else:
        machine.disk.flip(name, 8 * (100 if damage == "header" else 520))
    assert isinstance(started := await machine.try_start(), errors.LogDamaged), started
    plan = plan_repair(machine.disk)
    lost = {(gap.key, offset) for gap in plan.gaps for offset in range(gap.start, gap.end)}
    apply_repair(machine.disk, machine.clock, plan)
    log = await machine.start()
    for key, payloads in before.items():
        stored = await messages(log, key, log.shard(*key).floor)
        assert {offset for offset in payloads if offset not in stored} == {
            offset for shard, offset in lost if shard == key
        }
    assert (B, 0) in lost


async def test_hazard_08_a_repair_of_the_log_does_not_touch_the_spill_log() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    await log.spill_job.step()
    for _ in range(12):
        await publish(log, A, bytes(7000))
        await publish(log, B, b"behind")
    before = await all_of(log)
    await log.close()
    victim = logs(machine.disk)[0]
    machine.disk.flip(victim, 8 * 9000)
    plan = plan_repair(machine.disk)
    assert {gap.key for gap in plan.gaps} == {A}
    apply_repair(machine.disk, machine.clock, plan)
    log = await machine.start()
    assert await all_of(log) == before


async def test_hazard_08_the_footer_of_a_spill_file_is_rebuilt() -> None:
    machine = Machine(**SMALL)
    log = await stuck_log(machine)
    await log.spill_job.step()
    before = await all_of(log)
    (file,) = log.lifecycle.spills.files
    await log.close()
    machine.disk.flip(spill_name(file.number), 8 * (file.seal.footer_position + 70))
    log = await machine.start()
    assert await all_of(log) == before
