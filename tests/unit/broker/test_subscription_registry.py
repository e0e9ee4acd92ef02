"""Subscriptions through the broker: accepted consumers, what a refusal leaves behind, and how each type delivers."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.service import Broker
from icestream.model.subscription_options import (
    DispatchMode,
    FailurePolicy,
    PoisonPolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.broker_machine import EARLIEST, TOPIC, BrokerMachine, publish, quiet, subscribe
from tests.support.recording_consumer import RecordingConsumer

pytestmark = pytest.mark.asyncio

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


async def opened(machine: BrokerMachine | None = None, messages: int = 0, shards: int = 1, **policies: int) -> Broker:
    broker = await (machine or BrokerMachine()).open_broker()
    await broker.create_topic(TOPIC, shards, policies=PolicyValues(**policies))
    await put(broker, messages)
    return broker


async def put(broker: Broker, count: int, keys: list[bytes] | None = None) -> None:
    if count:
        producer = await broker.open_producer(TOPIC, "p")
        await publish(broker, producer, *(b"%d" % number for number in range(count)), keys=keys)


# --- what a refusal leaves behind ---


@pytest.mark.parametrize(
    ("name", "consumer", "patterns", "failure"),
    [
        ("s", "c", ["\ud800"], None),
        ("s", "c", ["k"] * (limits.KEY_FILTERS_MAX + 1), None),
        ("s", "no/name", [], None),
        ("no/name", "c", [], None),
        ("s", "c", [], FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(TOPIC))),
    ],
    ids=["pattern", "too many patterns", "consumer", "subscription", "its own dead letters"],
)
async def test_a_refused_subscribe_leaves_no_subscription(
    name: str, consumer: str, patterns: list[str], failure: FailurePolicy | None
) -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    before = await machine.store.list_all("/")
    with pytest.raises(errors.InvalidInput):
        await subscribe(broker, name, KEY_SHARED, consumer, key_patterns=patterns, failure=failure)
    assert broker.topics.get(TOPIC).subscriptions == {}
    after = await machine.store.list_all("/")
    assert [key for key, _ in after if not key.startswith("/counters/")] == [
        key for key, _ in before if not key.startswith("/counters/")
    ]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
async def test_key_patterns_of_another_type_are_refused_and_not_ignored(kind: SubscriptionType) -> None:
    broker = await opened()
    with pytest.raises(errors.InvalidInput, match="has no key patterns"):
        await subscribe(broker, kind=kind, key_patterns=["a*"])
    assert broker.topics.get(TOPIC).subscriptions == {}


async def test_a_consumer_refused_by_a_policy_creates_no_subscription() -> None:
    broker = await opened(max_consumers_per_topic=1)
    await subscribe(broker, "first", SHARED)
    with pytest.raises(errors.PolicyReached):
        await subscribe(broker, "second", SHARED)
    assert list(broker.topics.get(TOPIC).subscriptions) == ["first"]


# --- exclusive ---


async def test_an_exclusive_subscription_has_one_consumer_whose_name_may_reconnect() -> None:
    broker = await opened(messages=3)
    first = await subscribe(broker, kind=EXCLUSIVE, consumer="a")
    with pytest.raises(errors.SubscriptionTaken):
        await subscribe(broker, kind=EXCLUSIVE, consumer="b")
    await quiet()
    first.ack(0)
    again = await subscribe(broker, kind=EXCLUSIVE, consumer="a")
    await quiet()
    assert first.sink.events == ["closed"]
    assert again.consumer.id == first.consumer.id
    assert again.sink.received == [(1, b"1", 0), (2, b"2", 0)], "what was in flight, and it is no failure"
    again.leave()
    assert (await subscribe(broker, kind=EXCLUSIVE, consumer="b")).consumer.id != first.consumer.id


async def test_another_type_than_the_subscription_s_is_refused() -> None:
    broker = await opened()
    await subscribe(broker, kind=SHARED)
    with pytest.raises(errors.InvalidInput, match="is shared, not failover"):
        await subscribe(broker, kind=FAILOVER, consumer="b")


# --- failover ---


@pytest.mark.parametrize("how", ["leaves", "is sent away", "comes again"])
async def test_a_standby_is_promoted_in_order_of_arrival_in_every_shard(how: str) -> None:
    broker = await opened(shards=2)
    producer = await broker.open_producer(TOPIC, "p")
    readers = {name: await subscribe(broker, kind=FAILOVER, consumer=name) for name in "abc"}
    line = ["a", "b", "c"]
    for turn in range(4):
        for shard in (0, 1):
            await publish(broker, producer, b"%d" % turn, shard=shard)
        await quiet()
        active, *standing_by = line
        assert readers[active].sink.events == ["active"]
        assert [readers[name].sink.events for name in standing_by] == [[], []]
        assert {place for place in readers[active].sink.positions if place[2] == turn} == {(0, 0, turn), (1, 0, turn)}
        assert all(turn not in readers[name].sink.offsets for name in standing_by)
        if how == "is sent away":
            broker.disconnect_consumer(TOPIC, "s", active)
        elif how == "leaves":
            readers[active].leave()
        readers[active] = await subscribe(broker, kind=FAILOVER, consumer=active)
        line = [*standing_by, active]  # a returning consumer queues behind those that waited
        await quiet()
        taken_over = {place[2] for place in readers[line[0]].sink.positions}
        assert taken_over == set(range(turn + 1)), "what the one before had in flight, and nothing is lost"


async def test_a_failover_keeps_order_and_failure_counts() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, messages=4)
    first = await subscribe(broker, kind=FAILOVER, consumer="a")
    second = await subscribe(broker, kind=FAILOVER, consumer="b")
    await quiet()
    first.ack(1)
    first.nack(2)
    await machine.pass_time(2)
    assert first.sink.received[-1] == (2, b"2", 1)
    first.leave()
    await quiet()
    assert second.sink.received == [(0, b"0", 0), (2, b"2", 1), (3, b"3", 0)]


# --- shared ---


async def test_messages_of_a_shared_subscription_are_distributed_round_robin() -> None:
    broker = await opened()
    readers = [await subscribe(broker, kind=SHARED, consumer=name) for name in "abc"]
    for _ in range(7):
        await put(broker, 1)
    await quiet()
    assert [reader.sink.offsets for reader in readers] == [[0, 3, 6], [1, 4], [2, 5]]


async def test_unacked_messages_of_a_dead_consumer_are_redelivered_to_others() -> None:
    broker = await opened()
    dead, alive = [await subscribe(broker, kind=SHARED, consumer=name) for name in ("dead", "alive")]
    for _ in range(6):
        await put(broker, 1)
    await quiet()
    dead.ack(0)
    dead.leave()
    await quiet()
    assert alive.sink.offsets == [1, 3, 5, 2, 4]
    assert {attempt for _, _, attempt in alive.sink.received} == {0}, (
        "a consumer that goes is no failure of its messages"
    )


async def test_a_consumer_with_a_full_socket_blocks_no_other() -> None:
    """The socket of one consumer is full: messages dispatched to it wait, all others go to the other consumers."""
    broker = await opened()
    stuck = RecordingConsumer()
    stuck.capacity = 1
    created, consumer = await broker.subscribe(TOPIC, "s", SHARED, "stuck", stuck, EARLIEST)
    created.give_credit(consumer, 1000)
    other, neighbour = await subscribe(broker, kind=SHARED, consumer="other"), await subscribe(broker, "neighbour")
    for _ in range(50):
        await put(broker, 1)
        await quiet()
    assert neighbour.sink.offsets == [*range(50)]
    assert len(stuck.received) == 1
    assert sorted([*stuck.offsets, *other.sink.offsets]) == [*range(50)]


async def test_a_consumer_that_never_acks_leaves_messages_for_the_others() -> None:
    broker = await opened(BrokerMachine(broker=BrokerOptions(unacked_max=90)))
    greedy = await subscribe(broker, kind=SHARED, consumer="greedy", credit=limits.CREDIT_MAX)
    other = await subscribe(broker, kind=SHARED, consumer="other")
    await put(broker, 1000)
    seen = -1
    while len(other.sink.received) > seen:
        seen = len(other.sink.received)
        other.ack(*other.sink.offsets[-50:])
        await quiet()
    assert len(greedy.sink.received) < 90
    assert sorted([*greedy.sink.offsets, *other.sink.offsets]) == [*range(1000)]


# --- key-shared ---


async def test_keys_stay_with_one_consumer_and_move_in_order_when_it_dies() -> None:
    broker = await opened()
    readers = {name: await subscribe(broker, kind=KEY_SHARED, consumer=name) for name in "abc"}
    keys = [b"%d" % (number % 10) for number in range(60)]
    await put(broker, 60, keys)
    await quiet()
    acked: list[int] = []
    for step in range(200):
        if step == 5:
            readers.pop("a").leave()
            await quiet()
        unacked = {name: sorted(set(reader.sink.offsets) - set(acked)) for name, reader in readers.items()}
        in_flight = [offset for offsets in unacked.values() for offset in offsets]
        assert len({keys[offset] for offset in in_flight}) == len(in_flight), "one of each key"
        for name, offsets in unacked.items():
            for offset in offsets[:1]:
                readers[name].ack(offset)
                acked.append(offset)
        await quiet()
    assert sorted(acked) == [*range(60)]
    for key in set(keys):
        order = [offset for offset in acked if keys[offset] == key]
        assert order == sorted(order)


async def test_filters_select_consumers_and_unmatched_keys_are_skipped_after_a_while() -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    left = await subscribe(broker, kind=KEY_SHARED, consumer="left", key_patterns=["l*"])
    right = await subscribe(broker, kind=KEY_SHARED, consumer="right", key_patterns=["r?", "exact"])
    await put(broker, 6, [b"l1", b"r1", b"r10", b"exact", b"left", b"exactly"])
    await quiet()
    assert (left.sink.offsets, right.sink.offsets) == ([0, 4], [1, 3])
    left.ack(0, 4)
    right.ack(1, 3)
    assert left.subscription.lag == 2, "a consumer that takes them may come back"
    await machine.pass_time(limits.KEY_UNWANTED_GRACE_MS / 1000 + 1)
    assert left.subscription.lag == 0


async def test_messages_without_a_key_are_in_order_for_each_producer() -> None:
    """Danube's rule: the name of the producer is the key then."""
    broker = await opened()
    reader = await subscribe(broker, kind=KEY_SHARED)
    await put(broker, 3)
    await quiet()
    assert reader.sink.offsets == [0]
    reader.ack(0)
    await quiet()
    assert reader.sink.offsets == [0, 1]


