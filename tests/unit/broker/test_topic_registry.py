"""Topics and namespaces through the broker: names, policies that are enforced, incarnations, and crashes in between."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.service import Broker
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import DispatchMode, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.broker_machine import TOPIC, BrokerMachine, block, publish, quiet, stored_rows, subscribe
from tests.support.faulty_store import FaultyStore
from tests.support.machine import HANGS_SECONDS

pytestmark = pytest.mark.asyncio

SHARED = SubscriptionType.SHARED


async def opened(machine: BrokerMachine | None = None, shards: int = 1, **policies: int) -> Broker:
    broker = await (machine or BrokerMachine()).open_broker()
    await broker.create_topic(TOPIC, shards, policies=PolicyValues(**policies))
    return broker


async def stored_keys(machine: BrokerMachine) -> list[str]:
    """Every key of the metadata store but the counters."""
    return [key for key, _ in await machine.store.list_all("/") if not key.startswith("/counters/")]


# --- names ---


async def test_a_topic_name_is_compared_exactly() -> None:
    """Danube finds `foobar` when it is asked for `foo`."""
    machine = BrokerMachine()
    broker = await machine.open_broker()
    longer = TopicName("default", "foobar")
    await broker.create_topic(longer)
    await subscribe(broker, "sub", topic=longer)
    for name in ("foo", "fooba", "foobarr", "FOOBAR"):
        with pytest.raises(errors.UnknownTopic):
            broker.topics.get(TopicName("default", name))
    short = await broker.create_topic(TopicName("default", "foo"))
    with pytest.raises(errors.UnknownSubscription):
        broker.subscription(short.name, "sub")
    await subscribe(broker, "su", topic=short.name)
    before = {key for key in await stored_keys(machine) if "foobar" in key}
    await broker.delete_topic(short.name)
    kept = {key for key in await stored_keys(machine) if key.startswith(records.TOMBSTONE_NAMES)}
    assert not [key for key in kept if "foobar" in key], "the tombstone has names of its topic alone"
    left = {key for key in await stored_keys(machine) if "foo" in key} - kept
    assert left == before, "nothing of the longer name is gone"
    await broker.delete_subscription(longer, "sub")
    with pytest.raises(errors.AlreadyExists):
        await broker.create_topic(longer)


async def test_a_topic_created_late_by_the_previous_process_is_found() -> None:
    """The topic's record reached the store after this process had read all records."""
    machine = BrokerMachine()
    broker = await machine.open_broker()
    record = records.TopicRecord(
        await machine.store.allocate_id("topic"),
        1,
        DispatchMode.RELIABLE,
        0,
        (await broker.create_topic(TOPIC)).record.node,
    )
    late = TopicName("default", "late")
    await machine.store.put(records.topic_key(late), records.encode(record))
    with pytest.raises(errors.AlreadyExists):
        await broker.create_topic(late)
    assert broker.topics.get(late).record == record
    producer = await broker.open_producer(late, "p")
    assert await publish(broker, producer, b"m") == 0


async def test_a_topic_of_an_absent_namespace_is_refused() -> None:
    broker = await BrokerMachine().open_broker()
    absent = TopicName("absent", "a")
    for make in (broker.create_topic(absent), broker.open_producer(absent, "p")):
        with pytest.raises(errors.UnknownNamespace):
            await make
    await broker.create_namespace("absent")
    await broker.create_topic(absent)
    with pytest.raises(errors.NotEmpty):
        await broker.delete_namespace("absent")
    await broker.delete_topic(absent)
    await broker.delete_namespace("absent")
    for name in ("default", "system"):
        with pytest.raises(errors.InvalidInput):
            await broker.delete_namespace(name)


@pytest.mark.parametrize("shards", [0, -1, limits.SHARDS_PER_TOPIC_MAX + 1])
async def test_a_topic_has_as_many_shards_as_there_can_be(shards: int) -> None:
    broker = await BrokerMachine().open_broker()
    with pytest.raises(errors.InvalidInput):
        await broker.create_topic(TOPIC, shards)
    assert broker.topics.find(TOPIC) is None
    producer = await open_one(await opened(shards=2))
    with pytest.raises(errors.InvalidInput, match="no shard 2"):
        producer.topic.shard_key(2)


async def open_one(broker: Broker, name: str = "p") -> BrokerProducer:
    return await broker.open_producer(TOPIC, name)


async def test_producers_create_topics_only_where_allowed() -> None:
    broker = await BrokerMachine().open_broker()
    with pytest.raises(errors.UnknownTopic):
        await broker.open_producer(TOPIC, "p", create=False)
    assert (await broker.open_producer(TOPIC, "p", shards=3)).topic.record.shards == 3


