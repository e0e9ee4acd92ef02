"""Hazard 9 through the broker: what it accepts is there after a crash as it was, and what it refuses leaves no trace.

That rows survive Parquet and its readers waits for the pipeline.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import connect, errors, limits, testing
from icestream.broker.block_validation import CLIENT_COLUMNS
from icestream.broker.publish_result import PublishOutcome
from icestream.broker.service import Broker
from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block
from icestream.model.envelope import COLUMNS, ColumnKind, EnvelopeColumn
from icestream.model.topic_policies import PolicyValues
from tests.hazards.test_hazard_09_column_values import EDGES, HOSTILE
from tests.support.broker_machine import TOPIC, BrokerMachine, block, stored_rows

TEXT = st.text(max_size=12) | st.sampled_from(["", "\x00", "\U0010ffff", "\ufeff", "日本"])
VALUES: dict[ColumnKind, st.SearchStrategy[Any]] = {
    ColumnKind.INT32: st.integers(-(2**31), 2**31 - 1),
    ColumnKind.INT64: st.integers(-(2**63), 2**63 - 1),
    ColumnKind.TIMESTAMP_US: st.integers(-(2**63), 2**63 - 1),
    ColumnKind.BOOLEAN: st.booleans(),
    ColumnKind.BINARY: st.binary(max_size=30),
    ColumnKind.STRING: TEXT,
    ColumnKind.HEADERS: st.dictionaries(TEXT, TEXT, max_size=4),
}
A_CLIENTS = [column for column in COLUMNS if column.id in CLIENT_COLUMNS]
OURS = [column for column in COLUMNS if column.id not in CLIENT_COLUMNS]


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[EnvelopeColumn, Any]]:
    rows = draw(st.integers(1, 4))
    columns: dict[EnvelopeColumn, Any] = {}
    for column in draw(st.lists(st.sampled_from(A_CLIENTS), unique=True)):
        value = VALUES[column.kind]
        columns[column] = draw(
            st.builds(ConstantColumn, st.none() | value) | st.lists(st.none() | value, min_size=rows, max_size=rows)
        )
    return rows, columns


def rows_of(rows: int, columns: dict[EnvelopeColumn, Any]) -> list[dict[str, Any]]:
    """The rows that must be stored; null values may be absent."""
    lists = {
        column.name: [values.value] * rows if isinstance(values, ConstantColumn) else values
        for column, values in columns.items()
    }
    return [without_nulls({name: values[row] for name, values in lists.items()}) for row in range(rows)]


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


async def check_kept(batches: list[tuple[int, dict[EnvelopeColumn, Any]]], **options: Any) -> None:
    """Accepts all of it, loses its power, and finds it."""
    machine = BrokerMachine(**options)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    for rows, columns in batches:
        result = await broker.publish(producer, 0, encode_block(rows, columns))
        assert result.outcome is PublishOutcome.STORED
    await machine.power_loss()
    stored = await stored_rows(await machine.open_broker())
    assert list(map(without_nulls, stored.values())) == [row for batch in batches for row in rows_of(*batch)]
    await machine.kill()


@given(st.lists(batches(), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_hazard_09_any_accepted_message_survives_the_broker_and_a_power_loss(
    batches: list[tuple[int, dict[EnvelopeColumn, Any]]],
) -> None:
    asyncio.run(check_kept(batches))


@pytest.mark.asyncio
async def test_hazard_09_values_at_the_edge_survive_the_broker() -> None:
    """A key of 4 MiB too."""
    batches = [(1, {column: [value]}) for column, values in EDGES if column.id in CLIENT_COLUMNS for value in values]
    await check_kept(batches, message_bytes_max=5 * limits.MIB, file_bytes=20 * limits.MIB)


# --- what does not pass ---


async def opened(machine: BrokerMachine, **policies: int) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, policies=PolicyValues(**policies))
    return broker


@pytest.mark.parametrize("name", [*HOSTILE, "nothing", "cut off", "two blocks", "another's numbers"])
@pytest.mark.asyncio
async def test_hazard_09_hostile_blocks_are_refused_and_not_stored(name: str) -> None:
    others = {
        "nothing": b"",
        "cut off": block(b"a whole message")[:-8],
        "two blocks": block(b"one") + block(b"two"),
        "another's numbers": encode_block(1, {envelope.PAYLOAD: [b"x"]}, Numbering(999, 1, 0)),
    }
    machine = BrokerMachine()
    broker = await opened(machine)
    producer = await broker.open_producer(TOPIC, "p")
    with pytest.raises(errors.InvalidInput):
        broker.publish(producer, 0, HOSTILE.get(name) or others[name])
    assert await stored_rows(broker) == {}
    assert machine.log is not None
    assert machine.log.shard(1, 0).assigned == 0
    broker.reset_producer(producer, 0)
    result = await broker.publish(producer, 0, block(b"good"))
    assert (result.outcome, result.base_offset) == (PublishOutcome.STORED, 0), "the next one is the first"


@pytest.mark.parametrize("column", OURS, ids=lambda column: column.name)
@pytest.mark.asyncio
async def test_hazard_09_a_column_that_is_the_brokers_own_is_refused(column: EnvelopeColumn) -> None:
    """A client cannot say that its message failed a schema, or came from another owner's log."""
    values = {ColumnKind.INT32: 1, ColumnKind.INT64: 1, ColumnKind.STRING: "x"}
    broker = await opened(BrokerMachine())
    producer = await broker.open_producer(TOPIC, "p")
    with pytest.raises(errors.InvalidInput, match=column.name):
        broker.publish(producer, 0, encode_block(1, {column: [values[column.kind]]}))
    assert await stored_rows(broker) == {}


