"""Hazard 35 through the native front end: what one connection may take and hold, and which others it may slow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import uvloop

import icestream
from icestream import limits
from icestream.frontends.native.native_connection import NativeConnection
from icestream.model.topic_name import TopicName
from icestream.rpc import frame
from icestream.rpc.frame import FrameKind, Outcome, PublishPart
from icestream.testing import TestBroker
from tests.support.held_sink import held_log
from tests.support.native_sockets import is_stopped, unsent_bytes
from tests.support.native_wires import use_wire
from tests.support.raw_client import RawClient, block, credit, ping, publish, raw_client
from tests.support.until import until

TOPIC, OTHER = "/default/orders", "/default/other"
NODE_BYTES = 1 * limits.MIB
FRAME = block(*[bytes(100)] * 100)


@pytest_asyncio.fixture
async def broker(native_wire: str) -> AsyncIterator[TestBroker]:
    settings = {"storage": {"iceberg_config": {"wal": {"in_flight_bytes": NODE_BYTES, "max_message_bytes": 100_000}}}}
    async with icestream.testing.broker("disk", settings) as running:
        yield running


@pytest.fixture
def small_connection_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a broker that is started from now on."""
    monkeypatch.setattr(limits, "CONNECTION_IN_FLIGHT_BYTES_MAX", 100_000)


def producer_name(client: RawClient) -> str:
    return f"p{id(client)}"


async def producer_of(client: RawClient, topic: str = TOPIC) -> int:
    answer = await client.call("open_producer", topic=topic, producer=producer_name(client))
    return int(answer["handle"])


def frames_of(handle: int, count: int) -> bytes:
    return b"".join(publish(number, PublishPart(handle, 0, FRAME)) for number in range(1000, 1000 + count))


def connections_of(broker: TestBroker) -> list[NativeConnection]:
    return list(broker.node.native._connections)


def stored(broker: TestBroker) -> int:
    return broker.node.broker.topics.get(TopicName.parse(TOPIC)).published_messages


class FastProducer:
    """Sends as fast as the kernel takes it, and remembers how much."""

    def __init__(self, client: RawClient, data: bytes) -> None:
        self.client = client
        self._data = memoryview(data)
        self.sent = 0

    def push(self) -> int:
        count = self.client.write_now(bytes(self._data[self.sent : self.sent + limits.MIB]))
        self.sent += count
        return count

    async def rest(self) -> None:
        await self.client.write(bytes(self._data[self.sent :]))
        self.sent = len(self._data)


# --- a tick -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_hazard_35_a_tick_reads_256_kib_of_each_connection_in_turn(
    monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """uvloop would read one busy socket 32 times before it looks at the next."""
    ticks: list[Counter[int]] = [Counter()]  # of each tick: bytes by connection
    original = NativeConnection.buffer_updated

    def count_and_read(self: NativeConnection, count: int) -> None:
        ticks[-1][id(self)] += count
        original(self, count)

    async def tick() -> None:
        while True:
            ticks.append(Counter())
            await asyncio.sleep(0)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(icestream.testing.broker("disk"))
            hoses: list[FastProducer] = []
            for _ in range(3):
                client = await stack.enter_async_context(raw_client(broker.address))
                hoses.append(FastProducer(client, frames_of(await producer_of(client), 400)))
            ticking = asyncio.create_task(tick())
            for hose in hoses:  # the kernel's buffers are full before the first is read
                while hose.push():
                    pass
            await asyncio.gather(*(hose.rest() for hose in hoses))
            for hose in hoses:
                for number in range(1000, 1400):
                    await hose.client.published(number)
            ticking.cancel()

    use_wire(monkeypatch, is_used=False)
    monkeypatch.setattr(NativeConnection, "buffer_updated", count_and_read)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    assert max(count for tick in ticks for count in tick.values()) <= limits.SOCKET_READ_BYTES
    busy = [tick for tick in ticks if sum(tick.values()) >= 2 * limits.SOCKET_READ_BYTES]
    assert busy, "more than one connection was read in a tick"
    assert len({connection for tick in ticks for connection in tick}) == 3


