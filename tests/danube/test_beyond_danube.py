"""What Danube's own tests leave open, and where it fails at home: restarts, backlogs, failover, rates, sizes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from danube import DanubeClientBuilder, DispatchStrategy, SubType

from icestream import limits
from icestream.frontends.danube.consumer_registry import ConsumerRegistry
from icestream.frontends.danube.handlers import Call, OutStream
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.danube_broker import DanubeBroker, Received, danube_broker
from tests.support.serve_process import ServeProcess
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "t")


@pytest_asyncio.fixture
async def danube(tmp_path: Path) -> AsyncIterator[DanubeBroker]:
    async with danube_broker(tmp_path) as broker:
        yield broker


async def test_failover_promotion(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    first = await danube.consumer("/default/t", "first", kind=SubType.FAILOVER)
    second = await danube.consumer("/default/t", "second", kind=SubType.FAILOVER)
    for number in range(3):
        await producer.send(b"%d" % number)
    assert await first.payloads(2) == [b"0", b"1"]
    assert second.queue.empty()
    await first.consumer.close()
    await producer.send(b"3")
    assert await second.payloads(2) == [b"2", b"3"]


async def test_an_exclusive_subscription_passes_to_the_next_consumer(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    first = await danube.consumer("/default/t", "first", kind=SubType.EXCLUSIVE)
    await producer.send(b"1")
    await first.payloads(1, ack=False)
    await first.consumer.close()
    second = await danube.consumer("/default/t", "second", kind=SubType.EXCLUSIVE)
    assert await second.payloads(1) == [b"1"]


async def test_backlog_of_any_size(danube: DanubeBroker) -> None:
    """At home all beyond 256 unread messages are skipped."""
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await received.consumer.close()
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(1100)))
    again = await danube.consumer("/default/t")
    assert sorted(map(int, await again.payloads(1100))) == list(range(1100))


async def test_the_dispatch_rate_limit_loses_no_message(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    await danube.broker.set_topic_policies(TOPIC, PolicyValues(max_dispatch_rate=100))
    received = await danube.consumer("/default/t")
    for number in range(40):
        await producer.send(b"%d" % number)
    assert await received.payloads(40) == [b"%d" % number for number in range(40)]


@pytest.mark.usefixtures("wire")
async def test_oversized_messages_are_refused_permanently(tmp_path: Path) -> None:
    wal = {"max_file_size": "64MiB", "max_message_bytes": 8_000_000}
    async with danube_broker(tmp_path, wal=wal) as danube:
        producer = await danube.producer("/default/t")
        received = await danube.consumer("/default/t")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await producer.send(bytes(5 * limits.MIB))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        largest = bytes(limits.DANUBE_MESSAGE_BYTES_MAX_DEFAULT - 1000)
        await producer.send(largest)
        assert await received.payloads(1) == [largest]


# --- restarts ---------------------------------------------------------------------------------------------------------


class OpenedStreams:
    """Counts how often a client has opened a stream, as the broker sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = ConsumerRegistry.receive

        async def receive(consumers: ConsumerRegistry, raw: bytes, call: Call, stream: OutStream) -> None:
            self.count += 1
            await real(consumers, raw, call, stream)

        monkeypatch.setattr(ConsumerRegistry, "receive", receive)


