"""Dead letters: the message as it was, with Danube's notes of where it came from, whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from icestream import limits
from icestream.broker import dead_letter_format
from icestream.broker.service import Broker
from icestream.model import envelope
from icestream.model.block import Block, ConstantColumn, Numbering, encode_block, iter_blocks
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import (
    EARLIEST,
    TOPIC,
    BrokerMachine,
    SubscriptionReader,
    quiet,
    stored_rows,
    subscribe,
)
from tests.support.until import until

pytestmark = pytest.mark.asyncio

DEAD = TopicName("default", "dead")
AT_ONCE = FailurePolicy(
    0, base_delay_ms=0, max_delay_ms=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(DEAD)
)
NOTES = {
    "x-original-topic", "x-original-subscription", "x-original-topic-offset", "x-original-producer-id",
    "x-original-broker-addr", "x-poison-policy", "x-delivery-attempt", "x-failure-reason",
}  # fmt: skip


async def opened(machine: BrokerMachine) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    return broker


async def store(
    broker: Broker, rows: int, columns: dict[envelope.EnvelopeColumn, Any], *, numbered: bool = False
) -> int:
    """The id of its producer."""
    producer = await broker.open_producer(TOPIC, "p")
    numbering = Numbering(producer.id, producer.epoch, 0) if numbered else None
    await broker.publish(producer, 0, encode_block(rows, columns, numbering))
    return producer.id


async def buried(broker: Broker, *offsets: int, failure: FailurePolicy = AT_ONCE) -> list[dict[str, Any]]:
    """Gives these messages back; their letters."""
    reader = await subscribe(broker, kind=SubscriptionType.SHARED, credit=limits.CREDIT_MAX, failure=failure)
    await quiet()
    reader.nack(*offsets)
    return await letters(broker, reader, len(offsets))


async def letters(broker: Broker, reader: SubscriptionReader, count: int) -> list[dict[str, Any]]:
    lag = reader.subscription.lag
    await until(lambda: reader.subscription.lag <= lag - count)
    return list((await stored_rows(broker, DEAD)).values())


async def test_a_letter_is_the_message_with_danubes_notes() -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    columns = {
        envelope.PAYLOAD: [b"a", b"b"],
        envelope.KEY: [None, b"k"],
        envelope.HEADERS: [None, {"trace": "7", "x-original-topic": "from an older letter"}],
        envelope.PUBLISH_TIME: [1, 2],
        envelope.CONTENT_TYPE: ["text", None],
        envelope.WIRE: [None, b"\x00\xff"],
    }
    producer_id = await store(broker, 2, columns, numbered=True)
    (letter,) = await buried(broker, 1)
    assert letter.pop("headers") == {
        "trace": "7",
        "x-original-topic": str(TOPIC),
        "x-original-subscription": "s",
        "x-original-topic-offset": "1",
        "x-original-producer-id": str(producer_id),
        "x-original-broker-addr": machine.broker_options.address,
        "x-poison-policy": "dead_letter",
        "x-delivery-attempt": "1",
        "x-failure-reason": "nack",
    }
    assert letter == {
        "payload": b"b", "key": b"k", "publish_time": 2, "wire": b"\x00\xff", "subscription_name": "s",
    }  # fmt: skip


async def test_the_dead_letter_records_attempts_and_reason() -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    await store(broker, 1, {envelope.PAYLOAD: [b"a"]})
    patient = FailurePolicy(2, 5_000, 100, 100, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(DEAD))
    reader = await subscribe(broker, failure=patient)
    await quiet()
    reader.nack(0)
    await machine.pass_time(30)
    assert [attempt for _, _, attempt in reader.sink.received] == [0, 1, 2]
    (letter,) = (await stored_rows(broker, DEAD)).values()
    assert letter["headers"]["x-delivery-attempt"] == "3"
    assert letter["headers"]["x-failure-reason"] == "ack timeout"


@pytest.mark.parametrize("headers", [0, limits.HEADERS_MAX - 7, limits.HEADERS_MAX])
async def test_a_message_that_has_no_room_for_the_note_is_buried_without_it(headers: int) -> None:
    """The message has the largest allowed size, or the largest number of headers."""
    machine = BrokerMachine(message_bytes_max=1_000_000, file_bytes=2**22)
    largest = machine.options.batch_bytes_max // 8 * 8 - len(encode_block(1, {envelope.PAYLOAD: [b""]}))
    columns: dict[envelope.EnvelopeColumn, Any] = {envelope.PAYLOAD: [b"" if headers else bytes(largest)]}
    if headers:
        columns[envelope.HEADERS] = [{f"{number:05}": "" for number in range(headers)}]
    broker = await opened(machine)
    await store(broker, 1, columns)
    (letter,) = await buried(broker, 0)
    assert letter == {column.name: values[0] for column, values in columns.items()}
    assert broker.subscription(TOPIC, "s").lag == 0


async def test_a_letter_without_room_for_the_note_does_not_affect_the_others() -> None:
    machine = BrokerMachine(message_bytes_max=1_000_000, file_bytes=2**22)
    broker = await opened(machine)
    many = {f"{number:05}": "" for number in range(limits.HEADERS_MAX)}
    await store(broker, 3, {envelope.PAYLOAD: [b"a", b"b", b"c"], envelope.HEADERS: [None, many, {"h": ""}]})
    letters = await buried(broker, 0, 1, 2)
    assert [(letter["payload"], letter["headers"].keys() >= NOTES) for letter in letters] == [
        (b"a", True), (b"b", False), (b"c", True),
    ]  # fmt: skip


async def test_only_dead_lettered_messages_of_a_large_batch_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million messages that fail together are buried in groups; none of them decodes the whole batch again."""
    broker = await opened(BrokerMachine(tail_bytes=10**6))
    rows = 200_000
    await store(broker, rows, {envelope.PAYLOAD: ConstantColumn(b"x")})
    looked: list[int] = []

    def counted(body: bytes) -> Iterator[Block]:
        for block in iter_blocks(body):
            looked.append(block.rows)
            yield block

    monkeypatch.setattr(dead_letter_format, "iter_blocks", counted)
    (stream,) = (await broker.storage.create_subscription_stream("default", "a", "s")).shards
    rows_read = await dead_letter_format.read_rows(stream, 150_000, rows)
    assert [row.offset for row in rows_read] == [*range(150_000, 150_000 + len(rows_read))]
    assert len(rows_read) > 100
    assert sum(looked) < len(rows_read) + 10


