"""The requirements of durable sessions (R03 to R36) and hazards of MQTT, on the broker without sockets."""

from __future__ import annotations

import errno
import tracemalloc
from typing import Any

import pytest

from icestream import errors, limits
from icestream.broker.mqtt.client_link import ConnectRequest
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute, WideFilters
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.shard import STATE_TOPIC_ID
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.properties import Properties, PropertyId
from icestream.observability import metrics
from icestream.security.principal import ANONYMOUS_IDENTITY
from tests.support.broker_machine import publish, quiet, stored_rows
from tests.support.held_sink import HeldSink
from tests.support.mqtt_world import V3, V5, MqttMachine, WorldClient, connected

pytestmark = pytest.mark.asyncio
MESSAGES = TopicName("mqtt", "messages")
KEPT = ReplayRoute("kept/#", 1, "/mqtt/messages")
NARROW = MqttOptions(shards=2, replay=(KEPT,))


async def payloads(broker: Broker) -> list[bytes]:
    """The payloads of all rows."""
    shards = broker.topic(MESSAGES).record.shards
    rows = [row for shard in range(shards) for row in (await stored_rows(broker, MESSAGES, shard)).values()]
    return sorted(row["payload"] for row in rows)


async def durable(broker: Broker, client_id: str = "s", **options: Any) -> WorldClient:
    return await connected(broker, client_id, clean=False, expiry_s=options.pop("expiry_s", 60), **options)


async def restarted(machine: MqttMachine) -> Broker:
    await machine.kill()
    return await machine.open_broker()


# --- what is stored ---


async def test_r03_r20_r21_only_what_a_durable_session_can_replay_is_stored() -> None:
    broker = await MqttMachine(mqtt=NARROW).open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await publisher.publish("a/b/c", b"before")
    await client.subscribe("a/b/#", qos=1)
    await publisher.publish("a/b/c", b"during")
    await publisher.publish("x", b"elsewhere")
    await client.unsubscribe("a/b/#")
    await publisher.publish("a/b/c", b"after")
    assert await payloads(broker) == [b"during"]
    await broker.shutdown()


async def test_r03_what_is_not_stored_reaches_connected_clients() -> None:
    broker = await MqttMachine(mqtt=NARROW).open_broker()
    client, publisher = await connected(broker, "s"), await connected(broker, "p")
    await client.subscribe("live/#", qos=1)
    ack = await publisher.publish("live/x", b"1")
    assert isinstance(ack, packets.PubackPacket)
    assert ack.reason_code == 0
    message = await client.message()
    assert (message.payload, message.qos) == (b"1", 0)
    alone = await publisher.publish("nobody", b"2")
    assert isinstance(alone, packets.PubackPacket)
    assert alone.reason_code == 0x10
    assert await payloads(broker) == []
    await broker.shutdown()


async def test_r22_the_filter_of_a_session_survives_a_restart() -> None:
    machine = MqttMachine(mqtt=NARROW)
    broker = await machine.open_broker()
    await (await durable(broker)).subscribe("a/#", qos=1)
    broker = await restarted(machine)
    publisher = await connected(broker, "p")
    await publisher.publish("a/x", b"1")
    assert await payloads(broker) == [b"1"]
    assert (await (await durable(broker)).message()).payload == b"1"
    await broker.shutdown()


async def test_r23_a_subscription_of_qos_0_stores_nothing() -> None:
    broker = await MqttMachine(mqtt=NARROW).open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("a/#", qos=0)
    await publisher.publish("a/x", b"1", qos=2)
    assert (await client.message()).payload == b"1"
    assert await payloads(broker) == []
    await broker.shutdown()


@pytest.mark.parametrize("min_qos", [0, 1, 2])
async def test_r24_r25_a_replay_filter_stores_from_its_minimum_qos_on(min_qos: int) -> None:
    options = MqttOptions(shards=1, replay=(ReplayRoute("#", min_qos, "/mqtt/messages"),))
    broker = await MqttMachine(mqtt=options).open_broker()
    publisher = await connected(broker, "p")
    for qos in range(3):
        await publisher.publish("t", b"%d" % qos, qos=qos)
    assert await payloads(broker) == [b"%d" % qos for qos in range(min_qos, 3)]
    await broker.shutdown()


