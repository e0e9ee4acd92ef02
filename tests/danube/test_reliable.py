"""Reliable dispatch with Danube's Python client: acks, nacks, time-outs, and what becomes of messages that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from danube import SubType
from danube.producer import Producer

from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff
from icestream.model.topic_name import TopicName
from tests.support.danube_broker import WAIT_SECONDS, DanubeBroker, Received, danube_broker
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
TOPIC = TopicName("default", "t")
BOTH = pytest.mark.parametrize("kind", [SubType.EXCLUSIVE, SubType.SHARED])
AT_ONCE = FailurePolicy(1, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DROP)


@pytest_asyncio.fixture
async def danube(tmp_path: Path) -> AsyncIterator[DanubeBroker]:
    async with danube_broker(tmp_path) as broker:
        yield broker


@BOTH
async def test_reliable_basic(danube: DanubeBroker, kind: SubType) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t", kind=kind)
    payload = bytes(1000)
    for _ in range(20):
        await producer.send(payload)
    assert await received.payloads(20) == [payload] * 20
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


@BOTH
async def test_nack_redelivers(danube: DanubeBroker, kind: SubType) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t", kind=kind)
    await danube.broker.set_failure_policy(TOPIC, "s", AT_ONCE)
    await producer.send(b"m")
    first = await received.next(ack=False)
    await received.consumer.nack(first, delay_ms=0, reason="again")
    second = await received.next()
    assert second.msg_id == first.msg_id
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


async def test_ack_timeout_redelivers(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await danube.broker.set_failure_policy(
        TOPIC, "s", FailurePolicy(9, 50, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.BLOCK)
    )
    await producer.send(b"m")
    assert await received.payloads(2, ack=False) == [b"m", b"m"]


async def test_retry_exhausted_drop(danube: DanubeBroker) -> None:
    await fail_one(danube, AT_ONCE)
    assert danube.broker.subscription(TOPIC, "s").lag == 0


async def test_retry_exhausted_block(danube: DanubeBroker) -> None:
    policy = FailurePolicy(1, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.BLOCK)
    producer, received = await fail_one(danube, policy, is_over=lambda: bool(delivery(danube).dispatcher.blocked))
    await producer.send(b"behind it")
    assert danube.broker.subscription(TOPIC, "s").lag == 2
    assert received.queue.empty()
    await danube.broker.set_failure_policy(TOPIC, "s", AT_ONCE)  # it is dropped, and the next one comes
    assert await received.payloads(1) == [b"behind it"]


async def test_retry_exhausted_deadletter(danube: DanubeBroker) -> None:
    policy = FailurePolicy(1, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DEAD_LETTER, "/default/dead")
    await fail_one(danube, policy)
    await danube.broker.create_subscription(TopicName("default", "dead"), "look", **earliest())
    letters = await danube.consumer("/default/dead", subscription="look", kind=SubType.SHARED)
    letter = await letters.next()
    assert (letter.payload, letter.attributes["x-original-subscription"]) == (b"poison", "s")
    assert letter.attributes["x-failure-reason"] == "it is poison"


def earliest() -> dict[str, object]:
    from icestream.model.subscription_options import StartAt, SubscriptionStart, SubscriptionType

    return {"kind": SubscriptionType.SHARED, "start": SubscriptionStart(StartAt.EARLIEST)}


def delivery(danube: DanubeBroker):  # type: ignore[no-untyped-def]
    return danube.broker.subscription(TOPIC, "s").deliveries[0]


async def fail_one(  # type: ignore[no-untyped-def]
    danube: DanubeBroker, policy: FailurePolicy, is_over=None
) -> tuple[Producer, Received]:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await danube.broker.set_failure_policy(TOPIC, "s", policy)
    await producer.send(b"poison")
    for _ in range(2):
        await received.consumer.nack(await received.next(ack=False), delay_ms=0, reason="it is poison")
    await until(is_over or (lambda: danube.broker.subscription(TOPIC, "s").lag == 0))
    return producer, received


async def test_reconnection_resends_pending(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    await producer.send(b"1")
    await producer.send(b"2")
    assert await received.payloads(2, ack=False) == [b"1", b"2"]
    await received.consumer.close()
    again = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    assert await again.payloads(2) == [b"1", b"2"]


async def test_reconnection_fails_over_to_another_consumer(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    first = await danube.consumer("/default/t", "first")
    for number in range(3):
        await producer.send(b"%d" % number)
    assert len(await first.payloads(3, ack=False)) == 3
    second = await danube.consumer("/default/t", "second")
    await first.consumer.close()
    assert sorted(await second.payloads(3)) == [b"0", b"1", b"2"]


async def test_multiple_reconnections_same_message(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    await producer.send(b"m")
    for _ in range(3):
        again = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
        assert await again.payloads(1, ack=False) == [b"m"]
        await again.consumer.close()


async def test_subscription_creation_race_condition(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    consumers = await asyncio.gather(*(danube.consumer("/default/t", f"c{number}") for number in range(5)))
    assert list(danube.broker.topics.get(TOPIC).subscriptions) == ["s"]
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(25)))
    payloads = await taken_by_any(consumers, 25)
    assert sorted(map(int, payloads)) == list(range(25))


# --- Danube's heartbeat scenarios: it polls for what a notification missed; here nothing is missed -------------------


async def test_notification_coalescing_recovery(danube: DanubeBroker) -> None:
    """Many messages in one turn wake a delivery once: all of them come, in order, and the last without another."""
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
    messages = [await received.next() for _ in range(100)]
    assert [message.msg_id.topic_offset for message in messages] == list(range(100))
    assert {int(message.payload) for message in messages} == set(range(100))
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


async def test_consumer_disconnect_during_notification(danube: DanubeBroker) -> None:
    """Messages that arrive while the consumer leaves wait for it, in order; acked ones do not come again."""
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    await producer.send(b"acked")
    await received.payloads(1)
    await producer.send(b"held")
    await received.payloads(1, ack=False)
    await asyncio.gather(producer.send(b"late"), received.consumer.close())
    again = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
    await producer.send(b"new")
    assert await again.payloads(3) == [b"held", b"late", b"new"]
    await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


async def test_poll_next_returns_none_recovery(tmp_path: Path) -> None:
    """A delivery that has read everything goes on with the next burst, from the tail or from the log on disk."""
    async with danube_broker(tmp_path, "iceberg") as danube:
        producer = await danube.producer("/default/t")
        received = await danube.consumer("/default/t", kind=SubType.EXCLUSIVE)
        for burst in range(3):
            expected = [b"%d" % number for number in range(10 * burst, 10 * burst + 10)]
            for payload in expected:
                await producer.send(payload)
            assert await received.payloads(10) == expected
            await until(lambda: danube.broker.subscription(TOPIC, "s").lag == 0)


async def taken_by_any(consumers: list[Received], count: int) -> list[bytes]:
    """The payloads that the consumers get together; how many each gets depends on which stream opens first."""
    payloads: list[bytes] = []
    enough = asyncio.Event()

    async def take(consumer: Received) -> None:
        while True:
            payloads.append((await consumer.next()).payload)
            if len(payloads) == count:
                enough.set()

    tasks = [asyncio.ensure_future(take(consumer)) for consumer in consumers]
    async with asyncio.timeout(WAIT_SECONDS):
        await enough.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return payloads
