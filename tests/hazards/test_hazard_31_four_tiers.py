"""Hazard 31: a message that comes from the table is the message that came from the tail, value for value, whatever it
carries: of every kind of column, for any values, and through all four tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.broker.storage import ShardRead
from icestream.model import envelope
from icestream.model.block import Block, Numbering, encode_block, iter_blocks
from icestream.model.envelope import COLUMNS, EnvelopeColumn
from icestream.model.shard import ShardKey
from icestream.readers.sections import TYPES, to_sections
from icestream.rpc.blocks import check_block
from tests.hazards.test_hazard_31_lossless_envelope import MESSAGE
from tests.support.blocks import VALUES
from tests.support.broker_machine import TOPIC, publish
from tests.support.hypothesis_effort import HALF
from tests.support.tiers import TieredMachine

IN_TABLE = tuple(column for column in COLUMNS if column.in_table)
Message = tuple[int, int, dict[str, Any]]


def values(block: Block) -> Iterator[dict[str, Any]]:
    """The fields of each message as a consumer sees them: the numbering of a batch becomes each message's own."""
    columns = {column.name: block.values(column) for column in IN_TABLE}
    for row in range(block.rows):
        message = {name: column[row] for name, column in columns.items()}
        if block.numbering is not None:
            message["producer_id"] = (
                message["producer_id"] if message["producer_id"] is not None else block.numbering.producer_id
            )
            message["sequence"] = block.numbering.first_sequence + row
        yield message


def messages(sections: Any) -> list[Message]:
    collected: list[Message] = []
    for section in sections:
        rows = [message for block in iter_blocks(section.body) for message in values(block)]
        assert len(rows) == section.rows
        collected += [(section.base_offset + at, section.append_time_us, message) for at, message in enumerate(rows)]
    return collected


@st.composite
def tables(draw: st.DrawFn) -> list[Message]:
    """Rows of a shard in the order of their offsets: with holes, in ticks of any size."""
    count = draw(st.integers(1, 40))
    columns: dict[EnvelopeColumn, list[Any]] = {}
    for column in IN_TABLE:
        value = st.one_of(st.none(), VALUES[column.kind])
        shape = draw(st.integers(0, 3))
        if shape == 1:
            columns[column] = [draw(value)] * count
        elif shape > 1:
            some = value if shape == 2 else VALUES[column.kind]
            columns[column] = draw(st.lists(some, min_size=count, max_size=count))
    offset, time, rows = draw(st.integers(0, 2**61)), draw(st.integers(-(2**62), 2**62)), []
    for at in range(count):
        offset += draw(st.sampled_from([1, 1, 1, 1, 2, 50]))
        time += draw(st.sampled_from([0, 0, 0, 1, -1]))
        empty: dict[str, Any] = dict.fromkeys(column.name for column in IN_TABLE)
        rows.append((offset, time, empty | {column.name: values[at] for column, values in columns.items()}))
    return rows


def arrow(rows: list[Message]) -> pa.Table:
    def column(name: str) -> pa.Array:
        cells = [row[2][name] for row in rows]
        return pa.array([list(cell.items()) if isinstance(cell, dict) else cell for cell in cells], TYPES[name])

    names = [column.name for column in IN_TABLE if any(row[2][column.name] is not None for row in rows)]
    return pa.table(
        {
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "append_time": pa.array([row[1] for row in rows], TYPES["append_time"]),
            **{name: column(name) for name in names},
        }
    )