# --- where it starts ---


async def test_each_start_position_is_applied_in_every_shard() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, shards=2)
    producer = await broker.open_producer(TOPIC, "p")
    times = []
    for _ in range(3):
        times.append(machine.clock.wall_us())
        for shard in (0, 1):
            await publish(broker, producer, b"x", b"y", shard=shard)
        machine.clock.advance(10)
    expected = {
        SubscriptionStart(StartAt.EARLIEST): 0,
        SubscriptionStart(StartAt.LATEST): 6,
        SubscriptionStart(StartAt.OFFSET, 3): 3,
        SubscriptionStart(StartAt.OFFSET, 6): 6,
        SubscriptionStart(StartAt.OFFSET, 7): 6,
        SubscriptionStart(StartAt.OFFSET, limits.OFFSET_MAX): 6,
        SubscriptionStart(StartAt.TIME, times[1]): 2,
        SubscriptionStart(StartAt.TIME, times[1] + 1): 4,
        SubscriptionStart(StartAt.TIME, times[2] + 10**9): 6,
        SubscriptionStart(StartAt.TIME, -(2**63)): 0,
    }
    live = await subscribe(broker, "live", SHARED)
    for number, (start, position) in enumerate(expected.items()):
        created = await broker.create_subscription(TOPIC, f"s{number}", SHARED, start)
        await broker.seek(TOPIC, "live", start)
        for subscription in (created, live.subscription):
            assert [delivery.dispatcher.acked.position for delivery in subscription.deliveries] == [position] * 2, start
    await broker.seek(TOPIC, "live", SubscriptionStart(StartAt.OFFSET, 1), shard=1)
    assert [delivery.dispatcher.acked.position for delivery in live.subscription.deliveries] == [0, 1]


