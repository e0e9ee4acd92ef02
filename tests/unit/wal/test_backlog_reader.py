"""What is in no table yet: every synced offset above its floor, in exactly one stretch, in the bytes that are told."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from icestream import limits
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.model import ShardKey, SyncMode, TopicIdentity
from icestream.model.backlog_messages import BacklogFile, PassedOver, ShardBacklog
from icestream.pipeline.topic_share import by_shard, shard_plans, share_of
from icestream.wal import format as wire
from icestream.wal.backlog_reader import BacklogSnapshot, Lag
from icestream.wal.log_file import log_name, spill_name
from icestream.wal.record_scan import scan_records
from icestream.wal.retention import Retention
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, B, Machine, batch, publish, settle

pytestmark = pytest.mark.asyncio
A1 = ShardKey(1, 1)


def offsets_in(machine: Machine, file: BacklogFile) -> dict[ShardKey, set[int]]:
    """The offsets that a reader finds from each mark to the next one, or to the end."""
    offsets_by_shard: dict[ShardKey, set[int]] = {}
    content = machine.disk.content((spill_name if file.spill else log_name)(file.number))
    for (start, lsn), stop in zip(file.marks, [*(mark[0] for mark in file.marks[1:]), file.end], strict=True):
        data = content[start:stop]
        records, end, _, _ = scan_records(data, start, file.number, lsn)
        assert end == stop
        for record in records:
            at = record[0] - start
            for entry in wire.entries_at(data, at, record[0], record[7]):
                if entry.kind == wire.SectionKind.MESSAGES:
                    key = ShardKey(entry.topic_id, entry.shard)
                    offsets_by_shard.setdefault(key, set()).update(range(entry.base_offset, entry.end_offset))
    return offsets_by_shard


def reported_offsets(backlog: BacklogSnapshot) -> dict[ShardKey, list[int]]:
    offsets_by_shard: dict[ShardKey, list[int]] = {}
    for file in backlog.files:
        for stretch in file.stretches:
            offsets_by_shard.setdefault(ShardKey(stretch.topic_id, stretch.shard), []).extend(
                range(stretch.start, stretch.end)
            )
    return offsets_by_shard


def waiting(log: WriteAheadLog) -> dict[ShardKey, list[int]]:
    """From the state alone."""
    offsets_by_shard: dict[ShardKey, list[int]] = {}
    for key, shard in log.state.shards.items():
        at = log.state.step_over(key, shard.floor)
        while at < shard.synced:
            offsets_by_shard.setdefault(key, []).append(at)
            at = log.state.step_over(key, at + 1)
    return offsets_by_shard


async def check(machine: Machine, log: WriteAheadLog) -> BacklogSnapshot:
    backlog = await log.backlog.snapshot()
    assert reported_offsets(backlog) == waiting(log)
    for file in backlog.files:
        there = offsets_in(machine, file)
        for stretch in file.stretches:
            assert set(range(stretch.start, stretch.end)) <= there[ShardKey(stretch.topic_id, stretch.shard)]
            assert stretch.bytes > 0
    for topic in backlog.topics:
        keys = [key for key in log.state.shards if key.topic_id == topic.topic_id]
        assert [shard.shard for shard in topic.shards] == sorted(key.shard for key in keys)
        assert topic.rows == sum(len(waiting(log).get(key, [])) for key in keys)
    assert not backlog.is_cut
    return backlog


@pytest.mark.parametrize("mode", SyncMode)
async def test_all_synced_uncommitted_offsets_are_reported_once(mode: SyncMode) -> None:
    random_ = random.Random(5)
    machine = Machine(mode=mode)
    log = await machine.start()
    log.shard(1, 1)
    assert (await check(machine, log)).topics == []
    for turn in range(40):
        for _ in range(random_.randrange(6)):
            await publish(log, random_.choice([A, B, A1]), *(bytes(random_.randrange(3000)) for _ in range(2)))
        await log.sync()
        backlog = await check(machine, log)
        if turn % 3 == 0:
            floors = {key: random_.randint(shard.floor, shard.synced) for key, shard in log.state.shards.items()}
            await log.advance_floor(floors)
            await check(machine, log)
        if turn == 25:
            await machine.kill()
            log = await machine.start()
            log.shard(1, 1)
            await check(machine, log)
    assert len(backlog.files) > 1
    await log.advance_floor({key: shard.synced for key, shard in log.state.shards.items()})
    assert (await check(machine, log)).files == []


async def test_unsynced_offsets_are_not_reported() -> None:
    machine = Machine()
    sink = HeldSink()
    log = await machine.start(sink=sink)
    receipt = log.submit([batch(log, A, b"1")])
    await settle()
    assert (await log.backlog.snapshot()).topics == []
    while sink.step():
        log._on_progress()
    await receipt
    receipt = log.submit([batch(log, A, b"2")])
    await settle()
    backlog = await log.backlog.snapshot()
    assert reported_offsets(backlog) == {A: [0]}
    assert offsets_in(machine, backlog.files[0]) == {A: {0}}, "the record behind it is in the file, and not synced"
    while sink.step():
        log._on_progress()
    await receipt
    await check(machine, log)


async def test_a_file_has_marks_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARK_STRIDE_BYTES", 10_000)
    machine = Machine()
    log = await machine.start()
    for _ in range(40):
        await publish(log, A, bytes(3000))
    backlog = await check(machine, log)
    assert all(len(file.marks) >= 4 for file in backlog.files[:-1])
    marks = [file.marks for file in backlog.files]
    await machine.kill()
    log = await machine.start()
    backlog = await check(machine, log)
    assert [file.marks for file in backlog.files] == marks, "found by the scan of a start"
    for _ in range(limits.CHECKPOINTS_KEPT):
        await log.checkpoint()
    await log.close()
    log = await machine.start()
    assert log.report.records_scanned == 0
    backlog = await check(machine, log)
    assert [file.marks for file in backlog.files] == marks, "and by the footers alone"


async def test_a_gap_has_no_message_and_is_reported() -> None:
    machine = Machine(mode=SyncMode.PERIODIC)
    log = await machine.start()
    await publish(log, A, b"1")
    await log.sync()
    await machine.kill()
    log = await machine.start()
    backlog = await check(machine, log)
    (topic,) = backlog.topics
    reserved = log.shard(*A).synced
    assert topic.shards == [ShardBacklog(0, 0, 0, reserved, [(1, reserved)])]
    assert topic.rows == 1
    await log.advance_floor({A: 1})
    assert (await check(machine, log)).topics == [], "nothing but a gap is left"


async def test_a_retention_gap_is_reported_although_the_floor_is_beyond_it() -> None:
    machine = Machine()
    log = await machine.start()
    log.retention_job.set_retention(1, 1, Retention(50_000))
    for _ in range(60):
        await publish(log, A, bytes(3000))
    await log.retention_job.step()
    floor = log.shard(*A).floor
    assert floor > 0
    (topic,) = (await check(machine, log)).topics
    assert topic.shards[0].gaps == [(0, floor)]


async def test_a_gap_of_an_unclean_stop_is_reported_although_retention_went_beyond_it() -> None:
    machine = Machine(mode=SyncMode.PERIODIC)
    log = await machine.start()
    await publish(log, A, b"1")
    await log.sync()
    await machine.kill()
    log = await machine.start()
    reserved = log.shard(*A).synced
    log.retention_job.set_retention(1, 1, Retention(50_000))
    for _ in range(60):
        await publish(log, A, bytes(3000))
    await log.sync()
    await log.retention_job.step()
    floor = log.shard(*A).floor
    assert floor > reserved > 1
    (topic,) = (await check(machine, log)).topics
    assert topic.shards[0].gaps == [(0, 1), (1, reserved), (reserved, floor)]


@pytest.mark.parametrize("is_retained", [True, False], ids=["all kept", "front removed"])
async def test_a_topic_reaches_its_table_through_more_gaps_than_an_answer_lists(is_retained: bool) -> None:
    """A start after kill -9 leaves a gap in `periodic` and `none`; here one lies between any two messages."""
    count = 2 * limits.BACKLOG_GAPS_MAX + 10
    machine = Machine(mode=SyncMode.PERIODIC)
    offsets = []
    for number in range(count):
        log = await machine.start()
        offsets.append(await publish(log, A, b"%d" % number))
        await log.sync()
        await machine.kill()
    log = await machine.start()
    if not is_retained:
        log.retention_job.set_retention(1, 1, Retention(2))
        await log.retention_job.step()
        assert log.shard(*A).floor > offsets[limits.BACKLOG_GAPS_MAX]
        offsets = [offset for offset in offsets if offset >= log.shard(*A).floor]
    position, rounds, rows = 0, 0, []
    while log.backlog.uncommitted_count(A):
        backlog = await log.backlog.snapshot()
        (topic,) = backlog.topics
        assert topic.rows == len(offsets) - len(rows), "messages in gaps that are not listed are none"
        assert len(topic.shards[0].gaps) <= limits.BACKLOG_GAPS_MAX
        share = share_of(topic, {0: position}, by_shard(backlog.files))
        assert not share.fault
        (plan,) = shard_plans(topic, {0: position}, share.pieces)
        rows += [piece.offsets.start for piece in share.pieces]
        position = plan.end
        await log.advance_floor({A: position})
        rounds += 1
    assert rows == offsets
    assert rounds <= 4


async def test_the_age_of_the_oldest_message_is_approximated() -> None:
    machine = Machine()
    log = await machine.start()

    async def age_seconds() -> float:
        (topic,) = (await log.backlog.snapshot()).topics
        return (machine.clock.wall_us() - topic.oldest_us) / 1e6

    await publish(log, A, b"1")
    assert await age_seconds() == 0
    for _ in range(4):  # more messages do not make it younger
        machine.clock.advance(1)
        await publish(log, A, b"2")
    assert await age_seconds() == 4
    planned = log.shard(*A).synced
    machine.clock.advance(1)
    await publish(log, A, b"3")
    machine.clock.advance(1)
    await log.advance_floor({A: planned})
    assert await age_seconds() == 2, "it came behind the question of the round that was committed"
    await log.advance_floor({A: planned + 1})
    assert (await log.backlog.snapshot()).topics == []
    machine.clock.advance(100)
    await publish(log, A, b"4")
    machine.clock.advance(1)
    assert await age_seconds() == 1
    await machine.kill()
    machine.clock.advance(10)
    log = await machine.start()
    assert await age_seconds() == 11, "a start knows the time of its file"


async def test_reading_for_metrics_changes_nothing() -> None:
    machine = Machine()
    log = await machine.start()
    assert await log.backlog.lag() == Lag(0, 0, None)
    began_us = machine.clock.wall_us()
    await publish(log, A, b"1")
    await log.backlog.snapshot()
    machine.clock.advance(3)
    await publish(log, A, b"2")
    for _ in range(2):
        assert (await log.backlog.lag())._replace(bytes=0) == Lag(2, 0, began_us)
    await log.advance_floor({A: 1})
    assert (await log.backlog.lag())._replace(bytes=0) == Lag(1, 0, began_us), "it came behind the question of then"
    await log.advance_floor({A: 2})
    assert await log.backlog.lag() == Lag(0, 0, None)


async def test_a_reply_is_bounded_and_the_oldest_topics_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG_TOPICS_MAX", 3)
    monkeypatch.setattr(limits, "BACKLOG_SLICE_SHARDS", 2)
    machine = Machine()
    log = await machine.start()
    for number in range(10, 20):
        log.declare_topic(TopicIdentity(number, f"/default/t{number}", 1))
    order = [14, 11, 19, 10, 12, 13, 15, 16, 17, 18]
    for number in order:
        await publish(log, ShardKey(number, 0), b"x")
        machine.clock.advance(1)
    backlog = await log.backlog.snapshot()
    assert [topic.topic_id for topic in backlog.topics] == [14, 11, 19]
    assert backlog.is_cut
    assert set(reported_offsets(backlog)) == {ShardKey(number, 0) for number in (14, 11, 19)}
    await log.advance_floor({ShardKey(number, 0): 1 for number in (14, 11, 19)})
    assert [topic.topic_id for topic in (await log.backlog.snapshot()).topics] == [10, 12, 13]


async def test_hazard_24_topics_that_are_never_written_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unwritten topics would fill an answer and wait longest, and each of them is reported again and again."""
    monkeypatch.setattr(limits, "BACKLOG_TOPICS_MAX", 4)
    machine = Machine()
    log = await machine.start()
    stuck, others = range(10, 16), range(20, 30)
    for number in (*stuck, *others):
        log.declare_topic(TopicIdentity(number, f"/default/t{number}", 1))
        await publish(log, ShardKey(number, 0), b"x")
        machine.clock.advance(1)
    seen: set[int] = set()
    for _ in range(20):
        topics = [topic.topic_id for topic in (await log.backlog.snapshot()).topics]
        assert len(topics) == min(4, len(stuck) + len(others) - len(seen & set(others)))
        seen.update(topics)
        await log.advance_floor({ShardKey(number, 0): 1 for number in topics if number in others})
        machine.clock.advance(limits.BACKLOG_STUCK_SECONDS / 2)
    assert seen == {*stuck, *others}
    assert all(log.shard(number, 0).floor == 1 for number in others)
    again: set[int] = set()
    for _ in range(3):
        again.update(topic.topic_id for topic in (await log.backlog.snapshot()).topics)
    assert again == set(stuck)


