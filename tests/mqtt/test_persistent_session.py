"""Scenarios of sessions that outlive their connections, under the names that EMQX's persistent_session suite has.

Each runs in both versions where it can be said in both, and also with the owner of the session killed (SIGKILL, and a
new process on its data). Order is asserted within a topic: topics are spread over shards.
"""

from __future__ import annotations

import asyncio

import pytest

from icestream.mqtt import packets
from icestream.mqtt.packets import PublishPacket
from icestream.mqtt.reason_codes import ReasonCode
from tests.mqtt.conftest import Scene
from tests.support.mqtt_client import V3, V5, ConnectionClosed, MqttClient, open_client, property_list

pytestmark = pytest.mark.asyncio


def texts(first: int, count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(first, first + count)]


def kept(delivery: PublishPacket) -> tuple[int, str, bytes, int]:
    """What a resend must have in common with the delivery."""
    return delivery.packet_id, delivery.topic, delivery.payload, delivery.qos


async def test_choose_impl(scene5: Scene) -> None:
    """The expiry decides whether a session outlives its connection."""
    scene = scene5
    await scene.check_session("kept", is_present=False)
    await scene.check_session("gone", is_present=False, expiry_seconds=0)
    await scene.owner_lost()
    await scene.check_session("kept", is_present=True)
    await scene.check_session("gone", is_present=False, expiry_seconds=0)


async def test_connect_discards_existing_client(scene: Scene) -> None:
    """A second CONNECT of a client id takes the session over; the first connection is told so."""
    async with scene.session(is_present=False) as first:
        await first.subscribe(scene.topic("a"))
        async with scene.session(is_present=True) as second:
            assert await first.end_reason() == (ReasonCode.SESSION_TAKEN_OVER if scene.version is V5 else None)
            await scene.publish(("a", b"1", 1))
            delivery = await second.message()
            assert delivery.payload == b"1"
    await scene.owner_lost()
    async with scene.session(is_present=True) as third:
        assert kept(await third.message()) == kept(delivery)


@pytest.mark.parametrize("qos", [1, 2])
async def test_connect_session_expiry_interval(scene: Scene, qos: int) -> None:
    """What is published while the client is away is delivered when it returns."""
    async with scene.session(is_present=False) as client:
        await client.subscribe((scene.topic("a/+"), qos))
    await scene.publish(("a/b", b"offline", qos))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        delivery = await client.message()
        assert (delivery.topic, delivery.payload, delivery.qos) == (scene.topic("a/b"), b"offline", qos)
        assert not delivery.is_duplicate
        await client.ack(delivery)


async def test_connect_session_expiry_interval_subscription_filter(scene: Scene) -> None:
    """Stored messages that do not match do not hold up those that do."""
    async with scene.session("narrow") as narrow, scene.session("wide") as wide:
        await narrow.subscribe((scene.topic("a/+/x"), 1))
        await wide.subscribe((scene.topic("#"), 1))
    others = [(f"a/{number}/y", b"other", 1) for number in range(300)]
    await scene.publish(*others[:150], ("a/1/x", b"first", 1), *others[150:], ("a/1/x", b"last", 1))
    await scene.owner_lost()
    async with scene.session("narrow", is_present=True) as narrow:
        assert await narrow.payloads(2) == [b"first", b"last"]


async def test_without_client_id(scene: Scene) -> None:
    """3.1.1 cannot name a session that has no id; 5.0 has one assigned."""
    await scene.owner_lost()
    async with await open_client(scene.port, scene.version) as client:
        connack = await client.connect("", is_clean_start=False)
        if scene.version is V3:
            assert connack.reason_code == 2
            assert await client.end_reason() is None
        else:
            assert (connack.reason_code, connack.is_session_present) == (0, False)
            assert client.client_id


