"""Hazard 31, the log's part: everything a protocol says about a message has a place in the log and comes back exactly.

The four tiers and the front ends wait for the pipeline and for MQTT, Danube and the native protocol.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model import envelope
from icestream.model.block import Block, check_block, encode_block, iter_blocks
from icestream.model.envelope import COLUMNS, ColumnKind
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.hypothesis_effort import HALF
from tests.support.machine import A, Machine

# MQTT user properties, in order and with a name twice: what a map cannot hold.
USER_PROPERTIES = b"\x26\x00\x01b\x00\x012\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x013"
MESSAGE = {
    envelope.PUBLISH_TIME: 1_700_000_000_123_456,
    envelope.KEY: b"key\x00with zero",
    envelope.PAYLOAD: b"\x00\xff payload",
    envelope.HEADERS: {"b": "3", "a": "1"},
    envelope.PRODUCER_NAME: "producer ¶",
    envelope.PRODUCER_ID: 2**63 - 1,
    envelope.REQUEST_ID: 7,
    envelope.SEQUENCE: 99,
    envelope.TOPIC_NAME: "/default/a",
    envelope.BROKER_ADDR: "127.0.0.1:6650",
    envelope.SUBSCRIPTION_NAME: "sub",
    envelope.SCHEMA_ID: 12,
    envelope.SCHEMA_VERSION: 3,
    envelope.SCHEMA_ERROR: "field x: not a number",
    envelope.WIRE: USER_PROPERTIES,
    envelope.QOS: 2,
    envelope.RETAIN: True,
    envelope.CONTENT_TYPE: "application/json",
    envelope.QOS2_CLIENT: "client-1",
    envelope.QOS2_PACKET_ID: 65_535,
    envelope.ORIGIN_EPOCH: 4,
    envelope.ORIGIN_OFFSET: 1500,
}


async def read_blocks(log: WriteAheadLog) -> list[Block]:
    result = await log.reader.read(A, log.reader.earliest(A))
    return [block for section in result.sections for block in iter_blocks(section.body)]


def test_hazard_31_every_field_of_a_message_is_tried_here() -> None:
    assert set(MESSAGE) == set(COLUMNS)


@pytest.mark.asyncio
async def test_hazard_31_every_field_is_restored_from_the_tail_and_after_every_kind_of_restart() -> None:
    machine = Machine()
    log = await machine.start()
    full = encode_block(1, {column: [value] for column, value in MESSAGE.items()})
    bare = encode_block(1, {envelope.PAYLOAD: [b""]})
    await log.append([log.batch(log.shard(*A), full), log.batch(log.shard(*A), bare)])
    for end in ("nothing", "kill", "power_loss", "close"):
        if end == "close":
            await log.close()
        elif end != "nothing":
            await getattr(machine, end)()
        log = log if end == "nothing" else await machine.start()
        first, second = await read_blocks(log)
        assert {column: first.values(column)[0] for column in COLUMNS} == MESSAGE, end
        absent = {column: second.values(column)[0] for column in COLUMNS if column is not envelope.PAYLOAD}
        assert set(absent.values()) == {None}, "absent values stay absent"
        assert second.values(envelope.PAYLOAD) == [b""], "an empty value is not absent"


@given(
    wire=st.lists(st.none() | st.binary(max_size=60), min_size=1, max_size=6),
    headers=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
)
@HALF
def test_hazard_31_protocol_properties_are_kept_byte_by_byte_beside_the_headers(
    wire: list[bytes | None], headers: dict[str, str] | None
) -> None:
    rows = len(wire)
    block = check_block(
        encode_block(rows, {envelope.PAYLOAD: [b"x"] * rows, envelope.WIRE: wire, envelope.HEADERS: [headers] * rows})
    )
    assert block.values(envelope.WIRE) == wire
    assert block.values(envelope.HEADERS) == [headers] * rows


def test_hazard_31_wire_is_a_column_of_the_table_so_that_the_row_is_the_message() -> None:
    assert envelope.WIRE.in_table
    assert envelope.WIRE.kind is ColumnKind.BINARY
    own = {column.name for column in COLUMNS if not column.in_table}
    assert own == {"qos2_client", "qos2_packet_id", "origin_epoch", "origin_offset"}, "the log's own notes, no more"
