"""MQTT sessions on the broker, without sockets: publishing, subscribing, resuming; on memory and on the log (R01), and
on a storage that is only pulled (R10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker.erasure_service import ErasureService
from icestream.broker.mqtt.message_rows import BlockMessages, encode_messages
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.block import Block
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.broker_machine import quiet, stored_rows
from tests.support.mqtt_world import V3, V5, MqttMachine, connected

pytestmark = pytest.mark.asyncio
MESSAGES = TopicName("mqtt", "messages")


@pytest.fixture(params=["log", "periodic", "memory", "pulled"])
def machine(request: pytest.FixtureRequest) -> MqttMachine:
    mode = SyncMode.PERIODIC if request.param == "periodic" else SyncMode.ALWAYS
    in_memory = request.param in ("memory", "pulled")
    return MqttMachine(mode, in_memory=in_memory, is_pulled=request.param == "pulled")


@pytest_asyncio.fixture
async def broker(machine: MqttMachine) -> AsyncIterator[Broker]:
    broker = await machine.open_broker()
    yield broker
    await broker.shutdown()


async def all_rows(broker: Broker) -> list[bytes]:
    topic = broker.topic(MESSAGES)
    rows = [await stored_rows(broker, MESSAGES, shard) for shard in range(topic.record.shards)]
    return [row["payload"] for shard in rows for row in shard.values()]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V3, V5])
async def test_r01_r10_a_message_reaches_its_subscriber_and_is_one_row_on_every_storage(
    broker: Broker, qos: int, version: object
) -> None:
    subscriber = await connected(broker, "s", version)  # type: ignore[arg-type]
    assert (await subscriber.subscribe("a/+", qos=2)).reason_codes == (2,)
    publisher = await connected(broker, "p", version)  # type: ignore[arg-type]
    await publisher.publish("a/b", b"x", qos)
    message = await subscriber.message()
    assert (message.topic, message.payload, message.qos, message.is_duplicate) == ("a/b", b"x", qos, False)
    await quiet()
    assert not subscriber.deliveries()
    assert await all_rows(broker) == [b"x"]


async def test_an_offline_session_gets_its_messages_in_order(broker: Broker) -> None:
    first = await connected(broker, "s", clean=False, expiry_s=60)
    await first.subscribe("a/#", qos=1)
    first.lose()
    publisher = await connected(broker, "p")
    for number in range(20):
        await publisher.publish("a/b", b"%d" % number)
    again = await connected(broker, "s", clean=False, expiry_s=60)
    assert [(await again.message()).payload for _ in range(20)] == [b"%d" % number for number in range(20)]
    await publisher.publish("a/b", b"live")
    assert (await again.message()).payload == b"live"


async def test_unacked_messages_are_sent_again_with_their_ids(broker: Broker) -> None:
    first = await connected(broker, "s", clean=False, expiry_s=60)
    await first.subscribe("a/#", qos=2)
    publisher = await connected(broker, "p")
    for number in range(3):
        await publisher.publish("a/b", b"%d" % number, qos=1 + number % 2)
    before = [await first.message(ack=False) for _ in range(3)]
    first.lose()
    again = await connected(broker, "s", clean=False, expiry_s=60)
    after = [await again.message() for _ in range(3)]
    assert [(m.packet_id, m.payload, m.qos) for m in after] == [(m.packet_id, m.payload, m.qos) for m in before]
    assert all(message.is_duplicate for message in after)


async def test_a_restart_keeps_sessions_and_what_they_are_owed(machine: MqttMachine) -> None:
    if machine.in_memory:
        pytest.skip("memory does not survive")
    broker = await machine.open_broker()
    first = await connected(broker, "s", clean=False, expiry_s=60)
    await first.subscribe("a/#", qos=1)
    publisher = await connected(broker, "p")
    await publisher.publish("a/b", b"1")
    unacked = await first.message(ack=False)
    first.lose()
    await publisher.publish("a/b", b"2")
    await publisher.publish("other", b"3")
    machine.view.kill()
    broker = await machine.open_broker()
    again = await connected(broker, "s", clean=False, expiry_s=60)
    assert again.history[0] == packets.ConnackPacket(0, True, again.history[0].properties)  # type: ignore[union-attr]
    resent = await again.message()
    assert (resent.payload, resent.packet_id, resent.is_duplicate) == (b"1", unacked.packet_id, True)
    assert (await again.message()).payload == b"2"
    await quiet()
    assert not again.deliveries()
    await broker.shutdown()


async def test_retained_messages_come_with_a_subscription(broker: Broker) -> None:
    publisher = await connected(broker, "p")
    await publisher.publish("a/1", b"old", is_retained=True)
    await publisher.publish("a/1", b"new", is_retained=True)
    await publisher.publish("a/2", b"gone", is_retained=True)
    await publisher.publish("a/2", b"", is_retained=True)
    subscriber = await connected(broker, "s")
    await subscriber.subscribe("a/+", qos=1)
    message = await subscriber.message()
    assert (message.payload, message.is_retained) == (b"new", True)
    await publisher.publish("a/1", b"newer", is_retained=True)
    message = await subscriber.message()
    assert (message.payload, message.is_retained) == (b"newer", False)


async def test_a_will_is_published_when_the_connection_is_lost(broker: Broker) -> None:
    subscriber = await connected(broker, "s")
    await subscriber.subscribe("wills/#", qos=1)
    doomed = await connected(broker, "d", will=packets.Will("wills/d", b"dead", 1))
    doomed.lose()
    assert (await subscriber.message()).payload == b"dead"
    leaving = await connected(broker, "l", will=packets.Will("wills/l", b"dead", 1))
    leaving.send(packets.DisconnectPacket())
    await quiet()
    assert not subscriber.deliveries()


async def test_a_takeover_disconnects_the_older_connection(broker: Broker) -> None:
    first = await connected(broker, "s", clean=False, expiry_s=60)
    second = await connected(broker, "s", clean=False, expiry_s=60)
    assert (await first.receive(packets.DisconnectPacket)).reason_code == 0x8E
    await second.subscribe("a")
    await second.publish("a", b"x")
    assert (await second.message()).payload == b"x"


async def test_a_shared_subscription_deals_messages_to_its_members(broker: Broker) -> None:
    members = [await connected(broker, f"m{number}") for number in range(3)]
    for member in members:
        await member.subscribe("$share/g/a/#", qos=1)
    publisher = await connected(broker, "p")
    for number in range(30):
        await publisher.publish(f"a/{number}", b"%d" % number)
    await quiet()
    counts = [len(member.deliveries()) for member in members]
    assert sum(counts) == 30
    assert min(counts) > 0
    payloads = {message.payload for member in members for message in member.deliveries()}
    assert len(payloads) == 30


async def test_a_dead_members_messages_go_to_others(broker: Broker) -> None:
    first, second = await connected(broker, "m1"), await connected(broker, "m2")
    await first.subscribe("$share/g/a", qos=1)
    publisher = await connected(broker, "p")
    for number in range(5):
        await publisher.publish("a", b"%d" % number)
    await quiet()
    assert len(first.deliveries()) == 5
    await second.subscribe("$share/g/a", qos=1)
    first.lose()
    assert sorted([(await second.message()).payload for _ in range(5)]) == [b"%d" % number for number in range(5)]


async def test_a_replay_sends_history_and_then_live_messages(broker: Broker) -> None:
    publisher = await connected(broker, "p")
    for number in range(50):
        await publisher.publish(f"a/{number % 5}", b"%d" % number)
    subscriber = await connected(broker, "s")
    replay = Properties([(PropertyId.USER_PROPERTY, ("replay-from", "earliest"))])
    await subscriber.subscribe("a/#", qos=1, properties=replay)
    history = [(await subscriber.message()).payload for _ in range(50)]
    assert sorted(history, key=int) == [b"%d" % number for number in range(50)]
    await publisher.publish("a/1", b"live")
    assert (await subscriber.message()).payload == b"live"
    await quiet()
    assert not subscriber.deliveries()


async def test_overlapping_subscriptions_are_one_delivery_with_all_identifiers(broker: Broker) -> None:
    subscriber = await connected(broker, "s")
    for topic_filter, identifier, qos in (("a/#", 1, 0), ("a/+", 2, 1)):
        properties = Properties([(PropertyId.SUBSCRIPTION_IDENTIFIER, identifier)])
        await subscriber.subscribe(topic_filter, qos=qos, properties=properties)
    await subscriber.publish("a/b", b"x", 2)
    message = await subscriber.message()
    assert (message.qos, message.properties.subscription_identifiers()) == (1, [1, 2])
    await quiet()
    assert not subscriber.deliveries()


async def test_a_window_is_respected_and_reopens_with_acks(broker: Broker) -> None:
    subscriber = await connected(broker, "s", receive_maximum=2)
    await subscriber.subscribe("a", qos=1)
    publisher = await connected(broker, "p")
    for number in range(10):
        await publisher.publish("a", b"%d" % number)
    await quiet()
    assert len(subscriber.deliveries()) == 2
    assert [(await subscriber.message()).payload for _ in range(10)] == [b"%d" % number for number in range(10)]


async def test_an_unsubscribed_filter_gets_nothing_more(broker: Broker) -> None:
    subscriber = await connected(broker, "s", clean=False, expiry_s=60)
    await subscriber.subscribe("a")
    await subscriber.publish("a", b"1")
    assert (await subscriber.message()).payload == b"1"
    assert (await subscriber.unsubscribe("a", "b")).reason_codes == (0, 0x11)
    await subscriber.publish("a", b"2")
    await quiet()
    assert not subscriber.deliveries()


@pytest.mark.parametrize("version", [V5])
async def test_user_properties_reach_subscriber_and_table(broker: Broker, version: object) -> None:
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    properties = Properties([(PropertyId.USER_PROPERTY, pair) for pair in pairs])
    subscriber = await connected(broker, "s", version)  # type: ignore[arg-type]
    await subscriber.subscribe("t")
    await subscriber.publish("t", b"x", properties=properties)
    assert (await subscriber.message()).properties.user_properties() == pairs
    row = next(iter({**await stored_rows(broker, MESSAGES, 0), **await stored_rows(broker, MESSAGES, 1)}.values()))
    assert row["headers"] == {"a": "3", "b": "2"}
    assert (row["key"], row["producer_name"], row["qos"]) == (b"t", "s", 1)


async def test_sessions_and_retained_messages_free_log_files(machine: MqttMachine) -> None:
    if machine.in_memory:
        pytest.skip("memory has no files")
    broker = await machine.open_broker()
    client = await connected(broker, "s", clean=False, expiry_s=60)
    await client.subscribe("a/#", qos=1)
    await client.publish("kept", b"value", is_retained=True)
    client.lose()
    publisher = await connected(broker, "p")
    log = machine.log
    assert log is not None
    first = broker.storage.log_file_number
    for _ in range(60):
        await publisher.publish("other", bytes(6_000))
    assert broker.storage.log_file_number > first + 3
    for _ in range(3):
        await machine.pass_time(11)
    floors = [log.state.shards[key].floor for key in log.state.shards if key.topic_id >= 2**62]

    assert all(floor > 0 for floor in floors)
    await machine.kill()
    broker = await machine.open_broker()
    again = await connected(broker, "s", clean=False, expiry_s=60)
    assert again.history[0].is_session_present  # type: ignore[union-attr]
    await again.subscribe("kept", qos=1)
    assert (await again.message()).payload == b"value"
    await broker.shutdown()


async def test_hazard_97_a_retained_message_of_an_erased_row_is_gone_for_good(
    machine: MqttMachine, tmp_path: Path
) -> None:
    """Also from the log of retained messages, once its files are retired."""
    if machine.in_memory:
        pytest.skip("memory has no files")
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("home/alice", b"canary", is_retained=True)
    await publisher.publish("home/bob", b"stays", is_retained=True)
    await quiet()
    await machine.pass_time(11)
    topic = broker.topic(MESSAGES)
    rows = [(shard, at, row) for shard in range(2) for at, row in (await stored_rows(broker, MESSAGES, shard)).items()]
    erased = {(shard, at) for shard, at, row in rows if row["payload"] == b"canary"}
    assert set(await broker.mqtt.retained_places(topic.record.id)) == {(shard, at) for shard, at, _ in rows}
    assert await broker.mqtt.forget_retained(topic.record.id, erased) == 1
    log = machine.log
    assert log is not None
    service = ErasureService(log, machine.store, machine.clock, tmp_path / "erasure.key", "node", "", broker.mqtt)
    keys = [key for key in log.state.shards if key.topic_id == topic.record.id]
    await log.sync()
    cut = {key.shard: log.state.shards[key].synced for key in keys}
    await log.advance_floor({key: cut[key.shard] for key in keys})
    left = await service.retire_log(topic.record.id, cut, is_check=False)
    assert [text for text in left if "file 1 is kept for" in text], "the state of sessions is in this file, too"
    for _ in range(60):
        await publisher.publish("other", bytes(6_000))
    for _ in range(3):
        await machine.pass_time(11)
    assert await service.retire_log(topic.record.id, cut, is_check=True) == []
    await machine.kill()
    assert [name for name in machine.disk.names() if b"canary" in content(machine, name)] == []
    broker = await machine.open_broker()
    again = await connected(broker, "s")
    await again.subscribe("home/#", qos=1)
    assert (await again.message()).payload == b"stays"
    await quiet()
    assert not again.deliveries()
    await broker.shutdown()


def content(machine: MqttMachine, name: str) -> bytes:
    file = machine.disk.open(name)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


@pytest.mark.parametrize(
    ("bounds", "is_decided", "is_matched"),
    [
        ((0, -1), True, True),
        ((10, 20), True, True),
        ((0, 10), True, False),
        ((20, -1), True, False),
        ((11, -1), False, False),
        ((0, 19), False, False),
        ((12, 15), False, False),
    ],
)
async def test_hazard_58_a_subscription_that_begins_or_ends_within_a_run_decides_row_by_row(
    bounds: tuple[int, int], is_decided: bool, is_matched: bool
) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await connected(broker, "s")
    await client.subscribe("a", qos=1)
    (session,) = broker.mqtt.sessions.values()
    (generation,) = session.state.generations.values()
    key = next(iter(generation.bounds))
    generation.bounds[key] = bounds
    block = Block(encode_messages([packets.PublishPacket("a", b"", 1, 1)] * 10, "p", 1))
    plain = BlockMessages(block, [1] * 10, "native").plain
    assert plain is not None
    decision = session._decide_run(plain, key, 10, 20, [generation])
    assert (decision is not None) == is_decided
    assert bool(decision and decision.generation) == is_matched
    await machine.kill()


@pytest.mark.parametrize("error", [errors.DiskFull("full"), RuntimeError("no such thing")], ids=["refused", "failed"])
async def test_hazard_97_a_retained_message_that_the_log_keeps_is_named_again(
    machine: MqttMachine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The log cannot be compacted, so the message is there after a restart: the next erasure has to hear of it."""
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("home/alice", b"canary", is_retained=True)
    await quiet()
    topic_id = broker.topic(MESSAGES).record.id
    places = await broker.mqtt.retained_places(topic_id)

    async def fail() -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(broker.mqtt._retained_log._storage, "wait_durable", fail)
        with pytest.raises((errors.NotReady, RuntimeError)):
            await broker.mqtt.forget_retained(topic_id, set(places))
    assert await broker.mqtt.retained_places(topic_id) == places
    assert await broker.mqtt.forget_retained(topic_id, set(places)) == len(places) == 1
    assert await broker.mqtt.retained_places(topic_id) == []
    await broker.shutdown()
