"""Hazard 8, the log's part: live bytes per topic and file, and a quota that refuses one topic alone.

That the files of a stuck topic are freed for the others: test_hazard_08_spill_log.py.
"""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.model import ShardKey
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch, publish

pytestmark = pytest.mark.asyncio


def stored_bytes(disk: SimulatedDisk) -> dict[tuple[int, int], int]:
    """(file, topic) to the bytes of its sections, from the files themselves."""
    sizes: dict[tuple[int, int], int] = {}
    for name in disk.names():
        if not name.startswith("log-"):
            continue
        content, number, at = disk.content(name), int(name[4:20]), wire.RECORDS_START
        while True:
            try:
                header = wire.decode_header(content, at, at)
            except errors.DecodeError:
                break
            if header.kind == wire.RecordKind.FOOTER or header.generation != number:
                break
            for entry in wire.decode_entries(content, at, header):
                if entry.kind == wire.SectionKind.MESSAGES:
                    place = (number, entry.topic_id)
                    sizes[place] = sizes.get(place, 0) + entry.body_bytes + wire.ENTRY_BYTES
            at += header.record_bytes
    return sizes


def counted_bytes(log: WriteAheadLog) -> dict[tuple[int, int], int]:
    """The same as the log counts it."""
    sizes: dict[tuple[int, int], int] = {}
    for file in log.lifecycle.files:
        for key, extent in file.ranges():
            place = (file.number, key.topic_id)
            sizes[place] = sizes.get(place, 0) + extent.own_bytes
    active = log.appender.file
    if active is not None:
        sizes.update({(active.number, topic): size for topic, size in active.index.live_bytes().items()})
    return sizes


def by_topic(counted: dict[tuple[int, int], int]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for (_, topic), size in counted.items():
        totals[topic] = totals.get(topic, 0) + size
    return totals


async def fill(log: WriteAheadLog, count: int) -> None:
    for number in range(count):
        await publish(log, A, bytes(3000 + number))
        await publish(log, ShardKey(1, 1), bytes(500))
        if number % 4 == 0:
            await publish(log, B, bytes(1000))


async def test_hazard_08_live_bytes_are_counted_by_file_and_topic() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 60)
    assert len(log.lifecycle.files) >= 3
    assert counted_bytes(log) == stored_bytes(machine.disk)
    held_bytes = {topic: usage.held_bytes for topic, usage in log.state.usage.items()}
    assert held_bytes == by_topic(stored_bytes(machine.disk))

    await machine.kill()
    log = await machine.start()
    assert counted_bytes(log) == stored_bytes(machine.disk)
    assert {topic: usage.held_bytes for topic, usage in log.state.usage.items()} == held_bytes


async def test_hazard_08_a_freed_file_returns_its_bytes_to_each_topic() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 60)
    floors = {key: shard.synced for key, shard in log.state.shards.items()}
    await log.advance_floor(floors)
    await log.checkpoint()
    await log.checkpoint()
    assert log.lifecycle.files == []
    active = log.appender.file
    assert active is not None
    assert {topic: usage.held_bytes for topic, usage in log.state.usage.items()} == active.index.live_bytes()
    assert sum(usage.held_bytes for usage in log.state.usage.values()) < machine.options.file_bytes


async def test_hazard_08_a_topic_at_its_quota_is_refused_alone_and_loses_nothing() -> None:
    machine = Machine(topic_quota_bytes=150_000)
    log = await machine.start()
    for _ in range(29):
        await log.submit([batch(log, A, bytes(5000))])
    with pytest.raises(errors.TopicQuotaReached, match="topic /default/a holds") as refused:
        await log.submit([batch(log, A, bytes(5000))])
    assert refused.value.retryable
    stored = 29
    assert log.state.usage[1].held_bytes <= 150_000
    for _ in range(20):
        await log.submit([batch(log, B, bytes(5000))])
    with pytest.raises(errors.TopicQuotaReached):
        await log.submit([batch(log, ShardKey(1, 7), bytes(5000))])  # another shard of the same topic
    assert log.shard(*A).assigned == stored
    assert log.shard(*B).assigned == 20

    await log.advance_floor({A: stored, B: 20})
    await log.checkpoint()
    await log.checkpoint()
    (placed,) = await log.submit([batch(log, A, bytes(5000))])
    assert placed.base_offset == stored, "the log drained and goes on without a gap"  # type: ignore[union-attr]


async def test_hazard_08_a_topic_that_commits_is_not_refused_because_another_one_is_stuck() -> None:
    """The stuck topic keeps every file; the quota of the others counts what is live, not what lies in held files."""
    machine = Machine(topic_quota_bytes=150_000)
    log = await machine.start()
    for number in range(90):
        if number % 10 == 0:
            await log.submit([batch(log, B, b"never committed")])
        (placed,) = await log.submit([batch(log, A, bytes(5000))])
        await log.advance_floor({A: placed.base_offset + 1})  # type: ignore[union-attr]
    assert log.shard(*A).assigned == 90, "three times its quota has passed through"
    assert log.shard(*B).floor == 0
    assert log.reader.earliest(B) == 0, "the stuck topic lost nothing"