@pytest.mark.parametrize("spread", ["one column", "all columns", "constants", "a row of many"])
@pytest.mark.asyncio
async def test_hazard_09_a_message_above_the_limit_of_its_topic_is_refused_in_any_layout(spread: str) -> None:
    columns: dict[str, tuple[int, dict[EnvelopeColumn, Any]]] = {
        "one column": (1, {envelope.PAYLOAD: [bytes(1001)]}),
        "all columns": (1, {envelope.PAYLOAD: [bytes(400)], envelope.KEY: [bytes(400)], envelope.WIRE: [bytes(201)]}),
        "constants": (3, {envelope.PAYLOAD: ConstantColumn(bytes(600)), envelope.KEY: ConstantColumn(bytes(401))}),
        "a row of many": (9, {envelope.PAYLOAD: [b""] * 8 + [bytes(500)], envelope.KEY: [b""] * 8 + [bytes(501)]}),
    }
    broker = await opened(BrokerMachine(), max_message_bytes=1000)
    producer = await broker.open_producer(TOPIC, "p")
    with pytest.raises(errors.MessageTooLarge, match="1001"):
        broker.publish(producer, 0, encode_block(*columns[spread]))
    assert await stored_rows(broker) == {}
    broker.reset_producer(producer, 0)
    many = {envelope.PAYLOAD: [bytes(1000)] * 5}
    result = await broker.publish(producer, 0, encode_block(5, many))
    assert result.outcome is PublishOutcome.STORED, "a batch may be larger than a message"


# --- per front end: native frames and the Python client ---


@pytest.mark.asyncio
async def test_hazard_09_a_consumer_receives_what_the_python_client_sent() -> None:
    chance = random.Random(9)
    texts = ["", "a", "\x00", "\U0010ffff", "日本" * 20, "\ufeff"]
    sent: list[dict[str, Any]] = [
        {
            "payload": chance.randbytes(chance.choice([0, 1, 100, 5_000])),
            "key": chance.choice([None, b"", b"k", chance.randbytes(300)]),
            "headers": {text: chance.choice(texts) for text in chance.sample(texts, chance.randrange(6))},
            "publish_time": chance.choice([0, 1, -1, 2**63 - 1, -(2**63), 10**15]),
        }
        for _ in range(200)
    ]
    sent += [{"payload": b"", "key": bytes(3_900_000), "headers": {}, "publish_time": 0}]
    async with testing.broker() as broker, connect(broker.address) as client, client.producer("/default/a") as producer:
        for message in sent:
            await producer.ready()
            producer.send(**message)
        await producer.flush()
        async with client.subscribe("/default/a", "s", start="earliest") as subscription:
            for message in sent:
                got = await anext(aiter(subscription))
                received = (got.payload, got.key, got.headers, got.publish_time_us)
                assert received == tuple(message.values())
                got.ack()


@pytest.mark.parametrize(
    "unfit",
    [
        {"headers": {"lone": "\ud800"}},
        {"headers": {"\udfff": ""}},
        {"headers": {"k" * 65_536: ""}},
        {"headers": {str(number): "" for number in range(65_536)}},
        {"publish_time": 2**63},
        {"publish_time": 2**64 - 1},
        {"payload": bytes(5_000_000)},
        {"payload": "text"},
    ],
    ids=lambda unfit: next(iter(unfit)),
)
@pytest.mark.asyncio
async def test_hazard_09_an_invalid_message_is_refused_and_its_neighbours_are_stored(unfit: dict[str, Any]) -> None:
    async with testing.broker() as broker, connect(broker.address) as client, client.producer("/default/a") as producer:
        before = producer.send(b"before")
        with pytest.raises((errors.InvalidInput, TypeError)):
            await producer.send(**{"payload": b"", **unfit})
        after = producer.send(b"after")
        assert ((await before).offset, (await after).offset) == (0, 1)
