"""What is asked for and what is refused, by a whole broker and over each wire.

The native one takes messages as columns, many at once: another way through the front end than that of a single call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from grpc import aio

from icestream import limits
from icestream.frontends.danube.handlers import status_number
from icestream.frontends.danube.request_batch import RequestBatch, RowOutcome
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription_options import StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.danube_broker import DanubeBroker, Received, danube_broker
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "t")
MOST = limits.DANUBE_MESSAGE_BYTES_MAX_DEFAULT
WAL = {"max_file_size": "64MiB", "max_message_bytes": 8_000_000}


class DanubeRequests:
    """Requests byte for byte, before a topic with one consumer."""

    def __init__(self, danube: DanubeBroker, producer: int, received: Received, channel: aio.Channel) -> None:
        self.danube = danube
        self.received = received
        self.where = pb.MsgID(producer_id=producer, topic_name="/default/t")
        self._send = channel.unary_unary("/danube.ProducerService/SendMessage")
        self._subscribe = channel.unary_unary("/danube.ConsumerService/Subscribe")
        self._receive = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")

    async def send(self, raw: bytes | None = None, **fields: object) -> str:
        message = pb.StreamMessage(**{"request_id": 1, "msg_id": self.where, "payload": b"m", **fields})
        try:
            await self._send(message.SerializeToString() if raw is None else raw)
        except aio.AioRpcError as error:
            return error.code().name
        return "OK"

    async def subscribe(self, subscription: str, *metadata: tuple[str, str]) -> int:
        request = pb.ConsumerRequest(topic_name="/default/t", consumer_name="d", subscription=subscription)
        raw = await self._subscribe(request.SerializeToString(), metadata=metadata)
        return pb.ConsumerResponse.FromString(raw).consumer_id

    async def first(self, consumer: int) -> bytes:
        """The payload that its stream begins with."""
        async with asyncio.timeout(30):
            raw = await self._receive(pb.ReceiveRequest(consumer_id=consumer).SerializeToString()).read()
        return pb.StreamMessage.FromString(raw).payload

    @property
    def stored(self) -> int:
        return int(self.danube.broker.topics.get(TOPIC).published_messages)


@pytest_asyncio.fixture
async def door(tmp_path: Path, wire: str) -> AsyncIterator[DanubeRequests]:
    async with danube_broker(tmp_path, wal=WAL) as danube:
        producer = await danube.producer("/default/t")
        received = await danube.consumer("/default/t")
        assert danube.node is not None
        target = danube.node.danube.url.removeprefix("http://")
        async with aio.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
            yield DanubeRequests(danube, producer._producers[0].producer_id, received, channel)


async def test_hazard_09_values_that_fit_no_column_are_refused_over_the_wire(door: DanubeRequests) -> None:
    numbers = {"request_id": 2**63, "publish_time": 2**63 // 1000 + 1, "schema_id": 2**63, "schema_version": 2**31}
    for name, value in numbers.items():
        assert await door.send(**{name: value}) == "INVALID_ARGUMENT", name
    assert await door.send(attributes={"k" * 70_000: "v"}) == "INVALID_ARGUMENT"
    assert await door.send(msg_id=pb.MsgID(producer_id=2**63, topic_name="/default/t")) == "UNAVAILABLE"
    assert door.stored == 0
    largest = {"request_id": 2**63 - 1, "publish_time": 2**63 // 1000, "schema_version": 2**31 - 1}
    assert await door.send(**largest) == "OK"
    message = await door.received.next()
    assert {name: getattr(message, name) for name in largest} == largest


async def test_hazard_09_texts_that_are_not_utf_8_are_refused_over_the_wire(door: DanubeRequests) -> None:
    good = pb.StreamMessage(
        msg_id=pb.MsgID(producer_id=door.where.producer_id, topic_name="/default/t", broker_addr="addr"),
        producer_name="name", subscription_name="subs", routing_key="rkey", attributes={"akey": "aval"},
    ).SerializeToString()  # fmt: skip
    for text in (b"addr", b"name", b"subs", b"rkey", b"akey", b"aval"):
        assert await door.send(good.replace(text, b"n\xff\xfee")) == "INVALID_ARGUMENT", text
    for raw in (b"\xff" * 9, b"\x0a\x05ab", b"\x12\xff\xff\xff\xff\x0f", good[:-1]):
        assert await door.send(raw) == "INVALID_ARGUMENT", raw
    assert door.stored == 0
    assert await door.send(good) == "OK"


async def test_the_message_size_limit_counts_every_field(door: DanubeRequests) -> None:
    """Stored, none of them could be delivered to a client of Danube, and its subscription would end there."""
    long = "k" * (MOST + 1)
    large: list[dict[str, object]] = [
        {"payload": bytes(MOST + 1)}, {"producer_name": long}, {"routing_key": long}, {"subscription_name": long},
        {"attributes": {f"{number}": "€" * 20_000 for number in range(100)}},
    ]  # fmt: skip
    for fields in large:
        assert await door.send(**fields) == "INVALID_ARGUMENT", list(fields)
    assert door.stored == 0


async def test_the_largest_accepted_message_is_delivered(door: DanubeRequests) -> None:
    around = len(pb.StreamMessage(request_id=1, msg_id=door.where, payload=bytes(MOST)).SerializeToString()) - MOST
    largest = bytes(MOST - around)
    assert await door.send(payload=largest) == "OK"
    assert await door.send(payload=b"behind it") == "OK"
    assert await door.received.payloads(2) == [largest, b"behind it"]


# --- what is asked for ------------------------------------------------------------------------------------------------


async def test_a_subscription_starts_at_the_position_of_its_metadata_or_the_operator(door: DanubeRequests) -> None:
    for number in range(3):
        assert await door.send(payload=b"%d" % number) == "OK"
    for start, first in (("earliest", b"0"), ("offset:1", b"1"), ("time:0", b"0")):
        consumer = await door.subscribe(start.replace(":", "-"), ("x-icestream-start", start))
        assert await door.first(consumer) == first, start
    for number in range(3):
        start_at = SubscriptionStart(StartAt.OFFSET, number)
        await door.danube.broker.create_subscription(TOPIC, f"made-{number}", SubscriptionType.SHARED, start_at)
        received = await door.danube.consumer("/default/t", "d", f"made-{number}")
        assert await received.payloads(1) == [b"%d" % number]
    latest = await door.danube.consumer("/default/t", "d", "latest")
    assert await door.send(payload=b"new") == "OK"
    assert await latest.payloads(1) == [b"new"]


async def test_a_publish_rate_is_enforced_over_the_wire(door: DanubeRequests) -> None:
    await door.danube.broker.set_topic_policies(TOPIC, PolicyValues(max_publish_rate=10))
    codes = await asyncio.gather(*(door.send() for _ in range(30)))
    assert set(codes) == {"OK", "UNAVAILABLE"}
    assert door.stored == codes.count("OK")


async def test_an_invalid_message_of_a_batch_is_refused_alone(door: DanubeRequests) -> None:
    """The others are simple and of one producer: without the invalid one they would not be checked one by one."""
    strange = pb.MsgID(producer_id=door.where.producer_id, topic_name="/default/other")
    refused: list[tuple[dict[str, object], str]] = [
        ({"payload": bytes(MOST + 1)}, "INVALID_ARGUMENT"),
        ({"request_id": 2**63}, "INVALID_ARGUMENT"),
        ({"msg_id": strange}, "INVALID_ARGUMENT"),
    ]
    for bad, code in refused:
        before = door.stored
        codes = await asyncio.gather(*(door.send(**(bad if number == 7 else {})) for number in range(20)))
        assert codes[7] == code, bad
        assert [*codes[:7], *codes[8:]] == ["OK"] * 19
        assert door.stored == before + 19


async def test_messages_of_a_batch_are_delivered_as_sent(door: DanubeRequests) -> None:
    sent = {b"%d" % number: f"k{number % 3}" for number in range(200)}
    codes = await asyncio.gather(*(door.send(payload=payload, routing_key=key) for payload, key in sent.items()))
    assert set(codes) == {"OK"}
    received = [await door.received.next() for _ in sent]
    assert {message.payload: message.routing_key for message in received} == sent


async def test_a_delayed_row_of_a_batch_is_answered_later() -> None:
    answered: list[int] = []
    batch = RequestBatch(2, bytes(8), (), lambda rows, failures: answered.extend(rows))
    RowOutcome(batch, 0, status_number).set_result(1)
    RowOutcome(batch, 1, status_number).set_result(0)
    await asyncio.sleep(0)
    assert answered == [1]
    await until(lambda: answered == [1, 0])