async def test_a_consumer_of_a_deleted_subscription_reconnects_without_spinning(
    danube: DanubeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Danube's client reopens its stream without a pause, 800 times a second, until it gets the close."""
    monkeypatch.setattr("danube.health_check.HEALTH_CHECK_INTERVAL_SECS", 1)
    opened = OpenedStreams(monkeypatch)
    await danube.stop()
    await danube.start()
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await producer.send(b"before")
    assert await received.payloads(1) == [b"before"]
    old = received.consumer._consumers["/default/t"].consumer_id
    await danube.broker.delete_subscription(TOPIC, "s")
    await until(lambda: received.consumer._consumers["/default/t"].consumer_id != old)
    await producer.send(b"after")
    assert await received.payloads(1) == [b"after"]
    assert opened.count <= 10


@pytest.mark.usefixtures("wire")
async def test_a_standalone_restart_keeps_serving_old_topics_to_a_connected_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics, offsets, producer and consumer are unchanged; nothing is created again, and no client spins."""
    opened = OpenedStreams(monkeypatch)
    async with danube_broker(tmp_path, "iceberg") as danube:
        producer = await danube.producer("/default/t", partitions=2)
        received = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
        for number in range(6):
            await producer.send(b"%d" % number)
        before = [await received.next() for _ in range(6)]
        ids = [part.producer_id for part in producer._producers]
        await danube.stop()
        sending = asyncio.ensure_future(send_all(producer, range(6, 12)))
        await danube.start()
        await sending
        after = await until_all(received, {*range(6, 12)})
        assert ids == [part.producer_id for part in producer._producers]
        offsets = [(message.msg_id.topic_name, message.msg_id.topic_offset) for message in [*before, *after]]
        assert len(set(offsets)) == 12
        assert opened.count <= 8, "two partitions, twice"


async def send_all(producer: object, numbers: range) -> None:
    for number in numbers:
        await producer.send(b"%d" % number)  # type: ignore[attr-defined]


async def until_all(received: Received, numbers: set[int]) -> list[object]:
    """The first delivery of each: what was acked just before a stop may come again."""
    by_number = {}
    while set(by_number) != numbers:
        message = await received.next()
        number = int(message.payload)
        if number in numbers:
            by_number.setdefault(number, message)
    return list(by_number.values())


async def test_kill_9_with_acked_data(tmp_path: Path) -> None:
    """No message whose send returned is lost; producer and consumer go on by themselves."""
    port = free_port()
    flags = ("--output", "json", "--set", "danube.enable=true", "--set", f"ports.danube={port}")
    client = await DanubeClientBuilder().service_url(f"http://127.0.0.1:{port}").build()
    sent: list[int] = []
    seen: dict[int, set[int]] = {}
    tasks: list[asyncio.Task[None]] = []
    try:
        for life in range(2):
            with ServeProcess(tmp_path / "data", *flags, is_fork=True) as process:
                await asyncio.to_thread(process.announcement)
                if not life:
                    tasks = await begin(client, sent, seen)
                await until(partial(has_grown, sent, len(sent) + 60))
                await asyncio.to_thread(process.stop, signal.SIGKILL)
        with ServeProcess(tmp_path / "data", *flags, is_fork=True) as process:
            await asyncio.to_thread(process.announcement)
            await until(lambda: set(seen) >= set(sent))
        assert sum(len(copies) - 1 for copies in seen.values()) <= 2, "more than the one send under way at each kill"
        offsets = [offset for copies in seen.values() for offset in copies]
        assert len(offsets) == len(set(offsets)), "an offset was given twice"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in client.connection_manager._connections.values():
            await connection.channel.close()


async def begin(client: object, sent: list[int], seen: dict[int, set[int]]) -> list[asyncio.Task[None]]:
    build = client.new_producer().with_topic("/default/t").with_name("p")  # type: ignore[attr-defined]
    producer = build.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    build = client.new_consumer().with_topic("/default/t").with_consumer_name("c")  # type: ignore[attr-defined]
    consumer = build.with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()

    async def produce() -> None:
        for number in range(10**6):
            while not await is_sent(b"%d" % number):
                pass
            sent.append(number)

    async def is_sent(payload: bytes) -> bool:
        try:
            await producer.send(payload)
        except grpc.aio.AioRpcError as error:  # it gives up when no broker answers for the topic
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True

    async def consume() -> None:
        try:
            while True:
                message = await queue.get()
                seen.setdefault(int(message.payload), set()).add(message.msg_id.topic_offset)
                with contextlib.suppress(grpc.aio.AioRpcError):  # the broker was killed: it comes again
                    await consumer.ack(message)
        finally:
            await consumer.close()

    return [asyncio.ensure_future(produce()), asyncio.ensure_future(consume())]


def has_grown(sent: list[int], goal: int) -> bool:
    return len(sent) >= goal


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
