"""Connections that break: nothing is lost or duplicated, order is kept, and a lasting failure is reported."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

import icestream
from icestream import errors
from icestream.client.batch import MessageId
from icestream.model.topic_name import TopicName
from icestream.runtime.randomness import SeededRandomness
from icestream.testing import TestBroker
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
WAIT_SECONDS = 30.0


@dataclass
class ReconnectScenario:
    broker: TestBroker
    proxy: CuttingProxy
    client: icestream.Client  # through the proxy

    async def cut(self) -> None:
        """Breaks the connection, and waits until there is another one."""
        before = self.client.connections
        self.proxy.cut()
        await until(lambda: self.client.connections > before)


@pytest_asyncio.fixture(params=["memory", "disk"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[ReconnectScenario]:
    async with (
        icestream.testing.broker(request.param) as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address, clock=clock_with_short_sleeps(), randomness=SeededRandomness(1)) as client,
    ):
        yield ReconnectScenario(broker, proxy, client)


async def payloads(broker: TestBroker, shards: int = 1) -> list[list[bytes]]:
    """Everything that is stored, by shard."""
    payloads_by_shard: list[list[bytes]] = []
    topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
    end = [0] * shards
    for shard in range(shards):
        stream = await broker.node.broker.storage.create_subscription_stream("default", "orders", "check")
        end[shard] = stream.shards[shard].visible
    async with icestream.connect(broker.address) as client:
        for shard in range(topic.record.shards):
            payloads_by_shard.append([])
            async with client.subscribe(TOPIC, f"check-{shard}", start="earliest") as messages:
                async with asyncio.timeout(WAIT_SECONDS):
                    while sum(map(len, payloads_by_shard)) < sum(end[: shard + 1]):
                        message = await anext(messages)
                        if message.shard == shard:
                            payloads_by_shard[shard].append(message.payload)
                        message.ack()
    return payloads_by_shard


# --- producers --------------------------------------------------------------------------------------------------------


async def test_stored_batches_whose_replies_were_lost_get_their_offsets(scene: ReconnectScenario) -> None:
    async with scene.client.producer(TOPIC) as producer:
        await producer.send(b"first")
        scene.proxy.swallows_answers = True
        sent = []
        for number in range(10):
            sent.append(producer.send(b"%d" % number))
            await asyncio.sleep(0.001)
        topic = scene.broker.node.broker.topics.get(TopicName.parse(TOPIC))
        await until(lambda: topic.published_messages == 11)
        await scene.cut()
        message_ids = await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
        assert [message_id.offset for message_id in message_ids] == list(range(1, 11))
        assert (await producer.send(b"last")).offset == 11
    assert await payloads(scene.broker) == [[b"first", *(b"%d" % number for number in range(10)), b"last"]]


async def test_batches_that_never_arrived_are_sent_again_in_order(scene: ReconnectScenario) -> None:
    async with scene.client.producer(TOPIC) as producer:
        await producer.send(b"first")
        scene.proxy.swallows_requests = True
        sent = []
        for number in range(10):
            sent.append(producer.send(b"%d" % number))
            await asyncio.sleep(0.001)
        await scene.cut()
        assert [
            message_id.offset for message_id in await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
        ] == list(range(1, 11))


async def test_hazard_07_random_disconnects_of_a_pipelined_producer_lose_and_duplicate_nothing(
    scene: ReconnectScenario,
) -> None:
    chance = random.Random(7)
    sent: list[asyncio.Future[MessageId]] = []
    async with scene.client.producer(TOPIC, shards=2) as producer:
        for number in range(1500):
            await producer.ready()
            sent.append(producer.send(b"%d" % number, key=b"%d" % (number % 5)))
            if chance.random() < 0.2:
                await asyncio.sleep(0)
            if chance.random() < 0.02:
                scene.proxy.swallows_answers = chance.random() < 0.5
                scene.proxy.swallows_requests = chance.random() < 0.3
                await asyncio.sleep(0.003)
                await scene.cut()
        message_ids = await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
    stored = await payloads(scene.broker, 2)
    for shard in range(2):
        numbers = [int(payload) for payload in stored[shard]]
        assert numbers == sorted(set(numbers))
    for number, message_id in enumerate(message_ids):
        assert int(stored[message_id.shard][message_id.offset]) == number
    assert scene.client.connections > 5


async def test_messages_sent_while_the_broker_is_down_are_stored_when_it_returns(scene: ReconnectScenario) -> None:
    async with scene.client.producer(TOPIC) as producer:
        await producer.send(b"0")
        scene.proxy.is_open = False
        scene.proxy.cut()
        await until(lambda: not scene.client.is_connected)
        sent = [producer.send(b"%d" % number) for number in range(1, 5)]
        await asyncio.sleep(0.01)
        assert not any(future.done() for future in sent)
        scene.proxy.is_open = True
        assert [message_id.offset for message_id in await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)] == [
            1,
            2,
            3,
            4,
        ]


async def test_an_expired_message_reports_whether_it_may_be_stored() -> None:
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address, send_timeout=0.2) as client,
    ):
        producer = await client.producer(TOPIC)
        proxy.swallows_answers = True
        unanswered = producer.send(b"perhaps")
        topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
        await until(lambda: topic.published_messages)
        proxy.is_open = False
        proxy.cut()
        await until(lambda: not client.is_connected)
        unsent = producer.send(b"surely not")
        with pytest.raises(errors.OutcomeUnknown, match="may or may not have been stored"):
            await asyncio.wait_for(unanswered, WAIT_SECONDS)
        with pytest.raises(errors.ConnectionLost, match=r"not sent within 0\.2 s"):
            await asyncio.wait_for(unsent, WAIT_SECONDS)
        proxy.is_open = True
        await until(lambda: client.is_connected)
        assert (await asyncio.wait_for(producer.send(b"now"), WAIT_SECONDS)).offset == 1
    assert producer.pending_bytes == 0


async def test_a_message_that_was_sent_late_has_its_whole_time() -> None:
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address, send_timeout=0.4) as client,
    ):
        producer = await client.producer(TOPIC)
        proxy.is_open = False
        proxy.cut()
        await until(lambda: not client.is_connected)
        early = producer.send(b"early")
        await asyncio.sleep(0.3)
        late = producer.send(b"late")
        with pytest.raises(errors.ConnectionLost):
            await asyncio.wait_for(early, WAIT_SECONDS)
        assert not late.done()
        proxy.is_open = True
        await asyncio.wait([late], timeout=WAIT_SECONDS)
        fates = errors.ConnectionLost | errors.OutcomeUnknown  # it had its time, on a machine that may be slow
        assert late.exception() is None or isinstance(late.exception(), fates)


async def test_a_replaced_producer_does_not_mistake_messages_of_its_successor_for_its_own(
    scene: ReconnectScenario,
) -> None:
    old = await scene.client.producer(TOPIC, name="till")
    await old.send(b"old")
    scene.proxy.swallows_requests = True
    lost = old.send(b"lost")
    await asyncio.sleep(0.005)
    scene.proxy.is_open = False
    scene.proxy.cut()
    await until(lambda: not scene.client.is_connected)
    async with icestream.connect(scene.broker.address) as other, other.producer(TOPIC, name="till") as new:
        assert (await new.send(b"new")).offset == 1
        scene.proxy.is_open = True
        with pytest.raises(errors.OutcomeUnknown, match=r"producer till of topic .* was opened by another instance"):
            await asyncio.wait_for(lost, WAIT_SECONDS)
        with pytest.raises(errors.ProducerFenced):
            old.send(b"more")
        assert (await new.send(b"newer")).offset == 2


async def test_a_broker_in_memory_that_starts_again_is_a_new_one(scene: ReconnectScenario) -> None:
    async with scene.client.producer(TOPIC) as producer:
        assert (await producer.send(b"a")).offset == 0
        before = scene.client.connections
        await scene.broker.restart()
        await until(lambda: scene.client.connections > before)
        sent = await asyncio.wait_for(producer.send(b"b"), WAIT_SECONDS)
        assert sent.offset == (0 if scene.broker.node.log is None else 1)


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def fill(scene: ReconnectScenario, count: int) -> None:
    async with icestream.connect(scene.broker.address) as direct, direct.producer(TOPIC) as producer:
        for number in range(count):
            producer.send(b"%d" % number)


async def test_acked_messages_are_never_redelivered_and_unacked_ones_are(scene: ReconnectScenario) -> None:
    await fill(scene, 50)
    async with scene.client.subscribe(TOPIC, "s", type="exclusive", start="earliest", prefetch=20) as messages:
        delivered = [await anext(messages) for _ in range(30)]
        for message in delivered[:25]:
            message.ack()
        scene.proxy.swallows_requests = True  # these acks never arrive
        await asyncio.sleep(0.005)
        await scene.cut()
        async with asyncio.timeout(WAIT_SECONDS):
            again = [int((await anext(messages)).payload) for _ in range(25)]
        assert again == list(range(25, 50))


async def test_with_deduplication_nothing_is_delivered_twice_and_late_acks_count(scene: ReconnectScenario) -> None:
    await fill(scene, 300)
    seen: list[int] = []
    chance = random.Random(3)
    async with scene.client.subscribe(TOPIC, "s", start="earliest", prefetch=20, dedup=True) as messages:
        received: list[icestream.Message] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(seen) < 300:
                message = await anext(messages)
                seen.append(int(message.payload))
                received.append(message)
                if chance.random() < 0.1:
                    for earlier in received:
                        earlier.ack()
                    received.clear()
                if chance.random() < 0.03:
                    scene.proxy.swallows_answers = chance.random() < 0.3
                    scene.proxy.swallows_requests = chance.random() < 0.3
                    await asyncio.sleep(0.002)
                    await scene.cut()
            for earlier in received:
                earlier.ack()
            subscription = scene.broker.node.broker.subscription(TopicName.parse(TOPIC), "s")
            await until(lambda: subscription.lag == 0)
    assert sorted(seen) == list(range(300))


async def test_an_unsent_nack_does_not_count_against_the_next_delivery(scene: ReconnectScenario) -> None:
    await fill(scene, 1)
    async with scene.client.subscribe(TOPIC, "s", start="earliest") as messages:
        message = await anext(messages)
        message.nack()
        connection = message._delivered.connection
        assert connection is not None
        connection.end(errors.ConnectionLost("in the same tick"))
        again = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
        again.ack()
        await messages.flush()
        assert again.redelivery_count == 0
        subscription = scene.broker.node.broker.subscription(TopicName.parse(TOPIC), "s")
        assert subscription.lag == 0
        assert subscription.deliveries[0].dispatcher.attempts == []


async def test_a_seek_while_the_connection_breaks_is_repeated(scene: ReconnectScenario) -> None:
    await fill(scene, 20)
    async with scene.client.subscribe(TOPIC, "s", start="earliest") as messages:
        for _ in range(20):
            (await anext(messages)).ack()
        await messages.flush()
        scene.proxy.swallows_answers = True
        seeking = asyncio.create_task(messages.seek(5))
        await asyncio.sleep(0.005)
        await scene.cut()
        await asyncio.wait_for(seeking, WAIT_SECONDS)
        async with asyncio.timeout(WAIT_SECONDS):
            assert [int((await anext(messages)).payload) for _ in range(15)] == list(range(5, 20))


async def test_a_recreated_subscription_is_not_mistaken_for_the_old_one(scene: ReconnectScenario) -> None:
    """Acks of messages that are gone must not ack new ones with the same offsets."""
    await fill(scene, 5)
    async with (
        icestream.connect(scene.broker.address) as direct,
        scene.client.subscribe(TOPIC, "s", start="earliest", dedup=True) as messages,
    ):
        for _ in range(5):
            (await anext(messages)).ack()
        await messages.flush()
        scene.proxy.is_open = False
        scene.proxy.cut()
        await until(lambda: not scene.client.is_connected)
        await asyncio.sleep(0.005)
        await direct.delete_topic(TOPIC)
        await fill(scene, 3)
        scene.proxy.is_open = True
        async with asyncio.timeout(WAIT_SECONDS):
            assert [int((await anext(messages)).payload) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_acks_of_deleted_messages_do_not_ack_messages_at_the_same_offsets(
    scene: ReconnectScenario, when: str
) -> None:
    """Acked while the connection was lost, or after it came back, from a topic that was deleted meanwhile."""
    await fill(scene, 3)
    async with (
        icestream.connect(scene.broker.address) as direct,
        scene.client.subscribe(TOPIC, "s", start="earliest") as messages,
    ):
        old = [await anext(messages) for _ in range(3)]
        scene.proxy.is_open = False
        scene.proxy.cut()
        await until(lambda: not scene.client.is_connected)
        if when == "before":
            for message in old:
                message.ack()
        await direct.delete_topic(TOPIC)
        await fill(scene, 3)
        scene.proxy.is_open = True
        await until(lambda: messages.waiting_messages == 3)
        if when == "after":
            for message in old:
                message.ack()
        await messages.flush()
        assert scene.broker.node.broker.subscription(TopicName.parse(TOPIC), "s").lag == 3
        assert [int((await anext(messages)).payload) for _ in range(3)] == [0, 1, 2]


# --- calls and connections --------------------------------------------------------------------------------------------


async def test_a_call_that_must_not_be_repeated_reports_the_lost_connection(scene: ReconnectScenario) -> None:
    scene.proxy.swallows_answers = True
    creating = asyncio.create_task(scene.client.create_topic(TOPIC))
    listing = asyncio.create_task(scene.client.list_topics())
    await until(lambda: scene.broker.node.broker.topics.find(TopicName.parse(TOPIC)) is not None)
    await scene.cut()
    with pytest.raises(errors.ConnectionLost):
        await asyncio.wait_for(creating, WAIT_SECONDS)
    assert await asyncio.wait_for(listing, WAIT_SECONDS) == [TOPIC]


async def test_without_a_broker_the_error_names_the_address_and_a_hint() -> None:
    async with icestream.testing.broker() as broker:
        address = broker.address
    with pytest.raises(errors.ConnectionLost, match=f"(?s){address}.*icestream serve"):
        await icestream.connect(address)


async def test_a_client_can_wait_for_a_broker_to_start() -> None:
    broker = icestream.testing.broker()
    await broker.start()
    address = broker.address
    await broker.stop()
    waiting = asyncio.create_task(first_topics(address))
    await asyncio.sleep(0.05)
    async with broker:
        assert await asyncio.wait_for(waiting, WAIT_SECONDS) == []


async def first_topics(address: str) -> list[str]:
    async with icestream.connect(address, wait=WAIT_SECONDS) as client:
        return await client.list_topics()


async def test_a_silent_broker_is_noticed_by_its_missing_heartbeat() -> None:
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address, heartbeat=0.05) as client,
    ):
        await asyncio.sleep(0.2)
        assert client.connections == 1, "a silent connection that answers is kept"
        proxy.swallows_answers = True
        await until(lambda: not client.is_connected)
        proxy.swallows_answers = False
        await until(lambda: client.connections == 2)
        assert await client.list_topics() == []


async def test_a_broker_that_does_not_answer_a_call_is_an_error_in_time() -> None:
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address, call_timeout=0.1) as client,
    ):
        proxy.swallows_requests = True
        with pytest.raises(errors.ConnectionLost, match=r"did not answer list_topics within 0.1 s"):
            await client.list_topics()


async def test_a_cancelled_subscribe_leaves_no_consumer() -> None:
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(proxy.address) as client,
    ):
        await client.create_topic(TOPIC)
        topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
        release = proxy.hold_answers()
        opening = asyncio.create_task(client.subscribe(TOPIC, "s", type="exclusive").__aenter__())
        await until(lambda: "s" in topic.subscriptions and topic.subscriptions["s"].consumers)
        opening.cancel()
        release.set()
        await until(lambda: not topic.subscriptions["s"].consumers)
        assert await client.list_topics() == [TOPIC]