async def test_assigned_clientid_persistent_session(scene5: Scene) -> None:
    """A session whose id the broker assigned is resumed by that id."""
    scene = scene5
    async with await open_client(scene.port) as first:
        await first.connect("", expiry_seconds=600)
        await first.subscribe(scene.topic("a"))
        await first.disconnect()
    await scene.publish(("a", b"1", 1))
    await scene.owner_lost()
    async with await open_client(scene.port) as second:
        connack = await second.connect(first.client_id, is_clean_start=False, expiry_seconds=0)
        assert connack.is_session_present
        assert await second.payloads(1) == [b"1"]
        await second.disconnect()


async def test_cancel_on_disconnect(scene5: Scene) -> None:
    """A DISCONNECT with the expiry 0 ends the session."""
    async with scene5.session() as client:
        await client.subscribe(scene5.topic("a"))
        await client.disconnect(expiry_seconds=0)
    await scene5.owner_lost()
    await scene5.check_session("session", is_present=False)


async def test_persist_on_disconnect(scene5: Scene) -> None:
    """A session whose expiry was 0 cannot be kept by DISCONNECT: a protocol error, and no session."""
    async with scene5.session(expiry_seconds=0) as client:
        await client.subscribe(scene5.topic("a"))
        unread = await client.disconnect(expiry_seconds=30)
        assert all(isinstance(packet, packets.DisconnectPacket) for packet in unread), unread
    await scene5.owner_lost()
    await scene5.check_session("session", is_present=False, expiry_seconds=0)


async def test_process_dies_session_expires(scene5: Scene) -> None:
    """A session expires also if its connection ended by a crash. A will that is due later comes at the expiry."""
    scene = scene5
    will = packets.Will(scene.topic("will"), b"expired", 1, properties=property_list(will_delay_interval=3600))
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session("dies", expiry_seconds=1, will=will) as client:
        await client.subscribe(scene.topic("a"))
        client.abort()
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        assert await watcher.payloads(1) == [b"expired"]
    await scene.check_session("dies", is_present=False)


