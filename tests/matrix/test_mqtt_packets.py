"""Every packet that an MQTT client sends: by anonymous, without rights, with exactly the right, and with the right on
everything else. The packet types are those of the protocol; one without an entry fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.packet_type import PacketType
from icestream.mqtt.reason_codes import ReasonCode
from tests.support.access_world import AccessWorld, access_world
from tests.support.mqtt_client import MqttClient, open_client, property_list

pytestmark = pytest.mark.asyncio
TOPIC, FILTER = "orders/1", "orders/#"
ROUTE = ("all on /shop/*", "all on mqtt:other/#")  # the rights of a neighbour of the topic of the route
REFUSED_ANONYMOUS = ReasonCode.BAD_USER_NAME_OR_PASSWORD  # at CONNECT: it needs a credential
REPLAY = property_list(user_property=[("replay-from", "earliest")])


async def publish(client: MqttClient, qos: int = 1, *, is_retained: bool = False) -> int:
    return await client.publish(TOPIC, b"sent", qos, is_retained=is_retained)


async def subscribe(client: MqttClient, topic_filter: str = FILTER, **options: object) -> int:
    (code,) = await client.subscribe((topic_filter, 0), **options)  # type: ignore[arg-type]
    return code


class Packet(NamedTuple):
    """How a packet is tried.

    send          sends it, and returns the reason code of the answer; None: CONNECT itself is the packet
    rules         that allow exactly it, and the same elsewhere
    is_stored     with the right it stores a message
    is_delivered  with the right it brings the message that is there
    """

    send: Callable[[MqttClient], Awaitable[int]] | None
    rules: tuple[str, ...]
    neighbours: tuple[str, ...] | None = None
    is_stored: bool = False
    is_delivered: bool = False
    will: packets.Will | None = None


PRODUCE, CONSUME = (f"produce on mqtt:{TOPIC}",), (f"consume on mqtt:{FILTER}",)
PACKETS: dict[str, Packet] = {
    "CONNECT": Packet(None, CONSUME, neighbours=()),
    "CONNECT, will": Packet(None, PRODUCE, will=packets.Will(TOPIC, b"last", 1, is_retained=True)),
    "PUBLISH": Packet(publish, PRODUCE, is_stored=True),
    "PUBLISH, QoS 2": Packet(lambda client: publish(client, 2), PRODUCE, is_stored=True),
    "PUBLISH, retained": Packet(lambda client: publish(client, is_retained=True), PRODUCE, is_stored=True),
    "PUBLISH, by the topic of the route": Packet(publish, ("produce on /mqtt/messages",), ROUTE, is_stored=True),
    "SUBSCRIBE": Packet(subscribe, CONSUME, is_delivered=True),
    "SUBSCRIBE, by the topic of the route": Packet(subscribe, ("consume on /mqtt/messages",), ROUTE, is_delivered=True),
    "SUBSCRIBE, shared": Packet(lambda client: subscribe(client, f"$share/g/{FILTER}"), CONSUME),
    "SUBSCRIBE, replay": Packet(
        lambda client: subscribe(client, properties=REPLAY), CONSUME, is_delivered=True
    ),
}  # fmt: skip
# Of the connection and its own session, about packet ids that it has itself.
OF_THE_SESSION = {
    PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP, PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ, PacketType.DISCONNECT,
}  # fmt: skip
OF_THE_BROKER = {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP}
# No method of authentication by AUTH is supported; the will is a part of CONNECT.
WITHOUT_EFFECT = {PacketType.AUTH, PacketType.WILL}


async def test_every_packet_has_an_entry() -> None:
    tried = {PacketType[name.partition(",")[0]] for name in PACKETS}
    assert tried | OF_THE_SESSION | OF_THE_BROKER | WITHOUT_EFFECT == set(PacketType)
    assert not tried & (OF_THE_SESSION | OF_THE_BROKER)


@pytest.mark.parametrize("name", PACKETS)
async def test_a_packet_needs_exactly_its_right(tmp_path: Path, name: str) -> None:
    packet = PACKETS[name]
    async with access_world(tmp_path, packet.rules, packet.neighbours, mqtt={"enable": True}) as world:
        before = stored(world)
        for caller in world.strangers:
            if name == "CONNECT" and caller.startswith(("neighbour", "weaker")):
                continue  # any right on anything opens a session
            refusal = REFUSED_ANONYMOUS if caller == "anonymous" else ReasonCode.NOT_AUTHORIZED
            assert await attempt(world, caller, packet) == refusal, caller
        assert stored(world) == before
        assert await attempt(world, "exact", packet) <= ReasonCode.GRANTED_QOS_2
        assert stored(world) == before + packet.is_stored


async def attempt(world: AccessWorld, caller: str, packet: Packet) -> int:
    """The reason code with which a caller's packet is answered. A caller without any right gets no session."""
    port = world.node.services.ports()["mqtt_port"]
    assert isinstance(port, int)
    token = world.token(caller)
    login = {"user_name": "token", "password": token.encode()} if token else {}
    async with await open_client(port) as client:
        connack = await client.connect(caller, will=packet.will, **login)  # type: ignore[arg-type]
        if connack.reason_code or packet.send is None:
            return connack.reason_code
        code = await packet.send(client)
        if packet.is_delivered and code <= ReasonCode.GRANTED_QOS_2:
            assert (await client.message()).payload == b"retained"
        else:
            assert not [each for each in await client.ping() if isinstance(each, packets.PublishPacket)]
        await client.disconnect()
        return code


def stored(world: AccessWorld) -> int:
    """How many messages the topic of the route has."""
    topic = world.node.broker.find_topic(TopicName("mqtt", "messages"))
    return topic.published_messages if topic is not None else 0
