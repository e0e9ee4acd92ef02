"""Hazard 4: after every file was recycled the log still knows its next offsets, its producers and its topics."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from icestream import errors
from icestream.model import SyncMode, TopicIdentity
from icestream.model.block import Numbering
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.damage import plan_repair
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.log_file import checkpoint_lsn
from icestream.wal.log_repair import apply_repair
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import TOPICS, A, B, Machine, block, messages, publish

pytestmark = pytest.mark.asyncio
PRODUCER = 5


async def fill(log: WriteAheadLog, count: int, start: int = 0) -> None:
    log.state.producers.open(PRODUCER, 1)
    for number in range(start, start + count):
        await publish(log, A, b"%d" % number + bytes(6000), numbering=Numbering(PRODUCER, 1, number))
        await publish(log, B, b"b%d" % number)


async def recycle(log: WriteAheadLog) -> None:
    await log.advance_floor({A: log.shard(*A).synced, B: log.shard(*B).synced})
    await log.checkpoint()
    await log.checkpoint()


def log_state(log: WriteAheadLog) -> dict[str, Any]:
    """The state of the log that must not depend on which files are left."""
    windows = log.state.producers.windows()
    return {
        "topics": dict(log.state.topics),
        "next": {key: (shard.assigned, shard.synced, shard.epoch) for key, shard in log.state.shards.items()},
        "time": {key: shard.append_time_us for key, shard in log.state.shards.items()},
        "windows": {
            (key, producer): (window.producer_epoch, window.expected, list(window.sent))
            for key, producer, window in windows
        },
        "gaps": {key: gaps for key, gaps in log.state.gaps.items() if gaps},
    }


def checkpoints(disk: SimulatedDisk) -> list[str]:
    """Newest first."""
    return sorted((name for name in disk.names() if checkpoint_lsn(name) is not None), reverse=True)


@pytest.mark.parametrize("stopped_in_order", [False, True])
@pytest.mark.parametrize("end", ["kill", "power_loss"])
async def test_hazard_04_a_start_after_recycling_everything_restores_the_whole_state(
    end: str, stopped_in_order: bool
) -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    if stopped_in_order:  # then no file is left at all
        await log.close()
        log = await machine.start()
    before = log_state(log)
    await recycle(log)
    assert log.lifecycle.files == []
    await getattr(machine, end)()

    log = await machine.start()
    assert log_state(log) == before
    assert log.state.producers.check(A, Numbering(PRODUCER, 1, 29), 1) == Duplicate(
        29, before["windows"][A, 5][2][-1][3]
    )
    assert log.state.topics == {topic.id: topic for topic in TOPICS}
    assert await publish(log, A, b"next") == 30
    assert log.state.lsn == 61
    assert (await messages(log, A))[30] == b"next"


@pytest.mark.parametrize("damage", ["delete", "cut", "empty", "flip", "zero"])
async def test_hazard_04_the_older_checkpoint_gives_the_same_state_as_the_newest(damage: str) -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    await recycle(log)
    await fill(log, 20, start=30)
    await log.checkpoint()
    await fill(log, 3, start=50)
    before = log_state(log)
    await machine.kill()
    newest, older = checkpoints(machine.disk)
    assert checkpoint_lsn(newest) != checkpoint_lsn(older)
    spoil(machine.disk, newest, damage)

    log = await machine.start()
    assert log_state(log) == before
    assert log.report.checkpoint_lsn == checkpoint_lsn(older)
    assert log.report.bad_checkpoints == ([] if damage == "delete" else [newest])
    stored = await messages(log, A)
    assert stored[52] == b"52" + bytes(6000)


def spoil(disk: SimulatedDisk, name: str, damage: str) -> None:
    content = disk.content(name)
    match damage:
        case "delete":
            disk.remove(name)
            disk.sync()
        case "cut":
            disk.replace(name, content[: len(content) // 2])
        case "empty":
            disk.replace(name, b"")
        case "flip":
            disk.flip(name, len(content) * 4)
        case "zero":
            disk.replace(name, bytes(len(content)))


async def test_hazard_04_without_any_checkpoint_a_recycled_log_does_not_start_at_zero() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    await recycle(log)
    await fill(log, 3, start=30)
    await machine.kill()
    for name in checkpoints(machine.disk):
        machine.disk.remove(name)
    with pytest.raises(errors.LogDamaged, match="a log file or a checkpoint is missing"):
        await machine.start()


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "zero"])
async def test_hazard_04_unreadable_checkpoints_still_tell_the_end_of_the_log(damage: str) -> None:
    """Every file was freed, and both checkpoints are hit: their names are all that is left of the log."""
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    await log.close()
    log = await machine.start()
    await recycle(log)
    await log.close()
    last = log.state.lsn
    (unused,) = [name for name in machine.disk.names() if name.startswith("log-")]
    machine.disk.remove(unused)
    machine.disk.sync()
    for name in checkpoints(machine.disk):
        spoil(machine.disk, name, damage)
    before = machine.disk.names()
    with pytest.raises(errors.LogDamaged, match=f"the log ends at record 0, but a checkpoint covers record {last}"):
        await machine.start()
    assert machine.disk.names() == before

    plan = plan_repair(machine.disk)
    assert [(loss.lsn_first, loss.lsn_last) for loss in plan.losses] == [(1, last)]
    apply_repair(machine.disk, machine.clock, plan)
    log = await machine.start({A: 30, B: 30})
    assert log.state.lsn > last
    known_gap, unknown = log.gaps(A)
    assert (known_gap.start, known_gap.end, unknown.start) == (0, 30, 30), "a stored position is believed"
    assert await publish(log, A, b"new") == unknown.end > 30, "offsets behind it are not assigned again"


async def test_hazard_04_a_file_is_freed_only_after_two_durable_checkpoints_cover_it() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    last_lsn = {file.number: file.seal.last_lsn for file in log.lifecycle.files}
    machine.disk.operations.clear()
    await recycle(log)
    durable: list[int] = []
    renamed: list[int] = []
    freed = 0
    for operation, what in machine.disk.operations:
        if operation == "rename" and what.split()[1].startswith("checkpoint-"):
            renamed.append(checkpoint_lsn(what.split()[1]) or 0)
        elif operation == "sync_directory":
            durable += renamed
            renamed = []
        elif operation in ("rename", "remove") and what.startswith("log-"):
            number = int(what[4:20])
            assert sum(lsn >= last_lsn[number] for lsn in durable) >= 2, f"{what} before its checkpoints"
            freed += 1
    assert freed == len(last_lsn) > 1


async def test_hazard_04_a_file_of_notes_is_freed_only_after_two_checkpoints_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No floor holds it, but the older checkpoint and the log behind it must still give the same state. Starts write no
    checkpoint here, as on a disk without room for one: theirs would cover the notes."""

    async def not_written(_: FileLifecycle) -> None:
        return None

    monkeypatch.setattr(FileLifecycle, "checkpoint_first_file", not_written)
    machine = Machine(mode=SyncMode.PERIODIC)
    log = await machine.start()
    await publish(log, A, b"first")
    await recycle(log)  # both know the floor; the file is still written to
    await machine.kill()
    log = await machine.start()
    await log.checkpoint()  # covers the note of the gap that this start wrote; the older one names the first file
    await machine.kill()
    log = await machine.start()
    newest, older = (checkpoint_lsn(name) for name in checkpoints(machine.disk))
    messages_file, file = log.lifecycle.files
    assert (list(file.ranges()), older, newest) == ([], file.seal.last_lsn - 1, file.seal.last_lsn)
    await log.lifecycle.free_files()
    assert log.lifecycle.files == [messages_file, file]
    before = log.gaps(A)
    await machine.kill()
    spoil(machine.disk, checkpoints(machine.disk)[0], "flip")
    log = await machine.start()
    assert log.gaps(A) == before
    await recycle(log)
    assert log.lifecycle.files == []


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_hazard_04_failed_checkpoints_free_no_file_that_is_needed(operation: str, times: int) -> None:
    for after in range(4):
        machine = Machine(seed=after)
        log = await machine.start()
        await fill(log, 20)
        before = log_state(log)
        machine.disk.fail(operation, errno.EIO, after)
        for _ in range(times - 1):
            machine.disk.fail(operation, errno.EIO)
        await log.advance_floor({A: 20, B: 20})
        await machine.power_loss()
        log = await machine.start()
        assert log_state(log) == before
        assert await publish(log, A, b"next") == 20