async def test_publish_while_client_is_gone_qos1(scene: Scene) -> None:
    """Offline messages arrive in the order in which they were published."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), 1))
    await scene.publish(*(("a", text, 1) for text in texts(0, 30)))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(30) == texts(0, 30)


async def test_publish_while_client_is_gone(scene: Scene) -> None:
    """The same for QoS 2, published in two parts with a connection between them that takes some."""
    async with scene.session() as client:
        await client.subscribe(scene.topic("a"))
    await scene.publish(*(("a", text, 2) for text in texts(0, 20)))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(5) == texts(0, 5)
    await scene.publish(*(("a", text, 2) for text in texts(20, 10)))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(25) == texts(5, 25)


async def test_publish_many_while_client_is_gone_qos1(scene: Scene) -> None:
    """Unacked messages come again with their id and DUP, in their order, then those that were not sent yet."""
    filters = ("t/+/foo", "msg/feed/#", "loc/+/+/+")
    topics = ["t/1/foo", "msg/feed/friend", "loc/1/2/42", "msg/feed/me", "loc/3/4/6", "t/2/foo"]
    async with scene.session() as client:
        await client.subscribe(*((scene.topic(name), 1) for name in filters))
        await scene.publish(*((topic, b"%d" % number, 1) for number, topic in enumerate(topics)))
        sent = await client.messages(len(topics))
        await client.ack(sent[0])
        await client.ack(sent[3])
        await client.ping()
    await scene.publish(*((topic, b"late", 1) for topic in topics))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        again = await client.messages(len(topics) - 2)
        assert [kept(delivery) for delivery in again] == [
            kept(delivery) for delivery in sent if delivery not in (sent[0], sent[3])
        ]
        assert all(delivery.is_duplicate for delivery in again)
        late = await client.messages(len(topics))
        assert not any(delivery.is_duplicate for delivery in late)
        assert sorted(delivery.topic for delivery in late) == sorted(map(scene.topic, topics))
        for delivery in again + late:
            await client.ack(delivery)
        await client.disconnect()
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        await scene.publish(("t/1/foo", b"end", 1))
        assert (await client.message()).payload == b"end"


async def test_publish_many_while_client_is_gone(scene: Scene) -> None:
    """QoS 1 and 2 mixed, over three connections: only what was not PUBRECed comes again, and PUBREL is repeated."""
    async with scene.session() as client:
        await client.subscribe(scene.topic("a"))
        await scene.publish(*(("a", text, 1 + number % 2) for number, text in enumerate(texts(0, 10))))
        sent = await client.messages(10)
        await client.ack(sent[0])  # QoS 1, done
        await client.ack(sent[1])  # QoS 2, done
        for delivery in (sent[3], sent[5]):  # QoS 2: PUBREC, and PUBREL came
            await client.send(packets.PubrecPacket(delivery.packet_id))
            assert (await client.receive(packets.PubrelPacket)).packet_id == delivery.packet_id
    await scene.owner_lost()
    await scene.publish(*(("a", text, 2) for text in texts(10, 3)))
    unacked = [sent[2], sent[4], sent[6], sent[7], sent[8], sent[9]]
    async with scene.session(is_present=True) as client:
        again, released = await replayed(client, len(unacked), 2)
        assert [kept(delivery) for delivery in again] == [kept(delivery) for delivery in unacked]
        assert all(delivery.is_duplicate for delivery in again)
        assert released == [sent[3].packet_id, sent[5].packet_id]
        await client.send(packets.PubcompPacket(sent[3].packet_id))
        await client.ack(sent[2])
        await client.ack(sent[4])
        fresh = await client.messages(3)
        assert [delivery.payload for delivery in fresh] == texts(10, 3)
        await client.ping()
    await scene.owner_lost()
    unacked = [sent[6], sent[7], sent[8], sent[9], *fresh]
    async with scene.session(is_present=True) as client:
        again, released = await replayed(client, len(unacked), 1)
        assert [kept(delivery) for delivery in again] == [kept(delivery) for delivery in unacked]
        assert released == [sent[5].packet_id]
        await client.send(packets.PubcompPacket(sent[5].packet_id))
        for delivery in again:
            await client.ack(delivery)
        await scene.publish(("a", b"end", 2))
        assert await client.payloads(1) == [b"end"]


async def replayed(client: MqttClient, deliveries: int, releases: int) -> tuple[list[PublishPacket], list[int]]:
    return (
        await client.messages(deliveries),
        [(await client.receive(packets.PubrelPacket)).packet_id for _ in range(releases)],
    )


async def test_clean_start_drops_subscriptions(scene: Scene) -> None:
    """After a clean start nothing of the old backlog is ever delivered."""
    async with scene.session() as client:
        await client.subscribe(scene.topic("a"))
    await scene.publish(("a", b"old", 2))
    await scene.owner_lost()
    async with scene.client("session", is_clean_start=True) as client:
        assert client.connack is not None
        assert not client.connack.is_session_present
        await scene.publish(("a", b"none", 2))
        await client.subscribe(scene.topic("a"))
        await scene.publish(("a", b"new", 2))
        assert await client.payloads(1) == [b"new"]
        await client.disconnect()
    await scene.owner_lost()
    async with scene.session(is_present=False) as client:
        await client.subscribe(scene.topic("b"))
        await scene.publish(("a", b"none", 2), ("b", b"b", 2))
        assert await client.payloads(1) == [b"b"]


async def test_unsubscribe(scene: Scene) -> None:
    """An unsubscribed filter stays so after the session is resumed."""
    async with scene.session() as client:
        await client.subscribe(scene.topic("a/+"), scene.topic("b"))
        await client.unsubscribe(scene.topic("a/+"))
    await scene.owner_lost()
    await scene.publish(("a/x", b"none", 1), ("b", b"b", 1))
    async with scene.session(is_present=True) as client:
        assert await client.payloads(1) == [b"b"]
        await scene.publish(("a/x", b"none", 1), ("b", b"c", 1))
        assert await client.payloads(1) == [b"c"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_unsubscribe_replay(scene: Scene, qos: int) -> None:
    """What was sent and not acked comes again after UNSUBSCRIBE; what was not sent does not."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), qos), (scene.topic("b"), qos))
        await scene.publish(*(("a", text, qos) for text in texts(0, 5)))
        sent = await client.messages(5)
        await client.unsubscribe(scene.topic("a"))
        await scene.publish(("a", b"none", qos))
        await client.ping()
    await scene.publish(("a", b"none", qos), ("b", b"b", qos))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        again = await client.messages(6)
        assert [kept(delivery) for delivery in again[:5]] == [kept(delivery) for delivery in sent]
        assert again[5].payload == b"b"
        for delivery in again:
            await client.ack(delivery)


