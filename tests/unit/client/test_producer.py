"""A producer against a real broker in this process: what it promises while the connection holds, what it refuses."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors, limits
from icestream.broker.memory_storage import MemoryStorage
from icestream.client.batch import MessageId
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.observability import metrics
from icestream.testing import TestBroker
from icestream.wal.admission import Quota
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.until import until

pytestmark = pytest.mark.asyncio
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


async def stored(client: icestream.Client, count: int, topic: str = TOPIC) -> list[tuple[int, int, bytes]]:
    """Shard, offset and payload of everything in the topic."""
    stored_messages: list[tuple[int, int, bytes]] = []
    async with client.subscribe(topic, "check", start="earliest") as messages:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(stored_messages) < count:
                message = await anext(messages)
                stored_messages.append((message.shard, message.offset, message.payload))
                message.ack()
        assert not messages.waiting_messages
        await messages.seek("latest")
    return sorted(stored_messages)


async def test_a_future_returns_topic_shard_and_offset(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        assert await producer.send(b"one") == MessageId(TOPIC, 0, 0)
        sent = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
        assert [message_id.offset for message_id in sent] == [1, 2, 3]
    assert await stored(client, 4) == [(0, 0, b"one"), (0, 1, b"0"), (0, 2, b"1"), (0, 3, b"2")]


async def test_all_sends_of_a_tick_are_one_batch(client: icestream.Client, broker: TestBroker) -> None:
    async with client.producer(TOPIC) as producer:
        await asyncio.gather(*(producer.send(b"x") for _ in range(100)))
        await producer.send(b"y")
        topic = broker.node.broker.topics.get(TopicName.parse(TOPIC))
        batches = broker.node.broker.storage.recent_batches(topic.shard_key(0), 1)
    assert [rows for _, rows, _ in batches] == [100, 1]


async def test_every_field_of_a_message_is_stored(client: icestream.Client) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    async with client.producer(TOPIC, name="till-7") as producer:
        producer.send(b"plain")
        await producer.send(bytearray(b"rich"), key="k", headers={"a": "b", "c": "ä"}, publish_time=time)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        plain, rich = await messages.take(10)
    assert (plain.payload, plain.key, plain.headers, plain.producer_name) == (b"plain", None, {}, "till-7")
    assert (rich.payload, rich.key, rich.headers) == (b"rich", b"k", {"a": "b", "c": "ä"})
    assert rich.publish_time == time
    assert plain.publish_time is not None
    assert rich.append_time is not None
    assert plain.publish_time <= rich.append_time
    assert (rich.topic, rich.redelivery_count, rich.id) == (TOPIC, 0, MessageId(TOPIC, 0, 1))


async def test_a_key_has_its_shard_and_messages_without_one_are_distributed(client: icestream.Client) -> None:
    async with client.producer(TOPIC, shards=4) as producer:
        keys = [b"key-%d" % number for number in range(20)]
        sent = await asyncio.gather(*(producer.send(key, key=key) for key in keys))
        assert [message_id.shard for message_id in sent] == [zlib.crc32(key) % 4 for key in keys]
        shards = []
        for _ in range(4):
            pair = await asyncio.gather(producer.send(b"a"), producer.send(b"b"))
            assert pair[0].shard == pair[1].shard
            shards.append(pair[0].shard)
        assert sorted(shards) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"payload": "text"}, "bytes"),
        ({"payload": None}, "bytes"),
        ({"payload": b"", "key": 7}, "key"),
        ({"payload": b"", "key": "\ud800"}, "Unicode"),
        ({"payload": b"", "headers": {"a": 1}}, "header"),
        ({"payload": b"", "headers": [("a", "b")]}, "headers must be a dict"),
        ({"payload": b"", "publish_time": datetime(2026, 1, 1)}, "time zone"),
        ({"payload": b"", "publish_time": 2**63}, "64 bits"),
        ({"payload": b"x" * 70_000_000}, "70,000,000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_messages_are_refused_immediately_and_change_nothing(
    client: icestream.Client, arguments: dict[str, Any], says: str
) -> None:
    async with client.producer(TOPIC) as producer:
        payload = arguments.pop("payload")
        with pytest.raises(errors.InvalidInput, match=says):
            producer.send(payload, **arguments)
        assert producer.pending_bytes == 0
        assert (await producer.send(b"good")).offset == 0
    with pytest.raises(errors.ClientClosed, match="closed"):
        await producer


async def test_the_message_limit_of_a_topic_applies_immediately_when_it_changes(
    client: icestream.Client, broker: TestBroker
) -> None:
    await client.create_topic(TOPIC, max_message_bytes=1000)
    async with client.producer(TOPIC, name="a name of its own" * 10) as producer:
        assert (await producer.send(b"x" * 900, key=b"k" * 100)).offset == 0
        with pytest.raises(errors.MessageTooLarge, match="1000"):
            await producer.send(b"x" * 1001)
        await broker.node.broker.set_topic_policies(TopicName.parse(TOPIC), PolicyValues(max_message_bytes=2000))
        assert (await producer.send(b"x" * 1001)).offset == 1


async def test_a_full_producer_raises_and_ready_waits_for_room(client: icestream.Client) -> None:
    async with client.producer(TOPIC, pending_bytes=5_000) as producer:
        sent: list[asyncio.Future[MessageId]] = []
        while producer.pending_bytes < 5_000:
            sent.append(producer.send(b"%d" % len(sent)))
        with pytest.raises(errors.InFlightFull, match=r"await producer.ready\(\)"):
            producer.send(b"one too many")
        assert 5 < len(sent) < 30
        await asyncio.wait_for(producer.ready(), WAIT_SECONDS)
        sent.append(producer.send(b"last"))
        assert [message_id.offset for message_id in await asyncio.gather(*sent)] == list(range(len(sent)))


async def test_flush_and_close_wait_for_all_sent_messages(client: icestream.Client) -> None:
    producer = await client.producer(TOPIC, shards=3)
    sent = [producer.send(b"x", key=b"%d" % number) for number in range(50)]
    await producer.flush()
    assert all(future.done() for future in sent)
    late = producer.send(b"y")
    await producer.close()
    assert late.done()
    with pytest.raises(errors.ClientClosed):
        producer.send(b"z")


async def test_flush_and_close_wait_for_messages_before_one_that_fails_immediately(
    client: icestream.Client,
) -> None:
    producer = await client.producer(TOPIC)
    good, wrong = producer.send(b"good"), producer.send(bytes(20_000_000))
    await producer.flush()
    assert good.done()
    with pytest.raises(errors.MessageTooLarge, match="20,000,112 bytes"):
        await wrong
    good, wrong = producer.send(b"good"), producer.send(bytes(20_000_000))
    await producer.close()
    assert (await good).offset == 1
    assert isinstance(wrong.exception(), errors.MessageTooLarge)


async def test_a_cancelled_future_affects_no_other(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        first, second = producer.send(b"a"), producer.send(b"b")
        first.cancel()
        assert (await second).offset == 1


async def test_more_messages_than_fit_a_batch_become_several_in_order(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        payloads = [b"%06d" % number + bytes(50_000) for number in range(200)]
        sent = await asyncio.gather(*(producer.send(payload) for payload in payloads))
        assert [message_id.offset for message_id in sent] == list(range(200))


async def test_a_missing_topic_is_created_only_on_request(client: icestream.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        await client.producer("/default/missing", create=False)
    assert await client.list_topics() == []


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_wrong_message_fails_alone_and_its_neighbours_are_stored_in_order(
    client: icestream.Client, broker: TestBroker
) -> None:
    async with client.producer(TOPIC) as producer:
        await broker.node.broker.set_topic_policies(TopicName.parse(TOPIC), PolicyValues(max_message_bytes=1000))
        large = {1, 2, 5}
        sent = [producer.send(b"%d" % n + bytes(9_000 if n in large else 0)) for n in range(8)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, errors.MessageTooLarge if number in large else MessageId), outcome
        assert (await producer.send(b"8")).offset == 5
    assert [payload for _, _, payload in await stored(client, 6)] == [b"0", b"3", b"4", b"6", b"7", b"8"]


async def test_a_producer_forgotten_by_the_broker_reopens_automatically(
    client: icestream.Client, broker: TestBroker
) -> None:
    storage = broker.node.broker.storage
    assert isinstance(storage, MemoryStorage)
    async with client.producer(TOPIC, shards=2) as producer:
        for number in range(10):
            await asyncio.gather(*(producer.send(b"%d" % number, key=b"%d" % key) for key in range(4)))
            if number % 3 == 2:
                storage._producers.expire(2**62)
    assert len(await stored(client, 40)) == 40


async def test_messages_the_broker_never_accepts_fail_with_the_reason_in_time() -> None:
    async with (
        icestream.testing.broker("disk") as broker,
        icestream.connect(broker.address, send_timeout=0.3) as client,
        client.producer(TOPIC) as producer,
    ):
        log = broker.node.log
        assert log is not None
        roomy, log.quota = log.quota, Quota(1, 1)
        with pytest.raises(errors.NodeQuotaReached):
            await asyncio.wait_for(producer.send(b"x"), WAIT_SECONDS)
        log.quota = roomy
        assert (await producer.send(b"y")).offset == 0


async def test_a_publish_rate_slows_a_producer_without_failures(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more at once than may be stored ahead."""
    monkeypatch.setattr(limits, "PUBLISH_AHEAD_MS", 10)
    async with icestream.connect(broker.address) as client:
        await client.create_topic(TOPIC, max_publish_rate=1_000)
        async with client.producer(TOPIC) as producer:
            async with asyncio.timeout(WAIT_SECONDS):
                sent = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(300)))
        assert [message_id.offset for message_id in sent] == list(range(300))
        assert [payload for _, _, payload in await stored(client, 300)] == [b"%d" % number for number in range(300)]


