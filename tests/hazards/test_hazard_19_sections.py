"""Hazard 19: each shard of a record is read and verified alone; a record is bounded however much a tick brings."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from icestream import errors, limits
from icestream.model import ShardKey, TopicIdentity
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.footer import read_footer
from icestream.wal.log_file import log_name, log_number
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.counting_directory import CountingDirectory
from tests.support.held_offload import HeldOffload
from tests.support.machine import A, B, Machine, batch, messages, publish

pytestmark = pytest.mark.asyncio
Answer = TypeVar("Answer")
MANY = {"file_bytes": 8 * limits.MIB, "message_bytes_max": 1_000_000}
KEYS = [ShardKey(topic, 0) for topic in range(100, 1100)]


async def write_ticks(log: WriteAheadLog, ticks: int = 5) -> None:
    for key in KEYS:
        log.declare_topic(TopicIdentity(key.topic_id, f"/default/topic-{key.topic_id}"))
    for tick in range(ticks):
        await log.append([batch(log, key, b"%d.%d." % (tick, key.topic_id) + bytes(300)) for key in KEYS])


def own_bytes(log: WriteAheadLog, key: ShardKey) -> int:
    """The bytes of this shard in all files."""
    sealed = sum(extent.own_bytes for file in log.lifecycle.files if (extent := file.find(key)) is not None)
    active = log.appender.file
    return sealed + (active.index.shards[key].own_bytes if active and key in active.index.shards else 0)


async def test_hazard_19_reading_one_of_1000_topics_reads_little_more_than_its_bytes() -> None:
    machine = Machine(**MANY)
    disk = machine.view = CountingDirectory(machine.disk)
    log = await machine.start()
    await write_ticks(log)
    key = KEYS[417]
    expected = {tick: b"%d.517." % tick + bytes(300) for tick in range(5)}

    disk.reset()
    assert await messages(log, key) == expected
    assert disk.total() <= 2 * own_bytes(log, key), "from the file that is being written"

    await log.close()
    log = await machine.start()
    (file,) = log.lifecycle.files
    disk.reset()
    assert await messages(log, key) == expected
    assert disk.total() <= 2 * own_bytes(log, key) + file.seal.footer_bytes, "from a sealed file, and its index once"
    disk.reset()
    assert await messages(log, key) == expected
    assert disk.total() <= 2 * own_bytes(log, key), "then from its bytes only"
    assert file.seal.end_position > 300 * own_bytes(log, key)


def section_of(disk: SimulatedDisk, name: str, key: ShardKey, lsn: int) -> wire.SectionEntry:
    content, at = disk.content(name), wire.RECORDS_START
    while (header := wire.decode_header(content, at, at)).lsn != lsn:
        at += header.record_bytes
    return next(
        entry
        for entry in wire.decode_entries(content, at, header)
        if (entry.topic_id, entry.shard, entry.kind) == (*key, wire.SectionKind.MESSAGES)
    )


async def test_hazard_19_a_flip_in_one_topic_leaves_the_others_readable_and_is_reported_at_start() -> None:
    machine = Machine()
    log = await machine.start()
    for number in range(4):
        await log.append([batch(log, A, b"a%d" % number + bytes(200)), batch(log, B, b"b%d" % number)])
    name = log_name(1)
    hit = section_of(machine.disk, name, A, lsn=2)
    machine.disk.flip(name, 8 * (hit.body_position + 100))

    assert list((await messages(log, B)).values()) == [b"b0", b"b1", b"b2", b"b3"]
    with pytest.raises(errors.LogDamaged, match=rf"file 1 .*position {hit.body_position}: offsets 1 to 1 of topic 1"):
        await log.reader.read(A, 1)
    assert (await log.reader.read(A, 2)).sections[0].base_offset == 2, "other messages of the section are readable too"

    await machine.kill()
    with pytest.raises(errors.LogDamaged, match=f"{name} is damaged at position .*icestream wal repair"):
        await machine.start()


async def test_hazard_19_a_flip_in_a_sections_entry_is_reported_not_followed() -> None:
    machine = Machine()
    log = await machine.start()
    for number in range(4):
        await log.append([batch(log, A, b"a%d" % number), batch(log, B, b"b%d" % number)])
    name = log_name(1)
    hit = section_of(machine.disk, name, A, lsn=3)
    for byte in (0, 24, 40, 44, 48):  # topic, offset, rows, body position, body bytes
        machine.disk.flip(name, 8 * (hit.position + byte) + 1)
        with pytest.raises(errors.LogError):
            await log.reader.read(A, 2)
        assert len(await messages(log, B)) == 4
        machine.disk.flip(name, 8 * (hit.position + byte) + 1)
    assert len(await messages(log, A)) == 4


@pytest.mark.parametrize("sealed", [False, True])
async def test_hazard_19_a_follower_reports_damage(sealed: bool) -> None:
    machine = Machine()
    machine.offload = lambda name, count: HeldOffload(calls_max=500)
    log = await machine.start()
    for number in range(20 if sealed else 4):
        await publish(log, A, b"%d" % number + bytes(5000))
    name = log_name(1)
    assert bool(log.lifecycle.files) == sealed
    machine.disk.flip(name, 8 * (section_of(machine.disk, name, A, lsn=3).body_position + 100))
    seen: list[int] = []
    with pytest.raises(errors.LogDamaged, match="damaged at position"):
        await follow_into(log, seen)
    assert seen == [1, 2]


async def follow_into(log: WriteAheadLog, seen: list[int]) -> None:
    async for chunk in log.reader.follow(1):
        seen += [record[1] for record in chunk.records]


# --- how large a record gets ------------------------------------------------------------------------------------------


def record_headers(content: bytes) -> list[wire.RecordHeader]:
    headers, at = [], wire.RECORDS_START
    while True:
        try:
            header = wire.decode_header(content, at, at)
        except errors.DecodeError:
            return headers
        headers.append(header)
        at += header.record_bytes


async def test_hazard_19_a_tick_above_4_mib_becomes_several_records() -> None:
    machine = Machine(file_bytes=32 * limits.MIB, message_bytes_max=1_000_000)
    log = await machine.start()
    values = [b"%d." % number + bytes(900_000) for number in range(14)]
    answers = [log.submit([batch(log, (A, B)[number % 2], value)]) for number, value in enumerate(values)]
    await asyncio.gather(*answers)
    headers = record_headers(machine.disk.content(log_name(1)))
    assert len(headers) >= 4
    assert len({header.append_time_us for header in headers}) == 1, "the records are of one tick"
    assert max(header.record_bytes for header in headers) <= limits.RECORD_BYTES_TARGET
    assert list((await messages(log, A, max_bytes=limits.MIB)).values()) == values[::2]
    await machine.power_loss()
    log = await machine.start()
    assert list((await messages(log, B, max_bytes=limits.MIB)).values()) == values[1::2]


async def test_hazard_19_one_message_may_exceed_the_record_size() -> None:
    machine = Machine(file_bytes=32 * limits.MIB, message_bytes_max=6_000_000)
    log = await machine.start()
    await log.append([batch(log, A, b"small"), batch(log, A, bytes(5_500_000)), batch(log, A, b"after")])
    sizes = [header.record_bytes for header in record_headers(machine.disk.content(log_name(1)))]
    assert sum(size > limits.RECORD_BYTES_TARGET for size in sizes) == 1
    assert [len(value) for value in (await messages(log, A)).values()] == [5, 5_500_000, 5]
    with pytest.raises(errors.MessageTooLarge):
        batch(log, A, bytes(3_000_000), bytes(3_000_000))
    assert machine.options.file_bytes >= 4 * max(sizes), "a file holds at least four of them"


async def test_hazard_19_too_many_shards_in_a_tick_become_several_records() -> None:
    machine = Machine(file_bytes=16 * limits.MIB, message_bytes_max=1_000_000)
    log = await machine.start()
    count = limits.RECORD_SECTIONS_MAX + 1200
    await log.append([batch(log, ShardKey(1, shard), b"%d" % shard) for shard in range(count)])
    for name in machine.disk.names():
        if log_number(name):
            sections = [header.section_count for header in record_headers(machine.disk.content(name))]
            assert max(sections, default=0) <= limits.RECORD_SECTIONS_MAX
    await machine.kill()
    log = await machine.start()
    assert len(log.state.shards) == count, "every record of it can be read again"
    assert await messages(log, ShardKey(1, count - 1)) == {0: b"%d" % (count - 1)}
    named: set[ShardKey] = set()
    for file in log.lifecycle.files:
        footer = read_footer(machine.disk.open(log_name(file.number)), file.seal)
        assert footer is not None, "the footer of such a file must be readable too, or each start scans it"
        named |= set(footer.shards)
    assert len(named) == count
