"""The scenarios of Danube's own broker tests, with its Python client as it is on PyPI."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from danube import SubType
from danube.producer import Producer

from tests.support.danube_broker import DanubeBroker, danube_broker

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
BOTH = pytest.mark.parametrize("kind", [SubType.EXCLUSIVE, SubType.SHARED])


@pytest_asyncio.fixture
async def danube(tmp_path: Path) -> AsyncIterator[DanubeBroker]:
    async with danube_broker(tmp_path) as broker:
        yield broker


@BOTH
@pytest.mark.parametrize("reliable", [True, False])
async def test_basic_subscription(danube: DanubeBroker, kind: SubType, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable)
    received = await danube.consumer("/default/t", kind=kind)
    for number in range(20):
        await producer.send(b"%d" % number, {"number": str(number)})
    messages = [await received.next() for _ in range(20)]
    assert [message.payload for message in messages] == [b"%d" % number for number in range(20)]
    assert [message.msg_id.topic_offset for message in messages] == list(range(20))
    assert [dict(message.attributes) for message in messages] == [{"number": str(number)} for number in range(20)]
    assert {message.producer_name for message in messages} == {"p"}


async def test_pubsub_fanout_exclusive_unique_subscriptions(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t", reliable=False)
    all_of_them = [
        await danube.consumer("/default/t", f"c{number}", f"s{number}", SubType.EXCLUSIVE) for number in range(3)
    ]
    sent = [b"%d" % number for number in range(24)]
    for payload in sent:
        await producer.send(payload)
    for received in all_of_them:
        assert await received.payloads(24) == sent


@pytest.mark.parametrize("reliable", [True, False])
async def test_queue_shared_round_robin_distribution(danube: DanubeBroker, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable)
    all_of_them = [await danube.consumer("/default/t", f"c{number}") for number in range(3)]
    for number in range(27):  # so many that no window is full before the first ack
        await producer.send(b"%d" % number)
    batches = [await received.payloads(9) for received in all_of_them]
    assert sorted(int(payload) for batch in batches for payload in batch) == list(range(27))


async def test_churn_shared_queue_join_leave(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t")
    first = await danube.consumer("/default/t", "first")
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(4)))
    got = await first.payloads(2)
    second = await danube.consumer("/default/t", "second")
    await first.consumer.close()
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(4, 8)))
    got += await second.payloads(6)
    assert sorted(map(int, got)) == list(range(8))


async def test_churn_exclusive_fanout_join_leave(danube: DanubeBroker) -> None:
    """A joining consumer gets all messages from then on; the others miss nothing when consumers come and go."""
    producer = await danube.producer("/default/t")
    stays = await danube.consumer("/default/t", "c1", "s1", SubType.EXCLUSIVE)
    leaves = await danube.consumer("/default/t", "c2", "s2", SubType.EXCLUSIVE)
    await send_numbers(producer, range(5))
    assert await leaves.payloads(5) == numbers(range(5))
    joins = await danube.consumer("/default/t", "c3", "s3", SubType.EXCLUSIVE)
    await leaves.consumer.close()
    await send_numbers(producer, range(5, 10))
    assert await stays.payloads(10) == numbers(range(10))
    assert await joins.payloads(5) == numbers(range(5, 10))


async def send_numbers(producer: Producer, which: range) -> None:
    for payload in numbers(which):
        await producer.send(payload)


def numbers(which: range) -> list[bytes]:
    return [b"%d" % number for number in which]


async def test_producer_reconnection_reuse(danube: DanubeBroker) -> None:
    first = await danube.producer("/default/t")
    again = await danube.producer("/default/t")
    assert first._producers[0].producer_id == again._producers[0].producer_id
    received = await danube.consumer("/default/t")
    await first.send(b"1")
    await again.send(b"2")
    assert await received.payloads(2) == [b"1", b"2"]


@BOTH
@pytest.mark.parametrize("reliable", [True, False])
async def test_partitioned_basic(danube: DanubeBroker, kind: SubType, reliable: bool) -> None:
    producer = await danube.producer("/default/t", reliable=reliable, partitions=3)
    received = await danube.consumer("/default/t", kind=kind)
    for number in range(9):
        await producer.send(b"%d" % number)
    messages = [await received.next() for _ in range(9)]
    assert sorted(int(message.payload) for message in messages) == list(range(9))
    assert Counter(message.msg_id.topic_name for message in messages) == {
        f"/default/t-part-{part}": 3 for part in range(3)
    }
    assert len(danube.broker.topics) == 1


async def test_partitioned_queue_shared_distribution_and_partition_coverage(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t", partitions=3)
    both = [await danube.consumer("/default/t", name) for name in ("a", "b")]
    for number in range(24):
        await producer.send(b"%d" % number)
    batches = [[await received.next() for _ in range(12)] for received in both]
    assert sorted(int(message.payload) for messages in batches for message in messages) == list(range(24))
    for messages in batches:
        assert Counter(message.msg_id.topic_name for message in messages) == {
            f"/default/t-part-{part}": 4 for part in range(3)
        }


async def test_partitioned_pubsub_fanout_exclusive_full_receipt(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t", partitions=3)
    both = [await danube.consumer("/default/t", "c", name, SubType.EXCLUSIVE) for name in ("s1", "s2")]
    for number in range(12):
        await producer.send(b"%d" % number)
    for received in both:
        assert sorted(map(int, await received.payloads(12))) == list(range(12))


async def test_partitioning_validation(danube: DanubeBroker) -> None:
    await danube.producer("/default/plain")
    await danube.producer("/default/parts", partitions=2)
    for topic, partitions in (("/default/plain", 2), ("/default/parts", 0)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await danube.producer(topic, partitions=partitions)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_key_of_a_partitioned_topic_is_always_in_the_same_partition(danube: DanubeBroker) -> None:
    producer = await danube.producer("/default/t", partitions=3)
    received = await danube.consumer("/default/t")
    for number in range(12):
        await producer.send_with_key(b"x", None, f"key-{number % 4}")
    messages = [await received.next() for _ in range(12)]
    places = {(message.routing_key, message.msg_id.topic_name) for message in messages}
    assert len(places) == 4