async def test_waiting_for_a_publish_rate_does_not_count_against_the_send_timeout(
    broker: TestBroker, client: icestream.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUBLISH_AHEAD_MS", 20)
    await client.create_topic(TOPIC, max_publish_rate=5)
    clock = clock_with_short_sleeps()
    refused = metrics.PUBLISH_OUTCOMES.values
    before = refused.get("rate_reached", 0)
    async with (
        client.producer(TOPIC) as first,
        icestream.connect(broker.address, send_timeout=10, clock=clock) as late,
        late.producer(TOPIC) as producer,
    ):
        futures = [first.send(b"a"), first.send(b"b")]
        await until(lambda: broker.node.broker.topics.get(TopicName.parse(TOPIC)).published_messages == 2)
        waiting = producer.send(b"c")
        for tries in (1, 2):
            await until(lambda tries=tries: refused.get("rate_reached", 0) >= before + tries)
            clock.advance(8)
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await waiting).offset == 2
            assert [message_id.offset for message_id in await asyncio.gather(*futures)] == [0, 1]


async def test_a_deleted_topic_is_not_recreated_by_its_producers(client: icestream.Client) -> None:
    async with client.producer(TOPIC, shards=2) as producer:
        await producer.send(b"old")
        await client.delete_topic(TOPIC)
        for _ in range(3):
            with pytest.raises(errors.UnknownTopic, match=r"was deleted.*open another"):
                await producer.send(b"late")
        assert await client.list_topics() == []
    async with client.producer(TOPIC) as producer:
        assert await producer.send(b"new") == MessageId(TOPIC, 0, 0)


async def test_a_producer_continues_in_a_recreated_topic(client: icestream.Client) -> None:
    await client.create_topic(TOPIC, shards=3)
    async with client.producer(TOPIC) as producer:
        for _ in range(3):
            await producer.send(b"old")
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC)
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await producer.send(b"0")).offset == 0
            assert [(await producer.send(b"%d" % number)).offset for number in (1, 2)] == [1, 2]
    assert [payload for _, _, payload in await stored(client, 3)] == [b"0", b"1", b"2"]


async def test_another_one_of_the_same_name_fences_it(client: icestream.Client, broker: TestBroker) -> None:
    async with client.producer(TOPIC, name="till") as old:
        await old.send(b"old")
        async with client.producer(TOPIC, name="till") as new:
            assert (await new.send(b"new")).offset == 1
            with pytest.raises(errors.ProducerFenced):
                await old.send(b"late")
            with pytest.raises(errors.ProducerFenced):
                old.send(b"later")
            assert (await new.send(b"newer")).offset == 2


async def test_a_reopened_producer_continues_after_its_last_number(client: icestream.Client) -> None:
    for number in range(3):
        async with client.producer(TOPIC, name="till") as producer:
            assert (await producer.send(b"x")).offset == number