async def test_hazard_04_a_crash_at_any_step_of_recycling_and_reuse_loses_nothing() -> None:
    crashed = True
    operations = 0
    while crashed:
        machine = Machine(seed=operations)
        log = await machine.start()
        await fill(log, 12)
        machine.disk.crash_after(operations)

        async def work(log: WriteAheadLog = log) -> None:
            await recycle(log)
            await fill(log, 10, start=12)

        crashed = not await machine.survives(work())
        await machine.power_loss()
        log = await machine.start()
        assert log.shard(*A).assigned >= 12
        assert log.state.topics == {topic.id: topic for topic in TOPICS}
        answer = log.state.producers.check(A, Numbering(PRODUCER, 1, 11), 1)
        assert answer is not None
        assert answer.base_offset == 11
        stored = await messages(log, A)
        assert stored == {offset: b"%d" % offset + bytes(6000) for offset in stored}
        operations += 3
    assert operations > 60


async def test_hazard_04_an_unnamed_topic_id_stops_the_start() -> None:
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"known")
    name, number = "log-0000000000000001.wal", 1
    await machine.kill()
    content = machine.disk.content(name)
    end = wire.RECORDS_START + wire.decode_header(content, wire.RECORDS_START, wire.RECORDS_START).record_bytes
    section = wire.RecordSection(17, 0, wire.SectionKind.MESSAGES, 0, 0, 0, 0, 1, 0, block(b"of nobody"))
    record = wire.encode_record(wire.RecordKind.DATA, 2, number, 1, 0, end, wire.ALIGN, [section])
    machine.disk.replace(name, content[:end] + record + content[end + len(record) :])
    with pytest.raises(errors.LogDamaged, match="topic id 17 is used, but no record of the log names it"):
        await machine.start()