@pytest.mark.parametrize("qos", [1, 2])
async def test_transient(scene: Scene, qos: int) -> None:
    """Retained messages between deliveries of a subscription confuse no ids, and come again if they were not acked."""
    await scene.publish(("r/1", b"kept 1", qos), ("r/2", b"kept 2", qos), is_retained=True)
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), qos))
        await scene.publish(*(("a", text, qos) for text in texts(0, 3)))
        sent = await client.messages(3)
        await client.subscribe((scene.topic("r/+"), qos))
        retained = await client.messages(2)
        assert {delivery.payload for delivery in retained} == {b"kept 1", b"kept 2"}
        await scene.publish(*(("a", text, qos) for text in texts(3, 3)))
        sent += retained + await client.messages(3)
        assert len({delivery.packet_id for delivery in sent}) == 8
        await client.ack(retained[0])
        await client.ping()
    await scene.owner_lost()
    unacked = [delivery for delivery in sent if delivery is not retained[0]]
    async with scene.session(is_present=True) as client:
        again = await client.messages(len(unacked))
        assert [kept(delivery) for delivery in again] == [kept(delivery) for delivery in unacked]
        assert [delivery.is_retained for delivery in again] == [delivery.is_retained for delivery in unacked]
        for delivery in again:
            await client.ack(delivery)
        await scene.publish(("a", b"end", qos))
        assert await client.payloads(1) == [b"end"]
    await scene.publish(("r/1", b"", qos), ("r/2", b"", qos), is_retained=True)


async def test_multiple_subscription_matches(scene: Scene) -> None:
    """A message that matches two filters of a session is delivered once, with the higher QoS and all identifiers."""
    async with scene.session() as client:
        first = property_list(subscription_identifier=7) if scene.version is V5 else property_list()
        second = property_list(subscription_identifier=9) if scene.version is V5 else property_list()
        await client.subscribe((scene.topic("t/+/foo"), 1), properties=first)
        await client.subscribe((scene.topic("t/#"), 2), properties=second)
    await scene.publish(("t/x/foo", b"both", 2))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        await scene.publish(("t/x/bar", b"one", 2))
        both, one = await client.messages(2, acked=True)
        if one.payload == b"both":
            both, one = one, both
        assert (both.payload, both.qos, one.payload) == (b"both", 2, b"one")
        if scene.version is V5:
            assert sorted(both.properties.subscription_identifiers()) == [7, 9]
            assert one.properties.subscription_identifiers() == [9]


async def test_no_will_message(scene: Scene) -> None:
    """A DISCONNECT removes the will."""
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session("leaves", will=packets.Will(scene.topic("will"), b"none", 1)) as client:
        await client.disconnect()
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        await scene.publish(("will", b"behind", 1))
        assert await watcher.payloads(1) == [b"behind"]


WILL_DELAYS = {
    "delay as long as the expiry": (1, 1),
    "no delay": (0, 600),
    "delay longer than the expiry": (3600, 1),
}


@pytest.mark.parametrize(("delay", "expiry"), WILL_DELAYS.values(), ids=WILL_DELAYS)
async def test_will_message(scene5: Scene, delay: int, expiry: int) -> None:
    """A will comes once, after its delay or when the session ends, whichever is first."""
    scene = scene5
    will = packets.Will(scene.topic("will"), b"lost", 1, properties=property_list(will_delay_interval=delay))
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session("lost", expiry_seconds=expiry, will=will) as client:
        client.abort()
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        assert await watcher.payloads(1) == [b"lost"]
        await scene.publish(("will", b"behind", 1))
        assert await watcher.payloads(1) == [b"behind"]