@pytest.mark.parametrize("bound", [{"files_max": 2}, {"stretches": 2}])
async def test_files_are_truncated_after_the_oldest(bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if "stretches" in bound:
        monkeypatch.setattr(limits, "BACKLOG_STRETCHES_MAX", bound["stretches"])
    machine = Machine()
    log = await machine.start()
    for _ in range(60):
        await publish(log, A, bytes(3000))
    backlog = await log.backlog.snapshot(bound.get("files_max", limits.BACKLOG_FILES_MAX))
    assert (len(backlog.files), backlog.is_cut) == (2, True)
    offsets = reported_offsets(backlog)[A]
    assert offsets == list(range(len(offsets)))
    await log.advance_floor({A: len(offsets)})
    assert reported_offsets(await log.backlog.snapshot())[A] == list(range(len(offsets), 60))


async def test_hazard_08_a_stalled_topic_hides_no_other() -> None:
    """Files with only that topic are not counted; its rows and bytes are reported as sums."""
    machine = Machine()
    log = await machine.start()
    began_us = machine.clock.wall_us()
    for number in range(60):
        await publish(log, A, bytes(3000))
        machine.clock.advance(1)
        if number % 20 == 0:
            await publish(log, B, b"x")
            backlog = await log.backlog.snapshot(2, {A.topic_id})
            assert [topic.topic_id for topic in backlog.topics] == [B.topic_id]
            assert reported_offsets(backlog) == {B: [log.shard(*B).floor]}
            assert not backlog.is_cut
            await log.advance_floor({B: log.shard(*B).synced})
    backlog = await log.backlog.snapshot(2, {A.topic_id, 99})
    assert (backlog.topics, backlog.files, backlog.is_cut) == ([], [], False)
    assert (backlog.passed_over.rows, backlog.passed_over.oldest_us) == (60, began_us)
    assert 60 * 3000 <= backlog.passed_over.bytes <= 61 * 4096
    backlog = await log.backlog.snapshot(2)
    assert (backlog.is_cut, backlog.passed_over) == (True, PassedOver()), "it is its turn again"


async def test_waiters_are_not_woken_for_stalled_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG_LOOK_SECONDS", 0.2)
    machine = Machine()
    log = await machine.start()
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    await publish(log, A, b"x")
    looks: list[object] = []
    snapshot = log.backlog.snapshot

    async def counted(*arguments: Any) -> BacklogSnapshot:
        looks.append(arguments)
        return await snapshot(*arguments)

    monkeypatch.setattr(log.backlog, "snapshot", counted)
    waiting = asyncio.create_task(ingest.backlog(60_000, passed_over=frozenset({A.topic_id})))
    for _ in range(100):
        await publish(log, A, b"x")
        await settle()
    assert not waiting.done()
    assert len(looks) <= 3, "it looks now and then, not behind each record"
    await publish(log, B, b"x")
    async with asyncio.timeout(5):
        backlog = await waiting
    assert [topic.topic_id for topic in backlog.topics] == [B.topic_id]
    assert backlog.passed_over.rows == 101


async def test_the_loop_runs_while_many_topics_are_read() -> None:
    """A slice has a bounded number of shards, whatever there is; counted by the turns that the loop gets."""
    machine = Machine()
    log = await machine.start()
    for number in range(10, 10 + 4 * limits.BACKLOG_SLICE_SHARDS):
        log.declare_topic(TopicIdentity(number, f"/default/t{number}", 1))
        log.shard(number, 0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await log.backlog.snapshot()
    counting.cancel()
    assert turns >= 4
