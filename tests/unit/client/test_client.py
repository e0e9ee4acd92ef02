"""A client against a real broker in this process: what holds for everything on its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.rpc.frame import Frame
from icestream.rpc.pending_calls import PendingCalls
from icestream.testing import TestBroker
from tests.support.until import until

TOPIC = "/default/orders"
WAIT_SECONDS = 20.0


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[TestBroker]:
    async with icestream.testing.broker() as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: TestBroker) -> AsyncIterator[icestream.Client]:
    async with icestream.connect(broker.address) as connected:
        yield connected


@pytest.mark.asyncio
async def test_compressed_frames_carry_messages_in_both_directions() -> None:
    payload = b'{"coffee": "espresso", "price": 210}' * 1000
    async with (
        icestream.testing.broker() as broker,
        icestream.connect(broker.address, compression=True) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s") as messages,
    ):
        agreed = {connection.agreed.compression is not None for connection in broker.node.native._connections}
        assert agreed == {True}
        sent = [producer.send(payload + b"%d" % number) for number in range(20)]
        assert [(await future).offset for future in sent] == list(range(20))
        received = [await anext(messages) for _ in range(20)]
        assert [message.payload for message in received] == [payload + b"%d" % number for number in range(20)]


@pytest.mark.asyncio
async def test_the_largest_allowed_message_passes_with_any_settings() -> None:
    wal = {"max_message_bytes": 20_000_000, "max_file_size": "128MiB"}
    settings = {"storage": {"iceberg_config": {"wal": wal}}}
    async with (
        icestream.testing.broker(settings=settings) as broker,
        icestream.connect(broker.address) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s") as messages,
    ):
        await producer.send(bytes(20_000_000))
        assert len((await anext(messages)).payload) == 20_000_000
        with pytest.raises(errors.MessageTooLarge):
            await producer.send(bytes(20_100_000))


@pytest.mark.asyncio
async def test_a_test_broker_accepts_messages_as_large_as_a_real_one() -> None:
    for storage in ("memory", "disk"):
        async with (
            icestream.testing.broker(storage) as broker,  # type: ignore[arg-type]  # one of the two
            icestream.connect(broker.address) as client,
            client.producer(TOPIC) as producer,
        ):
            assert (await producer.send(bytes(4_000_000 - 1000))).offset == 0
            with pytest.raises(errors.MessageTooLarge):
                await producer.send(bytes(4_100_000))


@pytest.mark.asyncio
async def test_all_topics_are_listed_in_pages(client: icestream.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_PAGE_MAX", 3)
    names = [f"/default/topic-{number}" for number in range(10)]
    for name in reversed(names):
        await client.create_topic(name)
    assert await client.list_topics() == names


@pytest.mark.asyncio
async def test_policies_of_a_topic_change_while_it_is_used(client: icestream.Client) -> None:
    await client.create_topic(TOPIC, max_message_bytes=100, partitioning="day")
    async with client.producer(TOPIC) as producer:
        with pytest.raises(errors.MessageTooLarge):
            await producer.send(bytes(200))
    changed = await client.change_topic_policies(TOPIC, max_message_bytes=1000, partitioning=None, max_producers=5)
    assert changed == await client.topic_policies(TOPIC)
    policies = {name: value for name, value in changed.policies.items() if value is not None}
    assert policies == {"max_message_bytes": 1000, "max_producers": 5}
    assert changed.effective["max_message_bytes"] == 1000
    async with client.producer(TOPIC) as producer:
        assert (await producer.send(bytes(200))).offset == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_mesage_bytes": 1}, "max_mesage_bytes"),
        ({"max_message_bytes": "many"}, "max_message_bytes"),
        ({"max_message_bytes": -1}, "below 0"),
        ({"partitioning": "week"}, "week"),
    ],
)
async def test_invalid_policies_change_nothing(client: icestream.Client, changes: dict[str, Any], says: str) -> None:
    await client.create_topic(TOPIC, max_message_bytes=100)
    with pytest.raises(errors.InvalidInput, match=says):
        await client.change_topic_policies(TOPIC, **{"max_producers": 5, **changes})
    answer = await client.topic_policies(TOPIC)
    assert (answer.policies["max_message_bytes"], answer.policies["max_producers"]) == (100, None)


@pytest.mark.asyncio
async def test_concurrent_policy_changes_are_both_applied(client: icestream.Client) -> None:
    await client.create_topic(TOPIC)
    await asyncio.gather(
        client.change_topic_policies(TOPIC, max_producers=5), client.change_topic_policies(TOPIC, retention_ms=60_000)
    )
    policies = (await client.topic_policies(TOPIC)).policies
    assert (policies["max_producers"], policies["retention_ms"]) == (5, 60_000)


# --- what users do wrong ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"address": None}, "an address must be str"),
        ({"address": b"localhost"}, "an address must be str"),
        ({"address": "http://localhost:9040"}, "for example"),
        ({"wait": -1}, "wait=-1"),
        ({"wait": "5"}, "wait='5'"),
        ({"call_timeout": 0}, "call_timeout=0"),
        ({"send_timeout": None}, "send_timeout=None"),
        ({"heartbeat": float("nan")}, "heartbeat=nan"),
        ({"name": 7}, "must be str"),
        ({"name": "x" * 241}, "240 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_client_options_are_refused_before_connecting(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        icestream.connect(**arguments)
    with pytest.raises(errors.InvalidInput, match=says):
        icestream.connect_sync(**arguments)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topic": "orders"}, "do you mean /default/orders"),
        ({"topic": None}, "name of a topic"),
        ({"subscription": "a/b"}, "without /"),
        ({"subscription": None}, "name of a subscription"),
        ({"consumer": 7}, "name of a consumer"),
        ({"type": "sharde"}, "exclusive, shared, failover, key-shared"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"prefetch": "5"}, "prefetch='5'"),
        ({"buffer_bytes": 0}, "buffer_bytes=0"),
        ({"take_timeout": 0}, "take_timeout=0"),
        ({"take_timeout": "1"}, "take_timeout='1'"),
        ({"key_patterns": ["a*"]}, "key-shared"),
        ({"start": "first"}, "earliest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_invalid_subscription_is_refused_immediately(
    client: icestream.Client, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        client.subscribe(**{"topic": TOPIC, "subscription": "s", **arguments})


@pytest.mark.asyncio
async def test_an_unknown_policy_is_refused_with_the_known_ones(client: icestream.Client) -> None:
    with pytest.raises(errors.InvalidInput, match=r"max_mesage_bytes.*max_message_bytes"):
        await client.create_topic(TOPIC, max_mesage_bytes=5)
    assert await client.list_topics() == []
    await client.create_topic(TOPIC)
    with pytest.raises(errors.InvalidInput, match=r"max_redelivery'.*max_redelivery_count"):
        await client.subscribe(TOPIC, "s", failure={"max_redelivery": 3})
    assert (await client.describe_topic(TOPIC)).subscriptions == []


@pytest.mark.asyncio
async def test_an_unknown_topic_has_a_hint(client: icestream.Client) -> None:
    with pytest.raises(errors.UnknownTopic, match="publish to it once"):
        await client.subscribe(TOPIC, "s")


@pytest.mark.asyncio
async def test_an_oversized_message_is_refused_with_the_limit(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(errors.MessageTooLarge, match="max_message_bytes"):
            await producer.send(bytes(5_000_000))
        with pytest.raises(errors.MessageTooLarge, match="frame size limit"):
            await producer.send(bytes(17_000_000))
        assert (await producer.send(b"fits")).offset == 0


@pytest.mark.asyncio
async def test_closed_objects_raise(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        await producer.send(b"x")
        message = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
    await producer.close()
    await messages.close()
    for use in (lambda: producer.send(b"y"), message.ack, message.nack):
        with pytest.raises(errors.ClientClosed, match="is closed"):
            use()
    for again in (producer.ready, messages.flush, producer.__aenter__, messages.__aenter__):
        with pytest.raises(errors.ClientClosed, match="is closed"):
            await again()
    assert await messages.take(1) == []
    await client.close()
    await client.close()
    with pytest.raises(errors.ClientClosed, match="the client is closed"):
        client.producer(TOPIC)
    with pytest.raises(errors.ClientClosed, match="the client is closed"):
        await client.list_topics()
    with pytest.raises(errors.ClientClosed, match="the client is closed"):
        await client


@pytest.mark.asyncio
async def test_unopened_objects_raise(broker: TestBroker, client: icestream.Client) -> None:
    unconnected = icestream.connect(broker.address)
    with pytest.raises(errors.ClientClosed, match="not connected yet"):
        unconnected.producer(TOPIC)
    producer, messages = client.producer(TOPIC), client.subscribe(TOPIC, "s")
    with pytest.raises(errors.ClientClosed, match="not open yet"):
        producer.send(b"x")
    with pytest.raises(errors.ClientClosed, match="not open yet"):
        await messages.flush()
    await producer.close()
    await messages.close()
    await unconnected.close()


@pytest.mark.asyncio
async def test_a_delay_that_is_not_a_number_is_refused(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        await producer.send(b"x")
        message = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
        for delay in (timedelta(seconds=1), "1", None):
            wrong: Any = delay
            with pytest.raises(errors.InvalidInput, match="in seconds"):
                message.nack(delay=wrong)


@pytest.mark.asyncio
async def test_another_thread_is_sent_to_the_blocking_client(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        await producer.send(b"x")
        message = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
        for use in (lambda: producer.send(b"y"), message.ack, lambda: client.producer(TOPIC)):
            with pytest.raises(errors.InvalidInput, match="connect_sync"):
                await asyncio.to_thread(use)
        assert (await producer.send(b"y")).offset == 1
        message.ack()


def test_use_from_another_event_loop_is_refused() -> None:
    with icestream.testing.broker() as broker:
        runner = asyncio.Runner()
        client = runner.run(icestream.connect(broker.address).__aenter__())
        with asyncio.Runner() as other, pytest.raises(errors.InvalidInput, match="one client for each event loop"):
            other.run(client.list_topics())
        runner.run(client.close())
        runner.close()


# --- cancelled, interrupted -------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_waiting_calls_fail_when_the_client_is_closed(broker: TestBroker) -> None:
    """Both calls that wait for a connection and calls that wait for an answer fail."""
    client = await icestream.connect(broker.address)
    await broker.stop()
    waiting = asyncio.create_task(client.list_topics())
    await asyncio.sleep(0)
    await asyncio.wait_for(client.close(), WAIT_SECONDS)
    with pytest.raises((errors.ClientClosed, errors.ConnectionLost)):
        await asyncio.wait_for(waiting, WAIT_SECONDS)


@pytest.mark.asyncio
async def test_an_exception_inside_the_iteration_closes_cleanly(client: icestream.Client, broker: TestBroker) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(5):
            producer.send(b"%d" % number)

    async def consume() -> None:
        async with client.subscribe(TOPIC, "s", start="earliest") as messages:
            async for message in messages:
                message.ack()
                assert message.offset < 2

    with pytest.raises(AssertionError, match="2 < 2"):
        await consume()
    async with client.subscribe(TOPIC, "s") as messages:
        left = [(await asyncio.wait_for(anext(messages), WAIT_SECONDS)).offset for _ in range(2)]
    assert left == [3, 4], "what was acked before counts, the rest comes again"


@pytest.mark.asyncio
async def test_a_cancelled_consumer_loses_nothing(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        for number in range(50):
            waiting = asyncio.ensure_future(anext(messages))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            sent = producer.send(b"%d" % number)
            for _ in range(number % 7):
                await asyncio.sleep(0)
            waiting.cancel()
            outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
            await sent
            if isinstance(outcome, asyncio.CancelledError):
                outcome = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
            assert isinstance(outcome, icestream.Message)
            assert int(outcome.payload) == number
            outcome.ack()


@pytest.mark.asyncio
async def test_a_cancelled_open_leaves_nothing(client: icestream.Client, broker: TestBroker) -> None:
    await client.create_topic(TOPIC)
    topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
    for turns in range(12):
        opening = [
            asyncio.ensure_future(client.producer(TOPIC).__aenter__()),
            asyncio.ensure_future(client.subscribe(TOPIC, "s", type="exclusive").__aenter__()),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in opening:
            task.cancel()
        for done in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(done, icestream.Producer | icestream.Subscription):
                await done.close()
        await until(
            lambda: (
                not topic.producers and not any(subscription.consumers for subscription in topic.subscriptions.values())
            )
        )
    async with client.subscribe(TOPIC, "s", type="exclusive"):
        assert (await client.describe_topic(TOPIC)).producers == 0


@pytest.mark.asyncio
async def test_an_open_cancelled_at_its_reply_leaves_nothing(
    client: icestream.Client, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic(TOPIC)
    topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
    original, seen = PendingCalls.resolve, 0

    def resolve(self: PendingCalls, frame: Frame) -> bool:
        nonlocal seen
        is_known = original(self, frame)
        if seen < len(openings):
            openings[seen].cancel()
        seen += 1
        return is_known

    monkeypatch.setattr(PendingCalls, "resolve", resolve)
    openings = [
        asyncio.ensure_future(client.producer(TOPIC).__aenter__()),
        asyncio.ensure_future(client.subscribe(TOPIC, "s").__aenter__()),
    ]
    await asyncio.gather(*openings, return_exceptions=True)
    assert all(opening.cancelled() for opening in openings)
    await until(lambda: not topic.producers and not topic.subscriptions["s"].consumers)


@pytest.mark.asyncio
async def test_close_waits_for_messages_in_flight(broker: TestBroker) -> None:
    async with icestream.connect(broker.address) as client, client.producer(TOPIC) as producer:
        sent = [producer.send(b"%d" % number) for number in range(100)]
    assert [future.result().offset for future in sent] == list(range(100))