# --- a disk that stands still -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_35_producers_pause_and_everything_else_continues_while_the_disk_hangs(
    broker: TestBroker,
) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(raw_client(broker.address))
        await other.call("create_topic", topic=OTHER)
        hoses: list[FastProducer] = []
        for _ in range(3):
            client = await stack.enter_async_context(raw_client(broker.address))
            hoses.append(FastProducer(client, frames_of(await producer_of(client), 300)))
        hold = stack.enter_context(held_log(broker.node.log))
        busy = [connection for connection in connections_of(broker) if connection.producers]
        await fill(hoses, busy)
        assert broker.node.log is not None
        assert broker.node.log.in_flight_bytes <= NODE_BYTES
        queued_bytes = sum(connection._queued_frames.publish_bytes for connection in busy)
        assert queued_bytes <= len(busy) * limits.SOCKET_READ_BYTES
        await other.write(ping(50, b"still there"))
        assert (await other.read()).body == b"still there"
        assert (await other.call("describe_topic", topic=OTHER))["shards"] == 1
        hold.release()
        await asyncio.gather(*(hose.rest() for hose in hoses))
        for hose in hoses:
            outcomes = {(await hose.client.published(number))[0].outcome for number in range(1000, 1300)}
            assert outcomes == {Outcome.STORED}
    assert stored(broker) == 3 * 300 * 100


async def fill(hoses: list[FastProducer], busy: list[NativeConnection]) -> None:
    """Pushes until the broker stops reading and the kernel's buffers are full."""
    sent = -1
    while not all(map(is_stopped, busy)) or sent != (sent := sum(hose.sent for hose in hoses)):
        for hose in hoses:
            hose.push()
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_hazard_35_unanswered_requests_of_a_connection_are_bounded(
    small_connection_bound: None, broker: TestBroker
) -> None:
    log = broker.node.log
    assert log is not None
    async with raw_client(broker.address) as client, raw_client(broker.address) as other:
        hose = FastProducer(client, frames_of(await producer_of(client), 300))
        (busy,) = [connection for connection in connections_of(broker) if connection.producers]
        second = await producer_of(other)
        with held_log(log):
            await fill([hose], [busy])
            in_flight_bytes = log.in_flight_bytes
            assert in_flight_bytes < 200_000, "the rest is left for other connections"
            await other.write(publish(1000, PublishPart(second, 0, FRAME)))
            await until(lambda: log.in_flight_bytes > in_flight_bytes)
        await hose.rest()
        assert (await other.published(1000))[0].outcome == Outcome.STORED
        outcomes = {(await client.published(number))[0].outcome for number in range(1000, 1300)}
        assert outcomes == {Outcome.STORED}


# --- what is sent -----------------------------------------------------------------------------------------------------


async def consumer_of(client: RawClient, name: str) -> int:
    answer = await client.call("subscribe", topic=TOPIC, subscription=name, consumer="c", start="earliest")
    await client.write(credit(answer["handle"], limits.CREDIT_MAX))
    return int(answer["handle"])


@pytest.mark.asyncio
async def test_hazard_35_consumers_that_do_not_read_share_one_budget_and_slow_no_other(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_BYTES_TOTAL", 1 * limits.MIB)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(icestream.connect(broker.address))
        producer = await stack.enter_async_context(client.producer(TOPIC))
        reader = await stack.enter_async_context(client.subscribe(TOPIC, "reader", prefetch=10_000))
        for number in range(8):
            lazy = await stack.enter_async_context(raw_client(broker.address, receive_bytes=4096))
            await consumer_of(lazy, f"lazy-{number}")
        seen = 0
        for _ in range(200):
            await asyncio.gather(*(producer.send(bytes(5_000)) for _ in range(20)))
            while seen < stored(broker):
                seen += len(await reader.take(1000))
        assert seen == 4000, "20 MB went through"
        waiting = [*map(unsent_bytes, connections_of(broker))]
        assert sum(size > 0 for size in waiting) == 8, "all consumers are stuck"
        share = limits.SEND_BYTES_TOTAL // 16
        assert max(waiting) <= 2 * share + 110_000, "one tick may exceed the share, and a section may come on top"


@pytest.mark.asyncio
async def test_hazard_35_a_consumer_that_reads_again_gets_all_messages_in_order(broker: TestBroker) -> None:
    async with (
        icestream.connect(broker.address) as client,
        client.producer(TOPIC) as producer,
        raw_client(broker.address, receive_bytes=4096) as lazy,
    ):
        await producer.send(b"first")
        await consumer_of(lazy, "lazy")
        for _ in range(20):
            await asyncio.gather(*(producer.send(bytes(50_000)) for _ in range(10)))
        offsets: list[int] = []
        while len(offsets) < 201:
            received = await lazy.read()
            assert received.kind == FrameKind.DELIVER
            delivery = frame.decode_delivery(received.body)
            first = delivery.base_offset + delivery.first_row
            offsets += range(first, first + delivery.rows)
        assert offsets == list(range(201))
