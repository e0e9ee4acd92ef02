"""Hazard 67: acks, nacks, credits and pings of a native client must not stand behind a publish that waits.

Both twins: the connection on asyncio and the one on the native wire. The log's sink is held, so that the publish waits
until the test releases it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import icestream.testing
from icestream import errors, limits
from icestream.frontends.native.native_connection import NativeConnection
from icestream.model.block import Numbering
from icestream.rpc import document, frame
from icestream.rpc.frame import AckRanges, Frame, FrameKind, Outcome, PublishPart
from icestream.testing import TestBroker
from tests.support.held_sink import held_log
from tests.support.native_sockets import is_stopped
from tests.support.native_wires import WIRES, use_wire
from tests.support.raw_client import RawClient, ack, block, call, credit, ping, publish, raw_client
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC, CONSUMED = "/default/orders", "/default/consumed"
# Why a publish waits, and the sizes of messages behind which one does: no room in the log for more than 1 MiB, all 4
# batches of the producer in flight, more than 200,000 bytes of the connection in flight. At most 60,000 are parked.
SIZES = {"room": [30_000] * 36, "window": [10] * 6, "bytes": [30_000] * 7 + [10] * 2}


@pytest_asyncio.fixture(params=[(wire, reason) for wire in WIRES for reason in SIZES], ids="-".join)
async def blocked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlockedClient]:
    wire, reason = request.param
    use_wire(monkeypatch, is_used=wire == "wire")
    if reason == "bytes":
        monkeypatch.setattr(limits, "CONNECTION_IN_FLIGHT_BYTES_MAX", 200_000)
    if reason == "window":
        monkeypatch.setattr(limits, "PRODUCER_WINDOW_BATCHES", 4)
    room_bytes = limits.MIB if reason == "room" else 64 * limits.MIB
    settings = {"storage": {"iceberg_config": {"wal": {"in_flight_bytes": room_bytes, "max_message_bytes": 100_000}}}}
    async with icestream.testing.broker("disk", settings) as broker, raw_client(broker.address) as client:
        blocked = BlockedClient(broker, client, SIZES[reason])
        await blocked.open()
        yield blocked


class BlockedClient:
    """One connection with a consumer that has got the first of five messages, and a producer."""

    def __init__(self, broker: TestBroker, client: RawClient, sizes: list[int]) -> None:
        self.broker = broker
        self.client = client
        self.consumer = 0
        self._sizes = sizes
        self._producer = 0
        self._numbering = Numbering(0, 0, 0)
        self._last_publish = 100

    async def open(self) -> None:
        opened = await self.client.call("open_producer", topic=CONSUMED, producer="source")
        await self.client.write(publish(10, PublishPart(opened["handle"], 0, block(*[b"x"] * 5))))
        await self.client.published(10)
        subscribed = await self.client.call(
            "subscribe", topic=CONSUMED, subscription="s", consumer="c", type="exclusive", start="earliest",
            failure={"base_delay_ms": 1},
        )  # fmt: skip
        self.consumer = subscribed["handle"]
        await self.client.write(credit(self.consumer, 1))
        assert await self.read_delivery() == 0
        opened = await self.client.call("open_producer", topic=TOPIC, producer="p")
        self._producer = opened["handle"]
        self._numbering = Numbering(opened["producer_id"], opened["producer_epoch"], 0)
        await self.client.write(self.publish_frame(10))  # declares the producer
        await self.client.published(self._last_publish)

    @property
    def connection(self) -> NativeConnection:
        (connection,) = [each for each in self.broker.node.native._connections if each.consumers]
        return connection

    @property
    def unacked(self) -> int:
        return self.connection.consumers[self.consumer].subscription.deliveries[0].lag

    @property
    def is_read(self) -> bool:
        transport = self.connection._transport
        return (
            transport.is_reading() if self.connection._wire is None and transport else not is_stopped(self.connection)
        )

    def publish_frame(self, size: int) -> bytes:
        self._last_publish += 1
        part = PublishPart(self._producer, 0, block(bytes(size), numbering=self._numbering))
        self._numbering = self._numbering._replace(first_sequence=self._numbering.first_sequence + 1)
        return publish(self._last_publish, part)

    async def publish_until_one_waits(self, *behind: bytes) -> None:
        await self.client.write(*map(self.publish_frame, self._sizes), *behind)

    async def read_published(self) -> list[Frame]:
        """Reads up to the last answer of a PUBLISH, checks those, and returns the other frames that came in between."""
        others: list[Frame] = []
        first = self._last_publish - len(self._sizes) + 1
        while first <= self._last_publish:
            received = await self.client.read()
            if received.kind != FrameKind.PUBLISHED:
                others.append(received)
                continue
            assert received.number == first
            (part,) = frame.decode_part_results(received.body)
            assert (part.outcome, part.base_offset) == (Outcome.STORED, first - 101)
            first += 1
        return others

    async def read_delivery(self) -> int:
        """The offset of the message in the next frame."""
        received = await self.client.read()
        assert received.kind == FrameKind.DELIVER
        fields = frame.DELIVER.unpack_from(received.body)
        base_offset, first_row = fields[4], fields[6]
        return int(base_offset + first_row)


def nack(handle: int, start: int, end: int) -> bytes:
    return frame.encode_frame(FrameKind.NACK, 0, frame.encode_ranges(AckRanges(handle, 0, 0, 0, [(start, end)])))


async def test_acks_credits_and_pings_overtake_a_publish_that_waits(blocked: BlockedClient) -> None:
    with held_log(blocked.broker.node.log) as hold:
        await blocked.publish_until_one_waits(ack(blocked.consumer, 0, 1), credit(blocked.consumer, 1), ping(50, b"p"))
        answers = [await blocked.client.read(), await blocked.client.read()]
        assert {answer.kind for answer in answers} == {FrameKind.DELIVER, FrameKind.PONG}
        assert blocked.unacked == 4
        # Also what is sent later, by a client that has nothing else to do.
        await blocked.client.write(ack(blocked.consumer, 1, 2), credit(blocked.consumer, 1))
        assert await blocked.read_delivery() == 2
        hold.release()
    assert await blocked.read_published() == []


async def test_a_nack_overtakes_a_publish_that_waits(blocked: BlockedClient) -> None:
    with held_log(blocked.broker.node.log) as hold:
        await blocked.publish_until_one_waits(nack(blocked.consumer, 0, 1), credit(blocked.consumer, 5))
        assert {await blocked.read_delivery(), await blocked.read_delivery()} == {0, 1}  # 0 comes again
        hold.release()
    assert await blocked.read_published() == []


async def test_a_call_keeps_its_place_behind_a_publish_that_waits_and_an_ack_its_place_behind_the_call(
    blocked: BlockedClient,
) -> None:
    with held_log(blocked.broker.node.log) as hold:
        await blocked.publish_until_one_waits(ping(50))
        assert (await blocked.client.read()).number == 50
        await blocked.client.write(call(51, "describe_topic", topic=CONSUMED), ack(blocked.consumer, 0, 1), ping(52))
        await until(lambda: not blocked.is_read)
        async with raw_client(blocked.broker.address) as bystander:
            await bystander.write(ping(1))
            await bystander.read()
        assert blocked.unacked == 5
        with pytest.raises(TimeoutError):
            await blocked.client.read(0)
        hold.release()
    others = await blocked.read_published()
    while len(others) < 2:
        others.append(await blocked.client.read())
    assert {(each.kind, each.number) for each in others} == {(FrameKind.RESULT, 51), (FrameKind.PONG, 52)}


@pytest.mark.parametrize(
    "invalid",
    [b"\xff" * 16, ack(9_999, 0, 1), ping(60, bytes(limits.PING_BYTES_MAX + 1))],
    ids=["head", "handle", "ping"],
)
async def test_an_invalid_frame_closes_the_connection_behind_the_answers_to_the_frames_before_it(
    blocked: BlockedClient, invalid: bytes
) -> None:
    with held_log(blocked.broker.node.log) as hold:
        await blocked.publish_until_one_waits(ping(50))
        assert (await blocked.client.read()).number == 50
        await blocked.client.write(invalid, ping(52))
        hold.release()
    assert await blocked.read_published() == []
    (last,) = await blocked.client.read_all()
    assert (last.kind, last.number) == (FrameKind.ERROR, 0)
    assert isinstance(document.decode_error(last.body), errors.IcestreamError)


async def test_beyond_the_bound_of_what_is_parked_the_connection_is_not_read(blocked: BlockedClient) -> None:
    with held_log(blocked.broker.node.log) as hold:
        await blocked.publish_until_one_waits(ping(50))
        assert (await blocked.client.read()).number == 50
        assert blocked.is_read
        blocked.client.write_now(b"".join(blocked.publish_frame(30_000) for _ in range(5)))
        await until(lambda: not blocked.is_read)
        hold.release()
    await until(lambda: blocked.is_read)