# --- policies: which clients are accepted ---


async def test_producers_are_bounded_and_a_returning_one_is_not_counted_again() -> None:
    broker = await opened(max_producers=2)
    first, _ = await open_one(broker, "a"), await open_one(broker, "b")
    with pytest.raises(errors.PolicyReached):
        await open_one(broker, "c")
    again = await open_one(broker, "a")
    assert first.closed is not None
    broker.close_producer(again)
    await open_one(broker, "c")


async def test_subscriptions_are_bounded() -> None:
    broker = await opened(max_subscriptions=1)
    await subscribe(broker, "a", SHARED)
    await subscribe(broker, "a", SHARED, "another")
    for make in (subscribe(broker, "b"), broker.create_subscription(TOPIC, "b", SHARED)):
        with pytest.raises(errors.PolicyReached):
            await make
    await broker.delete_subscription(TOPIC, "a")
    await subscribe(broker, "b")


async def test_consumers_are_bounded_by_subscription_and_by_topic() -> None:
    broker = await opened(max_consumers_per_subscription=2, max_consumers_per_topic=3)
    first, _ = await subscribe(broker, "s", SHARED, "1"), await subscribe(broker, "s", SHARED, "2")
    with pytest.raises(errors.PolicyReached, match="consumers of subscription s"):
        await subscribe(broker, "s", SHARED, "3")
    await subscribe(broker, "s", SHARED, "2")
    await subscribe(broker, "t", SHARED, "3")
    with pytest.raises(errors.PolicyReached, match="has 3 consumers"):
        await subscribe(broker, "t", SHARED, "4")
    first.leave()
    await subscribe(broker, "t", SHARED, "4")


async def test_a_topic_policy_overrides_its_namespace_now_and_after_a_restart() -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    await broker.set_namespace_policies("default", PolicyValues(max_producers=1, max_subscriptions=1))
    await open_one(broker, "a")
    with pytest.raises(errors.PolicyReached):
        await open_one(broker, "b")
    await broker.set_topic_policies(TOPIC, PolicyValues(max_producers=0))
    await open_one(broker, "b")
    await machine.kill()
    broker = await machine.open_broker()
    for name in "abc":
        await open_one(broker, name)
    await subscribe(broker, "s")
    with pytest.raises(errors.PolicyReached):
        await subscribe(broker, "t")
    with pytest.raises(errors.InvalidInput):
        await broker.set_topic_policies(TOPIC, PolicyValues(max_publish_rate=-1))


async def test_a_lower_limit_disconnects_no_client_and_admits_none() -> None:
    broker = await opened()
    producers = [await open_one(broker, name) for name in "abc"]
    await broker.set_topic_policies(TOPIC, PolicyValues(max_producers=1, max_message_bytes=10))
    assert (await broker.publish(producers[2], 0, block(b"small"))).base_offset is not None
    with pytest.raises(errors.MessageTooLarge):
        broker.publish(producers[1], 0, block(bytes(11)))
    with pytest.raises(errors.PolicyReached):
        await open_one(broker, "d")


# --- policies: rates slow down and discard nothing ---


async def test_a_publish_rate_slows_all_producers_of_a_topic_and_stores_everything() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, max_publish_rate=100)
    producers = [await open_one(broker, name) for name in "ab"]
    started_ms = machine.clock.monotonic_ns() // 1_000_000
    for number in range(40):
        receipt = broker.publish(producers[number % 2], 0, block(*[b"x"] * 10))
        await receipt
        machine.clock.advance(receipt.pause_ms / 1000)  # a client that waits for the answer waits so long
    took_ms = machine.clock.monotonic_ns() // 1_000_000 - started_ms
    assert 3_800 <= took_ms <= 4_000, "400 messages at 100 in a second, less one burst"
    assert len(await stored_rows(broker)) == 400
    await broker.set_topic_policies(TOPIC, PolicyValues(max_publish_rate=0))
    assert broker.publish(producers[0], 0, block(*[b"x"] * 1000)).pause_ms == 0


async def test_retries_and_refusals_do_not_count_for_the_publish_rate() -> None:
    """A client that is answered late sends again: if a retry counted, its delay would grow without bound."""
    machine = BrokerMachine()
    broker = await opened(machine, max_publish_rate=100)
    producer = await open_one(broker)
    first = block(*[b"x"] * 20, producer=producer)
    waits = []
    for _ in range(4):
        receipt = broker.publish(producer, 0, first)
        await receipt
        waits.append(receipt.pause_ms)
    jump = broker.publish(producer, 0, block(*[b"x"] * 20, producer=producer, first=1_000))
    with pytest.raises(errors.OutOfOrderSequence):
        await jump
    broker.reset_producer(producer, 0)
    receipt = broker.publish(producer, 0, block(b"next", producer=producer, first=20))
    assert (waits[0], receipt.pause_ms) == (100, 110), "20 messages at 100 in a second, less ten; and one more"