async def test_routes_store_in_the_topic_of_the_first_filter_that_matches() -> None:
    routes = (ReplayRoute("a/#", 0, "/plant/a"), ReplayRoute("#", 0, "/mqtt/messages"))
    broker = await MqttMachine(mqtt=MqttOptions(shards=1, replay=routes)).open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("a/x", b"1")
    await publisher.publish("b/x", b"2")
    plant = await stored_rows(broker, TopicName("plant", "a"))
    assert [row["payload"] for row in plant.values()] == [b"1"]
    assert await payloads(broker) == [b"2"]
    await broker.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("publish_qos", "subscribe_qos"), [(p, s) for p in range(3) for s in range(3)])
async def test_t_publish_as_persistent_a_message_has_the_lower_qos_of_both_sides(
    publish_qos: int, subscribe_qos: int, is_killed: bool
) -> None:
    machine = MqttMachine(mqtt=NARROW)
    broker = await machine.open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("a/#", qos=subscribe_qos)
    ack = await publisher.publish("a/x", b"1", qos=publish_qos)
    assert getattr(ack, "reason_code", 0) == 0, "a subscriber took it"
    qos = min(publish_qos, subscribe_qos)
    if is_killed:
        broker = await restarted(machine)
        client = await durable(broker)
        assert bool([message.payload for message in client.deliveries()] or qos == 0)
    if qos or not is_killed:
        message = await client.message()
        assert (message.payload, message.qos) == (b"1", qos)
    assert await payloads(broker) == ([b"1"] if subscribe_qos else [])
    await broker.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_t_publish_empty_topic_levels(is_killed: bool) -> None:
    """Empty levels are levels: `t//+//#` matches each of these topics but the last."""
    topics = ["t//1//", "t//1//2", "t////3", "t//1/", "t/1//2"]
    machine = MqttMachine(mqtt=NARROW)
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t//+//#", qos=1)
    client.lose()
    if is_killed:
        broker = await restarted(machine)
    publisher = await connected(broker, "p")
    for topic in topics:
        await publisher.publish(topic, topic.encode())
    assert await payloads(broker) == sorted(topic.encode() for topic in topics[:4])
    client = await durable(broker)
    assert {(await client.message()).topic for _ in range(4)} == set(topics[:4])
    await quiet()
    assert not client.deliveries()
    await broker.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_t_qos0_only_many_streams_no_topic_starves(is_killed: bool) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t/#", qos=0)
    if is_killed:
        broker = await restarted(machine)
        client = await durable(broker)
    publishers = [await connected(broker, f"p{number}") for number in range(10)]
    for turn in range(3):
        for number, publisher in enumerate(publishers):
            await publisher.publish(f"t/{number}/{turn}", b"x", qos=turn)
    assert {(await client.message()).topic for _ in range(30)} == {
        f"t/{n}/{turn}" for n in range(10) for turn in range(3)
    }
    await broker.shutdown()


async def test_t_metrics_not_dropped_a_message_for_an_absent_session_counts_as_stored() -> None:
    broker = await MqttMachine(mqtt=NARROW).open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("a/#", qos=1)
    client.lose()
    stored, lost = metrics.PUBLISHED_MESSAGES.value, metrics.MQTT_LOST._value.get()
    ack = await publisher.publish("a/x", b"1")
    assert isinstance(ack, packets.PubackPacket)
    assert ack.reason_code == 0, "not 0x10: a session is owed it"
    assert (metrics.PUBLISHED_MESSAGES.value - stored, metrics.MQTT_LOST._value.get() - lost) == (1, 0)
    await broker.shutdown()


async def test_r07_memory_does_not_grow_with_messages_for_absent_sessions() -> None:
    """Modules of MQTT, while 100 sessions are away: positions, not queues."""
    broker = await MqttMachine(mqtt=MqttOptions(shards=2)).open_broker()
    for number in range(100):
        client = await durable(broker, f"s{number}")
        await client.subscribe("#", qos=1)
        client.lose()
    publisher = await connected(broker, "p")

    async def publish_many(count: int) -> None:
        for number in range(count):
            await publisher.publish(f"t/{number % 50}", b"x" * 1_000)
        publisher.history.clear()

    await publish_many(150)
    own = [tracemalloc.Filter(True, f"*/{folder}/*") for folder in ("broker/mqtt", "icestream/durable")]
    tracemalloc.start()
    try:
        await publish_many(150)
        first = sum(item.size for item in tracemalloc.take_snapshot().filter_traces(own).statistics("filename"))
        await publish_many(450)
        second = sum(item.size for item in tracemalloc.take_snapshot().filter_traces(own).statistics("filename"))
    finally:
        tracemalloc.stop()
    # Decoded sections are cached within their bound; 450 messages have 450,000 bytes.
    assert second - first < 150_000
    await broker.shutdown()


