"""Hazard 34, the log's part: QoS 2 state is a column of the message and a kind of record; unknown kinds are handled.

The flows themselves, packet by packet under kill -9, wait for MQTT.
"""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.model import envelope
from icestream.model.block import encode_block, iter_blocks
from icestream.wal import format as wire
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, Machine, messages, publish

pytestmark = pytest.mark.asyncio


async def qos2_of(log: WriteAheadLog) -> list[tuple[object, object]]:
    pairs: list[tuple[object, object]] = []
    for section in (await log.reader.read(A, 0)).sections:
        for block in iter_blocks(section.body):
            pairs += zip(block.values(envelope.QOS2_CLIENT), block.values(envelope.QOS2_PACKET_ID), strict=True)
    return pairs


async def test_hazard_34_the_packet_id_of_a_received_message_is_durable_with_the_message_itself() -> None:
    machine = Machine()
    log = await machine.start()
    columns = {
        envelope.PAYLOAD: [b"x", b"y", b"z"],
        envelope.QOS2_CLIENT: ["client-1", None, "client-2"],
        envelope.QOS2_PACKET_ID: [7, None, 65_535],
    }
    await log.append([log.batch(log.shard(*A), encode_block(3, columns))])
    expected = [("client-1", 7), (None, None), ("client-2", 65_535)]
    assert await qos2_of(log) == expected
    for end in (machine.power_loss, machine.kill):
        await end()
        log = await machine.start()
        assert await qos2_of(log) == expected
    assert not envelope.QOS2_CLIENT.in_table
    assert not envelope.QOS2_PACKET_ID.in_table


# --- sections of kinds that this version does not know, or does nothing with ------------------------------------------

UNKNOWN = 200


def note(kind: int, flags: int, body: bytes) -> wire.RecordSection:
    return wire.RecordSection(A.topic_id, A.shard, kind, flags, 0, 0, 0, 0, 0, body)


async def with_record(section: wire.RecordSection) -> Machine:
    """A log of two messages, a record with this section (from another version), and nothing behind it."""
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"one")
    await publish(log, A, b"two")
    active = log.appender.file
    assert active is not None
    number, end = active.number, active.position
    await machine.kill()
    name = log_name(number)
    content = machine.disk.content(name)
    record = wire.encode_record(wire.RecordKind.DATA, 3, number, 2, 0, end, wire.ALIGN, [section])
    machine.disk.replace(name, content[:end] + record + content[end + len(record) :])
    return machine


def sections_in(machine: Machine, kind: int) -> list[bytes]:
    """The bodies of all sections of a kind, wherever recovery has put them."""
    bodies = []
    for name in machine.disk.names():
        if not name.startswith("log-"):
            continue
        content, at = machine.disk.content(name), wire.RECORDS_START
        while at < len(content):
            try:
                header = wire.decode_header(content, at, at)
            except errors.DecodeError:
                break
            for entry in wire.decode_entries(content, at, header):
                if entry.kind == kind:
                    assert wire.check_section(content, at, header, entry)
                    bodies.append(content[entry.body_position :][: entry.body_bytes])
            at += header.record_bytes
    return bodies


@pytest.mark.parametrize(
    ("kind", "flags"),
    [(wire.SectionKind.QOS2_RELEASE, wire.OPTIONAL), (UNKNOWN, wire.OPTIONAL)],
    ids=["a release", "unknown"],
)
async def test_hazard_34_an_optional_record_of_a_later_version_is_stepped_over_and_kept(kind: int, flags: int) -> None:
    machine = await with_record(note(kind, flags, b"client-1/7"))
    for number in range(3):
        log = await machine.start()
        assert log.state.lsn == 3 + number
        assert (await messages(log, A))[1] == b"two"
        assert await publish(log, A, b"goes on") == 2 + number
        await machine.kill()
        assert sections_in(machine, kind) == [b"client-1/7"], "recovery copies what it does not understand"


@pytest.mark.parametrize(
    "kind",
    [UNKNOWN, 8, 255, wire.SectionKind.PRODUCERS.value, wire.SectionKind.QOS2_RELEASE.value,
     wire.SectionKind.REAPPEND.value],
)  # fmt: skip
async def test_hazard_34_an_unknown_section_that_is_not_optional_stops_the_start(kind: int) -> None:
    machine = await with_record(note(kind, 0, b"who knows"))
    before = {name: machine.disk.content(name) for name in machine.disk.names()}
    with pytest.raises(errors.FormatUnknown, match=f"kind {kind}.*use the version"):
        await machine.start()
    await machine.kill()
    assert {name: machine.disk.content(name) for name in machine.disk.names()} == before, "nothing was changed"