async def test_a_publish_rate_borrows_only_a_moment_so_that_replies_are_timely() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, max_publish_rate=100)
    producers = [await open_one(broker, name) for name in "ab"]
    with pytest.raises(errors.MessageTooLarge, match=r"100 messages per second.*at most 25 messages per batch"):
        broker.publish(producers[0], 0, block(*[b"x"] * 26))
    broker.reset_producer(producers[0], 0)
    lates = [broker.publish(producers[0], 0, block(*[b"x"] * 25)).pause_ms for _ in range(2)]
    assert lates == [150, 400], "an answer is delayed by twice the borrowed time at most"
    for producer in producers:
        with pytest.raises(errors.RateReached, match="retry in 150 ms") as refused:
            broker.publish(producer, 0, block(b"x"))
        assert refused.value.retryable
        broker.reset_producer(producer, 0)
    machine.clock.advance(0.15)
    await broker.publish(producers[1], 0, block(b"y"))
    assert len(await stored_rows(broker)) == 51


async def test_a_single_message_passes_at_any_rate() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, max_publish_rate=1)
    producer = await open_one(broker)
    assert [broker.publish(producer, 0, block(b"x")).pause_ms for _ in range(2)] == [0, 1_000]
    with pytest.raises(errors.RateReached):
        broker.publish(producer, 0, block(b"x"))
    broker.reset_producer(producer, 0)
    machine.clock.advance(0.75)
    assert broker.publish(producer, 0, block(b"x")).pause_ms == 1_250


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_dispatch_rate_slows_a_subscription_over_all_shards_and_skips_nothing(kind: SubscriptionType) -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 2, max_dispatch_rate=50)
    producer = await open_one(broker)
    for shard in (0, 1):
        await publish(broker, producer, *[b"x"] * 100, shard=shard, keys=[b"%d" % number for number in range(100)])
    reader = await subscribe(broker, kind=kind)
    other = await subscribe(broker, "other")
    await broker.set_dispatch_rate(TOPIC, "other", 1_000)
    counts = []
    for step in range(40):
        machine.clock.advance(0.1)
        await quiet()
        counts.append(len(reader.sink.received))
        assert step < 3 or len(other.sink.received) == 200, "its own rate, and not the topic's"
    assert all(count <= 5 * (number + 1) + 7 for number, count in enumerate(counts)), counts
    assert counts[-1] >= 190
    machine.clock.advance(1)
    await quiet()
    assert sorted(reader.sink.positions) == [(shard, 0, offset) for shard in (0, 1) for offset in range(100)]


async def test_a_changed_dispatch_rate_applies_to_existing_subscriptions() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, max_dispatch_rate=1)
    await publish(broker, await open_one(broker), *[b"x"] * 100)
    reader = await subscribe(broker)
    await quiet()
    assert len(reader.sink.received) == 1
    await broker.set_topic_policies(TOPIC, PolicyValues(max_dispatch_rate=40))
    for _ in range(20):
        machine.clock.advance(0.05)
        await quiet()
    assert 30 < len(reader.sink.received) < 50
    await broker.set_namespace_policies("default", PolicyValues(max_dispatch_rate=1))
    await broker.set_topic_policies(TOPIC, PolicyValues(max_dispatch_rate=0))
    await quiet()
    assert len(reader.sink.received) == 100, "the topic's own word: no bound"


# --- incarnations ---


async def test_a_topic_that_is_created_again_has_other_offsets_ids_and_readers() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 2)
    old_id = broker.topics.get(TOPIC).record.id
    producer = await open_one(broker)
    await publish(broker, producer, b"old", b"old", shard=1)
    reader = await subscribe(broker)
    await quiet()
    await broker.delete_topic(TOPIC)
    topic = await broker.create_topic(TOPIC, 3)
    assert topic.record.incarnation > old_id
    assert reader.sink.events == ["closed"]
    with pytest.raises(errors.UnknownTopic):
        broker.publish(producer, 1, block(b"late"))
    delivery = reader.subscription.delivery(1)
    delivery.ack([(0, 2)], delivery.generation)
    assert await publish(broker, await open_one(broker), b"new", shard=1) == 0
    new = await subscribe(broker)
    await machine.pass_time(30)
    assert new.sink.payloads == [b"new"]
    await machine.power_loss()
    broker = await machine.open_broker()
    assert broker.topics.get(TOPIC).record.id == topic.record.id
    assert [row["payload"] for row in (await stored_rows(broker, shard=1)).values()] == [b"new"]