async def test_r08_a_message_is_dispatched_without_a_poll_interval() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("t", qos=1)
    before = machine.clock.monotonic_ns()
    for number in range(20):
        await publisher.publish("t", b"%d" % number)
        assert (await client.message()).payload == b"%d" % number
    assert machine.clock.monotonic_ns() == before, "no timer is in the path"
    await broker.shutdown()


async def test_a_start_after_a_crash_looks_at_few_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are written by the number of rows too: a million messages between two beats delay no resume."""
    monkeypatch.setattr(limits, "MQTT_BEAT_ROWS", 100)
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("t", qos=1)
    client.lose()
    for number in range(1_000):
        await publisher.publish("t", b"%d" % number)
    await quiet()
    broker = await restarted(machine)
    (feed,) = broker.mqtt.feeds.values()
    assert feed.stream.visible - feed.position <= 200
    client = await durable(broker)
    assert [(await client.message()).payload for _ in range(1_000)] == [b"%d" % number for number in range(1_000)]
    await broker.shutdown()


async def test_r06_rows_do_not_depend_on_the_number_of_sessions() -> None:
    broker = await MqttMachine().open_broker()
    for number in range(50):
        client = await durable(broker, f"s{number}")
        await client.subscribe("#", qos=1)
        if number % 2:
            client.lose()
    publisher = await connected(broker, "p")
    for number in range(10):
        await publisher.publish("t", b"%d" % number)
    assert await payloads(broker) == [b"%d" % number for number in range(10)]
    await broker.shutdown()


# --- push, back-pressure ---


async def test_r09_a_client_that_never_acks_fills_only_its_own_window() -> None:
    broker = await MqttMachine().open_broker()
    silent = await connected(broker, "silent", receive_maximum=5)
    await silent.subscribe("t", qos=1)
    reader, publisher = await connected(broker, "r"), await connected(broker, "p")
    await reader.subscribe("t", qos=1)
    for number in range(100):
        await publisher.publish("t", b"%d" % number)
        assert (await reader.message()).payload == b"%d" % number
    assert len(silent.deliveries()) == 5
    await broker.shutdown()


async def test_a_client_whose_socket_is_full_gets_everything_later() -> None:
    broker = await MqttMachine().open_broker()
    client, publisher = await connected(broker, "s"), await connected(broker, "p")
    await client.subscribe("t", qos=0)
    client.can_send = False
    for number in range(20):
        await publisher.publish("t", b"%d" % number)
    assert not client.deliveries()
    client.can_send = True
    assert client.session is not None
    client.session.resume_sending()
    assert [(await client.message()).payload for _ in range(20)] == [b"%d" % number for number in range(20)]
    await broker.shutdown()


async def test_r36_acks_in_any_order_free_their_places() -> None:
    broker = await MqttMachine().open_broker()
    client, publisher = await connected(broker, "s", receive_maximum=3), await connected(broker, "p")
    await client.subscribe("t", qos=1)
    for number in range(6):
        await publisher.publish("t", b"%d" % number)
    first = [await client.message(ack=False) for _ in range(3)]
    for message in reversed(first):
        client.send(packets.PubackPacket(message.packet_id))
    assert [(await client.message()).payload for _ in range(3)] == [b"3", b"4", b"5"]
    await broker.shutdown()


# --- durability ---


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_r33_an_ack_waits_for_the_sync(version: Any, qos: int) -> None:
    machine, sink = MqttMachine(), HeldSink()
    broker = await machine.open_broker()
    publisher = await connected(broker, "p", version)
    await broker.shutdown()
    machine.disk.kill()
    broker = await machine.open_broker(sink)
    sink_steps(machine, sink)
    publisher = WorldClient(broker, "p", version)
    publisher.send(publisher.connect_packet)
    await turn(machine, sink)
    await publisher.receive(packets.ConnackPacket)
    publisher.send(packets.PublishPacket("t", b"x", qos, 7))
    await quiet()
    assert not publisher.received
    await turn(machine, sink)
    expected = packets.PubackPacket if qos == 1 else packets.PubrecPacket
    assert isinstance(publisher.received[0], expected)
    await machine.kill()


def sink_steps(machine: MqttMachine, sink: HeldSink) -> None:
    assert machine.log is not None
    while sink.step():
        machine.log._on_progress()


async def turn(machine: MqttMachine, sink: HeldSink) -> None:
    """Lets the disk catch up."""
    for _ in range(5):
        await quiet()
        sink_steps(machine, sink)
    await quiet()


async def test_r34_dup_never_suppresses_a_message() -> None:
    broker = await MqttMachine().open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("t", b"1", qos=2, is_duplicate=True)
    await publisher.publish("t", b"2", qos=1, is_duplicate=True)
    assert await payloads(broker) == [b"1", b"2"]
    await broker.shutdown()


async def test_hazard_53_a_resend_of_qos_2_after_a_crash_is_one_row() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    publisher = await durable(broker, "p")
    publisher.send(packets.PublishPacket("t", b"x", 2, 7))
    await publisher.receive(packets.PubrecPacket)
    broker = await restarted(machine)
    again = await durable(broker, "p")
    again.send(packets.PublishPacket("t", b"x", 2, 7, is_duplicate=True))
    assert (await again.receive(packets.PubrecPacket)).reason_code == 0
    again.send(packets.PubrelPacket(7))
    await again.receive(packets.PubcompPacket)
    assert await payloads(broker) == [b"x"]
    fresh = await connected(broker, "p", clean=True)
    fresh.send(packets.PublishPacket("t", b"y", 2, 7))
    await fresh.receive(packets.PubrecPacket)
    assert await payloads(broker) == [b"x", b"y"]
    await broker.shutdown()


async def test_r35_unacked_retained_messages_are_sent_again() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    await (await connected(broker, "p")).publish("t", b"kept", is_retained=True)
    client = await durable(broker)
    await client.subscribe("t", qos=1)
    first = await client.message(ack=False)
    broker = await restarted(machine)
    again = await (await durable(broker)).message()
    assert (again.packet_id, again.payload, again.is_retained, again.is_duplicate) == (
        first.packet_id, b"kept", True, True,
    )  # fmt: skip
    await broker.shutdown()


async def test_r14_without_durable_sessions_nothing_of_a_session_is_written() -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1, has_durable_sessions=False))
    broker = await machine.open_broker()
    client = await durable(broker, will=packets.Will("w", b"dead", 1))
    await client.subscribe("t", "$share/g/t", qos=1)
    client.lose()
    await machine.pass_time(20)
    again = await durable(broker)
    assert again.history[0].is_session_present  # type: ignore[union-attr]
    assert machine.log is not None
    sessions = machine.log.state.shards[next(key for key in machine.log.state.shards if key.topic_id == STATE_TOPIC_ID)]
    assert sessions.assigned == 0
    assert await payloads(broker) == [b"dead"]
    await broker.shutdown()


async def test_r14_sessions_of_a_run_with_durable_sessions_end_in_one_without(caplog: pytest.LogCaptureFixture) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    for name in ("a", "b"):
        await (await durable(broker, name)).subscribe("t", "$share/g/t", qos=1)
    await broker.shutdown()
    for has_durable_sessions, is_present in ((False, False), (True, False)):
        machine.disk.kill()
        machine.mqtt = MqttOptions(shards=2, has_durable_sessions=has_durable_sessions)
        broker = await machine.open_broker()
        client = await durable(broker, "a")
        assert client.history[0].is_session_present is is_present  # type: ignore[union-attr]
        assert not broker.mqtt.groups
        client.lose()
        await broker.shutdown()
    assert "durable sessions are off" in caplog.text


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("has_durable_sessions", [True, False])
async def test_r26_sessions_outlive_their_connections_also_without_durable_sessions(
    version: Any, has_durable_sessions: bool
) -> None:
    """A route that stores nothing: what the session is owed is stored for it alone."""
    options = MqttOptions(shards=2, has_durable_sessions=has_durable_sessions, replay=(KEPT,))
    machine = MqttMachine(mqtt=options)
    broker = await machine.open_broker()
    client = await durable(broker, version=version)
    await client.subscribe("t/+", qos=2)
    publisher = await connected(broker, "p")
    for number, qos in enumerate((0, 1, 2)):
        await publisher.publish(f"t/{qos}", b"%d" % number, qos)
    in_flight = [await client.message(ack=False) for _ in range(3)]
    client.lose()
    for number, qos in enumerate((0, 1, 2), 3):
        await publisher.publish(f"t/{qos}", b"%d" % number, qos)
    await quiet()
    again = await durable(broker, version=version)
    assert again.history[0].is_session_present  # type: ignore[union-attr]
    resent = [await again.message() for _ in range(2)]
    assert [(message.packet_id, message.payload, message.is_duplicate) for message in resent] == [
        (message.packet_id, message.payload, True) for message in in_flight if message.qos
    ]
    assert sorted([(await again.message()).payload for _ in range(2)]) == [b"4", b"5"]
    await publisher.publish("t/1", b"live")
    assert (await again.message()).payload == b"live"
    again.lose()
    machine.clock.advance(options.session_expiry_s_default)
    await quiet()
    assert len(broker.mqtt.sessions) == 1, "the session has expired, that of the publisher is connected"
    await broker.shutdown()


@pytest.mark.parametrize("has_durable_sessions", [True, False])
async def test_r26_a_group_keeps_what_its_absent_members_are_owed(has_durable_sessions: bool) -> None:
    broker = await MqttMachine(mqtt=MqttOptions(shards=1, has_durable_sessions=has_durable_sessions)).open_broker()
    client = await durable(broker)
    await client.subscribe("$share/g/t", qos=1)
    client.lose()
    publisher = await connected(broker, "p")
    for number in range(3):
        await publisher.publish("t", b"%d" % number)
    again = await durable(broker)
    assert [(await again.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]
    await broker.shutdown()


# --- safety ---


async def test_r15_a_session_on_everything_that_is_away_costs_the_stored_copy_only() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("#", qos=1)
    client.lose()
    publisher = await connected(broker, "p")
    assert machine.log is not None
    state = next(key for key in machine.log.state.shards if key.topic_id == STATE_TOPIC_ID)
    before = machine.log.state.shards[state].assigned
    for number in range(200):
        await publisher.publish(f"t/{number}", b"x")
    await machine.pass_time(2)
    # One note for each shard that it is behind in, whatever the number of messages.
    assert machine.log.state.shards[state].assigned - before <= 4
    assert len(broker.mqtt.sessions) == 2
    await broker.shutdown()


async def test_r15_bounds_of_sessions_and_subscriptions_have_a_reason_code() -> None:
    options = MqttOptions(shards=1, sessions_max=2, subscriptions_per_session_max=2)
    broker = await MqttMachine(mqtt=options).open_broker()
    client = await durable(broker)
    assert (await client.subscribe("a", "b", "c")).reason_codes == (1, 1, 0x97)
    await durable(broker, "second")
    anonymous = client._access.new_session(ANONYMOUS_IDENTITY, "memory", "mqtt")
    with pytest.raises(errors.PolicyReached, match="the most that it may have"):
        await broker.mqtt.connect(anonymous, ConnectRequest("third", V5, True, 0, 10), WorldClient(broker, "third"))
    await broker.shutdown()


async def test_r16_wide_filters_are_refused_or_granted_without_storage() -> None:
    options = MqttOptions(
        shards=1, refused_filters=WideFilters(("+/#",)), qos0_filters=WideFilters(("plant/#",)), replay=(KEPT,)
    )
    broker = await MqttMachine(mqtt=options).open_broker()
    client = await durable(broker)
    assert (await client.subscribe("#", "+/#", "plant/#", "plant/1/#", qos=1)).reason_codes == (0x80, 0x80, 0, 1)
    await broker.shutdown()


# --- subscriptions over time ---


async def test_hazard_58_a_new_filter_gets_nothing_from_before_it() -> None:
    broker = await MqttMachine().open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("a", qos=1)
    client.lose()
    await publisher.publish("b", b"too early")
    await publisher.publish("a", b"1")
    again = await durable(broker, receive_maximum=1)
    await again.subscribe("b", qos=1)
    await publisher.publish("b", b"2")
    seen = [(await again.message()).payload for _ in range(2)]
    await quiet()
    assert sorted(seen) == [b"1", b"2"]
    assert not again.deliveries()
    await broker.shutdown()


async def test_t_unsubscribe_replay_qos1_what_was_sent_is_sent_again_and_nothing_later() -> None:
    broker = await MqttMachine().open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("a", qos=1)
    await publisher.publish("a", b"1")
    await client.message(ack=False)
    await client.unsubscribe("a")
    await publisher.publish("a", b"2")
    client.lose()
    again = await durable(broker)
    assert (await again.message()).payload == b"1"
    await quiet()
    assert not again.deliveries()
    await broker.shutdown()


async def test_hazard_62_subscribers_see_the_last_value_whenever_they_come() -> None:
    broker = await MqttMachine().open_broker()
    publisher = await connected(broker, "p")
    for number in range(20):
        publisher.send(packets.PublishPacket("t", b"%d" % number, 1, number + 1, is_retained=True))
        client = await connected(broker, f"s{number}")
        await client.subscribe("t", qos=1)
        publisher.send(packets.PublishPacket("t", b"%d-next" % number, 1, number + 100, is_retained=True))
        await quiet()
        seen = [message.payload for message in client.deliveries()]
        assert seen[-1] == b"%d-next" % number
        assert seen == sorted(set(seen), key=seen.index), "a value came twice"
    await broker.shutdown()


async def test_retain_handling_and_retain_as_published() -> None:
    broker = await MqttMachine().open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("t", b"kept", is_retained=True)
    client = await connected(broker, "s")
    await client.subscribe("t", qos=1, retain_handling=2)
    await quiet()
    assert not client.deliveries()
    await client.subscribe("t", qos=1, retain_handling=1)
    await quiet()
    assert not client.deliveries()
    await client.subscribe("t", qos=1, retain_handling=0, is_retain_as_published=True)
    assert (await client.message()).is_retained
    await publisher.publish("t", b"again", is_retained=True)
    assert (await client.message()).is_retained
    await broker.shutdown()


async def test_no_local_keeps_own_messages_away() -> None:
    broker = await MqttMachine().open_broker()
    client, other = await connected(broker, "s"), await connected(broker, "o")
    await client.subscribe("t", qos=1, is_no_local=True)
    await client.publish("t", b"own")
    await other.publish("t", b"others")
    assert (await client.message()).payload == b"others"
    await broker.shutdown()


# --- time ---


def expiring(seconds: int) -> Properties:
    return Properties([(PropertyId.MESSAGE_EXPIRY_INTERVAL, seconds)])


async def test_a_message_expires_and_a_delivery_has_the_rest_of_its_expiry() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("t", qos=1)
    client.lose()
    await publisher.publish("t", b"short", properties=expiring(5))
    await publisher.publish("t", b"long", properties=expiring(100))
    await machine.pass_time(10)
    before = metrics.MQTT_EXPIRED._value.get()
    message = await (await durable(broker)).message()
    assert message.payload == b"long"
    assert message.properties.number(PropertyId.MESSAGE_EXPIRY_INTERVAL) == 90
    assert metrics.MQTT_EXPIRED._value.get() == before + 1
    await broker.shutdown()


async def test_r28_an_expired_session_leaves_nothing() -> None:
    machine = MqttMachine(mqtt=NARROW)
    broker = await machine.open_broker()
    client, publisher = await durable(broker, expiry_s=30), await connected(broker, "p")
    await client.subscribe("a/#", qos=1)
    client.lose()
    await machine.pass_time(31)
    await publisher.publish("a/x", b"1")
    assert await payloads(broker) == []
    assert [session.state.client_id for session in broker.mqtt.sessions.values()] == ["p"]
    assert not len(broker.mqtt.index)
    again = await durable(broker)
    assert not again.history[0].is_session_present  # type: ignore[union-attr]
    await broker.shutdown()


@pytest.mark.parametrize("step", range(12))
async def test_r28_a_crash_at_any_step_of_the_end_leaves_no_session_and_one_will(step: int) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker, expiry_s=30, will=packets.Will("w", b"dead", 1))
    await client.subscribe("a/#", qos=1)
    client.lose()
    await machine.pass_time(1)
    machine.disk.crash_after(step)

    async def expire() -> None:
        await machine.pass_time(31)

    await machine.survives(expire())
    machine.disk.crash_after(-1)
    broker = await restarted(machine)
    await machine.pass_time(62)
    assert not broker.mqtt.sessions
    assert await payloads(broker) == [b"dead"]
    await broker.shutdown()


@pytest.mark.parametrize("delay", [0, 5, 60])
async def test_hazard_65_a_will_is_published_once_at_its_time(delay: int) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    properties = Properties([(PropertyId.WILL_DELAY_INTERVAL, delay)])
    client = await durable(broker, expiry_s=30, will=packets.Will("w", b"dead", 1, properties=properties))
    client.lose()
    due = min(delay, 30)
    await machine.pass_time(max(0, due - 1))
    await quiet()
    assert (await payloads(broker) == [b"dead"]) == (due == 0)
    await machine.pass_time(2)
    assert await payloads(broker) == [b"dead"]
    broker = await restarted(machine)
    await machine.pass_time(100)
    assert await payloads(broker) == [b"dead"]
    await broker.shutdown()


async def test_hazard_69_an_outage_expires_nothing() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker, expiry_s=30)
    await client.subscribe("t", qos=1)
    client.lose()
    await machine.kill()
    machine.clock.advance(7_200)
    broker = await machine.open_broker()
    again = await durable(broker)
    assert again.history[0].is_session_present  # type: ignore[union-attr]
    await broker.shutdown()


async def test_hazard_59_a_flood_of_takeovers_keeps_one_owner() -> None:
    broker = await MqttMachine().open_broker()
    publisher = await connected(broker, "p")
    client = await durable(broker)
    await client.subscribe("t", qos=1)
    seen: set[bytes] = set()
    for number in range(1_000):
        await publisher.publish("t", b"%d" % number)
        older, client = client, await durable(broker)
        for message in [*older.deliveries(), *client.deliveries()]:
            seen.add(message.payload)
        for message in older.deliveries():  # late acks of a connection that lost the session
            older.send(packets.PubackPacket(message.packet_id))
        for message in client.deliveries():
            client.send(packets.PubackPacket(message.packet_id))
        client.received.clear()
    await quiet()
    seen |= {message.payload for message in client.deliveries()}
    assert seen == {b"%d" % number for number in range(1_000)}
    assert len(broker.mqtt.clients) == 2
    await broker.shutdown()


# --- modes ---


@pytest.mark.parametrize("mode", list(SyncMode))
async def test_native_messages_reach_mqtt_subscribers(mode: SyncMode) -> None:
    broker = await MqttMachine(mode).open_broker()
    client = await connected(broker, "s")
    await client.subscribe("#", qos=1)
    producer = await broker.open_producer(MESSAGES, "native")
    await publish(broker, producer, b"1", keys=[b"plant/7"])
    await publish(broker, producer, b"2", keys=[b"not\x00a topic"])
    messages = [await client.message() for _ in range(2)]
    assert {(message.topic, message.payload) for message in messages} == {("plant/7", b"1"), ("mqtt/messages", b"2")}
    await broker.shutdown()


# --- failures ---


async def test_hazard_71_a_failed_append_of_session_state_is_read_again_from_the_log() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("t", qos=1)
    await publisher.publish("t", b"1")
    await client.message(ack=False)
    machine.disk.fail("write", errno.ENOSPC, 0)
    client.send(packets.SubscribePacket(9, (packets.SubscriptionRequest("other", 1),)))
    await machine.pass_time(2)
    machine.disk.heal()
    assert client.ended is not None
    assert not [packet for packet in client.received if isinstance(packet, packets.SubackPacket)]
    again = await durable(broker)
    assert again.history[0].is_session_present  # type: ignore[union-attr]
    assert (await again.message()).payload == b"1"
    sender = await connected(broker, "p2")
    await sender.publish("t", b"3")
    seen = [(await again.message()).payload]
    await quiet()
    seen += [message.payload for message in again.deliveries()]
    assert b"3" in seen
    await broker.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_hazard_64_a_backlog_of_a_former_route_comes_first(is_killed: bool) -> None:
    """Two changes of the route, while the session is away; then messages while it catches up."""
    machine = MqttMachine()
    expected = []
    for turn, topic in enumerate(("/mqtt/first", "/mqtt/second", "/mqtt/third")):
        machine.mqtt = MqttOptions(shards=2, replay=(ReplayRoute("#", 0, topic),))
        broker = await machine.open_broker()
        if not turn:
            client = await durable(broker, expiry_s=3_600)
            await client.subscribe("t/#", qos=1)
            client.lose()
        publisher = await connected(broker, "p")
        for number in range(5):
            expected.append(b"%d/%d" % (turn, number))
            await publisher.publish("t/x", expected[-1])
        if turn < 2:
            await (machine.kill() if is_killed else broker.shutdown())
            machine.disk.kill()
    client = await durable(broker, expiry_s=3_600, receive_maximum=2)
    for number in range(5, 8):
        expected.append(b"2/%d" % number)
        await publisher.publish("t/x", expected[-1])
    assert [(await client.message()).payload for _ in expected] == expected
    await quiet()
    assert not client.deliveries()
    await broker.shutdown()


async def test_hazard_64_a_group_continues_with_a_new_route() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    member = await durable(broker, expiry_s=3_600)
    await member.subscribe("$share/g/t", qos=1)
    await broker.shutdown()
    machine.disk.kill()
    machine.mqtt = MqttOptions(shards=1, replay=(ReplayRoute("#", 0, "/mqtt/other"),))
    broker = await machine.open_broker()
    await (await connected(broker, "p")).publish("t", b"1")
    assert (await (await durable(broker, expiry_s=3_600)).message()).payload == b"1"
    await broker.shutdown()


async def test_hazard_64_a_deleted_topic_of_a_former_route_does_not_keep_its_subscriptions() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker, expiry_s=3_600)
    await client.subscribe("t", qos=1)
    for is_first in (True, False):
        await broker.shutdown()
        machine.disk.kill()
        machine.mqtt = MqttOptions(shards=1, replay=(ReplayRoute("#", 0, "/mqtt/other"),))
        broker = await machine.open_broker()
        if is_first:
            await broker.delete_topic(MESSAGES)
    client = await durable(broker, expiry_s=3_600)
    await (await connected(broker, "p")).publish("t", b"1")
    assert (await client.message()).payload == b"1"
    assert (await client.unsubscribe("t")).reason_codes == (0,)
    await broker.shutdown()


async def test_a_topic_of_a_route_is_not_deleted_under_its_sessions() -> None:
    broker = await MqttMachine().open_broker()
    await (await connected(broker, "p")).publish("t", b"1")
    with pytest.raises(errors.InvalidInput, match="MQTT route"):
        await broker.delete_topic(MESSAGES)
    await broker.shutdown()


@pytest.mark.parametrize("is_in_flight", [False, True])
async def test_hazard_64_a_topic_of_a_former_route_is_deleted_when_no_session_is_owed_its_messages(
    is_in_flight: bool,
) -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t", qos=1)
    if not is_in_flight:
        client.lose()
    await (await connected(broker, "p")).publish("t", b"1")
    if is_in_flight:
        await client.message(ack=False)
    await broker.mqtt.change_routes((ReplayRoute("#", 0, "/mqtt/other"),))
    with pytest.raises(errors.InvalidInput, match="sessions are owed messages of it"):
        await broker.delete_topic(MESSAGES)
    again = await durable(broker)
    assert (await again.message()).payload == b"1"
    await machine.pass_time(limits.MQTT_BEAT_SECONDS)
    await broker.delete_topic(MESSAGES)
    await (await connected(broker, "p")).publish("t", b"2")
    assert (await again.message()).payload == b"2"
    await broker.shutdown()


async def test_hazard_55_messages_before_a_protocol_error_are_acked_before_its_reason() -> None:
    broker = await MqttMachine().open_broker()
    client = await connected(broker, "p")
    burst = [packets.PublishPacket("t", b"%d" % number, 2, number) for number in range(1, 1_026)]
    client.send(*burst)
    reason = await client.receive(packets.DisconnectPacket)
    assert reason.reason_code == 0x93
    acked = [packet.packet_id for packet in client.history if isinstance(packet, packets.PubrecPacket)]
    assert acked == list(range(1, 1_025))
    await broker.shutdown()
