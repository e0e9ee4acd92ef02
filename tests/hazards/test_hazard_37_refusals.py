"""Hazard 37: what a producer sends to a shard is stored in its order, also when something in between is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import icestream
from icestream import errors
from icestream.client.batch import MessageId
from icestream.model.block import Numbering
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.rpc import document
from icestream.rpc.frame import Outcome, PartResult, PublishPart
from icestream.testing import TestBroker
from icestream.wal.admission import Quota
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.held_sink import LogHold, held_log
from tests.support.raw_client import RawClient, block, publish, raw_client
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
WAIT_SECONDS = 30.0
STORED, REFUSED, AFTER, UNKNOWN = Outcome.STORED, Outcome.REFUSED, Outcome.AFTER_REFUSED, Outcome.UNKNOWN


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[TestBroker]:
    async with icestream.testing.broker("disk") as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: TestBroker) -> AsyncIterator[RawClient]:
    async with raw_client(broker.address) as connected:
        await connected.call("create_topic", topic=TOPIC, shards=2)
        yield connected


class QuotaSwitch:
    """The quota of the node: none, or more than any test uses."""

    def __init__(self, broker: TestBroker) -> None:
        assert broker.node.log is not None
        self._log = broker.node.log
        self._roomy = self._log.quota

    def close(self) -> None:
        self._log.quota = Quota(1, 1)

    def open(self) -> None:
        self._log.quota = self._roomy


async def stored(broker: TestBroker, shards: int = 2) -> list[list[bytes]]:
    """All stored payloads by shard, in order."""
    payloads: list[list[bytes]] = [[] for _ in range(shards)]
    streams = await broker.node.broker.storage.create_subscription_stream("default", "orders", "check")
    count = sum(
        shard.visible for shard in streams.shards
    )  # more than was acked: an unknown outcome may be a stored one
    async with (
        icestream.connect(broker.address) as reader,
        reader.subscribe(TOPIC, "check", start="earliest") as messages,
        asyncio.timeout(WAIT_SECONDS),
    ):
        while sum(map(len, payloads)) < count:
            message = await anext(messages)
            assert message.offset == len(payloads[message.shard])
            payloads[message.shard].append(message.payload)
    return payloads


async def opened(client: RawClient, name: str = "p") -> tuple[int, int]:
    answer = await client.call("open_producer", topic=TOPIC, producer=name)
    return answer["handle"], answer["producer_id"]


def outcomes(done: list[PartResult]) -> list[Outcome]:
    return [Outcome(result.outcome) for result in done]


# --- through the front end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "plain"])
async def test_hazard_37_after_a_refusal_the_producer_is_refused_on_that_shard_until_a_reset(
    client: RawClient, broker: TestBroker, is_numbered: bool
) -> None:
    quota = QuotaSwitch(broker)
    handle, number = await opened(client)
    other, _ = await opened(client, "other")

    def part(row: int) -> PublishPart:
        return PublishPart(handle, 0, block(b"%d" % row, numbering=Numbering(number, 1, row) if is_numbered else None))

    await client.write(publish(10, part(0)))
    assert outcomes(await client.published(10)) == [STORED]
    quota.close()
    await client.write(publish(11, part(1)))
    assert outcomes(await client.published(11)) == [REFUSED]
    quota.open()
    await client.write(
        publish(
            12, part(2), PublishPart(handle, 1, block(b"x")) if not is_numbered else PublishPart(other, 1, block(b"x"))
        ),
        publish(13, PublishPart(other, 0, block(b"y")), part(3)),
    )
    second, third = await client.published(12), await client.published(13)
    assert (outcomes(second), outcomes(third)) == ([AFTER, STORED], [STORED, AFTER])
    assert isinstance(document.decode_error(second[0].text), errors.AfterRefused)
    again = await client.call("reset_producer", handle=handle, shard=0)
    assert again["last_sequence"] == (0 if is_numbered else None)
    await client.write(publish(14, part(1), part(2)), publish(15, part(3)))
    assert outcomes(await client.published(14)) + outcomes(await client.published(15)) == [STORED] * 3
    assert await stored(broker) == [[b"0", b"y", b"1", b"2", b"3"], [b"x"]]


async def test_hazard_37_an_invalid_batch_in_a_frame_holds_back_the_rest_of_it(
    client: RawClient, broker: TestBroker
) -> None:
    await broker.node.broker.set_topic_policies(TopicName.parse(TOPIC), PolicyValues(max_message_bytes=10))
    handle, _ = await opened(client)
    parts = [PublishPart(handle, 0, block(payload)) for payload in (b"a", bytes(11), b"c")]
    await client.write(publish(10, *parts, PublishPart(handle, 1, block(b"d"))))
    assert outcomes(await client.published(10)) == [STORED, REFUSED, AFTER, STORED]
    assert await stored(broker) == [[b"a"], [b"d"]]


async def test_hazard_37_frames_sent_after_a_failed_write_do_not_overtake_it(
    client: RawClient, broker: TestBroker
) -> None:
    """The write fails while later frames are already on their way: their outcome is theirs, and the order holds."""
    handle, number = await opened(client)
    parts = [PublishPart(handle, 0, block(b"%d" % row, numbering=Numbering(number, 1, row))) for row in range(6)]
    await client.write(publish(10, parts[0]))
    assert outcomes(await client.published(10)) == [STORED]
    with held_log(broker.node.log) as hold:
        await client.write(publish(11, parts[1]))
        await until(lambda: hold.is_waiting)
        await client.write(publish(12, parts[2]), publish(13, parts[3]))
        await client.call("list_topics")  # they are here
        hold.fail()
        await client.write(publish(14, parts[4]))
        answers = [outcomes(await client.published(row))[0] for row in range(11, 15)]
    assert answers[0] == UNKNOWN
    assert set(answers[1:]) <= {UNKNOWN, REFUSED, AFTER}
    again = await client.call("reset_producer", handle=handle, shard=0)
    assert again["last_sequence"] == 0
    await client.write(publish(20, *parts[1:]))
    assert outcomes(await client.published(20)) == [STORED] * 5
    assert (await stored(broker))[0] == [b"%d" % row for row in range(6)]


# --- a client by the book ---------------------------------------------------------------------------------------------


class PipelinedClient:
    """A pipelined client in a few lines, as docs/protocol.md tells.

    On a refusal it waits for the answers to all that is on its way, resets, and goes on from what is stored.
    """

    def __init__(self, client: RawClient, handle: int, number: int, shard: int, count: int) -> None:
        self._client = client
        self._handle = handle
        self._number = number
        self._shard = shard
        self._count = count
        self._next = 0
        self._frame = 1000
        self._in_flight: list[int] = []
        self.refusals = 0

    async def run(self, chance: random.Random, quota: QuotaSwitch) -> None:
        while self._next < self._count or self._in_flight:
            if chance.random() < 0.1:
                quota.close() if chance.random() < 0.5 else quota.open()
            if self._next < self._count and len(self._in_flight) < 8 and chance.random() < 0.7:
                await self._send()
            elif self._in_flight and await self._is_refused():
                await self._start_again(quota)

    async def _send(self) -> None:
        numbering = Numbering(self._number, 1, self._next)
        part = PublishPart(self._handle, self._shard, block(b"%d" % self._next, numbering=numbering))
        self._frame += 1
        self._next += 1
        self._in_flight.append(self._frame)
        await self._client.write(publish(self._frame, part))

    async def _is_refused(self) -> bool:
        (done,) = await self._client.published(self._in_flight.pop(0))
        return done.outcome not in (STORED, Outcome.DUPLICATE)

    async def _start_again(self, quota: QuotaSwitch) -> None:
        self.refusals += 1
        while self._in_flight:
            assert await self._is_refused(), "something was stored behind a refusal"
        quota.open()
        answer = await self._client.call("reset_producer", handle=self._handle, shard=self._shard)
        last = answer["last_sequence"]
        self._next = 0 if last is None else last + 1


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_hazard_37_a_changing_quota_keeps_the_order_of_pipelined_frames(
    client: RawClient, broker: TestBroker, seed: int
) -> None:
    handle, number = await opened(client)
    by_the_book = PipelinedClient(client, handle, number, 1, 300)
    await by_the_book.run(random.Random(seed), QuotaSwitch(broker))
    assert by_the_book.refusals > 3
    assert (await stored(broker))[1] == [b"%d" % row for row in range(300)]


# --- through the Python client ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_hazard_37_the_python_client_keeps_its_order_through_refusals_and_failures(
    broker: TestBroker, seed: int
) -> None:
    """A quota that comes and goes, and writes that fail: each message is stored once, in order."""
    chance, quota = random.Random(seed), QuotaSwitch(broker)
    assert broker.node.log is not None
    hold = LogHold(broker.node.log)
    sent: list[asyncio.Future[MessageId]] = []
    async with (
        icestream.connect(broker.address, clock=clock_with_short_sleeps()) as client,
        client.producer(TOPIC, shards=2) as producer,
    ):

        async def send(count: int) -> None:
            for _ in range(count):
                sent.append(producer.send(b"%d" % len(sent), key=b"%d" % (len(sent) % 7)))
                if chance.random() < 0.3:
                    await asyncio.sleep(0.001)

        for _ in range(8):
            await send(chance.randrange(20))
            if chance.random() < 0.5:
                quota.close()
                await send(chance.randrange(20))
                quota.open()
            hold.hold()
            await send(chance.randrange(1, 20))
            await until(lambda: hold.is_waiting)
            await send(chance.randrange(20))
            hold.fail() if chance.random() < 0.7 else hold.release()
        acks = await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
    assert hold.failures
    everything = await stored(broker)
    assert sum(map(len, everything)) == len(sent)
    for number, ack in enumerate(acks):
        assert everything[ack.shard][ack.offset] == b"%d" % number
    for payloads in everything:
        assert payloads == sorted(payloads, key=int)
