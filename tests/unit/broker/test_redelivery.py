"""What becomes of messages that fail, through the broker: delays, time-outs, poison, and policies that change."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.broker.dispatch.dispatcher import Pause
from icestream.broker.service import Broker
from icestream.model.subscription_options import (
    FailurePolicy,
    PoisonPolicy,
    RedeliveryBackoff,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from tests.support.broker_machine import (
    TOPIC,
    BrokerMachine,
    SubscriptionReader,
    publish,
    quiet,
    stored_rows,
    subscribe,
)

pytestmark = pytest.mark.asyncio

SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
DEAD = TopicName("default", "dead")
BACKOFFS = {
    "fixed": (FailurePolicy(9, 30_000, 2_000, 60_000, RedeliveryBackoff.FIXED), [2, 2, 2, 2, 2]),
    "exponential": (FailurePolicy(9, 30_000, 1_000, 6_000, RedeliveryBackoff.EXPONENTIAL), [1, 2, 4, 6, 6]),
    "none": (FailurePolicy(9, 30_000, 0, 0), [0, 0, 0, 0, 0]),
}


async def started(
    machine: BrokerMachine, policy: FailurePolicy, messages: int = 3, kind: SubscriptionType = SHARED
) -> tuple[Broker, SubscriptionReader]:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    payloads = [b"%d" % number for number in range(messages)]
    await publish(broker, producer, *payloads, keys=[b"key %d" % (number % 2) for number in range(messages)])
    reader = await subscribe(broker, kind=kind, failure=policy)
    await quiet()
    return broker, reader


async def seconds_until(machine: BrokerMachine, reader: SubscriptionReader, count: int) -> int:
    """The seconds until the reader has received so many messages."""
    for seconds in range(200):
        if len(reader.sink.received) >= count:
            return seconds
        await machine.pass_time(1)
    raise AssertionError("it never comes")


# --- delays ---


@pytest.mark.parametrize("name", BACKOFFS)
async def test_a_nacked_message_is_redelivered_after_its_delay_with_its_attempt_count(name: str) -> None:
    machine = BrokerMachine()
    policy, delays = BACKOFFS[name]
    _, reader = await started(machine, policy, 1)
    waited = []
    for attempt in range(5):
        assert reader.sink.received[-1] == (0, b"0", attempt)
        reader.nack(0)
        await quiet()
        waited.append(await seconds_until(machine, reader, attempt + 2))
    assert waited == delays


@pytest.mark.parametrize(("asked_ms", "seconds"), [(0, 2), (1_000, 2), (5_000, 5), (3_600_000, 8)])
async def test_the_delay_of_a_nack_is_at_least_the_policy_s_and_at_most_its_longest(
    asked_ms: int, seconds: int
) -> None:
    machine = BrokerMachine()
    _, reader = await started(machine, FailurePolicy(9, 30_000, 2_000, 8_000), 1)
    reader.nack(0, delay_ms=asked_ms)
    assert await seconds_until(machine, reader, 2) == seconds


async def test_without_an_ack_in_time_it_has_failed() -> None:
    machine = BrokerMachine()
    _, reader = await started(machine, FailurePolicy(9, 7_000, 1_000, 1_000), 2)
    reader.ack(1)
    assert await seconds_until(machine, reader, 3) == 8
    assert reader.sink.received[-1] == (0, b"0", 1)
    reader.ack(0)
    await machine.pass_time(60)
    assert len(reader.sink.received) == 3


async def test_a_late_ack_counts() -> None:
    """A late ack settles the message: its redelivery delay and its next delivery no longer matter."""
    machine = BrokerMachine()
    _, reader = await started(machine, FailurePolicy(9, 5_000, 20_000, 20_000), 1)
    await machine.pass_time(10)
    reader.ack(0)
    await machine.pass_time(60)
    assert len(reader.sink.received) == 1
    assert reader.subscription.lag == 0


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_message_redelivered_to_another_consumer_cannot_be_nacked(kind: SubscriptionType) -> None:
    """A late nack must not count as a failure of the consumer that has the message now."""
    machine = BrokerMachine()
    broker, slow = await started(machine, FailurePolicy(9, 5_000, 1_000, 1_000), 1, kind)
    generation = slow.subscription.delivery(0).generation
    slow.leave()
    other = await subscribe(broker, kind=kind, consumer="other")
    await quiet()
    assert other.sink.received == [(0, b"0", 0)]
    other.subscription.delivery(0).nack([(0, 1)], generation, 0, slow.consumer.id)
    assert other.subscription.delivery(0).dispatcher.attempts == []
    other.nack(0)
    assert other.subscription.delivery(0).dispatcher.attempts == [(0, 1, 1)]


async def test_first_deliveries_are_ordered_and_redeliveries_precede_new_messages() -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, FailurePolicy(9, 30_000, 1_000, 1_000), 3)
    reader.nack(1)
    producer = await broker.open_producer(TOPIC, "p")
    await machine.pass_time(0.5)
    await publish(broker, producer, b"3")
    await quiet()
    await machine.pass_time(1)
    await publish(broker, producer, b"4")
    await quiet()
    assert reader.sink.offsets == [0, 1, 2, 3, 1, 4]


# --- poison ---


async def test_drop_discards_the_message_and_counts_it() -> None:
    machine = BrokerMachine()
    dropped = metrics.MESSAGES_DROPPED.labels("nack")._value.get()
    _, reader = await started(machine, FailurePolicy(1, 30_000, 0, 0, poison=PoisonPolicy.DROP))
    for _ in range(2):
        reader.nack(1)
        await quiet()
        await machine.pass_time(1)
    reader.ack(0, 2)
    assert reader.sink.offsets == [0, 1, 2, 1]
    assert reader.subscription.lag == 0
    assert metrics.MESSAGES_DROPPED.labels("nack")._value.get() == dropped + 1


async def test_nack_reasons_of_consumers_are_not_metric_labels() -> None:
    """A client that sends a different reason each time must not make the broker grow."""
    dropped = metrics.MESSAGES_DROPPED.labels("nack")._value.get()
    _, reader = await started(BrokerMachine(), FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.DROP))
    reader.nack(1, reason="words of its own")
    await quiet()
    labels = [sample.labels for family in metrics.MESSAGES_DROPPED.collect() for sample in family.samples]
    assert "words of its own" not in [label.get("reason") for label in labels]
    assert metrics.MESSAGES_DROPPED.labels("nack")._value.get() == dropped + 1


BLOCK = FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.BLOCK)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("end", ["ack", "seek", "drop", "dead-letter", "another chance"])
async def test_block_stops_new_messages_until_an_operator_decides(end: str, restarts: bool) -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, BLOCK)
    reader.nack(1)
    reader.ack(0, 2)
    producer = await broker.open_producer(TOPIC, "p")
    await publish(broker, producer, b"3", keys=[b"key 1"])
    await machine.pass_time(60)
    assert reader.sink.offsets == [0, 1, 2]
    if restarts:
        await broker.shutdown()
        broker = await machine.open_broker()
        reader = await subscribe(broker, kind=SHARED)
        await quiet()
        assert reader.sink.offsets == []
    delivery = reader.subscription.delivery(0)
    assert delivery.dispatcher.pause is Pause.BLOCKED
    reader.sink.received.clear()
    match end:
        case "ack":
            reader.ack(1)
        case "seek":
            await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 3))
        case "drop":
            await broker.set_failure_policy(TOPIC, "s", FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.DROP))
        case "dead-letter":
            policy = FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(DEAD))
            await broker.set_failure_policy(TOPIC, "s", policy)
        case "another chance":
            await broker.set_failure_policy(TOPIC, "s", FailurePolicy(1, 30_000, 0, 0, poison=PoisonPolicy.BLOCK))
    await machine.pass_time(1)
    assert 3 in reader.sink.offsets, "what waited goes out"
    assert (1 in reader.sink.offsets) == (end == "another chance")
    if end == "dead-letter":
        assert [row["payload"] for row in (await stored_rows(broker, DEAD)).values()] == [b"1"]


async def test_a_blocked_message_of_a_key_shared_subscription_stops_its_key_alone() -> None:
    machine = BrokerMachine()
    _, reader = await started(machine, BLOCK, 6, KEY_SHARED)
    reader.nack(0)
    for offset in (1, 3, 5):
        assert reader.sink.offsets[-1] == offset
        reader.ack(offset)
        await quiet()
    await machine.pass_time(60)
    assert reader.sink.offsets == [0, 1, 3, 5]
    assert reader.subscription.delivery(0).dispatcher.blocked.size == 1
    reader.ack(0)
    await quiet()
    assert reader.sink.offsets[-1] == 2


# --- changes while it runs ---


async def test_a_shorter_ack_timeout_applies_to_deliveries_in_flight() -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, FailurePolicy(9, 60_000, 0, 0), 1)
    await machine.pass_time(5)
    await broker.set_failure_policy(TOPIC, "s", FailurePolicy(9, 10_000, 0, 0))
    assert await seconds_until(machine, reader, 2) == 5


async def test_a_shorter_delay_applies_to_waiting_messages() -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, FailurePolicy(9, 60_000, 50_000, 50_000), 1)
    reader.nack(0)
    await machine.pass_time(5)
    await broker.set_failure_policy(TOPIC, "s", FailurePolicy(9, 60_000, 8_000, 8_000))
    assert await seconds_until(machine, reader, 2) == 3


async def test_a_lower_redelivery_limit_applies_to_failed_messages_and_survives_a_restart() -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, FailurePolicy(9, 30_000, 5_000, 5_000), 1)
    for attempt in range(3):
        reader.nack(0)
        await seconds_until(machine, reader, attempt + 2)
    reader.nack(0)
    await broker.set_failure_policy(TOPIC, "s", FailurePolicy(2, 30_000, 5_000, 5_000, poison=PoisonPolicy.DROP))
    await machine.pass_time(5)
    assert reader.subscription.lag == 0
    await machine.kill()
    assert (await machine.open_broker()).subscription(TOPIC, "s").record.failure.max_redelivery_count == 2


async def test_an_invalid_policy_changes_nothing() -> None:
    broker, _ = await started(BrokerMachine(), BLOCK)
    before = broker.subscription(TOPIC, "s").record
    for wrong in (
        {"poison": PoisonPolicy.DEAD_LETTER},
        {"dead_letter_topic": "no topic"},
        {"ack_timeout_ms": 0},
        {"max_redelivery_count": -1},
        {"max_delay_ms": 10**12},
    ):
        with pytest.raises(errors.InvalidInput):
            await broker.set_failure_policy(TOPIC, "s", FailurePolicy(**wrong))  # type: ignore[arg-type]
    own = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(TOPIC))
    with pytest.raises(errors.InvalidInput, match="its own dead-letter topic"):
        await broker.set_failure_policy(TOPIC, "s", own)
    nowhere = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/nowhere/dead")
    with pytest.raises(errors.UnknownNamespace, match="namespace create nowhere"):
        await broker.set_failure_policy(TOPIC, "s", nowhere)
    with pytest.raises(errors.UnknownNamespace):
        await broker.create_subscription(TOPIC, "t", SubscriptionType.SHARED, failure=nowhere)
    assert [*broker.topics.get(TOPIC).subscriptions] == ["s"]
    assert broker.subscription(TOPIC, "s").record == before