async def test_a_crash_at_any_write_of_a_deletion_is_all_or_nothing() -> None:
    seen, write, is_over = set[bool](), 0, False
    while not is_over:
        for carried_out in (False, True):
            machine = BrokerMachine()
            store = machine.store = FaultyStore(machine.clock, survives_close=True)
            broker = await opened(machine, 2)
            await publish(broker, await open_one(broker), b"x", shard=1)
            await subscribe(broker)
            await subscribe(broker, "t")
            before = {key for key in await stored_keys(machine) if "/a" in key}
            store.halt_at(write, applied=carried_out)
            deleting = asyncio.ensure_future(broker.delete_topic(TOPIC))
            halted = asyncio.ensure_future(store.halted.wait())
            await asyncio.wait({deleting, halted}, timeout=HANGS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            is_over = deleting.done()
            await machine.kill()
            store.resume()
            broker = await machine.open_broker()
            is_there = broker.topics.find(TOPIC) is not None
            assert not (is_there and is_over)
            copies = {key for key in await stored_keys(machine) if key.startswith(records.TOMBSTONE_NAMES)}
            left = {key for key in await stored_keys(machine) if "/a" in key} - copies
            assert left == (before if is_there else set())
            names = {key for key in before if key.startswith((records.SUBSCRIPTIONS, records.CURSORS))}
            assert {"/" + key.removeprefix(records.TOMBSTONE_NAMES).split("/", 1)[1] for key in copies} >= (
                set() if is_there else names
            ), "the topic can come back with all of them"
            assert not [key for key in await stored_keys(machine) if key.startswith(records.DELETED_TOPICS)]
            if not is_there:
                await broker.create_topic(TOPIC)
                assert await publish(broker, await open_one(broker), b"new") == 0
                assert (await subscribe(broker)).subscription.lag == 1
            seen.add(is_there)
            await machine.kill()
        write += 1
    assert seen == {False, True}
    assert write > 4


async def test_a_crash_at_any_write_of_a_deletion_that_commits_first_loses_no_message() -> None:
    """Either the topic is there, or its rest waits for the pipeline; and a topic of its name is another one."""
    options = BrokerOptions(policy_defaults=PolicyValues(deleted_table="keep", deleted_rest="commit"))
    seen, write, is_over = set[bool](), 0, False
    while not is_over:
        for carried_out in (False, True):
            machine = BrokerMachine(broker=options)
            store = machine.store = FaultyStore(machine.clock, survives_close=True)
            broker = await opened(machine, 2)
            key = ShardKey(broker.topics.get(TOPIC).record.id, 1)
            await publish(broker, await open_one(broker), b"x", shard=1)
            await subscribe(broker)
            store.halt_at(write, applied=carried_out)
            is_over = await _is_deleted(broker, store)
            await machine.kill()
            store.resume()
            broker = await machine.open_broker()
            assert machine.log is not None
            assert machine.log.backlog.uncommitted_count(key) == 1
            is_there = broker.topics.find(TOPIC) is not None
            assert broker.topics.is_draining is not is_there
            seen.add(is_there)
            if not is_there:
                await _check_another(machine, broker, key)
            await machine.kill()
        write += 1
    assert seen == {False, True}
    assert write > 3


async def _is_deleted(broker: Broker, store: FaultyStore) -> bool:
    """True if the deletion ended; otherwise the store is halted in the middle of it."""
    deleting = asyncio.ensure_future(broker.delete_topic(TOPIC))
    halted = asyncio.ensure_future(store.halted.wait())
    await asyncio.wait({deleting, halted}, timeout=HANGS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return deleting.done()


async def _check_another(machine: BrokerMachine, broker: Broker, old: ShardKey) -> None:
    """A topic of the same name keeps its subscriptions when the deletion ends, and over another start."""
    await broker.create_topic(TOPIC)
    assert await publish(broker, await open_one(broker), b"new") == 0
    await subscribe(broker)
    await machine.kill()
    broker = await machine.open_broker()
    assert list(broker.topics.get(TOPIC).subscriptions) == ["s"]
    assert machine.log is not None
    assert machine.log.backlog.uncommitted_count(old) == 1
    await machine.log.advance_floor({old: 1})  # as the pipeline tells
    broker.on_tables_committed()
    await quiet()
    assert not broker.topics.is_draining
    assert not [key for key in await stored_keys(machine) if key.startswith(records.DELETED_TOPICS)]
    assert list(broker.topics.get(TOPIC).subscriptions) == ["s"]