@HALF
@given(tables(), st.integers(0, 39), st.integers(1, 5_000), st.integers(1, 6), st.integers(1, 40))
def test_hazard_31_any_rows_become_the_original_messages(
    rows: list[Message], first: int, bytes_max: int, sections_max: int, chunk: int
) -> None:
    first = min(first, len(rows) - 1)
    table = arrow(rows)
    parts = [table.slice(at, chunk) for at in range(0, len(rows), chunk)]
    sections = to_sections(pa.concat_tables(parts).slice(first), lambda offset: 3, bytes_max, sections_max)
    delivered = messages(sections)
    assert delivered == rows[first : first + len(delivered)]
    assert 1 <= len(sections) <= sections_max
    assert (
        sum(section.rows for section in sections[:-1]) == 0
        or sum(len(section.body) for section in sections) < 16 * bytes_max
    )
    for section in sections:
        assert section.epoch == 3
        for block in iter_blocks(section.body):
            head, _ = check_block(bytes(block._data))  # the receiver gets a sound block
            assert head.rows == block.rows


def test_hazard_31_keys_that_another_engine_put_otherwise_rise_again() -> None:
    rows = [(at, 0, {"headers": {"b": "1", "a": "2", "": "3"} if at % 2 else {"z": ""}}) for at in range(4)]
    table = pa.table(
        {
            "offset": pa.array(range(4), pa.int64()),
            "append_time": pa.array([0] * 4, TYPES["append_time"]),
            "headers": pa.array([list(row[2]["headers"].items()) for row in rows], TYPES["headers"]),
        }
    )
    (section,) = to_sections(table, lambda offset: 0, 1_000_000)
    assert [message[2]["headers"] for message in messages([section])] == [row[2]["headers"] for row in rows]


@pytest.mark.parametrize(
    "payloads", [[b"a", b"b", b"a"], [b"a"] * 3, [b""] * 3, [b"ab", b"ba", b"ab"], [b"a", b"", b"aa"]]
)
def test_hazard_31_almost_constant_columns_are_not_stored_as_constant(payloads: list[bytes]) -> None:
    table = pa.table(
        {
            "offset": pa.array(range(3), pa.int64()),
            "append_time": pa.array([0] * 3, TYPES["append_time"]),
            "payload": pa.array(payloads, pa.binary()),
        }
    )
    assert [message[2]["payload"] for message in messages(to_sections(table, lambda offset: 0, 1_000_000))] == payloads


@pytest.mark.asyncio
async def test_hazard_31_every_field_is_the_same_from_all_four_tiers(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path, tail_bytes=10_000_000)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    key = ShardKey(1, 0)
    plain = {column: value for column, value in MESSAGE.items() if column.in_table}
    numbered = {
        column: [value] * 3 for column, value in plain.items() if column.name not in ("producer_id", "sequence")
    }
    broker.storage.open_producer(9, 1)
    for block in (
        encode_block(1, {column: [value] for column, value in plain.items()}),
        encode_block(3, numbered, Numbering(9, 1, 5)),
        encode_block(2, {envelope.PAYLOAD: [b"", None], envelope.KEY: [None, b"\0"]}),
    ):
        machine.clock.advance(1.0)
        await broker.storage.store_messages(key, block)
    producer = await broker.open_producer(TOPIC, "p")
    for _ in range(20):  # so that the file of the first is full
        await publish(broker, producer, bytes(7_000))
    assert machine.log is not None
    stream = broker.storage.shard_stream(key)
    tail = stream.read_hot(0, 1_000_000)
    machine.log.tail.clear()
    log = await stream.read(0, 1_000_000)
    await machine.commit()
    await machine.forget()
    assert machine.log.reader.earliest(key) > 6
    table = await until_six(stream, [])
    cache = await until_six(stream, [])
    assert machine.lake.reader.groups_read == 1
    assert messages(tail)[:6] == messages(log.sections)[:6] == table[:6] == cache[:6]
    assert {name for _, _, message in table[:6] for name, value in message.items() if value is not None} == {
        column.name for column in plain
    }
    await broker.shutdown()


async def until_six(stream: Any, collected: list[Message]) -> list[Message]:
    while len(collected) < 6:
        read: ShardRead = await stream.read(len(collected), 1_000_000)
        collected += messages(read.sections)
    return collected