async def test_a_backlog_that_is_much_larger_than_memory_and_window_is_delivered_in_order() -> None:
    broker = await opened(BrokerMachine(tail_bytes=2_000))
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(200):
        await publish(broker, producer, *[b"%d" % number] * 50)
    reader = await subscribe(broker, credit=0)
    while len(reader.sink.received) < 10_000:
        reader.credit(700)
        await quiet()
        delivery = reader.subscription.delivery(0)
        delivery.ack_through(reader.sink.offsets[-1], delivery.generation)
    assert reader.sink.offsets == [*range(10_000)]


# --- subscriptions themselves ---


async def test_a_subscription_without_consumers_survives_restarts() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, messages=2)
    created = await broker.create_subscription(TOPIC, "s", SHARED)
    with pytest.raises(errors.AlreadyExists):
        await broker.create_subscription(TOPIC, "s", SHARED)
    await put(broker, 2)
    await machine.kill()
    broker = await machine.open_broker()
    reader = await subscribe(broker, kind=SHARED)
    await quiet()
    assert reader.subscription.record.id == created.record.id
    assert reader.sink.offsets == [2, 3]


async def test_a_deleted_subscription_leaves_nothing_and_its_name_starts_fresh() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, messages=2, shards=1)
    reader = await subscribe(broker)
    await quiet()
    reader.ack(0, 1)
    await broker.delete_subscription(TOPIC, "s")
    assert reader.sink.events == ["closed"]
    await machine.pass_time(30)
    left = [key for key, _ in await machine.store.list_all("/")]
    assert not [key for key in left if key.startswith((records.SUBSCRIPTIONS, records.CURSORS, records.CONSUMERS))]
    with pytest.raises(errors.UnknownSubscription):
        await broker.seek(TOPIC, "s", EARLIEST)
    again = await subscribe(broker)
    await quiet()
    assert again.sink.offsets == [0, 1]
    assert again.subscription.record.id > reader.subscription.record.id


async def test_consumers_of_an_unknown_topic_do_not_create_it() -> None:
    broker = await opened()
    for dispatch in DispatchMode:
        name = TopicName("default", f"absent-{dispatch.value}")
        with pytest.raises(errors.UnknownTopic):
            await subscribe(broker, topic=name)
        assert broker.topics.find(name) is None