async def test_letters_of_a_sharded_topic_keep_the_order_of_their_shard() -> None:
    broker = await BrokerMachine().open_broker()
    await broker.create_topic(TOPIC, 3)
    await broker.create_topic(DEAD, 2)
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(9):
        await broker.publish(producer, number % 3, encode_block(1, {envelope.PAYLOAD: [b"%d" % number]}))
    reader = await subscribe(broker, kind=SubscriptionType.SHARED, start=EARLIEST, failure=AT_ONCE)
    await quiet()
    for shard in range(3):
        reader.nack(0, 1, 2, shard=shard)
    await letters(broker, reader, 9)
    payloads = [[row["payload"] for row in (await stored_rows(broker, DEAD, shard)).values()] for shard in range(2)]
    assert payloads[1] == [b"1", b"4", b"7"]
    assert [payload for payload in payloads[0] if int(payload) % 3 == 0] == [b"0", b"3", b"6"]
    assert [payload for payload in payloads[0] if int(payload) % 3 == 2] == [b"2", b"5", b"8"]


async def test_dead_letters_wait_for_an_unavailable_topic_without_blocking_others() -> None:
    """The namespace of the dead letter topic was deleted. Failed messages stay unacked, delivery continues."""
    machine = BrokerMachine()
    broker = await opened(machine)
    await store(broker, 3, {envelope.PAYLOAD: [b"a", b"b", b"c"]})
    policy = FailurePolicy(
        0, base_delay_ms=0, max_delay_ms=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/later/dead"
    )
    await broker.create_namespace("later")
    reader = await subscribe(broker, kind=SubscriptionType.SHARED, failure=policy)
    await broker.delete_namespace("later")
    await quiet()
    reader.nack(1)
    await quiet()
    reader.ack(0, 2)
    await machine.pass_time(5)
    assert reader.subscription.lag == 1
    assert reader.sink.offsets == [0, 1, 2], "what is given up does not come again"
    await broker.create_namespace("later")
    await machine.pass_time(5)
    assert reader.subscription.lag == 0
    (letter,) = (await stored_rows(broker, TopicName("later", "dead"))).values()
    assert letter["payload"] == b"b"