async def test_hazard_04_every_file_names_the_topics_it_uses() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    await log.close()
    files = [name for name in machine.disk.names() if name.startswith("log-")]
    assert len(files) > 3
    for name in files:
        assert named_before_used(machine.disk.content(name)) == {1, 2}, name


def named_before_used(content: bytes) -> set[int]:
    """The topic ids that a file uses, each of which was named by a section before."""
    named: dict[int, TopicIdentity | None] = {}
    used: set[int] = set()
    at = wire.RECORDS_START
    while (header := wire.decode_header(content, at, at)).kind == wire.RecordKind.DATA:
        for entry in wire.decode_entries(content, at, header):
            if entry.kind == wire.SectionKind.TOPIC:
                named[entry.topic_id] = None
            assert entry.topic_id in named
            used.add(entry.topic_id)
        at += header.record_bytes
    return used


async def test_hazard_04_a_topic_id_never_changes_its_meaning() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 30)
    await recycle(log)
    await machine.kill()
    log = await machine.start()
    refused: Callable[[TopicIdentity], None] = log.declare_topic
    with pytest.raises(errors.InvalidInput, match="topic id 1 is '/default/a'"):
        refused(TopicIdentity(1, "/default/another"))
    with pytest.raises(errors.InvalidInput, match="incarnation 7"):
        refused(TopicIdentity(2, "/default/b", 8))
