"""Key-shared subscriptions with Danube's Python client: a key stays with one consumer, filters, poison, churn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from danube import SubType

from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff
from icestream.model.topic_name import TopicName
from tests.support.danube_broker import DanubeBroker, Received, danube_broker
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
TOPIC = TopicName("default", "t")


@pytest_asyncio.fixture
async def danube(tmp_path: Path) -> AsyncIterator[DanubeBroker]:
    async with danube_broker(tmp_path) as broker:
        yield broker


async def join(danube: DanubeBroker, name: str = "c", *keys: str) -> Received:
    return await danube.consumer("/default/t", name, kind=SubType.KEY_SHARED, keys=keys)


async def drain(received: list[Received], count: int) -> list[list[Any]]:
    """The messages of each consumer, until there are `count` in all; every message is acked."""
    batches: list[list[Any]] = [[] for _ in received]

    async def collect(consumer: Received, into: list[Any]) -> None:
        while True:
            into.append(await consumer.next())

    tasks = [asyncio.ensure_future(collect(consumer, into)) for consumer, into in zip(received, batches, strict=True)]
    try:
        await until(lambda: sum(map(len, batches)) >= count)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return batches


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("reliable", [True, False])
async def test_key_shared_single_consumer(danube: DanubeBroker, reliable: bool, partitions: int) -> None:
    producer = await danube.producer("/default/t", reliable=reliable, partitions=partitions)
    received = await join(danube)
    for number in range(24):
        await producer.send_with_key(b"%d" % number, None, f"key-{number % 6}")
    (messages,) = await drain([received], 24)
    assert sorted(int(message.payload) for message in messages) == list(range(24))
    for key in range(6):
        mine = [int(message.payload) for message in messages if message.routing_key == f"key-{key}"]
        assert mine == list(range(key, 24, 6))


@pytest.mark.parametrize("reliable", [True, False])
async def test_per_key_affinity(danube: DanubeBroker, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable)
    received = [await join(danube, f"c{number}") for number in range(3)]
    for number in range(40):
        await producer.send_with_key(b"%d" % number, None, f"key-{number % 8}")
    batches = await drain(received, 40)
    keys = [{message.routing_key for message in messages} for messages in batches]
    assert sum(map(len, keys)) == 8, "a key went to two consumers"
    for messages in batches:
        for key in {message.routing_key for message in messages}:
            numbers = [int(message.payload) for message in messages if message.routing_key == key]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("reliable", [True, False])
async def test_glob_filter_and_multiple_patterns(danube: DanubeBroker, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable)
    payments = await join(danube, "payments", "payment")
    logistics = await join(danube, "logistics", "ship*", "invoice-?")
    keys = ["payment", "shipping", "invoice-1", "payment", "ship"]
    for key in keys:
        await producer.send_with_key(key.encode(), None, key)
    first, second = await drain([payments, logistics], 5)
    assert [message.payload for message in first] == [b"payment", b"payment"]
    assert sorted(message.payload for message in second) == [b"invoice-1", b"ship", b"shipping"]


async def test_filter_mixed_with_unfiltered(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    some = await join(danube, "some", "a*")
    rest = await join(danube, "rest")
    for number in range(20):
        await producer.send_with_key(b"m", None, f"{'ab'[number % 2]}{number}")
    first, second = await drain([some, rest], 20)
    assert {message.routing_key[0] for message in first} <= {"a"}
    assert {message.routing_key[0] for message in second} >= {"b"}


async def test_out_of_order_ack(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = await join(danube)
    for number in range(4):
        await producer.send_with_key(b"%d" % number, None, f"key-{number}")
    messages = [await received.next(ack=False) for _ in range(4)]
    for message in reversed(messages):
        await received.consumer.ack(message)
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)
    assert received.queue.empty()


async def test_one_message_of_a_key_at_a_time(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = await join(danube)
    for number in range(3):
        await producer.send_with_key(b"%d" % number, None, "key")
    first = await received.next(ack=False)
    assert received.queue.empty()
    await received.consumer.ack(first)
    assert await received.payloads(2) == [b"1", b"2"]


async def test_key_shared_nack_redelivers_to_the_same_consumer(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = [await join(danube, f"c{number}") for number in range(2)]
    await danube.broker.set_failure_policy(
        TOPIC, "s", FailurePolicy(1, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DROP)
    )
    await producer.send_with_key(b"m", None, "key")
    await until(lambda: any(not consumer.queue.empty() for consumer in received))
    (owner,) = [consumer for consumer in received if not consumer.queue.empty()]
    first = await owner.next(ack=False)
    await owner.consumer.nack(first, delay_ms=0)
    assert (await owner.next()).msg_id == first.msg_id
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


@pytest.mark.parametrize("reliable", [True, False])
async def test_key_shared_partitioned_multi_affinity(danube: DanubeBroker, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable, partitions=3)
    received = [await join(danube, f"c{number}") for number in range(2)]
    for number in range(24):
        await producer.send_with_key(b"m", None, f"key-{number % 6}")
    batches = await drain(received, 24)
    assert sum(len({message.routing_key for message in messages}) for messages in batches) == 6


async def test_consumer_churn_join(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = [await join(danube, "first")]
    for number in range(10):
        await producer.send_with_key(b"%d" % number, None, f"key-{number}")
    received.append(await join(danube, "second"))
    for number in range(10, 20):
        await producer.send_with_key(b"%d" % number, None, f"key-{number}")
    batches = await drain(received, 20)
    assert sorted(int(message.payload) for messages in batches for message in messages) == list(range(20))


@pytest.mark.parametrize("poison", [PoisonPolicy.DROP, PoisonPolicy.BLOCK, PoisonPolicy.DEAD_LETTER])
async def test_poison_concerns_only_its_key(danube: DanubeBroker, poison: PoisonPolicy) -> None:
    """Drop and dead letter free the key; block stalls that key and no other."""
    producer = await danube.producer("/default/t")
    received = await join(danube)
    dead = "/default/dead" if poison is PoisonPolicy.DEAD_LETTER else None
    await danube.broker.set_failure_policy(
        TOPIC, "s", FailurePolicy(0, 30_000, 0, 0, RedeliveryBackoff.FIXED, poison, dead)
    )
    await producer.send_with_key(b"poison", None, "bad")
    await received.consumer.nack(await received.next(ack=False), delay_ms=0)
    await producer.send_with_key(b"behind", None, "bad")
    await producer.send_with_key(b"other", None, "good")
    expected = {b"other"} if poison is PoisonPolicy.BLOCK else {b"other", b"behind"}
    assert set(await received.payloads(len(expected))) == expected


async def test_key_shared_consumer_death_keeps_messages(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    dying = await join(danube, "dying")
    for number in range(6):
        await producer.send_with_key(b"%d" % number, None, f"key-{number}")
    await dying.payloads(6, ack=False)
    heir = await join(danube, "heir")
    await dying.consumer.close()
    assert sorted(map(int, await heir.payloads(6))) == list(range(6))
