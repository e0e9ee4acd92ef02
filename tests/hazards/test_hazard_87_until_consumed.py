"""Hazard 87: messages are kept until all consumers have acked them, up to a bound; a consumer that is created or moved
between the plan of a removal and its commit misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from icestream.broker.service import Broker
from icestream.catalog import catalog_keys
from icestream.model.backlog_messages import ConsumedOffsets, RetainedTopic
from icestream.model.subscription_options import StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.observability import metrics
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet, subscribe
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.interruptible_driver import InterruptibleDriver, StopPoint
from tests.support.mqtt_world import MqttMachine, connected

pytestmark = pytest.mark.asyncio
HOUR_MS = 3_600_000
# 9 rows of shard 0 and 5 of shard 1 in each of three rounds: 42 messages.
BY_COUNT = RetainedTopic(1, "/default/t1", messages_max=14, unconsumed_age_ms=24 * HOUR_MS)
BY_ACKS = RetainedTopic(1, "/default/t1", unconsumed_age_ms=24 * HOUR_MS)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    """Three rounds are in the tables."""
    fault_world = await FaultWorld.open(tmp_path)
    driver = fault_world.driver()
    for _ in range(3):
        await fault_world.publish_some()
        await fault_world.drain(driver)
    await driver.end()
    yield fault_world
    await fault_world.close()


async def look(world: FaultWorld, driver: InterruptibleDriver) -> None:
    world.clock.advance(61)
    await driver.driver.turn()


@pytest.mark.parametrize(
    ("kept", "acked", "first"),
    [
        (BY_COUNT, None, {}),
        (BY_COUNT, {0: 0, 1: 10}, {}),
        (BY_COUNT, {0: 9, 1: 5}, {0: 9, 1: 5}),
        (BY_COUNT, {0: 27, 1: 15}, {0: 18, 1: 10}),
        (BY_ACKS, None, {}),
        (BY_ACKS, {0: 17, 1: 10}, {0: 9, 1: 5}),
        (BY_ACKS, {0: 27, 1: 15}, {0: 27, 1: 15}),
    ],
    ids=["no consumer", "one behind", "halfway", "all acked", "acks alone", "in a file", "everything"],
)
async def test_what_was_not_acked_stays(
    world: FaultWorld, kept: RetainedTopic, acked: dict[int, int] | None, first: dict[int, int]
) -> None:
    world.retained = [kept]
    if acked is not None:
        world.acked[1] = acked
    await look(world, world.driver())
    assert await world.first(1) == first
    await world.check()


async def test_acks_that_move_let_more_go_within_a_minute(world: FaultWorld) -> None:
    world.retained, world.acked[1] = [BY_ACKS], {0: 4, 1: 15}
    driver = world.driver()
    await look(world, driver)
    assert await world.first(1) == {}
    world.acked[1] = {0: 18, 1: 15}
    await look(world, driver)
    assert await world.first(1) == {0: 18, 1: 10}
    await world.check()


async def test_the_upper_bound_wins_and_is_counted(world: FaultWorld) -> None:
    before = metrics.RETENTION_UNCONSUMED._value.get()
    world.retained, world.acked[1] = [msgspec.structs.replace(BY_ACKS, unconsumed_age_ms=HOUR_MS)], {0: 0, 1: 0}
    driver = world.driver()
    await look(world, driver)
    assert await world.first(1) == {}
    for _ in range(3):
        world.clock.advance(3_600)
        await look(world, driver)
    assert (await world.first(1))[0] >= 9
    assert metrics.RETENTION_UNCONSUMED._value.get() > before
    await world.check()


async def test_a_consumer_between_plan_and_commit_has_it_planned_again(world: FaultWorld) -> None:
    world.retained, world.acked[1] = [BY_ACKS], {0: 27, 1: 15}
    driver = world.driver(stop=StopPoint(True, "commit"))
    stopped = asyncio.ensure_future(look(world, driver))
    async with asyncio.timeout(HANGS_SECONDS):
        await driver.life.stands_still.wait()
    await world.store.put(catalog_keys.consumers_key(1), b"")
    world.acked[1] = {0: 9, 1: 15}
    driver.life.goes_on.set()
    await asyncio.gather(stopped, return_exceptions=True)
    assert await world.first(1) == {}
    await look(world, world.driver(owner="next"))
    assert (await world.first(1))[0] == 9
    await world.check()


# --- what a broker says -----------------------------------------------------------------------------------------------

HELD = PolicyValues(retention_until_consumed_ms=HOUR_MS)


async def consumed(broker: Broker, topic: TopicName = TOPIC) -> ConsumedOffsets | None:
    answers = await broker.consumed_offsets({broker.topic(topic).record.id})
    return answers[0] if answers else None


@pytest_asyncio.fixture
async def machine() -> BrokerMachine:
    return BrokerMachine()


@pytest_asyncio.fixture
async def broker(machine: BrokerMachine) -> AsyncIterator[Broker]:
    """A topic of ten messages that keeps what is not consumed."""
    started = await machine.open_broker()
    await started.create_topic(TOPIC, policies=HELD)
    producer = await started.open_producer(TOPIC, "p")
    await publish(started, producer, *[b"%d" % number for number in range(10)])
    yield started
    await started.shutdown()


async def test_the_consumer_that_is_furthest_behind_counts(broker: Broker) -> None:
    assert await consumed(broker) is None  # no consumer: kept up to the bound
    fast, slow = await subscribe(broker, "fast"), await subscribe(broker, "slow")
    await quiet()
    fast.ack(*range(8))
    slow.ack(0, 1, 5)
    answer = await consumed(broker)
    assert answer is not None
    assert answer.ends == {0: 2}
    await broker.delete_subscription(TOPIC, "slow")
    answer = await consumed(broker)
    assert answer is not None
    assert answer.ends == {0: 8}


async def test_cursors_are_durable_when_the_answer_is_there(machine: BrokerMachine, broker: Broker) -> None:
    reader = await subscribe(broker)
    await quiet()
    reader.ack(*range(6))
    answer = await consumed(broker)
    assert answer is not None
    stored = await broker.storage.create_subscription_stream(TOPIC.namespace, TOPIC.name, "s")
    assert [cursor.offset if cursor else None for cursor in stored.cursors] == [6]


async def test_each_creation_and_seek_is_another_generation(broker: Broker) -> None:
    await subscribe(broker, "s")
    generations = [(await consumed(broker)).generation]  # type: ignore[union-attr]
    await broker.create_subscription(TOPIC, "t", SubscriptionType.EXCLUSIVE, SubscriptionStart(StartAt.EARLIEST))
    generations.append((await consumed(broker)).generation)  # type: ignore[union-attr]
    await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 3))
    generations.append((await consumed(broker)).generation)  # type: ignore[union-attr]
    assert generations == sorted(set(generations))
    assert (await consumed(broker)).generation == generations[-1]  # type: ignore[union-attr]


async def test_offsets_of_consumers_are_read_for_topics_with_the_policy_only(broker: Broker) -> None:
    other = TopicName("default", "b")
    await broker.create_topic(other)
    await subscribe(broker, topic=other)
    assert await consumed(broker, other) is None


async def test_a_durable_mqtt_session_counts_until_it_has_acked() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    session = await connected(broker, "s", clean=False, expiry_s=3_600)
    await session.subscribe("plant/#", qos=1)
    messages = TopicName("mqtt", "messages")
    await broker.set_topic_policies(messages, HELD)
    publisher = await connected(broker, "p")
    for number in range(4):
        await publisher.publish("plant/heat", b"%d" % number)
    await session.message()
    await session.message()
    await session.message(ack=False)
    await quiet()
    answer = await consumed(broker, messages)
    assert answer is not None
    assert max(answer.ends.values()) == 2
    session.lose()
    await machine.pass_time(20)
    answer = await consumed(broker, messages)
    assert answer is not None
    assert max(answer.ends.values()) == 2
    await broker.shutdown()
    again = await machine.open_broker()  # before its client is back
    answer = await consumed(again, messages)
    assert answer is not None
    assert max(answer.ends.values()) == 2
    await again.shutdown()
