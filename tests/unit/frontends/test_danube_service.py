"""What Danube's clients rely on, and the rules that keep them from harm: statuses, names, ids, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import limits
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription_options import DispatchMode, FailurePolicy, PoisonPolicy, RedeliveryBackoff
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.runtime.clock import SystemClock
from tests.support.broker_machine import stored_rows
from tests.support.danube_handlers import DanubeHandlers, DanubeRefusal, danube_handlers
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "t")
PRODUCER, CONSUMER = pb.HealthCheckRequest.Producer, pb.HealthCheckRequest.Consumer
EXCLUSIVE, SHARED = pb.ConsumerRequest.Exclusive, pb.ConsumerRequest.Shared
FAILOVER, KEY_SHARED = pb.ConsumerRequest.Failover, pb.ConsumerRequest.KeyShared


@pytest_asyncio.fixture
async def table() -> AsyncIterator[DanubeHandlers]:
    async with danube_handlers() as handlers:
        yield handlers


async def refused(call: object) -> str:
    with pytest.raises(DanubeRefusal) as caught:
        await call  # type: ignore[misc]
    return caught.value.status


# --- producers --------------------------------------------------------------------------------------------------------


async def test_a_producer_creates_its_topic_and_its_name_keeps_its_id(table: DanubeHandlers) -> None:
    first = await table.producer(dispatch_strategy=pb.NonReliable)
    assert table.broker.topics.get(TOPIC).record.dispatch is DispatchMode.NON_RELIABLE
    assert await table.producer(dispatch_strategy=pb.NonReliable) == first
    assert await table.producer(name="q", dispatch_strategy=pb.NonReliable) != first


async def test_hazard_45_messages_of_a_non_reliable_topic_of_danube_are_stored(table: DanubeHandlers) -> None:
    assert pb.ProducerRequest().dispatch_strategy == pb.NonReliable, "Danube's default"
    producer = await table.producer(dispatch_strategy=pb.NonReliable)
    for payload in (b"0", b"1"):
        await table.send(producer, payload)
    assert [row["payload"] for row in (await stored_rows(table.broker, TOPIC)).values()] == [b"0", b"1"]


async def test_the_id_of_a_request_is_echoed(table: DanubeHandlers) -> None:
    request = pb.ProducerRequest(request_id=2**64 - 1, producer_name="p", topic_name="/default/t")
    answer = await table.call("ProducerService/CreateProducer", request, pb.ProducerResponse)
    assert (answer.request_id, answer.producer_name) == (2**64 - 1, "p")
    assert await table.send(answer.producer_id, request_id=41) == 41


@pytest.mark.parametrize("name", ["t", "/t", "/a/b/c", "/default/", "//t", "/default/a b", "", "/default/t-part-01x*"])
async def test_an_invalid_name_is_an_invalid_argument(table: DanubeHandlers, name: str) -> None:
    assert await refused(table.producer(name)) == "INVALID_ARGUMENT"
    assert await refused(table.subscribe(name)) == "INVALID_ARGUMENT"
    assert await refused(table.partitions(name)) == "INVALID_ARGUMENT"
    assert not len(table.broker.topics)


async def test_a_missing_namespace_is_retryable(table: DanubeHandlers) -> None:
    assert await refused(table.producer("/nowhere/t")) == "UNAVAILABLE"


async def test_another_dispatch_strategy_is_a_failed_precondition(table: DanubeHandlers) -> None:
    await table.producer()
    assert await refused(table.producer(dispatch_strategy=pb.NonReliable)) == "FAILED_PRECONDITION"
    assert await refused(table.producer(dispatch_strategy=7)) == "INVALID_ARGUMENT"


async def test_two_clients_of_one_name_do_not_fence_each_other(table: DanubeHandlers) -> None:
    first = await table.producer()
    second = await table.producer()
    await table.send(first, b"1")
    await table.send(second, b"2")
    assert table.broker.topics.get(TOPIC).published_messages == 2
    assert len(table.broker.topics.get(TOPIC).producers) == 1


async def test_an_unknown_producer_gets_unavailable(table: DanubeHandlers) -> None:
    """Anything but UNAVAILABLE is raised to the application, and the client never makes its producer anew."""
    await table.producer()
    assert await refused(table.send(999)) == "UNAVAILABLE"


async def test_a_producer_of_another_topic_is_refused(table: DanubeHandlers) -> None:
    mine = await table.producer()
    await table.producer("/default/other")
    assert await refused(table.send(mine, topic="/default/other")) == "INVALID_ARGUMENT"


async def test_the_producer_limit_is_resource_exhausted_and_idle_producers_make_room(table: DanubeHandlers) -> None:
    await table.producer()
    await table.broker.set_topic_policies(TOPIC, PolicyValues(max_producers=1))
    assert await refused(table.producer(name="q")) == "RESOURCE_EXHAUSTED"
    for producer in table.service.producers._connected.values():
        producer.active_ms -= limits.DANUBE_PRODUCER_IDLE_MS + 1
    table.service.producers.sweep()
    await table.producer(name="q")


async def test_limits_of_subscriptions_and_consumers_are_resource_exhausted(table: DanubeHandlers) -> None:
    await table.producer()
    await table.subscribe()
    policies = PolicyValues(max_subscriptions=1, max_consumers_per_subscription=1)
    await table.broker.set_topic_policies(TOPIC, policies)
    assert await refused(table.subscribe(subscription="other")) == "RESOURCE_EXHAUSTED"
    assert await refused(table.subscribe(name="other")) == "RESOURCE_EXHAUSTED"
    await table.subscribe()
    await table.broker.set_topic_policies(TOPIC, PolicyValues(max_consumers_per_topic=1))
    assert await refused(table.subscribe(subscription="other")) == "RESOURCE_EXHAUSTED"


async def test_the_largest_message_of_a_topic_is_its_policy(table: DanubeHandlers) -> None:
    mine = await table.producer()
    await table.broker.set_topic_policies(TOPIC, PolicyValues(max_message_bytes=1000))
    await table.send(mine, bytes(900))
    assert await refused(table.send(mine, bytes(1001))) == "INVALID_ARGUMENT"


async def test_a_long_idle_producer_can_still_send(table: DanubeHandlers) -> None:
    mine = await table.producer()
    table.service.producers._connected[mine].active_ms = 0
    table.service.producers.sweep()
    assert not table.broker.topics.get(TOPIC).producers
    await table.send(mine)
    assert len(table.broker.topics.get(TOPIC).producers) == 1


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": 2**63},
        {"publish_time": 2**63 // 1000 + 1},
        {"schema_id": 2**63},
        {"schema_version": 2**31},
        {"attributes": {"k" * 70_000: "v"}},
    ],
)
async def test_hazard_09_values_that_fit_no_column_are_refused_by_validation(
    table: DanubeHandlers, fields: dict[str, object]
) -> None:
    mine = await table.producer()
    assert await refused(table.send(mine, **fields)) == "INVALID_ARGUMENT"
    assert not table.broker.topics.get(TOPIC).published_messages
    await table.send(mine)


async def test_texts_that_are_not_utf_8_are_refused(table: DanubeHandlers) -> None:
    mine = await table.producer()
    good = pb.StreamMessage(msg_id=pb.MsgID(producer_id=mine, topic_name="/default/t"), producer_name="name")
    bad = good.SerializeToString().replace(b"name", b"n\xff\xfee")
    assert await refused(table.call("ProducerService/SendMessage", bad, pb.MessageResponse)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("raw", [b"\xff" * 9, b"\x0a\x05ab", b"\x12\xff\xff\xff\xff\x0f"])
async def test_malformed_requests_are_refused(table: DanubeHandlers, raw: bytes) -> None:
    for method in table._table.unary:
        status = await refused(table.call(method, raw, pb.MessageResponse))
        assert status == "INVALID_ARGUMENT", method


async def test_a_message_that_is_too_large_is_an_invalid_argument(table: DanubeHandlers) -> None:
    """RESOURCE_EXHAUSTED would be tried again for ever."""
    mine = await table.producer()
    assert await refused(table.send(mine, bytes(100_001))) == "INVALID_ARGUMENT"
    await table.broker.set_topic_policies(TOPIC, PolicyValues(max_message_bytes=1000))
    assert await refused(table.send(mine, bytes(1001))) == "INVALID_ARGUMENT"
    await table.send(mine, bytes(900))


async def test_an_invalid_message_of_a_tick_affects_no_other(table: DanubeHandlers) -> None:
    mine = await table.producer()
    await table.broker.set_topic_policies(TOPIC, PolicyValues(max_message_bytes=1000))
    calls = [table.send(mine, bytes(size)) for size in (10, 5000, 20, 5000, 30)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(outcome, "status", outcome) for outcome in outcomes] == [
        7,
        "INVALID_ARGUMENT",
        7,
        "INVALID_ARGUMENT",
        7,
    ]
    assert table.broker.topics.get(TOPIC).published_messages == 3


# --- discovery --------------------------------------------------------------------------------------------------------


async def test_a_lookup_creates_nothing_and_compares_names_exactly(table: DanubeHandlers) -> None:
    await table.producer("/default/foobar")
    request = pb.TopicLookupRequest(request_id=9, topic="/default/foo")
    assert await refused(table.call("Discovery/TopicLookup", request, pb.TopicLookupResponse)) == "NOT_FOUND"
    assert await table.partitions("/default/foo") == []
    assert await table.partitions("/default/foobar") == ["/default/foobar"]
    request.topic = "/default/foobar"
    lookup = await table.call("Discovery/TopicLookup", request, pb.TopicLookupResponse)
    assert (lookup.request_id, lookup.response_type, lookup.proxy) == (9, pb.TopicLookupResponse.Connect, False)
    assert lookup.connect_url == lookup.broker_url == "http://127.0.0.1:6650"
    assert [str(topic.name) for topic in table.broker.topics] == ["/default/foobar"]


async def test_partitions_are_shards_of_one_topic(table: DanubeHandlers) -> None:
    """Clients of Danube create partitions by name, in any order, at the same time."""
    names = [f"/default/t-part-{number}" for number in (1, 3, 0, 2)]
    ids = await asyncio.gather(*(table.producer(name, f"p-{name[-1]}") for name in names))
    (topic,) = table.broker.topics
    assert (str(topic.name), topic.record.shards) == ("/default/t", 4)
    assert await table.partitions("/default/t") == sorted(names)
    assert await table.partitions("/default/t-part-2") == ["/default/t-part-2"]
    assert await table.partitions("/default/t-part-4") == []
    for id_, name in zip(ids, names, strict=True):
        await table.send(id_, name.encode(), name)
    consumer = await table.subscribe("/default/t-part-3", start="earliest")
    (message,) = await table.receive(consumer).stream.until(1)
    assert (message.msg_id.topic_name, message.payload) == (names[1], names[1].encode())


async def test_a_topic_is_plain_or_partitioned_and_not_both(table: DanubeHandlers) -> None:
    await table.producer("/default/plain")
    await table.producer("/default/parts-part-0")
    for name in ("/default/plain-part-0", "/default/parts"):
        assert await refused(table.producer(name)) == "FAILED_PRECONDITION"
        assert await refused(table.subscribe(name)) == "FAILED_PRECONDITION"
    assert await table.partitions("/default/parts") == ["/default/parts-part-0"]


async def status_of_call(call: object) -> str:
    try:
        await call  # type: ignore[misc]
    except DanubeRefusal as refusal:
        return refusal.status
    return "OK"


async def test_neither_a_producer_nor_a_consumer_already_exists(table: DanubeHandlers) -> None:
    """With ALREADY_EXISTS a client gives up for good. Whatever is there already is said in other ways."""
    producers = [("/default/t", "p"), ("/default/t", "p"), ("/default/p-part-1", "p"), ("/default/p-part-1", "p")]
    created = await asyncio.gather(*(status_of_call(table.producer(*producer)) for producer in producers))
    assert created == ["OK"] * 4
    assert await status_of_call(table.producer("/default/t", "p", producer_access_mode=pb.Exclusive)) == "OK"
    assert await status_of_call(table.producer("/default/t-part-0")) == "FAILED_PRECONDITION"
    assert await status_of_call(table.producer("/default/p")) == "FAILED_PRECONDITION"
    both = await asyncio.gather(*(status_of_call(table.subscribe(subscription_type=EXCLUSIVE)) for _ in range(2)))
    assert both == ["OK", "OK"]
    others = {"d": EXCLUSIVE, "c": SHARED, "e": FAILOVER, "f": KEY_SHARED}
    statuses = {
        name: await status_of_call(table.subscribe(name=name, subscription_type=others[name])) for name in others
    }
    assert "ALREADY_EXISTS" not in statuses.values()
    assert statuses["d"] == "PERMISSION_DENIED"
    assert {statuses[name] for name in "cef"} == {"INVALID_ARGUMENT"}


async def test_a_partition_beyond_the_bound_is_refused(table: DanubeHandlers) -> None:
    name = f"/default/t-part-{limits.SHARDS_PER_TOPIC_MAX}"
    assert await refused(table.producer(name)) == "INVALID_ARGUMENT"
    assert not len(table.broker.topics)


async def test_a_subscription_gets_a_later_partition_from_its_first_message(table: DanubeHandlers) -> None:
    await table.producer("/default/t-part-0")
    await table.subscribe("/default/t-part-0")
    late = await table.producer("/default/t-part-1")
    await table.send(late, b"first", "/default/t-part-1")
    consumer = await table.subscribe("/default/t-part-1")
    assert [message.payload for message in await table.receive(consumer).stream.until(1)] == [b"first"]


# --- consumers --------------------------------------------------------------------------------------------------------


async def test_a_consumer_creates_no_topic(table: DanubeHandlers) -> None:
    assert await refused(table.subscribe()) == "NOT_FOUND"


async def test_a_second_consumer_of_an_exclusive_subscription_is_denied_until_the_first_leaves(
    table: DanubeHandlers,
) -> None:
    await table.producer()
    stream = table.receive(await table.subscribe(subscription_type=EXCLUSIVE))
    assert await refused(table.subscribe(name="d", subscription_type=EXCLUSIVE)) == "PERMISSION_DENIED"
    await stream.cancel()
    await table.subscribe(name="d", subscription_type=EXCLUSIVE)


async def test_an_exclusive_subscription_is_exclusive_in_each_partition(table: DanubeHandlers) -> None:
    await table.producer("/default/t-part-1")
    for number in (0, 1):
        await table.subscribe(f"/default/t-part-{number}", subscription_type=EXCLUSIVE)
    status = await refused(table.subscribe("/default/t-part-1", name="d", subscription_type=EXCLUSIVE))
    assert status == "PERMISSION_DENIED"


async def test_a_consumer_that_never_opens_its_stream_is_replaced(table: DanubeHandlers) -> None:
    await table.producer()
    await table.subscribe(subscription_type=EXCLUSIVE)
    for consumer in table.service.consumers._consumers.values():
        consumer.since_ms -= limits.DANUBE_CONSUMER_IDLE_MS + 1
    table.service.consumers.sweep()
    await table.subscribe(name="d", subscription_type=EXCLUSIVE)
    assert list(table.broker.subscription(TOPIC, "s").consumers) == ["d"]


async def test_a_reopened_stream_gets_unacked_messages(table: DanubeHandlers) -> None:
    mine = await table.producer()
    consumer = await table.subscribe(subscription_type=EXCLUSIVE)
    first = table.receive(consumer)
    for number in range(3):
        await table.send(mine, b"%d" % number)
    messages = await first.stream.until(3)
    await table.ack(messages[1])
    await first.cancel()
    again = await table.receive(consumer).stream.until(2)
    assert [message.payload for message in again] == [b"0", b"2"]
    assert [message.msg_id.topic_offset for message in again] == [0, 2]


def clock_that_holds_streams() -> FakeClock:
    """Sleeps of the length for which an old stream is kept open last until `release`."""
    return FakeClock(SystemClock(), hold=lambda seconds: seconds == limits.DANUBE_HOLD_SECONDS)


async def test_a_second_stream_takes_over_and_the_first_ends_later() -> None:
    """Two clients with one name would otherwise chase each other without a pause."""
    clock = clock_that_holds_streams()
    async with danube_handlers(clock=clock) as table:
        mine = await table.producer()
        consumer = await table.subscribe()
        first = table.receive(consumer)
        await table.send(mine)
        await first.stream.until(1)
        second = table.receive(consumer)
        await second.stream.until(1)
        await until(lambda: clock.held_sleeps == 1)
        assert not first.task.done()
        clock.release()
        assert (await first.end()).status == "UNAVAILABLE"
        assert not second.task.done()


async def test_an_unknown_stream_is_delayed_before_it_fails() -> None:
    clock = clock_that_holds_streams()
    async with danube_handlers(clock=clock) as table:
        stream = table.receive(12345)
        await until(lambda: clock.held_sleeps == 1)
        assert not stream.task.done()
        clock.release()
        assert (await stream.end()).status == "NOT_FOUND"


async def test_a_delayed_stream_does_not_delay_the_stop_of_the_broker() -> None:
    clock = clock_that_holds_streams()
    async with danube_handlers(clock=clock) as table:
        stream = table.receive(12345)
        await until(lambda: clock.held_sleeps == 1)
        table.service.leave()
        assert (await stream.end()).status == "NOT_FOUND"


async def test_health_checks_never_fail(table: DanubeHandlers) -> None:
    mine = await table.producer()
    consumer = await table.subscribe()
    assert await table.is_known(PRODUCER, mine)
    assert await table.is_known(CONSUMER, consumer)
    assert not await table.is_known(PRODUCER, 2**64 - 1)
    assert not await table.is_known(CONSUMER, 999)
    await table.broker.delete_subscription(TOPIC, "s")
    assert not await table.is_known(CONSUMER, consumer)
    await table.broker.delete_topic(TOPIC)
    assert not await table.is_known(PRODUCER, mine)


async def test_acks_of_unknown_messages_are_refused(table: DanubeHandlers) -> None:
    mine = await table.producer()
    consumer = await table.subscribe()
    stream = table.receive(consumer).stream
    await table.send(mine)
    (message,) = await stream.until(1)
    assert await refused(table.ack(message, "other")) == "INTERNAL"
    assert await refused(table.nack(pb.StreamMessage(msg_id={"topic_name": "/default/x"}))) == "INTERNAL"
    for offset in (5, 2**63, 2**64 - 1):
        await table.ack(pb.StreamMessage(msg_id={"topic_name": "/default/t", "topic_offset": offset}))
    await table.ack(message)
    await table.ack(message)
    assert table.broker.subscription(TOPIC, "s").lag == 0


async def test_a_nack_redelivers_the_message_until_the_policy_decides(table: DanubeHandlers) -> None:
    mine = await table.producer()
    consumer = await table.subscribe()
    policy = FailurePolicy(1, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DEAD_LETTER, "/default/dead")
    await table.broker.set_failure_policy(TOPIC, "s", policy)
    stream = table.receive(consumer).stream
    await table.send(mine, b"poison", attributes={"a": "b"})
    for count in (1, 2):
        await table.nack((await stream.until(count))[-1], delay_ms=0, reason=f"no {'x' * 300} {count}")
    await until(lambda: table.broker.topics.find(TopicName("default", "dead")) is not None)
    reader = await table.subscribe("/default/dead", start="earliest")
    (letter,) = await table.receive(reader).stream.until(1)
    assert letter.payload == b"poison"
    assert letter.attributes["a"] == "b"
    assert letter.attributes["x-original-topic"] == "/default/t"
    assert letter.attributes["x-original-producer-id"] == str(mine)
    assert letter.attributes["x-delivery-attempt"] == "2"
    assert letter.attributes["x-poison-policy"] == "dead_letter"
    assert letter.attributes["x-failure-reason"] == f"no {'x' * 300}"[: limits.NACK_REASON_CHARACTERS_MAX]


async def test_a_dead_letter_names_the_partition_of_its_offset(table: DanubeHandlers) -> None:
    part = "/default/t-part-1"
    mine = await table.producer(part)
    consumer = await table.subscribe(part)
    policy = FailurePolicy(0, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DEAD_LETTER, "/default/dead")
    await table.broker.set_failure_policy(TOPIC, "s", policy)
    stream = table.receive(consumer).stream
    await table.send(mine, topic=part)
    (message,) = await stream.until(1)
    await table.nack(message)
    await until(lambda: table.broker.topics.find(TopicName("default", "dead")) is not None)
    reader = await table.subscribe("/default/dead", start="earliest")
    (letter,) = await table.receive(reader).stream.until(1)
    assert letter.attributes["x-original-topic"] == message.msg_id.topic_name == part
    assert letter.attributes["x-failure-reason"] == "nack"


async def test_a_message_too_large_for_a_danube_client_fails_and_does_not_end_its_stream(table: DanubeHandlers) -> None:
    """Another front end has stored the message. Sending it would end the stream, again and again."""
    from icestream.model import envelope
    from icestream.model.block import encode_block

    mine = await table.producer()
    consumer = await table.subscribe()
    await table.broker.set_failure_policy(
        TOPIC, "s", FailurePolicy(0, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DROP)
    )
    stream = table.receive(consumer).stream
    other = await table.broker.open_producer(TOPIC, "native")
    await table.broker.publish(other, 0, encode_block(1, {envelope.PAYLOAD: [bytes(200_000)]}))
    await table.send(mine, b"small")
    assert [message.payload for message in await stream.until(1)] == [b"small"]
    await until(lambda: table.broker.subscription(TOPIC, "s").lag == 1)


async def test_the_window_bounds_an_idle_consumer_and_follows_its_acks(table: DanubeHandlers) -> None:
    mine = await table.producer()
    consumer = await table.subscribe()
    streaming = table.receive(consumer)
    await asyncio.gather(*(table.send(mine) for _ in range(300)))
    await streaming.stream.until(limits.DANUBE_WINDOW_MIN)
    assert len(streaming.stream.messages) == limits.DANUBE_WINDOW_MIN
    seen = 0
    while seen < 300:
        await streaming.stream.until(seen + 1)
        for message in streaming.stream.messages[seen:]:
            seen += 1
            await table.ack(message)
    window_sizes = [registered.window.size for registered in table.service.consumers._consumers.values()]
    assert table.broker.subscription(TOPIC, "s").lag == 0, window_sizes


async def test_a_stalled_stream_delays_neither_producers_nor_other_consumers(table: DanubeHandlers) -> None:
    mine = await table.producer()
    stalled = table.receive(await table.subscribe(name="stalled"), is_stalled=True)
    live = table.receive(await table.subscribe(name="live"))
    await asyncio.gather(*(table.send(mine, b"%d" % number) for number in range(200)))
    seen = 0
    while seen < 200 - limits.DANUBE_WINDOW_MIN:
        await live.stream.until(seen + 1)
        await table.ack(live.stream.messages[seen])
        seen += 1
    assert not stalled.stream.messages


# --- over restarts ----------------------------------------------------------------------------------------------------


async def test_ids_are_the_same_after_a_restart() -> None:
    """The messages of this broker are in memory and gone; this test is about the ids of producers and consumers."""
    store = FaultyStore(survives_close=True)
    async with danube_handlers(store) as table:
        mine = await table.producer()
        consumer = await table.subscribe(subscription_type=KEY_SHARED, key_filters=["a*"])
    async with danube_handlers(store) as table:
        assert await table.is_known(PRODUCER, mine)
        assert await table.is_known(CONSUMER, consumer)
        stream = table.receive(consumer).stream
        await until(lambda: table.broker.subscription(TOPIC, "s").consumers)
        (restored,) = table.broker.subscription(TOPIC, "s").consumers.values()
        assert (restored.id, restored.key_patterns) == (consumer, ("a*",))
        await asyncio.gather(*(table.send(mine, routing_key="abc") for _ in range(5)))
        await stream.until(1)
        assert await table.producer() == mine
        assert await table.subscribe(subscription_type=KEY_SHARED) == consumer