async def test_will_message_is_cancelled_by_return(scene5: Scene) -> None:
    """A client that is back before the delay is over has sent no will."""
    scene = scene5
    will = packets.Will(scene.topic("will"), b"none", 1, properties=property_list(will_delay_interval=2))
    later = packets.Will(scene.topic("will"), b"of another session", 1, properties=property_list(will_delay_interval=3))
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session("back", will=will) as client:
        client.abort()
    await scene.check_session("back", is_present=True)
    async with scene.session("other", will=later) as client:
        client.abort()
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        assert await watcher.payloads(1) == [b"of another session"]


async def test_sys_message_delivery(scene: Scene) -> None:
    """Topics that begin with `$` reach a durable session that names them, and no wildcard at the first level."""
    name = f"$app/{scene.client_id('test')}"
    async with scene.session() as client:
        await client.subscribe((f"{name}/#", 1))
    async with scene.session("wild") as wild:
        await wild.subscribe((f"+/{scene.client_id('test')}/#", 1), ("+/end", 1))
    async with scene.client("writer") as writer:
        assert await writer.publish(f"{name}/a", b"1", 1) < 0x80
        assert await writer.publish(scene.topic("end"), b"end", 1) < 0x80
    await scene.owner_lost()
    async with scene.session(is_present=True) as client, scene.session("wild", is_present=True) as wild:
        assert await client.payloads(1) == [b"1"]
        assert await wild.payloads(1) == [b"end"]


WRONG_ACKS = {
    "client_replies_pubrec_when_qos1": (1, packets.PubrecPacket),
    "client_replies_pubcomp_when_qos1": (1, packets.PubcompPacket),
    "client_replies_puback_when_qos2": (2, packets.PubackPacket),
}


@pytest.mark.parametrize(("qos", "wrong"), WRONG_ACKS.values(), ids=WRONG_ACKS)
async def test_client_replies_wrong_ack(scene: Scene, qos: int, wrong: type[packets.Acknowledgement]) -> None:
    """An ack of the wrong kind ends the connection, and the message comes again."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), qos))
        await scene.publish(("a", b"1", qos), ("a", b"2", qos))
        sent = await client.messages(2)
        await client.send(wrong(sent[0].packet_id))
        assert await client.end_reason() == (ReasonCode.PROTOCOL_ERROR if scene.version is V5 else None)
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        again = await client.messages(2)
        assert [kept(delivery) for delivery in again] == [kept(delivery) for delivery in sent]
        for delivery in again:
            await client.ack(delivery)
        await scene.publish(("a", b"3", qos))
        assert await client.payloads(1) == [b"3"]


async def test_concurrent_connects_leave_one_connection(scene: Scene) -> None:
    """Of many CONNECTs with one client id at once, one wins; the others are closed."""
    clients = [await open_client(scene.port, scene.version) for _ in range(8)]
    expiry = 600 if scene.version is V5 else None

    async def connect(client: MqttClient) -> None:
        try:
            await client.connect(scene.client_id("session"), is_clean_start=False, expiry_seconds=expiry)
        except ConnectionClosed:
            return

    await asyncio.gather(*map(connect, clients))
    # The CONNACK of the last one may arrive before the others hear that they have lost.
    ends = {asyncio.create_task(client.read_to_end()): client for client in clients}
    while len(ends) > 1:
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ended:
            end.result()
            await ends.pop(end).close()
    ((waiting, winner),) = ends.items()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await winner.ping()
    await winner.subscribe(scene.topic("a"))
    await scene.publish(("a", b"1", 1))
    assert (await winner.message()).payload == b"1"
    await winner.close()
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(1) == [b"1"]
